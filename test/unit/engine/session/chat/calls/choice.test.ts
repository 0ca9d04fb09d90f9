// What an answer follows by its choice, token by token: free until a mark is complete, however tokens cut it, and the
// grammar of calls from there on; a token that says more behind a mark than a call can is refused; where no call may
// begin, no mark is completed. Without the library 'auto' leaves all of it free, and a call that is wanted says what to
// install.

import { rmSync } from 'node:fs';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import type { ToolChoice } from '../../../../../../engine/index.ts';
import { openChosen } from '../../../../../../engine/session/chat/calls/choice.ts';
import { callFormatOf } from '../../../../../../engine/session/chat/calls/formats.ts';
import { hermes } from '../../../../../../engine/session/chat/calls/hermes.ts';
import { allows, type Following } from '../../../../../../engine/transformer/grammar/constraint.ts';
import { Grammars } from '../../../../../../engine/transformer/grammar/grammars.ts';
import { loadModel } from '../../../../../../engine/transformer/load.ts';
import type { ChatTool, LoadedModel } from '../../../../../../engine/transformer/types.ts';
import { refused } from '../../../../../refusal.ts';
import { codeOf, MODEL } from '../../../on-reference.ts';
import { markedModel } from './marked-model.ts';

const TOOLS: readonly ChatTool[] = [
  { name: 'now', description: 'Tells the time' },
  {
    name: 'weather',
    parameters: { type: 'object', properties: { city: { enum: ['Rome', 'Oslo'] } }, required: ['city'] },
  },
];
const folder = markedModel(hermes.controls);
let model: LoadedModel;
let marked: LoadedModel;
/** Of each model. */
const grammars = new Map<LoadedModel, Grammars>();
beforeAll(async () => {
  model = await loadModel(MODEL, {});
  marked = await loadModel(folder, {});
  for (const one of [model, marked]) grammars.set(one, Grammars.of(one));
});
afterAll(async () => {
  for (const one of [model, marked]) {
    await grammars.get(one)!.close();
    one.weights.close();
  }
  rmSync(folder, { recursive: true });
});

const open = (choice: ToolChoice | undefined, template = '<tool_call>', of = model, tools = TOOLS) =>
  openChosen(of, grammars.get(of)!, { choice, tools, template, format: callFormatOf(template) }).then(
    (opened) => opened?.following ?? null,
  );

/**
 * Writes a text byte by byte, or in the tokens that the model has for it. → how far it came, and whether it was
 * complete there
 */
async function write(following: Following, text: string, of = model, whole = false): Promise<[string, boolean | null]> {
  const bytes = new Map<number, number>();
  for (let id = 0; id < of.config.vocabSize; id++) {
    const piece = of.tokenizer.bytes(id);
    if (piece.length === 1) bytes.set(piece[0]!, id);
  }
  const ids = whole
    ? of.tokenizer.encode(text, { special: true })
    : [...Buffer.from(text)].map((byte) => bytes.get(byte)!);
  let written = '';
  for (const id of ids) {
    if ((await following.refuses(id)) || (following.mask !== null && !allows(following.mask, id))) break;
    await following.accept(id);
    written += of.tokenizer.decode([id], { continues: true, special: true });
  }
  return [written, following.isComplete];
}

const WEATHER = '<tool_call>\n{"name": "weather", "arguments": {"city": "Oslo"}}\n</tool_call>';

describe.each([false, true])("with 'auto', in whole tokens: %s,", (whole) => {
  it.each<[string, string, string, boolean | null]>([
    ['<tool_call>', 'No call, but a < b and <tool_ and {"x": 1}.', 'No call, but a < b and <tool_ and {"x": 1}.', null],
    ['<tool_call>', `Let me see. ${WEATHER}`, `Let me see. ${WEATHER}`, true],
    ['<tool_call>', `${WEATHER}\n${WEATHER}`, `${WEATHER}\n${WEATHER}`, true],
    ['<|python_tag|>', ' {"name": "now", "parameters": {}}', ' {"name": "now", "parameters": {}}', true],
    ['<|python_tag|>', 'So: {"name": "Bob"}', 'So: {"name": "Bob"}', null],
    [
      '[TOOL_CALLS][ARGS]',
      '[TOOL_CALLS]now[ARGS]{}[TOOL_CALLS]now[ARGS]{}',
      '[TOOL_CALLS]now[ARGS]{}[TOOL_CALLS]now[ARGS]{}',
      true,
    ],
    ['functools', 'functools[{"name": "now", "arguments": {}}]', 'functools[{"name": "now", "arguments": {}}]', true],
    [
      '<|tool_call>',
      '<|tool_call>call:weather{city:<|"|>Rome<|"|>}<tool_call|>',
      '<|tool_call>call:weather{city:<|"|>Rome<|"|>}<tool_call|>',
      true,
    ],
  ])('%s: %j', async (template, text, written, complete) => {
    const following = (await open('auto', template))!;
    expect(await write(following, text, model, whole)).toEqual([written, complete]);
    following.close();
  });
});

it.each<[ToolChoice, string, string]>([
  ['auto', '<tool_call>\n{"name": "tomorrow"', '<tool_call>\n{"name": "'],
  [
    'auto',
    '<tool_call>{"name": "weather", "arguments": {"city": "Bonn',
    '<tool_call>{"name": "weather", "arguments": {"city": "',
  ],
  ['auto', `${WEATHER} and more`, WEATHER],
  ['none', 'I call: <tool_call>{', 'I call: <tool_call'],
  ['required', 'Words', ''],
  [{ name: 'now' }, '<tool_call>{"name": "weather"', '<tool_call>{"name": "'],
  [
    { name: 'now' },
    '<tool_call>{"name": "now", "arguments": {}}</tool_call>\n',
    '<tool_call>{"name": "now", "arguments": {}}</tool_call>',
  ],
])('with %j, of %j it writes %j', async (choice, text, written) => {
  const following = (await open(choice))!;
  expect((await write(following, text))[0]).toBe(written);
  following.close();
});

it('asks for the token of a mark where there is one, and knows the mark when it is spelled', async () => {
  const required = (await open('required', '<tool_call>', marked))!;
  expect((await write(required, '<tool_call>', marked))[0]).toBe('');
  expect(await write(required, WEATHER, marked, true)).toEqual([WEATHER, true]);
  const auto = (await open('auto', '<tool_call>', marked))!;
  expect(await write(auto, `So: ${WEATHER.slice(0, -12)}`, marked)).toEqual([`So: ${WEATHER.slice(0, -12)}`, false]);
  expect(await write(auto, '</tool_call>', marked, true)).toEqual(['</tool_call>', true]);
  const none = (await open('none', '<tool_call>', marked))!;
  expect((await write(none, WEATHER, marked, true))[0]).toBe('');
  for (const one of [required, auto, none]) one.close();
});

it('keeps marks that stand in texts of arguments', async () => {
  const parameters = { type: 'object', properties: { text: { type: 'string' } }, required: ['text'] };
  for (const template of ['<tool_call>', '[TOOL_CALLS]', '[TOOL_CALLS][ARGS]', 'functools', '<|python_tag|>']) {
    const format = callFormatOf(template)!;
    const text = [...format.controls, 'functools[', '{"'].join(' ');
    const tools = [{ name: 'say', parameters }];
    const given = JSON.stringify({ text }).replace('":', '": ');
    const call = {
      hermes: `<tool_call>{"name": "say", "arguments": ${given}}</tool_call>`,
      llama: `{"name": "say", "parameters": ${given}}`,
      phi: `<|tool_call|>[{"name": "say", "arguments": ${given}}]<|/tool_call|>`,
      mistral: template.includes('ARGS')
        ? `[TOOL_CALLS]say[ARGS]${given}`
        : `[TOOL_CALLS][{"name": "say", "arguments": ${given}}]`,
    }[format.name]!;
    const following = (await open('required', template, model, tools))!;
    expect(await write(following, call)).toEqual([call, true]);
    expect(format.parse(call)).toEqual({ text: '', calls: [{ name: 'say', arguments: { text } }] });
    following.close();
  }
});

describe('without the library', () => {
  let without: Grammars;
  beforeAll(() => {
    without = Grammars.of(model, { library: '@mlc-ai/web-xgrammar-that-is-not-installed' });
  });
  afterAll(() => without.close());
  const choose = (choice: ToolChoice) => {
    return openChosen(model, without, { choice, tools: TOOLS, template: '<tool_call>', format: hermes });
  };

  it("'auto' leaves an answer free, and 'none' needs none", async () => {
    expect(await choose('auto')).toBeNull();
    expect((await write((await choose('none'))!.following, '<tool_call>'))[0]).toBe('<tool_call');
  });

  it.each<[ToolChoice]>([['required'], [{ name: 'now' }]])('%j says what to install', async (choice) => {
    expect(await refused(choose(choice))).toMatchObject({
      code: 'missing-dependency',
      hint: 'npm install @mlc-ai/web-xgrammar@0.1.27',
    });
  });
});

it.each<[string, object, string]>([
  ['not', { not: {} }, '<tool_call>'],
  ['no object', { type: 'string' }, '<tool_call>'],
  ['objects or texts', { anyOf: [{ type: 'object' }, { type: 'string' }] }, '<tool_call>'],
  ['a reference to no object', { $ref: '#/$defs/a', $defs: { a: { type: 'null' } } }, '<tool_call>'],
  ['a pattern in a quote of its own', { properties: { a: { type: 'string', pattern: '^a$' } } }, '<|tool_call>'],
  ['a value that would be a mark', { properties: { a: { const: '<tool_call|>' } } }, '<|tool_call>'],
])('refuses arguments with %s', async (_, parameters, template) => {
  const tools = [{ name: 'f', parameters }] as readonly ChatTool[];
  for (const choice of ['auto', 'required', { name: 'f' }] as const) {
    const error = await refused(open(choice, template, model, tools));
    expect(error.message).toContain('the tool f');
    expect(['unsupported', 'bad-argument']).toContain(error.code);
  }
});

it('refuses a name that cannot stand without quotation marks, and a call where nobody knows how one is written', async () => {
  const tools = [{ name: 'of the sea' }];
  for (const template of ['<|tool_call>', '[TOOL_CALLS][ARGS]'])
    expect(await codeOf(open('auto', template, model, tools))).toBe('unsupported');
  (await open('auto', '<tool_call>', model, tools))!.close();
  expect(await codeOf(open('required', 'tools'))).toBe('unsupported');
  expect(await open('auto', 'tools')).toBeNull();
});
