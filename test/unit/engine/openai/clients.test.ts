// What clients of OpenAI servers do with ours: the real packages over HTTP, of two generations each. What they check is
// theirs; what they are told is compared with the engine.
import type OpenAI7 from 'openai';
import { beforeAll, describe, expect, test } from 'vitest';
import { z } from 'zod';
import { AI_SDKS, CLIENTS, type Served, withServer } from './served.ts';

let served: Served;
withServer((one) => {
  served = one;
});

const question = [
  { role: 'system' as const, content: 'Say it in a few words.' },
  { role: 'user' as const, content: 'What is honey made of?' },
];
const model = 'reference';
const weather = {
  type: 'function' as const,
  function: {
    name: 'weather',
    description: 'The weather of a place.',
    parameters: {
      type: 'object',
      properties: { place: { type: 'string', enum: ['Oslo', 'Rome'] } },
      required: ['place'],
      additionalProperties: false,
    },
  },
};

describe.each(CLIENTS)('%s', (_, Client) => {
  let client: OpenAI7;
  beforeAll(() => {
    client = new Client({ baseURL: `${served.url}/v1`, apiKey: 'none' });
  });

  test('finds the model', async () => {
    const { data } = await client.models.list();
    expect(data.map(({ id, object }) => [id, object])).toEqual([[model, 'model']]);
    expect(await client.models.retrieve(model)).toEqual(data[0]);
  });

  test('gets the same answer whole and in pieces, and from the engine itself', async () => {
    const asked = { model, messages: question, max_tokens: 24, seed: 11 };
    const whole = await client.chat.completions.create({ ...asked, cache_salt: 'a' } as typeof asked);
    const text = whole.choices[0]!.message.content!;
    await using chat = await served.engine.chat({ messages: question.slice(0, 1), template: 'hermes' });
    const own = await chat.send(question[1]!.content, { maxTokens: 24, seed: 11, temperature: 0.8 }).result;
    expect(text).toBe(own.text);
    expect(whole.usage).toMatchObject({ prompt_tokens: own.promptTokens, completion_tokens: own.tokens });
    const pieces = await client.chat.completions.create({
      ...asked,
      cache_salt: 'b',
      stream: true,
      stream_options: { include_usage: true },
    } as typeof asked & { stream: true });
    const chunks: OpenAI7.ChatCompletionChunk[] = [];
    for await (const chunk of pieces) chunks.push(chunk);
    expect(new Set(chunks.map(({ id }) => id)).size).toBe(1);
    expect(chunks.map(({ choices }) => choices[0]?.delta.content ?? '').join('')).toBe(text);
    expect(chunks.filter(({ choices }) => choices[0]?.delta.role !== undefined)).toHaveLength(1);
    const reasons = chunks.map(({ choices }) => choices[0]?.finish_reason);
    expect(reasons.filter((reason) => typeof reason === 'string')).toEqual([whole.choices[0]!.finish_reason]);
    expect(chunks.at(-1)).toMatchObject({ choices: [], usage: whole.usage });
    expect(chunks.slice(0, -1).every(({ usage }) => usage == null)).toBe(true);
  });

  test('its own helper puts the pieces together', async () => {
    const stream = client.chat.completions.stream({ model, messages: question, max_tokens: 8, seed: 1, n: 2 });
    const { choices } = await stream.finalChatCompletion();
    expect(choices.map(({ index, finish_reason }) => [index, finish_reason])).toEqual([
      [0, 'length'],
      [1, 'length'],
    ]);
  });

  test('goes on with a conversation, of which only the new part is read', async () => {
    const first = await client.chat.completions.create({ model, messages: question, max_tokens: 12, seed: 2 });
    const messages = [...question, first.choices[0]!.message, { role: 'user' as const, content: 'And wax?' }];
    const { usage } = await client.chat.completions.create({ model, messages, max_tokens: 4 });
    const held = first.usage!.prompt_tokens + first.usage!.completion_tokens;
    // The last token of an answer is read with what follows it.
    expect(usage!.prompt_tokens_details!.cached_tokens).toBeGreaterThanOrEqual(held - 1);
    expect(usage!.prompt_tokens).toBeGreaterThan(held);
    const apart = await client.chat.completions.create({ model, messages, max_tokens: 4, prompt_cache_key: 'other' });
    expect(apart.usage!.prompt_tokens_details!.cached_tokens).toBe(0);
  });

  test('has a tool called, at once and in pieces', async () => {
    const asked = {
      model,
      messages: question,
      tools: [weather],
      tool_choice: 'required' as const,
      max_tokens: 60,
      seed: 5,
    };
    const { choices } = await client.chat.completions.create({ ...asked, parallel_tool_calls: false });
    expect(choices[0]).toMatchObject({ finish_reason: 'tool_calls', message: { content: null } });
    const [call] = choices[0]!.message.tool_calls as OpenAI7.ChatCompletionMessageFunctionToolCall[];
    expect(call!.function.name).toBe('weather');
    expect(['Oslo', 'Rome']).toContain(JSON.parse(call!.function.arguments).place);
    const stream = client.chat.completions.stream({ ...asked, parallel_tool_calls: false });
    const told = await stream.finalChatCompletion();
    expect(told.choices[0]).toMatchObject({
      finish_reason: 'tool_calls',
      message: { tool_calls: [{ function: call!.function }] },
    });
    const result = { role: 'tool' as const, tool_call_id: call!.id, content: 'rain' };
    const after = await client.chat.completions.create({
      ...asked,
      messages: [...question, choices[0]!.message, result],
      tool_choice: 'none',
      max_tokens: 4,
    });
    expect(after.usage!.prompt_tokens_details!.cached_tokens).toBeGreaterThan(0);
    expect(after.choices[0]!.message.tool_calls).toBeUndefined();
  });

  test('gets objects that fulfil a schema', async () => {
    const schema = {
      type: 'object',
      properties: { n: { type: 'integer', minimum: 1, maximum: 9 } },
      required: ['n'],
      additionalProperties: false,
    };
    const { choices } = await client.chat.completions.create({
      model,
      messages: question,
      max_tokens: 40,
      response_format: { type: 'json_schema', json_schema: { name: 'number', schema, strict: true } },
    });
    const { n } = JSON.parse(choices[0]!.message.content!) as { n: number };
    expect(n).toBeGreaterThanOrEqual(1);
    expect(n).toBeLessThanOrEqual(9);
  });

  test('sees how likely tokens were', async () => {
    const asked = { model, messages: question, max_tokens: 6, logprobs: true, top_logprobs: 3, temperature: 0 };
    const { choices } = await client.chat.completions.create(asked);
    const content = choices[0]!.logprobs!.content!;
    expect(content.map(({ token }) => token).join('')).toBe(choices[0]!.message.content);
    for (const { token, logprob, bytes, top_logprobs: top } of content) {
      expect(Buffer.from(bytes!).toString()).toBe(token);
      expect(top).toHaveLength(3);
      expect(top[0]).toMatchObject({ token, logprob });
    }
    const pieces: unknown[] = [];
    for await (const chunk of await client.chat.completions.create({ ...asked, stream: true }))
      pieces.push(...(chunk.choices[0]?.logprobs?.content ?? []));
    expect(pieces).toEqual(content);
  });

  test('completes a text', async () => {
    const asked = { model, prompt: 'It was a bright cold day', max_tokens: 8, seed: 3 };
    const whole = await client.completions.create(asked);
    let text = '';
    for await (const { choices } of await client.completions.create({ ...asked, stream: true }))
      text += choices[0]!.text;
    expect(text).toBe(whole.choices[0]!.text);
    expect(whole.usage).toMatchObject({ completion_tokens: 8 });
  });

  test('hears of errors by their classes, and asks again only where that can help', async () => {
    let requests = 0;
    const counting = new Client({
      baseURL: `${served.url}/v1`,
      apiKey: 'none',
      fetch: (...given: Parameters<typeof fetch>) => {
        requests++;
        return fetch(...given);
      },
    });
    const long = [{ role: 'user' as const, content: 'word '.repeat(6000) }];
    for (const [asked, Expected, code] of [
      [{ model: 'gpt-5', messages: question }, Client.NotFoundError, 'model_not_found'],
      [{ model, messages: [] }, Client.BadRequestError, 'bad-argument'],
      [{ model, messages: long }, Client.BadRequestError, 'context_length_exceeded'],
      [{ model, messages: long, stream: true }, Client.BadRequestError, 'context_length_exceeded'],
      [{ model, messages: question, kv_budget: '1KiB' }, Client.APIError, 'budget-too-small'],
    ] as const) {
      requests = 0;
      const thrown: unknown = await counting.chat.completions.create(asked as never).then(
        () => null,
        (error: unknown) => error,
      );
      expect(thrown).toBeInstanceOf(Expected);
      expect(thrown).toMatchObject({ code });
      expect(requests).toBe(1);
    }
  });

  test('ends an answer by going away, and the next one is served', async () => {
    const stream = await client.chat.completions.create({ model, messages: question, max_tokens: 2000, stream: true });
    for await (const _ of stream) break;
    const { choices } = await client.chat.completions.create({ model, messages: question, max_tokens: 2 });
    expect(choices).toHaveLength(1);
  });
});

describe.each(AI_SDKS)('%s', (_, { createOpenAICompatible, generateText, streamText, tool }) => {
  const provider = () =>
    createOpenAICompatible({
      name: 'palimpsest',
      baseURL: `${served.url}/v1`,
      includeUsage: true,
      supportsStructuredOutputs: true,
    })(model);

  test('generates and streams, with usage', async () => {
    const asked = {
      model: provider(),
      messages: [{ role: 'user' as const, content: 'What is wax?' }],
      maxOutputTokens: 9,
      seed: 4,
    };
    const whole = await generateText(asked);
    expect(whole.finishReason).toBe('length');
    expect(whole.usage.outputTokens).toBe(9);
    const stream = streamText(asked);
    let text = '';
    for await (const piece of stream.textStream) text += piece;
    expect(text).toBe(whole.text);
    expect((await stream.usage).outputTokens).toBe(9);
  });

  test('calls a tool and goes on with what it gave', async () => {
    const { steps } = await generateText({
      model: provider(),
      prompt: 'How is the weather?',
      maxOutputTokens: 120,
      toolChoice: { type: 'tool', toolName: 'weather' },
      tools: {
        weather: tool({
          description: 'The weather of a place.',
          inputSchema: z.object({ place: z.enum(['Oslo', 'Rome']) }),
          execute: ({ place }) => `sun in ${place}`,
        }),
      },
    });
    expect(steps[0]!.toolResults.map(({ output }) => output)).toEqual([expect.stringMatching(/^sun in (Oslo|Rome)$/)]);
  });

  test('says what was refused in our words', async () => {
    const asked = { model: provider(), prompt: 'word '.repeat(6000), maxRetries: 0 };
    await expect(generateText(asked)).rejects.toThrow(/fit/);
  });
});
