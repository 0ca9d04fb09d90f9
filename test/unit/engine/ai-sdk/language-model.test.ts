// The language model in the process, as AI SDK calls it: the package itself, of two generations, over an engine without
// a server between.

import { mkdtempSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import * as ai7 from 'ai';
import * as ai6 from 'ai6';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { z } from 'zod';
import {
  createEngine,
  type Engine,
  type LanguageModel,
  languageModel,
  type ModelMetadata,
} from '../../../../engine/index.ts';
import { logDir } from '../../../../engine/state/folder.ts';
import { refusal } from '../../../refusal.ts';
import { codeOf } from '../on-reference.ts';

const stateDir = mkdtempSync(join(tmpdir(), 'palimpsest-ai-sdk-'));
let engine: Engine;
let model: LanguageModel;
beforeAll(async () => {
  engine = await createEngine({ model: 'reference', threads: 1, stateDir, kvBudget: 2 ** 26 });
  model = languageModel(engine, { sampling: { temperature: 0.8 } });
});
afterAll(async () => {
  await model.close();
  await engine.close();
});

const place = z.object({ place: z.enum(['Oslo', 'Rome']) });
const SDKS = [
  ['ai 7', ai7],
  ['ai 6', ai6 as unknown as typeof ai7],
] as const;

describe.each(SDKS)('%s', (_, { generateObject, generateText, streamText, tool }) => {
  const weather = tool({
    description: 'The weather of a place.',
    inputSchema: place,
    execute: ({ place: where }) => `sun in ${where}`,
  });

  test('generates and streams the same, which is that of a chat, and says what its cache did', async () => {
    const asked = { model, prompt: 'What is wax?', maxOutputTokens: 16, seed: 5 };
    const whole = await generateText(asked);
    await using chat = await engine.chat({ template: 'hermes' });
    expect(whole.text).toBe((await chat.send(asked.prompt, { maxTokens: 16, seed: 5, temperature: 0.8 }).result).text);
    expect(whole.finishReason).toBe('length');
    expect(whole.providerMetadata).toMatchObject({
      palimpsest: { seed: 5, decisions: 0, sessionId: expect.any(String) },
    });
    const stream = streamText(asked);
    let text = '';
    for await (const piece of stream.textStream) text += piece;
    expect(text).toBe(whole.text);
    expect((await stream.usage).outputTokens).toBe(16);
  });

  test('has a receipt that its log proves and that is run again, at once and in the last part of a stream', async () => {
    await using receipted = languageModel(engine, { sampling: { receipt: true } });
    const asked = { model: receipted, prompt: 'What is a seal?', maxOutputTokens: 6 };
    const first = await generateText(asked);
    const stream = streamText({
      ...asked,
      prompt: [
        { role: 'user', content: asked.prompt },
        ...first.response.messages,
        { role: 'user', content: 'And wax?' },
      ],
    });
    await stream.consumeStream();
    const told = [first.providerMetadata, await stream.providerMetadata].map(
      (metadata) => metadata!['palimpsest'] as ModelMetadata,
    );
    expect(told[0]!.cachedTokens).toBe(0);
    expect(told[1]!.cachedTokens).toBeGreaterThan(0);
    for (const { receipt, request } of told) {
      const { again } = await engine.verifyReceipt(receipt, { log: logDir(stateDir), request });
      expect(again.tokens).toBe(6);
    }
  });

  test('goes on with a conversation, of which only the new part is read', async () => {
    const first = await generateText({ model, prompt: 'What is honey?', maxOutputTokens: 12 });
    const { usage } = await generateText({
      model,
      messages: [
        { role: 'user', content: 'What is honey?' },
        ...first.response.messages,
        { role: 'user', content: 'And wax?' },
      ],
      maxOutputTokens: 4,
    });
    const held = first.usage.inputTokens! + first.usage.outputTokens!;
    expect(usage.inputTokenDetails.cacheReadTokens).toBeGreaterThanOrEqual(held - 1);
  });

  test('calls tools, at once and in a stream, and goes on with what they gave', async () => {
    const asked = {
      model,
      prompt: 'How is the weather?',
      tools: { weather },
      toolChoice: { type: 'tool', toolName: 'weather' },
    } as const;
    const { steps } = await generateText(asked);
    expect(steps[0]!.finishReason).toBe('tool-calls');
    expect(steps[0]!.toolResults.map(({ output }) => output)).toEqual([expect.stringMatching(/^sun in (Oslo|Rome)$/)]);
    const results = await streamText(asked).toolResults;
    expect(results).toHaveLength(1);
    const after = await generateText({
      model,
      messages: [{ role: 'user', content: asked.prompt }, ...steps[0]!.response.messages],
      tools: { weather },
      toolChoice: 'none',
      maxOutputTokens: 5,
    });
    expect(after.usage.inputTokenDetails.cacheReadTokens).toBeGreaterThan(0);
    expect(after.toolCalls).toEqual([]);
  });

  test('makes objects of a schema', async () => {
    const schema = z.object({ n: z.int().min(1).max(9) });
    const { object } = await generateObject({ model, schema, prompt: 'A number?', maxOutputTokens: 40 });
    expect(schema.parse(object)).toEqual(object);
  });

  test('an abort ends the answer, and the next call is served', async () => {
    const gone = new AbortController();
    const stream = streamText({
      model,
      prompt: 'Tell a story.',
      maxOutputTokens: 3000,
      abortSignal: gone.signal,
      onError: () => {},
    });
    for await (const _ of stream.textStream) gone.abort();
    expect((await generateText({ model, prompt: 'What is wax?', maxOutputTokens: 2 })).usage.outputTokens).toBe(2);
  });
});

test('what it cannot read or be is refused', async () => {
  const picture = { type: 'file', mediaType: 'image/png', data: 'x' };
  expect(await codeOf(model.doGenerate({ prompt: [{ role: 'user', content: [picture] }] }))).toBe('unsupported');
  expect(refusal(() => languageModel(engine, { maxTokens: 0 })).code).toBe('bad-argument');
  expect(refusal(() => languageModel(engine, { tokens: 1 } as never)).code).toBe('bad-argument');
  const { warnings } = await model.doGenerate({
    prompt: [{ role: 'user', content: 'x' }],
    maxOutputTokens: 1,
    tools: [{ type: 'provider', name: 'search' }],
  });
  expect(warnings).toMatchObject([{ type: 'unsupported', feature: 'tool search' }]);
});
