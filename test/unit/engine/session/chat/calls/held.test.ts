// An answer that comes in pieces, cut anywhere: what is no part of a call is passed on, a call is held back, and what
// turns out to be none is passed on at the end, so that no character is lost. And the way of writing calls is chosen by
// the marks of a template.
import { expect, it } from 'vitest';
import { CALL_FORMATS, callFormatOf } from '../../../../../../engine/session/chat/calls/formats.ts';
import { gemma } from '../../../../../../engine/session/chat/calls/gemma.ts';
import { HeldCalls } from '../../../../../../engine/session/chat/calls/held.ts';
import { hermes } from '../../../../../../engine/session/chat/calls/hermes.ts';
import { llama } from '../../../../../../engine/session/chat/calls/llama.ts';
import { mistral } from '../../../../../../engine/session/chat/calls/mistral.ts';
import { phi } from '../../../../../../engine/session/chat/calls/phi.ts';

function through(format: typeof hermes, answer: string, size: number, isCut = false) {
  const held = new HeldCalls(format);
  let shown = '';
  for (let at = 0; at < answer.length; at += size) shown += held.push(answer.slice(at, at + size));
  const { parsed, rest } = held.end(isCut);
  return { shown, rest, calls: parsed?.calls.map(({ name }) => name) ?? null };
}

it.each([1, 2, 3, 7, 1000])('in pieces of %d characters', (size) => {
  const call = '<tool_call>{"name": "f", "arguments": {}}</tool_call>';
  expect(through(hermes, `Let me see. ${call}`, size)).toEqual({ shown: 'Let me see. ', rest: '', calls: ['f'] });
  const none = 'a <tool_cal and <tool_call> b';
  expect(through(hermes, none, size)).toEqual({ shown: 'a <tool_cal and ', rest: '<tool_call> b', calls: null });
  expect(through(hermes, 'a < b', size)).toMatchObject({ calls: null });
  const { shown, rest } = through(hermes, 'ends with <tool', size);
  expect(shown + rest).toBe('ends with <tool');
  const json = '  {"name": "f", "parameters": {}}';
  expect(through(llama, json, size)).toEqual({ shown: '', rest: '', calls: ['f'] });
  expect(through(llama, '{"a": 1}', size)).toEqual({ shown: '', rest: '{"a": 1}', calls: null });
  expect(through(llama, 'Words {"name"', size)).toEqual({ shown: 'Words {"name"', rest: '', calls: null });
  expect(through(llama, '', size)).toEqual({ shown: '', rest: '', calls: null });
});

const CALL = '{"name": "f", "arguments": {"a": {"b": "}"}}}';
it.each([
  [hermes, `So: <tool_call>${CALL}</tool_call>\n`, '<tool_call>{"name": "f", "arguments": {"a": {"b": 1}'],
  [hermes, `<tool_call>${CALL}</tool_call><tool_call>${CALL}</tool_call>`, '<tool_call>'],
  [llama, `${CALL}; `, CALL.slice(0, -1)],
  [mistral, `[TOOL_CALLS] [${CALL}, `, CALL.slice(0, -2)],
  [mistral, '[TOOL_CALLS]f[ARGS]{"a": 1}', '[TOOL_CALLS]f[ARGS]{"a": {"b": 1}'],
  [phi, `functools[${CALL}, `, CALL.slice(0, -9)],
  [phi, `<|tool_call|>[${CALL}, `, '{"name": "f"'],
  [gemma, '<|tool_call>call:f{a:1}<tool_call|>', '<|tool_call>call:f{a:{b:1}'],
])('%o: calls before one that is cut are calls, and it is text', (format, whole, cut) => {
  const held = new HeldCalls(format);
  held.push(whole + cut);
  const { parsed } = held.end(true);
  const before = new HeldCalls(format);
  before.push(whole.replace(/, $/, ']'));
  expect(parsed!.calls).toEqual(before.end().parsed!.calls);
  expect(parsed!.text.endsWith(cut)).toBe(true);
  // What was not cut is malformed, and stays text as a whole.
  const malformed = new HeldCalls(format);
  malformed.push(whole + cut);
  expect(malformed.end().parsed).toBeNull();
  const first = new HeldCalls(format);
  first.push(cut);
  expect(first.end(true).parsed).toBeNull();
});

it('is chosen by the marks of a template', () => {
  const templates = ['<start_function_call>', '[TOOL_CALLS]', '<|tool|>', '<tool_call>', '<|python_tag|>'];
  expect(templates.map((template) => callFormatOf(template))).toEqual(CALL_FORMATS);
  expect(callFormatOf('<|im_start|>')).toBeNull();
});
