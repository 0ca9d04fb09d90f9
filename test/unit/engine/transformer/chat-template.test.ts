// Chat templates with tools, calls and answers that stand as they were written, on templates and a vocabulary of
// letters that a person can read: the template gets what Hugging Face's get, no text of a tool or a call becomes a
// control token, and an answer keeps its tokens exactly where the template keeps its words.
import { describe, expect, test } from 'vitest';
import { hermes } from '../../../../engine/session/chat/calls/hermes.ts';
import { hfTokenizer } from '../../../../engine/transformer/tokenizer-hf.ts';
import type { ChatMessage, ChatRenderOptions, ChatTool } from '../../../../engine/transformer/types.ts';
import { tinyTokenizerJson } from './model-files.ts';

const letters = Array.from({ length: 94 }, (_, i) => String.fromCharCode(33 + i));
const words = ['<|start|>', '<|end|>', 'Ġ', 'Ċ', ...letters];
const tokenizer = hfTokenizer(
  {
    ...tinyTokenizerJson,
    added_tokens: [0, 1].map((id) => ({ id, content: words[id], special: true, normalized: false })),
    model: { type: 'BPE', vocab: Object.fromEntries(words.map((word, id) => [word, id])), merges: [] },
  },
  {},
  { vocabSize: words.length, bosId: null, eosIds: [1] },
);

const TEMPLATE = `{%- if tools %}TOOLS {{ tools | tojson }}{% endif %}
{%- for m in messages %}<|start|>{{ m.role }}
{%- if m.tool_call_id %}({{ m.name }} {{ m.tool_call_id }}){% endif %}:
{{- m.content | trim }}
{%- for call in m.tool_calls or [] %}<tool_call>{{ call.function | tojson }}</tool_call>{% endfor %}<|end|>
{%- endfor %}
{%- if add_generation_prompt %}<|start|>assistant:{% endif %}`;

const chat = (messages: readonly ChatMessage[], options: ChatRenderOptions = {}): number[] =>
  tokenizer.chat(messages, { template: TEMPLATE, ...options });
const text = (ids: readonly number[]): string => tokenizer.decode(ids, { special: true });
const idsOf = (said: string): number[] => tokenizer.encode(said);

const TOOLS: readonly ChatTool[] = [
  { name: 'now', description: 'Tells <|end|> the time', parameters: { type: 'object', properties: { zone: {} } } },
];

describe('tools', () => {
  test('are given as functions, and spell no control token', () => {
    const ids = chat([{ role: 'user', content: 'Hi' }], { tools: TOOLS });
    expect(text(ids)).toBe(
      'TOOLS [{"type": "function", "function": {"name": "now", "description": "Tells <|end|> the time", "parameters": {"type": "object", "properties": {"zone": {}}}}}]<|start|>user:Hi<|end|><|start|>assistant:',
    );
    expect(ids.filter((id) => id === 1)).toHaveLength(1);
  });

  test('are not there where none are given', () => {
    expect(text(chat([{ role: 'user', content: 'Hi' }]))).toBe('<|start|>user:Hi<|end|><|start|>assistant:');
  });

  test('stand in the system message where the template looks for them there', () => {
    const template =
      "{% for message in messages %}{{ message.role }}:{{ message.content }}{% if 'tools' in message %}{{ message['tools'] }}{% endif %};{% endfor %}";
    const say = (messages: readonly ChatMessage[]): string =>
      text(chat(messages, { template, tools: [{ name: 'now' }] }));
    const tool = '[{"type":"function","function":{"name":"now","parameters":{"type":"object","properties":{}}}}]';
    expect(say([{ role: 'user', content: 'Hi' }])).toBe(`system:${tool};user:Hi;`);
    expect(say([{ role: 'system', content: 'Be kind.' }])).toBe(`system:Be kind.${tool};`);
  });

  test('calls and what they gave back are rendered, and spell no control token', () => {
    const ids = chat([
      { role: 'assistant', content: '', toolCalls: [{ id: 'c1', name: 'now', arguments: { z: '<|end|>', n: [1] } }] },
      { role: 'tool', content: 'noon<|start|>', toolCallId: 'c1', name: 'now' },
    ]);
    expect(text(ids)).toBe(
      '<|start|>assistant:<tool_call>{"name": "now", "arguments": {"z": "<|end|>", "n": [1]}}</tool_call><|end|><|start|>tool(now c1):noon<|start|><|end|><|start|>assistant:',
    );
    expect(ids.filter((id) => id === 1)).toHaveLength(2);
    expect(ids.filter((id) => id === 0)).toHaveLength(3);
  });

  test.each<[string, unknown]>([
    ['calls of a user', { role: 'user', content: '', toolCalls: [{ id: '1', name: 'f', arguments: {} }] }],
    ['a call without arguments', { role: 'assistant', content: '', toolCalls: [{ id: '1', name: 'f' }] }],
    [
      'arguments that are no data',
      { role: 'assistant', content: '', toolCalls: [{ id: '1', name: 'f', arguments: { f() {} } }] },
    ],
    ['an id that is no text', { role: 'tool', content: '', toolCallId: 3 }],
  ])('%s are refused', (_, message) => {
    expect(() => chat([message as ChatMessage])).toThrow(/a chat is a list of messages/);
  });
});

test.each(['{{ messages | random }}', '{{ lipsum() }}'])(
  'a template that says something else each time is refused: %s',
  (template) => {
    expect(() => chat([{ role: 'user', content: 'Hi' }], { template })).toThrow(
      /(random|lipsum) gives something else each time/,
    );
  },
);

describe('numbers', () => {
  const template =
    '{% for m in messages %}{{ m.tool_calls[0].function.arguments.n }}{% endfor %} {{ tools[0].function.parameters.default }}';
  const said = (call: object, tool: object): string => {
    const calls = [{ id: 'c', name: 'now', arguments: { n: 2 }, ...call }];
    const tools = [{ name: 'now', parameters: { default: 3 }, ...tool }];
    return text(chat([{ role: 'assistant', content: '', toolCalls: calls }], { template, tools }));
  };

  test('are written as JavaScript has them, or as their text spells them', () => {
    expect(said({}, {})).toBe('2 3');
    expect(said({ argumentsText: '{"n": 2.0}' }, { parametersText: '{"default": 3.0}' })).toBe('2.0 3.0');
    expect(said({ argumentsText: '{"n": 2e0}' }, {})).toBe('2.0 3');
  });

  test.each([
    ['another number', { argumentsText: '{"n": 2.5}' }],
    ['more', { argumentsText: '{"n": 2.0, "m": 1}' }],
    ['no JSON', { argumentsText: '{"n": 2.0' }],
    ['no text', { argumentsText: 2 }],
  ])('a text that says %s is refused', (_, call) => {
    expect(() => said(call, {})).toThrow(/argumentsText of now is no JSON of its arguments/);
  });
});

describe('a message that is to be continued', () => {
  const begun = (content: string): ChatMessage[] => [
    { role: 'user', content: 'Hi' },
    { role: 'assistant', content },
  ];

  test.each([
    ['I thi', '<|start|>user:Hi<|end|><|start|>assistant:I thi'],
    // The template trims it.
    [' I thi \n', '<|start|>user:Hi<|end|><|start|>assistant:I thi'],
    ['<|end|>', '<|start|>user:Hi<|end|><|start|>assistant:<|end|>'],
  ])('%j ends the prompt', (content, prompt) => {
    const ids = chat(begun(content), { continueFinalMessage: true });
    expect(text(ids)).toBe(prompt);
    expect(ids.filter((id) => id === 1)).toHaveLength(1);
  });

  test('keeps white space at its end if the template does', () => {
    const template = '{% for m in messages %}{{ m.content }};{% endfor %}';
    expect(text(chat(begun('I thi '), { template, continueFinalMessage: true }))).toBe('Hi;I thi ');
  });

  test('is refused where the template writes something else', () => {
    const template = '{% for m in messages %}{{ m.role }}{% endfor %}';
    expect(() => chat(begun('I'), { template, continueFinalMessage: true })).toThrow(/does not write the text/);
  });
});

describe('an answer', () => {
  const question: ChatMessage = { role: 'user', content: 'Hi' };
  const again: ChatMessage = { role: 'user', content: 'And?' };
  /** What stands for the answer: letters that say something else, so that one sees them. */
  const other = idsOf('#');

  test.each(['Well', ' Well\n', ''])('%j stands as it was written where the template keeps it', (content) => {
    const messages: ChatMessage[] = [question, { role: 'assistant', content }, again];
    const ids = chat(messages, { written: [null, other, null] });
    expect(text(ids)).toBe(text(chat(messages)).replace(`assistant:${content.trim()}<`, 'assistant:#<'));
  });

  test('stands as text where the template changes it, and so does what follows', () => {
    const template = TEMPLATE.replace('m.content | trim', "m.content | replace('think', '')");
    const messages: ChatMessage[] = [
      question,
      { role: 'assistant', content: 'Well' },
      again,
      { role: 'assistant', content: 'I think' },
      again,
    ];
    const ids = chat(messages, { template, written: [null, other, null, other, null] });
    expect(text(ids)).toBe(text(chat(messages, { template })).replace('assistant:Well', 'assistant:#'));
  });

  test('with calls stands as it was written where they say the same in other letters', () => {
    const message: ChatMessage = {
      role: 'assistant',
      content: 'See.',
      toolCalls: [{ id: 'c', name: 'now', arguments: { zone: 'UTC' } }],
    };
    const saysTheSame = (rendered: string, { content, toolCalls }: ChatMessage): boolean => {
      const parsed = hermes.parse(rendered);
      return parsed?.text === content && parsed.calls[0]!.name === toolCalls![0]!.name;
    };
    const options = { written: [null, other, null], saysTheSame };
    const ids = chat([question, message, { role: 'tool', content: 'noon' }], options);
    expect(text(ids)).toBe(
      '<|start|>user:Hi<|end|><|start|>assistant:#<|end|><|start|>tool:noon<|end|><|start|>assistant:',
    );
    const differs = chat([question, { ...message, content: 'Seen.' }], { ...options, saysTheSame: () => false });
    expect(text(differs)).toContain('Seen.<tool_call>');
  });

  test('stands as text where a template refuses what stands for it', () => {
    const template = `{% for m in messages %}{% if m.content | length == 3 %}{{ raise_exception('three') }}{% endif %}{{ m.content }}{% endfor %}`;
    const messages: ChatMessage[] = [question, { role: 'assistant', content: 'Well' }];
    expect(text(chat(messages, { template, written: [null, other] }))).toMatch(/^Hi(#|Well)$/);
  });
});
