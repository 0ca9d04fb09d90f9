// The chat model in the process, as LangChain calls it: the package itself, over an engine without a server between.
// After what its own standard tests for chat models ask, which are in no registry.
import { mkdtempSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import {
  type AIMessageChunk,
  ChatMessage,
  HumanMessage,
  SystemMessage,
  ToolMessage,
  type UsageMetadata,
} from '@langchain/core/messages';
import { StringOutputParser } from '@langchain/core/output_parsers';
import { ChatPromptTemplate } from '@langchain/core/prompts';
import { tool } from '@langchain/core/tools';
import { afterAll, beforeAll, expect, test } from 'vitest';
import { z } from 'zod';
import { createEngine, type Engine, type ModelCacheReport } from '../../../../engine/index.ts';
import { ChatPalimpsest } from '../../../../engine/langchain/chat-model.ts';
import { logDir } from '../../../../engine/state/folder.ts';
import { refusal } from '../../../refusal.ts';
import { codeOf } from '../on-reference.ts';

let engine: Engine;
let model: ChatPalimpsest;
beforeAll(async () => {
  engine = await createEngine({ model: 'reference', threads: 1, stateDir: null, kvBudget: 2 ** 26 });
  model = new ChatPalimpsest({ engine, sampling: { temperature: 0.8, maxTokens: 16 } });
});
afterAll(async () => {
  await model.close();
  await engine.close();
});

const place = z.object({ place: z.enum(['Oslo', 'Rome']) });
const weather = tool(({ place: where }) => `sun in ${where}`, {
  name: 'weather',
  description: 'The weather of a place.',
  schema: place,
});
/** LangChain's type of it is `never` under the options of this project. */
const usageOf = (message: { usage_metadata?: unknown }): UsageMetadata => message.usage_metadata as UsageMetadata;
const cacheRead = (message: { usage_metadata?: unknown }): number => usageOf(message).input_token_details!.cache_read!;

test('has a receipt that its log proves and that is run again, at once and in a stream', async () => {
  const stateDir = mkdtempSync(join(tmpdir(), 'palimpsest-langchain-'));
  await using own = await createEngine({ model: 'reference', threads: 1, stateDir, kvBudget: 2 ** 26 });
  await using receipted = new ChatPalimpsest({ engine: own, sampling: { maxTokens: 6, receipt: true } });
  const whole = await receipted.invoke('What is a seal?');
  let streamed: AIMessageChunk | undefined;
  for await (const chunk of await receipted.stream([
    new HumanMessage('What is a seal?'),
    whole,
    new HumanMessage('Wax?'),
  ]))
    streamed = streamed === undefined ? chunk : streamed.concat(chunk);
  const told = [whole, streamed!].map(({ response_metadata }) => response_metadata['palimpsest'] as ModelCacheReport);
  expect(told[0]!.cachedTokens).toBe(0);
  expect(told[1]!.cachedTokens).toBeGreaterThan(0);
  for (const { receipt, request } of told) {
    const { again } = await own.verifyReceipt(receipt, { log: logDir(stateDir), request });
    expect(again.tokens).toBe(6);
  }
});

test('invokes and streams the same, which is that of a chat, and says what its cache did', async () => {
  const asked = { sampling: { seed: 5 } };
  const whole = await model.invoke('What is wax?', asked);
  await using chat = await engine.chat({ template: 'hermes' });
  const own = await chat.send('What is wax?', { maxTokens: 16, seed: 5, temperature: 0.8 }).result;
  expect(whole.text).toBe(own.text);
  expect(whole.usage_metadata).toMatchObject({ input_tokens: own.promptTokens, output_tokens: 16 });
  expect(whole.response_metadata).toMatchObject({
    model_provider: 'palimpsest',
    finish_reason: 'length',
    palimpsest: { seed: 5, decisions: 0, sessionId: expect.any(String) },
  });
  let streamed: AIMessageChunk | undefined;
  let pieces = 0;
  for await (const chunk of await model.stream('What is wax?', asked)) {
    streamed = streamed === undefined ? chunk : streamed.concat(chunk);
    pieces++;
  }
  expect(pieces).toBeGreaterThan(2);
  expect(streamed!.text).toBe(whole.text);
  expect(streamed!.usage_metadata).toMatchObject({ output_tokens: 16, total_tokens: own.promptTokens + 16 });
  expect(streamed!.response_metadata).toMatchObject({ finish_reason: 'length', palimpsest: { seed: 5 } });
});

test('goes on with a conversation, of which only the new part is read', async () => {
  const before = [new SystemMessage('Be short.'), new HumanMessage('What is honey?')];
  const first = await model.invoke(before);
  const next = await model.invoke([...before, first, new HumanMessage([{ type: 'text', text: 'And wax?' }])]);
  expect(cacheRead(next)).toBeGreaterThanOrEqual(usageOf(first).total_tokens - 1);
});

test('answers many at once, each as alone', async () => {
  const inputs = ['One?', 'Two?', 'Three?', 'Four?'];
  const asked = { sampling: { seed: 3, maxTokens: 6 } };
  const together = await model.batch(inputs, asked);
  for (const [index, input] of inputs.entries())
    expect((await model.invoke(input, asked)).text).toBe(together[index]!.text);
});

test('calls tools, at once and in a stream, and goes on with what they gave', async () => {
  const bound = model.bindTools([weather], { tool_choice: 'weather', sampling: { maxTokens: 400, seed: 2 } });
  const question = new HumanMessage('How is the weather?');
  const answer = await bound.invoke([question]);
  expect(answer.response_metadata['finish_reason']).toBe('tool_calls');
  const [call] = answer.tool_calls!;
  expect(place.parse(call!.args)).toEqual(call!.args);
  const stream = await bound.stream([question]);
  let streamed: AIMessageChunk | undefined;
  for await (const chunk of stream) streamed = streamed === undefined ? chunk : streamed.concat(chunk);
  expect(streamed!.tool_calls!.map(({ name, args }) => ({ name, args }))).toEqual([
    { name: 'weather', args: call!.args },
  ]);
  const given = await weather.invoke({ ...call!, type: 'tool_call' });
  expect(given).toBeInstanceOf(ToolMessage);
  const after = await model.bindTools([weather], { tool_choice: 'none' }).invoke([question, answer, given]);
  expect(after.tool_calls).toEqual([]);
  expect(cacheRead(after)).toBeGreaterThanOrEqual(usageOf(answer).total_tokens - 1);
});

test.each(['jsonSchema', 'functionCalling'])('makes objects of a schema by %s, in a chain', async (method) => {
  const schema = z.object({ n: z.int().min(1).max(9) });
  const open = new ChatPalimpsest({ engine });
  const structured = open.withStructuredOutput(schema, { method, name: 'number' });
  const object = await ChatPromptTemplate.fromTemplate('A {what}?').pipe(structured).invoke({ what: 'number' });
  expect(schema.parse(object)).toEqual(object);
  const both = await open
    .withStructuredOutput(z.toJSONSchema(schema), { method, includeRaw: true })
    .invoke('A number?');
  expect(schema.parse(both.parsed)).toEqual(both.parsed);
  expect(both.raw.response_metadata['model_provider']).toBe('palimpsest');
  await open.close();
});

test('stops at a text, counts tokens by itself, and tells callbacks of each piece', async () => {
  const text = await model.pipe(new StringOutputParser()).invoke('What is wax?', { sampling: { seed: 5 } } as never);
  const middle = text.slice(4, 7);
  const stopped = await model.invoke('What is wax?', { stop: [middle], sampling: { seed: 5 } });
  expect(stopped.text).toBe(text.slice(0, text.indexOf(middle)));
  expect(stopped.response_metadata['finish_reason']).toBe('stop');
  expect(await model.getNumTokens('bees and wax')).toBe((await engine.tokenize('bees and wax', 100, false)).length);
  const told: string[] = [];
  const callbacks = [{ handleLLMNewToken: (token: string) => void told.push(token) }];
  for await (const _ of await model.stream('What is wax?', { callbacks, sampling: { seed: 5 } }));
  expect(told.join('')).toBe(text);
});

test('a signal ends the answer, so does a reader that leaves, and the next call is served', async () => {
  const gone = new AbortController();
  const long = { sampling: { maxTokens: 3000 } };
  const callbacks = [{ handleLLMNewToken: () => gone.abort() }];
  const read = async (): Promise<void> => {
    for await (const _ of await model.stream('Tell a story.', { ...long, callbacks, signal: gone.signal }));
  };
  await expect(read()).rejects.toThrow();
  const ended = model.invoke('Tell a story.', { ...long, signal: AbortSignal.timeout(1) });
  await expect(ended).rejects.toThrow();
  const chunks = model._streamResponseChunks([new HumanMessage('Tell a story.')], long);
  for await (const { message } of chunks) {
    expect(message.text.length).toBeGreaterThan(0);
    break;
  }
  expect(usageOf(await model.invoke('What is wax?', { sampling: { maxTokens: 2 } })).output_tokens).toBe(2);
});

test('what it cannot read or be is refused', async () => {
  const picture = new HumanMessage({ content: [{ type: 'image_url', image_url: { url: 'data:image/png;base64,x' } }] });
  expect(await codeOf(model.invoke([picture]))).toBe('unsupported');
  expect(await codeOf(model.invoke([new ChatMessage('x', 'critic')]))).toBe('bad-argument');
  expect(refusal(() => new ChatPalimpsest({ engine, maxTokens: 0 })).code).toBe('bad-argument');
});
