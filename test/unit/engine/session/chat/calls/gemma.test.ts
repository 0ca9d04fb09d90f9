// Calls as FunctionGemma and Gemma 4 write them, in a notation of their own: what is no call comes back as text, and
// nothing throws.
import { expect, it } from 'vitest';
import { gemma } from '../../../../../../engine/session/chat/calls/gemma.ts';

it('reads values of every kind', () => {
  const inner =
    'call:plan{city:<escape>São {Paulo}, "here"<escape>,days:3,cold:-1.5,sure:true,none:null,word:celsius,list:[1,<escape>two<escape>,[]],in:{a:{b:false}}}';
  expect(gemma.parse(`<start_function_call>${inner}<end_function_call>`)).toEqual({
    text: '',
    calls: [
      {
        name: 'plan',
        arguments: {
          city: 'São {Paulo}, "here"',
          days: 3,
          cold: -1.5,
          sure: true,
          none: null,
          word: 'celsius',
          list: [1, 'two', []],
          in: { a: { b: false } },
        },
      },
    ],
  });
});

it('reads the marks of Gemma 4, several calls, and what is said around them', () => {
  const two = 'So. <|tool_call>call:a{x:<|"|>1<|"|>}<tool_call|><|tool_call>call:b{}<tool_call|>';
  expect(gemma.parse(two)).toEqual({
    text: 'So.',
    calls: [
      { name: 'a', arguments: { x: '1' } },
      { name: 'b', arguments: {} },
    ],
  });
});

it.each([
  '',
  'call:',
  'call:f',
  'call:f{',
  'call:f{x}',
  'call:f{x:}',
  'call:f{x:1',
  'call:f{x:1}}',
  'call:f{x:1 y:2}',
  'call:f{x:<escape>open}',
  'call:f{,}',
  'f{x:1}',
  `call:f{x:${'['.repeat(100_000)}}`,
])('leaves %j as text', (inner) => {
  expect(gemma.parse(`<start_function_call>${inner}<end_function_call>`)).toBeNull();
});

it('keeps a field of any name as data', () => {
  const { calls } = gemma.parse('<start_function_call>call:f{__proto__:{x:1}}<end_function_call>')!;
  expect(Object.keys(calls[0]!.arguments)).toEqual(['__proto__']);
  expect(gemma.parse('```tool_code\nf(1)\n```')).toBeNull();
});

it('is told by its marks', () => {
  expect(gemma.isOf('<start_function_call>')).toBe(true);
  expect(gemma.isOf('<|tool_call>')).toBe(true);
  expect(gemma.isOf('<|tool_call|> <start_of_turn>')).toBe(false);
});

it('tells how numbers were written, where JavaScript cannot say it', () => {
  expect(gemma.parse('<|tool_call>call:a{x:2.0}<tool_call|>')?.calls).toEqual([
    { name: 'a', arguments: { x: 2 }, argumentsText: '{"x":2.0}' },
  ]);
});
