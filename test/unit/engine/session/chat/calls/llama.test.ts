// Calls as Llama 3 writes them, with and without its tag, in JSON and of its built-in tools: what is no call comes back
// as text, and nothing throws.
import { expect, it } from 'vitest';
import { llama } from '../../../../../../engine/session/chat/calls/llama.ts';
import { staysText } from './malformed.ts';

it('reads an answer that is a call, or several', () => {
  expect(llama.parse('{"name": "now", "parameters": {"zone": "UTC"}}')).toEqual({
    text: '',
    calls: [{ name: 'now', arguments: { zone: 'UTC' } }],
  });
  const two =
    '<|python_tag|>{"type": "function", "name": "a", "parameters": {}}; {"name": "b", "parameters": {"x": "}"}}';
  expect(llama.parse(two)?.calls).toEqual([
    { name: 'a', arguments: {} },
    { name: 'b', arguments: { x: '}' } },
  ]);
});

it('reads calls of built-in tools behind the tag, and what was said before', () => {
  expect(llama.parse('One moment. <|python_tag|>brave_search.call(query="bees \\"and\\" honey", n="3")')).toEqual({
    text: 'One moment.',
    calls: [{ name: 'brave_search', arguments: { query: 'bees "and" honey', n: '3' } }],
  });
});

it.each(staysText)('leaves %j as text', (answer) => {
  expect(llama.parse(answer)).toBeNull();
  expect(llama.parse(`<|python_tag|>${answer}`)).toBeNull();
});

it.each([
  'Plain words.',
  '{"name": "Bob", "age": 3}',
  '{"a": 1}',
  'search.call(query="no tag")',
  '<|python_tag|>print(1 + 1)',
  '<|python_tag|>search.call(query=unquoted)',
  '{"name": "a", "parameters": {}} and more',
])('leaves %j, which is an answer, as text', (answer) => {
  expect(llama.parse(answer)).toBeNull();
});

it('is told by its tag, or by its header and its word for arguments', () => {
  expect(llama.isOf('<|python_tag|>')).toBe(true);
  expect(llama.isOf('<|start_header_id|>{"name": x, "parameters": y}')).toBe(true);
  expect(llama.isOf('<|start_header_id|>')).toBe(false);
});
