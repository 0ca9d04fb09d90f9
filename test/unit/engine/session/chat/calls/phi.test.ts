// Calls as Phi-4-mini writes them, between marks and behind its word: what is no call comes back as text, and nothing
// throws.
import { expect, it } from 'vitest';
import { phi } from '../../../../../../engine/session/chat/calls/phi.ts';
import { staysText } from './malformed.ts';

it('reads lists of calls, and one call by itself', () => {
  expect(phi.parse('Yes: <|tool_call|>[{"name": "a", "arguments": {"x": 1}}]<|/tool_call|>')).toEqual({
    text: 'Yes:',
    calls: [{ name: 'a', arguments: { x: 1 } }],
  });
  expect(phi.parse(' functools[{"name": "a", "arguments": {}}, {"name": "b", "arguments": {}}]')?.calls).toEqual([
    { name: 'a', arguments: {} },
    { name: 'b', arguments: {} },
  ]);
  expect(phi.parse('<|tool_call|>{"name": "a", "arguments": {}}')?.calls).toHaveLength(1);
});

it.each(staysText)('leaves %j as text', (inner) => {
  expect(phi.parse(`<|tool_call|>${inner}<|/tool_call|>`)).toBeNull();
  expect(phi.parse(`functools${inner}`)).toBeNull();
});

it('is told by its marks', () => {
  for (const template of ['<|tool|>', '<|tool_call|>', 'functools']) expect(phi.isOf(template)).toBe(true);
  expect(phi.isOf('<|tool_call>')).toBe(false);
});
