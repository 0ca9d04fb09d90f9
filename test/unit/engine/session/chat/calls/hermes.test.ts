// Calls as Hermes and Qwen write them, as they come and malformed: what is no call comes back as text, and nothing
// throws.
import { expect, it } from 'vitest';
import { hermes } from '../../../../../../engine/session/chat/calls/hermes.ts';
import { staysText } from './malformed.ts';

it('reads one call, several, and what is said around them', () => {
  expect(hermes.parse('<tool_call>\n{"name": "now", "arguments": {"zone": "UTC"}}\n</tool_call>')).toEqual({
    text: '',
    calls: [{ name: 'now', arguments: { zone: 'UTC' } }],
  });
  const two = 'I look.\n<tool_call>{"name":"a","arguments":{}}</tool_call>\n<tool_call>{"name":"b"}</tool_call>';
  expect(hermes.parse(two)).toEqual({
    text: 'I look.',
    calls: [
      { name: 'a', arguments: {} },
      { name: 'b', arguments: {} },
    ],
  });
});

it('reads arguments that are JSON in a string, nested ones, and a call whose end mark the end of the answer took', () => {
  expect(hermes.parse('<tool_call>{"name": "f", "arguments": "{\\"x\\": [1, {\\"y\\": null}]}"}')?.calls).toEqual([
    { name: 'f', arguments: { x: [1, { y: null }] } },
  ]);
  expect(hermes.parse('<tool_call>{"name": "f", "arguments": {"html": "</b> \\"}{\\""}}</tool_call>')?.calls).toEqual([
    { name: 'f', arguments: { html: '</b> "}{"' } },
  ]);
});

it.each(staysText)('leaves %j as text', (inner) => {
  expect(hermes.parse(`<tool_call>${inner}</tool_call>`)).toBeNull();
});

it('finds no call where none is, and not half of them where one is malformed', () => {
  expect(hermes.parse('Just words about a tool_call.')).toBeNull();
  expect(hermes.parse('<tool_call>{"name":"a"}</tool_call><tool_call>{"name":</tool_call>')).toBeNull();
});

it('is told by its mark, but not where XML stands between the marks', () => {
  expect(hermes.isOf('{% if tools %}<tool_call>{% endif %}')).toBe(true);
  expect(hermes.isOf('<tool_call><function=name>')).toBe(false);
  expect(hermes.isOf('<|im_start|>')).toBe(false);
});

it('tells how numbers were written, where JavaScript cannot say it', () => {
  const calls = (given: string): unknown =>
    hermes.parse(`<tool_call>{"name": "f", "arguments": ${given}}</tool_call>`)?.calls;
  expect(calls('{"x": 2, "y": 2.5}')).toEqual([{ name: 'f', arguments: { x: 2, y: 2.5 } }]);
  const spelled = '{"x":2.0,"2":12345678901234567890}';
  expect(calls('{"x": 2.0, "2": 12345678901234567890}')).toEqual([
    { name: 'f', arguments: { x: 2, 2: Number('12345678901234567890') }, argumentsText: spelled },
  ]);
});
