// Conversations as OpenAI servers take them, read from a file: what templates get of them, and what is refused.
import { expect, test } from 'vitest';
import { type ReadConversation, conversationIn as read } from '../../../../engine/transformer/conversation-file.ts';
import { refusal } from '../../../refusal.ts';

const conversationIn = (json: unknown): ReadConversation => read(Buffer.from(JSON.stringify(json)), 'chat.json');
const question = { role: 'user', content: 'Hi' } as const;

test('a list of messages is a conversation without tools', () => {
  expect(conversationIn([question])).toEqual({
    messages: [question],
    options: { tools: [], addGenerationPrompt: true, continueFinalMessage: false },
  });
});

test('calls have their arguments as data or as JSON, and what is null is left out', () => {
  const call = (args: unknown): object => ({ id: 'c', type: 'function', function: { name: 'now', arguments: args } });
  const { messages, options } = conversationIn({
    messages: [
      { role: 'assistant', content: null, tool_calls: [call({ zone: 0 }), call('{"zone": false}')] },
      { role: 'tool', content: 'noon', tool_call_id: 'c', name: null },
    ],
    tools: [{ type: 'function', function: { name: 'now' } }],
    add_generation_prompt: false,
    continue_final_message: true,
  });
  expect(messages).toEqual([
    {
      role: 'assistant',
      content: '',
      toolCalls: [
        { id: 'c', name: 'now', arguments: { zone: 0 } },
        { id: 'c', name: 'now', arguments: { zone: false } },
      ],
    },
    { role: 'tool', content: 'noon', toolCallId: 'c' },
  ]);
  expect(options).toEqual({ tools: [{ name: 'now' }], addGenerationPrompt: false, continueFinalMessage: true });
});

test('numbers of arguments and schemas stay as they were written, names in their order', () => {
  const call = (args: string): string => `{"id": "c", "function": {"name": "now", "arguments": ${args}}}`;
  const calls = [call('{"a": 2.0, "9": 1E3, "1": -0}'), call('"{\\"a\\": 2.0}"'), call('{"a": 2, "b": "2.0"}')];
  const schema = '{"type": "object", "properties": {"a": {"default": 2.0}}}';
  const json = `{"messages": [{"role": "assistant", "tool_calls": [${calls.join()}]}],
    "tools": [{"function": {"name": "now", "parameters": ${schema}}}]}`;
  const { messages, options } = read(Buffer.from(json), 'chat.json');
  expect(messages[0]!.toolCalls).toEqual([
    { id: 'c', name: 'now', arguments: { a: 2, 9: 1000, 1: 0 }, argumentsText: '{"a":2.0,"9":1000.0,"1":0}' },
    { id: 'c', name: 'now', arguments: { a: 2 }, argumentsText: '{"a":2.0}' },
    { id: 'c', name: 'now', arguments: { a: 2, b: '2.0' } },
  ]);
  expect(options.tools[0]!.parametersText).toBe(schema.replaceAll(' ', ''));
});

test.each<[string, unknown]>([
  ['null', null],
  ['a text', 'Hi'],
  ['an object without messages', { tools: [] }],
  ['a message of nobody', [{ content: 'Hi' }]],
  ['a message that is a number', [3]],
  ['tools that are no list', { messages: [question], tools: 'now' }],
  ['a tool without a name', { messages: [question], tools: [{ type: 'function', function: {} }] }],
  ['calls that are no list', [{ role: 'assistant', tool_calls: 'now' }]],
  ['a call that is a number', [{ role: 'assistant', tool_calls: [3] }]],
  [
    'arguments that are no JSON',
    [{ role: 'assistant', tool_calls: [{ id: 'c', function: { name: 'now', arguments: '{"a":1}{"b":2}' } }] }],
  ],
])('%s is refused', (_, json) => {
  expect(refusal(() => conversationIn(json)).code).toBe('bad-argument');
});
