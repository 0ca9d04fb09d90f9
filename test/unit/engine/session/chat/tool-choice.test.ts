// Chats whose answers call tools as their caller chooses, through the engine: calls that are forced fulfil their
// schemas at any temperature, also after rewind, regenerate and fork; 'auto' changes no answer that calls nothing, and
// lets none that begins a call leave it; 'none' calls nothing; and what cannot be is refused before anything is read.
import { rmSync } from 'node:fs';
import { Ajv2020 } from 'ajv/dist/2020.js';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import {
  type Chat,
  type ChatAnswer,
  type ChatOptions,
  createEngine,
  type Engine,
} from '../../../../../engine/index.ts';
import { hermes } from '../../../../../engine/session/chat/calls/hermes.ts';
import { renderChat } from '../../../../../engine/transformer/chat-template.ts';
import { loadModel } from '../../../../../engine/transformer/load.ts';
import { templateNamed } from '../../../../../engine/transformer/named-templates.ts';
import { codeOf } from '../../on-reference.ts';
import { markedModel } from './calls/marked-model.ts';

const template = (mark: string): string => `{% if tools %}{{ tools | tojson }}
{% endif %}{% for m in messages %}{{ m.role }}:{{ m.content }}
{% for call in m.tool_calls or [] %}${mark}
{{ call.function | tojson }}
{% endfor %}{% endfor %}{% if add_generation_prompt %}assistant:{% endif %}`;
const TOOLS = [
  { name: 'now', parameters: { type: 'object', properties: {}, additionalProperties: false } },
  {
    name: 'count',
    parameters: {
      type: 'object',
      properties: { what: { enum: ['bees', 'hives'] }, most: { type: 'integer', minimum: 1, maximum: 9 } },
      required: ['what'],
      additionalProperties: false,
    },
  },
];
const HOT = { temperature: 1.5, topK: 0, topP: 1, minP: 0 } as const;
const folder = markedModel(hermes.controls);
let engine: Engine;
beforeAll(async () => {
  engine = await createEngine({ model: folder, threads: 1, stateDir: null });
});
afterAll(async () => {
  await engine.close();
  rmSync(folder, { recursive: true });
});

const open = (options: ChatOptions = {}, mark = '<tool_call>'): Promise<Chat> =>
  engine.chat({ template: template(mark), tools: TOOLS, maxTokens: 96, ...HOT, ...options });

const ajv = new Ajv2020();
const checks = new Map(TOOLS.map(({ name, parameters }) => [name, ajv.compile(parameters)]));
/** Expects an answer that is calls of the tools alone. */
function expectCalls({ text, toolCalls, grammarComplete, callsConstrained }: ChatAnswer): void {
  expect([text, grammarComplete, callsConstrained]).toEqual(['', true, true]);
  expect(toolCalls.length).toBeGreaterThan(0);
  for (const call of toolCalls) expect(checks.get(call.name)?.(call.arguments), JSON.stringify(call)).toBe(true);
}

describe('a call', () => {
  it('that is forced is one, in every syntax and at any temperature', async () => {
    for (const mark of [
      '<tool_call>',
      '<|python_tag|>',
      '[TOOL_CALLS]',
      '[TOOL_CALLS][ARGS]',
      'functools',
      '<|tool_call>',
    ]) {
      const chat = await open({ toolChoice: { name: 'count' } }, mark);
      for (let turn = 0; turn < 3; turn++) {
        const answer = await chat.send('How many?', { seed: turn }).result;
        expectCalls(answer);
        expect(answer.toolCalls.map(({ name }) => name)).toEqual(['count']);
      }
      await chat.close();
    }
  });

  it('is asked for by the template that comes with the package, with every tool in the prompt', async () => {
    const chat = await open({ template: 'hermes', system: 'Be brief.', toolChoice: { name: 'count' } });
    expect(chat.callFormat).toBe('hermes');
    expectCalls(await chat.send('How many?').result);
    const text = renderChat({
      template: templateNamed('hermes'),
      messages: [
        { role: 'system', content: 'Be brief.' },
        { role: 'user', content: 'How many?' },
        { role: 'assistant', content: '', toolCalls: [{ id: 'a', name: 'now', arguments: {} }] },
        { role: 'tool', toolCallId: 'a', name: 'now', content: 'noon' },
      ],
      tools: TOOLS,
      addGenerationPrompt: true,
      continueFinalMessage: false,
      variables: {},
      date: new Date(),
    }).value;
    for (const { name } of TOOLS) expect(text).toContain(`"function": {"name": "${name}"`);
    const behind = text.slice(text.indexOf('<|im_end|>'));
    expect(text.startsWith('<|im_start|>system\nBe brief.\n')).toBe(true);
    expect(behind).toBe(
      `<|im_end|>
<|im_start|>user
How many?<|im_end|>
<|im_start|>assistant
<tool_call>
{"name": "now", "arguments": {}}
</tool_call><|im_end|>
<|im_start|>tool
<tool_response>
noon
</tool_response><|im_end|>
<|im_start|>assistant
`,
    );
    await chat.close();
  });

  it('stays forced when a chat goes back, answers anew and forks', async () => {
    const chat = await open({ toolChoice: { name: 'count' } });
    const first = await chat.send('How many?').result;
    expectCalls(first);
    for (let again = 0; again < 3; again++) expectCalls(await chat.regenerate().result);
    const [one, other] = [chat, await chat.fork()];
    const [mine, its] = [await one.send('And now?').result, await other.send('And now?').result];
    for (const answer of [mine, its]) expectCalls(answer);
    expect(its.toolCalls.map((call) => call.arguments)).toEqual(mine.toolCalls.map((call) => call.arguments));
    one.rewind();
    expect((await one.send('And now?').result).toolCalls.map((call) => call.arguments)).toEqual(
      mine.toolCalls.map((call) => call.arguments),
    );
    one.rewind(0);
    const again = await one.send('How many?').result;
    expect(again.toolCalls.map((call) => call.arguments)).toEqual(first.toolCalls.map((call) => call.arguments));
    for (const it of [one, other]) await it.close();
  });

  it('of a tool that may go unchecked says so, and the others stay checked', async () => {
    const bad = {
      name: 'bad',
      strict: false,
      parameters: { type: 'object', properties: { n: { not: { type: 'null' } } } },
    };
    const { tokenizer, weights } = await loadModel(folder, {});
    const [brace] = tokenizer.encode('}');
    weights.close();
    const chat = await open({ tools: [...TOOLS, bad] });
    const count = await chat.send('How many?', { toolChoice: { name: 'count' } }).result;
    expect([count.toolCalls.map(({ name }) => name), count.callsConstrained]).toEqual([['count'], true]);
    const any = await chat.send('How many?', { toolChoice: { name: 'bad' }, logitBias: { [brace!]: 100 } }).result;
    expect([any.toolCalls.map(({ name }) => name), any.callsConstrained]).toEqual([['bad'], false]);
    await chat.close();
  });

  it('of any tool is required for one answer, and not for the next', async () => {
    const chat = await open();
    const free = await chat.send('Hello', { maxTokens: 8 }).result;
    expect([free.callsConstrained, free.grammarComplete, free.tokens]).toEqual([false, null, 8]);
    for (let seed = 0; seed < 6; seed++) {
      const answer = await chat.send('Well?', { toolChoice: 'required', seed, stop: ['</tool_call>'] }).result;
      expect(answer.toolCalls.length).toBe(1);
      for (const call of answer.toolCalls) expect(checks.get(call.name)?.(call.arguments)).toBe(true);
    }
    await chat.close();
  });

  it('is the same with prompt look-up', async () => {
    const options = { toolChoice: { name: 'count' }, seed: 3 } as const;
    const [plain, drafted] = [await open(options), await open({ ...options, promptLookupTokens: 8 })];
    for (const question of ['How many?', 'How many?', 'How many?']) {
      const [a, b] = [await plain.send(question).result, await drafted.send(question).result];
      expectCalls(b);
      expect([b.toolCalls, b.tokens]).toEqual([a.toolCalls, a.tokens]);
    }
    for (const chat of [plain, drafted]) await chat.close();
  });

  it('that is cut off is text, and says so', async () => {
    const chat = await open({ toolChoice: 'required', maxTokens: 5 });
    const answer = await chat.send('How many?').result;
    expect(answer).toMatchObject({ toolCalls: [], finish: 'length', grammarComplete: false });
    expect(answer.text).toMatch(/^<tool_call>/);
    await chat.close();
  });
});

describe("'auto'", () => {
  it('leaves an answer that calls nothing as it is', async () => {
    for (const mark of ['<tool_call>', '<|python_tag|>', '[TOOL_CALLS]', 'functools', '<|tool_call>']) {
      const [free, auto] = [await open({}, mark), await open({ toolChoice: 'auto' }, mark)];
      for (let seed = 0; seed < 4; seed++) {
        const [a, b] = await Promise.all([free, auto].map((chat) => chat.send('Tell me.', { seed }).result));
        expect([b!.text, b!.tokens, b!.finish, b!.grammarComplete]).toEqual([a!.text, a!.tokens, a!.finish, null]);
        expect([a!.callsConstrained, b!.callsConstrained]).toEqual([false, true]);
      }
      for (const chat of [free, auto]) await chat.close();
    }
  });

  it('holds a call that begins to its schema, which otherwise may be anything', async () => {
    const id = engine.info.config.vocabSize - hermes.controls.length;
    const options = { logitBias: { [id]: 100 }, stop: ['</tool_call>'] };
    const auto = await open({ ...options, toolChoice: 'auto' });
    for (let seed = 0; seed < 5; seed++) {
      const answer = await auto.send('How many?', { seed }).result;
      expect(answer.toolCalls.length).toBe(1);
      for (const call of answer.toolCalls) expect(checks.get(call.name)?.(call.arguments)).toBe(true);
    }
    const free = await open({ ...options, maxTokens: 8 });
    expect((await free.send('How many?').result).text).toBe('<tool_call>'.repeat(8));
    const none = await open({ ...options, maxTokens: 8, toolChoice: 'none' });
    const answer = await none.send('How many?').result;
    expect([answer.toolCalls, answer.callsConstrained, answer.tokens]).toEqual([[], false, 8]);
    expect(answer.text).not.toContain('<tool_call>');
    for (const chat of [auto, free, none]) await chat.close();
  });
});

describe('is refused before anything is read:', () => {
  it.each<[string, ChatOptions, string]>([
    ['a choice that there is not', { toolChoice: 'any' as 'auto' }, 'bad-argument'],
    ['a choice with more than a name', { toolChoice: { name: 'now', type: 'function' } as never }, 'bad-argument'],
    ['a tool that there is not', { toolChoice: { name: 'then' } }, 'bad-argument'],
    ['a call without tools', { tools: [], toolChoice: 'required' }, 'bad-argument'],
    [
      'a schema that cannot be followed',
      { tools: [{ name: 'f', parameters: { not: { type: 'null' } } }], toolChoice: 'auto' },
      'unsupported',
    ],
  ])('%s', async (_, options, code) => {
    expect(await codeOf(open(options))).toBe(code);
    const { toolChoice, ...others } = options;
    const chat = await open(others);
    expect(await codeOf(chat.send('Hello', { toolChoice: toolChoice! }).result)).toBe(code);
    expect([chat.messages.length, (await chat.session.report()).tokens]).toEqual([0, 0]);
    await chat.close();
  });

  it('a call beside a grammar; with auto and none the grammar says all', async () => {
    const chat = await open();
    const grammar = { gbnf: 'root ::= "yes" | "no"' };
    expect(await codeOf(chat.send('Hello', { grammar, toolChoice: 'required' }).result)).toBe('bad-argument');
    for (const toolChoice of ['auto', 'none'] as const)
      expect((await chat.send('Well?', { grammar, toolChoice }).result).text).toMatch(/^(yes|no)$/);
    await chat.close();
  });
});
