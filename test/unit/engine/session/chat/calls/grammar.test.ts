// Calls that follow the grammar of their tools, in the syntax of every family, whether a model has tokens for its marks
// or spells them: some of each, of twenty tools with random schemas, drawn from random logits. Whatever is complete is
// parsed as calls of those tools, and another library (ajv) finds that arguments fulfil their schemas. And texts a byte
// at a time: what is a call, and what is none.
import { rmSync } from 'node:fs';
import { Ajv2020 } from 'ajv/dist/2020.js';
import { afterAll, describe, expect, it } from 'vitest';
import type { CallFormat } from '../../../../../../engine/session/chat/calls/call.ts';
import { CALL_FORMATS } from '../../../../../../engine/session/chat/calls/formats.ts';
import { gemma } from '../../../../../../engine/session/chat/calls/gemma.ts';
import { callGrammar } from '../../../../../../engine/session/chat/calls/grammar.ts';
import { hermes } from '../../../../../../engine/session/chat/calls/hermes.ts';
import { llama } from '../../../../../../engine/session/chat/calls/llama.ts';
import { mistral } from '../../../../../../engine/session/chat/calls/mistral.ts';
import { phi } from '../../../../../../engine/session/chat/calls/phi.ts';
import { markTokens } from '../../../../../../engine/session/chat/calls/watch.ts';
import { Grammars } from '../../../../../../engine/transformer/grammar/grammars.ts';
import { loadModel } from '../../../../../../engine/transformer/load.ts';
import { RandomNumbers } from '../../../../../../engine/transformer/sampling/random.ts';
import { Sampler } from '../../../../../../engine/transformer/sampling/sampler.ts';
import type { ChatTool, LoadedModel } from '../../../../../../engine/transformer/types.ts';
import { KvError } from '../../../../../../native/index.ts';
import { refused } from '../../../../../refusal.ts';
import { isForHome, volume } from '../../../../../tier.ts';
import { MODEL } from '../../../on-reference.ts';
import { randomSchema } from '../../../transformer/grammar/random-schema.ts';
import { RandomLogits, randomText } from '../../../transformer/grammar/random-text.ts';
import { markedModel } from './marked-model.ts';

/** Each way to write calls, by a template that asks for it. */
const SYNTAXES: readonly (readonly [name: string, format: CallFormat, template: string])[] = [
  ['hermes', hermes, '<tool_call>'],
  ['llama', llama, '<|python_tag|>'],
  ['mistral, lists', mistral, '[TOOL_CALLS]'],
  ['mistral, names', mistral, '[TOOL_CALLS][ARGS]'],
  ['mistral, names and ids', mistral, '[TOOL_CALLS][CALL_ID][ARGS]'],
  ['phi', phi, 'functools'],
  ['gemma', gemma, '<start_function_call>'],
  ['gemma 4', gemma, '<|tool_call>'],
];
const MARKS = [...new Set(CALL_FORMATS.flatMap(({ controls }) => controls))];
const [TOOLS, CALLS] = [20, volume('tool calls')];
const folder = markedModel(MARKS);
afterAll(() => rmSync(folder, { recursive: true }));

/** A tool whose arguments have a random schema. */
function randomTool(rng: RandomNumbers, index: number): ChatTool {
  const { $schema: _, $defs, ...value } = randomSchema(rng);
  const properties = { value, 'of "x"': { type: 'string' }, n: { type: 'integer' } };
  return { name: `tool_${index}`, parameters: { type: 'object', properties, required: ['value'], $defs } };
}

/** What can be followed of a tool in this syntax. */
function isServed(format: CallFormat, template: string, tool: ChatTool): boolean {
  try {
    callGrammar(format, [tool], { template, once: false, marks: [] });
    return true;
  } catch (error) {
    if (error instanceof KvError && error.code === 'unsupported') return false;
    throw error;
  }
}

/** → calls that were complete; expects each to be parsed, and to fulfil its schema */
async function follow(model: LoadedModel, format: CallFormat, template: string, seed: number): Promise<number> {
  const rng = new RandomNumbers(seed);
  const ajv = new Ajv2020({
    strict: false,
    validateFormats: false,
    logger: false,
    ownProperties: true,
    multipleOfPrecision: 9,
  });
  const logits = new RandomLogits(model, seed);
  const { marks, ids: markIds } = markTokens(model.tokenizer, format);
  const grammars = Grammars.of(model).withMarks(markIds);
  const tools: ChatTool[] = [];
  for (let index = 0; tools.length < TOOLS; index++) {
    const tool = randomTool(rng, index);
    if (isServed(format, template, tool)) tools.push(tool);
  }
  let calls = 0;
  for (let i = 0; i < CALLS; i++) {
    // Two at a time, among which the model chooses.
    const offered = [tools[i % TOOLS]!, tools[(i + 1) % TOOLS]!];
    const text = callGrammar(format, offered, { template, once: i % 3 === 0, marks });
    const constraint = await grammars.follow(text, 'schema of the tools');
    const sampler = new Sampler(
      { temperature: 1.5, topK: 0, topP: 1, minP: 0, seed: i },
      { size: model.config.vocabSize, tokenizer: model.tokenizer },
    );
    const ids = await randomText(model, constraint, sampler, logits, rng);
    const { isComplete } = constraint;
    constraint.close();
    if (!isComplete) continue;
    const stream = model.tokenizer.stream({ controls: format.controls });
    const written = ids.map((id) => stream.push(id)).join('') + stream.end();
    const what = `seed ${seed}, call ${i}: ${written}\n${JSON.stringify(offered)}`;
    if (!(await constraint.fulfils(written))) continue;
    const parsed = format.parse(written);
    expect(parsed?.text, what).toBe('');
    if (i % 3 === 0) expect(parsed!.calls.length, what).toBe(1);
    for (const call of parsed!.calls) {
      const tool = offered.find(({ name }) => name === call.name);
      expect(tool, what).toBeDefined();
      expect(ajv.validate(tool!.parameters!, call.arguments), `${what}\n${ajv.errorsText()}`).toBe(true);
      ajv.removeSchema();
      calls++;
    }
  }
  await grammars.close();
  return calls;
}

describe.each(SYNTAXES)('calls as written by %s', (name, format, template) => {
  const first = SYNTAXES.findIndex((one) => one[0] === name);
  const models = [
    ['has tokens for', folder],
    ['spells', MODEL],
  ] as const;
  it.each(models.filter((_, place) => isForHome(first + place, 2)))(
    'are parsed and fulfil their schemas where the model %s its marks',
    async (_, path) => {
      const model = await loadModel(path, {});
      expect(markTokens(model.tokenizer, format).marks).toEqual(path === folder ? format.controls : []);
      expect(await follow(model, format, template, 7)).toBeGreaterThan(CALLS / 2);
      model.weights.close();
    },
  );
});

describe('a tool whose schema cannot be followed', () => {
  const good = Array.from(
    { length: 31 },
    (_, index): ChatTool => ({
      name: `good_${index}`,
      parameters: { type: 'object', properties: { text: { type: 'string', maxLength: 10_000 } }, required: ['text'] },
    }),
  );
  const parameters = { type: 'object', properties: { n: { not: { type: 'null' } } } };
  const spelling = { template: '<tool_call>', once: true, marks: [] };

  it('is refused by its name and the place, beside 31 that are fine', async () => {
    const broken = { ...parameters, properties: { n: { type: 'string', pattern: '(' } } };
    for (const [bad, code] of [
      [{ name: 'bad', parameters }, 'unsupported'],
      [{ name: 'bad', parameters: broken }, 'bad-argument'],
      [{ name: 'bad', parameters: broken, strict: false }, 'bad-argument'],
    ] as const) {
      const error = await refused(Promise.resolve().then(() => callGrammar(hermes, [...good, bad], spelling)));
      expect([error.code, error.message]).toEqual([code, expect.stringMatching(/^the tool bad: .*#\/properties\/n/)]);
    }
  });

  it('may have any arguments where its caller says so, and the others follow theirs', async () => {
    const model = await loadModel(MODEL, {});
    const tools = [...good, { name: 'bad', parameters, strict: false }];
    const { unchecked, ...followed } = callGrammar(hermes, tools, spelling);
    expect(unchecked).toEqual(['bad']);
    const grammars = Grammars.of(model);
    const constraint = await grammars.follow(followed, 'schema of the tools');
    const call = (name: string, given: unknown): string =>
      `<tool_call>{"name": "${name}", "arguments": ${JSON.stringify(given).replaceAll(':', ': ')}}</tool_call>`;
    expect(await constraint.admits(call('bad', { anything: [1] }))).toBe(true);
    expect(await constraint.admits(call('good_7', { text: 'a' }))).toBe(true);
    expect(await constraint.admits(call('good_7', { anything: 1 }))).toBe(false);
    // A length that is not counted is looked at when the call is complete.
    expect(await constraint.fulfils(call('good_7', { text: 'a'.repeat(10_000) }))).toBe(true);
    expect(await constraint.fulfils(call('good_7', { text: 'a'.repeat(10_001) }))).toBe(false);
    constraint.close();
    await grammars.close();
    model.weights.close();
  });
});
