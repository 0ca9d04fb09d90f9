// The responses API as its clients use it: events in their order, what goes on behind a response, and what is refused.
import type OpenAI7 from 'openai';
import { beforeAll, describe, expect, test } from 'vitest';
import { z } from 'zod';
import { AI_SDKS, CLIENTS, eventsIn, type Served, withServer } from './served.ts';

let served: Served;
withServer((one) => {
  served = one;
});

const model = 'reference';
const weather = {
  type: 'function' as const,
  name: 'weather',
  description: 'The weather of a place.',
  parameters: {
    type: 'object',
    properties: { place: { type: 'string', enum: ['Oslo', 'Rome'] } },
    required: ['place'],
    additionalProperties: false,
  },
  strict: true,
};
describe.each(CLIENTS)('%s', (_, Client) => {
  let client: OpenAI7;
  beforeAll(() => {
    client = new Client({ baseURL: `${served.url}/v1`, apiKey: 'none' });
  });

  test('gets the same answer whole and in events, which is that of a chat', async () => {
    const asked = { model, instructions: 'Be brief.', input: 'What is wax?', max_output_tokens: 16, seed: 7 };
    const whole = await client.responses.create({ ...asked, store: false } as typeof asked);
    const chat = await client.chat.completions.create({
      model,
      messages: [
        { role: 'system', content: asked.instructions },
        { role: 'user', content: asked.input },
      ],
      max_tokens: 16,
      seed: 7,
    });
    expect(whole.output_text).toBe(chat.choices[0]!.message.content);
    expect(whole).toMatchObject({ status: 'incomplete', incomplete_details: { reason: 'max_output_tokens' } });
    const final = await client.responses.stream(asked as never).finalResponse();
    expect(final.output_text).toBe(whole.output_text);
    expect(final.usage).toMatchObject({ output_tokens: 16 });
  });

  test('goes on behind a response that was stored, which can be read again and removed', async () => {
    const first = await client.responses.create({ model, input: 'What is wax?', max_output_tokens: 12 });
    expect((await client.responses.retrieve(first.id)).output).toEqual(first.output);
    const asked = { model, input: 'And honey?', max_output_tokens: 4, previous_response_id: first.id };
    const second = await client.responses.create(asked);
    const held = first.usage!.input_tokens + first.usage!.output_tokens;
    expect(second.usage!.input_tokens_details.cached_tokens).toBeGreaterThanOrEqual(held - 1);
    await client.responses.delete(first.id);
    await expect(client.responses.create(asked)).rejects.toThrow(Client.NotFoundError);
    await expect(client.responses.retrieve(first.id)).rejects.toThrow(Client.NotFoundError);
  });

  test('is told that a response is still being told by whoever removes it or goes on behind it', async () => {
    const patient = new Client({ baseURL: `${served.url}/v1`, apiKey: 'none', maxRetries: 0 });
    const asked = { model, input: 'Tell of the bees.', max_output_tokens: 400 };
    let id: string | null = null;
    for await (const event of await client.responses.create({ ...asked, stream: true }))
      if (event.type === 'response.created') {
        ({ id } = event.response);
        await expect(patient.responses.delete(id)).rejects.toThrow(Client.ConflictError);
        const behind = patient.responses.create({ model, input: 'And?', previous_response_id: id });
        await expect(behind).rejects.toThrow(Client.ConflictError);
      }
    await client.responses.delete(id!);
    await expect(client.responses.retrieve(id!)).rejects.toThrow(Client.NotFoundError);
  });

  test('has a tool called, and tells what it gave', async () => {
    const asked = { model, input: 'How is it in Rome?', tools: [weather], tool_choice: 'required' as const };
    const { output } = await client.responses.create({ ...asked, parallel_tool_calls: false });
    expect(output).toHaveLength(1);
    const [call] = output as [OpenAI7.Responses.ResponseFunctionToolCall];
    expect(['Oslo', 'Rome']).toContain(JSON.parse(call.arguments).place);
    const events: string[] = [];
    for await (const { type } of await client.responses.create({ ...asked, parallel_tool_calls: false, stream: true }))
      events.push(type);
    expect(events).toEqual([
      'response.created',
      'response.in_progress',
      'response.output_item.added',
      'response.function_call_arguments.delta',
      'response.function_call_arguments.done',
      'response.output_item.done',
      'response.completed',
    ]);
    const after = await client.responses.create({
      model,
      tools: [weather],
      tool_choice: 'none',
      max_output_tokens: 5,
      input: [
        { role: 'user', content: 'How is it in Rome?' },
        { type: 'function_call', call_id: call.call_id, name: call.name, arguments: call.arguments },
        { type: 'function_call_output', call_id: call.call_id, output: 'rain' },
      ],
    });
    expect(after.usage!.input_tokens_details.cached_tokens).toBeGreaterThan(0);
    expect(after.output.map(({ type }) => type)).toEqual(['message']);
  });

  test('gets objects that fulfil a schema', async () => {
    const schema = {
      type: 'object',
      properties: { n: { type: 'integer', minimum: 1, maximum: 9 } },
      required: ['n'],
      additionalProperties: false,
    };
    const { output_text: text } = await client.responses.create({
      model,
      input: 'A number?',
      max_output_tokens: 40,
      text: { format: { type: 'json_schema', name: 'number', schema } },
    });
    expect((JSON.parse(text) as { n: number }).n).toBeGreaterThanOrEqual(1);
  });
});

test('events come in the order of the API, with numbers that count them', async () => {
  const response = await fetch(`${served.url}/v1/responses`, {
    method: 'POST',
    headers: { 'content-type': 'application/json' },
    body: JSON.stringify({
      model,
      input: 'Wax?',
      max_output_tokens: 5,
      stream: true,
      include: ['message.output_text.logprobs'],
    }),
  });
  interface Event {
    readonly type: string;
    readonly sequence_number: number;
    readonly item_id?: string;
    readonly delta?: string;
    readonly logprobs?: { readonly token: string }[];
    readonly response?: { readonly id: string; readonly model: string; readonly created_at: number };
  }
  const events = eventsIn(await response.text()).map((event) => JSON.parse(event) as Event);
  const kinds = events.map(({ type }) => type);
  expect(kinds.filter((kind, at) => kind !== kinds[at - 1])).toEqual([
    'response.created',
    'response.in_progress',
    'response.output_item.added',
    'response.content_part.added',
    'response.output_text.delta',
    'response.output_text.done',
    'response.content_part.done',
    'response.output_item.done',
    'response.incomplete',
  ]);
  expect(events.map(({ sequence_number: number }) => number)).toEqual(events.map((_, at) => at));
  expect(new Set(events.flatMap(({ item_id: id }) => id ?? [])).size).toBe(1);
  expect(new Set(events.flatMap(({ response: told }) => (told === undefined ? [] : [told.id]))).size).toBe(1);
  expect(events[0]!.response).toMatchObject({ model, created_at: expect.any(Number) });
  const tokens = events.flatMap(({ type, logprobs }) => (type === 'response.output_text.delta' ? logprobs! : []));
  expect(tokens.map(({ token }) => token).join('')).toBe(events.map(({ delta }) => delta ?? '').join(''));
});

test.each<[string, object, number, string | null]>([
  ['nothing is asked', {}, 400, 'input'],
  ['an empty list', { input: [] }, 400, 'input'],
  [
    'a picture',
    { input: [{ role: 'user', content: [{ type: 'input_image', image_url: 'x' }] }] },
    400,
    'messages[0].content[0]',
  ],
  ['content that is null', { input: [{ role: 'user', content: null }] }, 400, 'input[0].content'],
  ['an item that is none', { input: [{ type: 'item_reference', id: 'x' }] }, 400, 'input[0].type'],
  ['a conversation of the server', { input: 'x', conversation: 'c' }, 400, 'conversation'],
  ['work behind the scenes', { input: 'x', background: true }, 400, 'background'],
  ['no such response', { input: 'x', previous_response_id: 'resp_0' }, 404, 'previous_response_id'],
])('%s is refused, also as a stream', async (_, body, status, param) => {
  for (const stream of [false, true]) {
    const response = await fetch(`${served.url}/v1/responses`, {
      method: 'POST',
      headers: { 'content-type': 'application/json' },
      body: JSON.stringify({ ...body, stream }),
    });
    const { error } = (await response.json()) as { error: { param: string | null } };
    expect([response.status, error.param]).toEqual([status, param]);
  }
});

test.each(AI_SDKS)('%s speaks it: text, streams, tools', async (_, sdk) => {
  const { createOpenAI, generateText, streamText, tool } = sdk;
  const provider = createOpenAI({ baseURL: `${served.url}/v1`, apiKey: 'none' }).responses(model);
  const asked = { model: provider, prompt: 'What is wax?', maxOutputTokens: 16 };
  expect((await generateText(asked)).usage.outputTokens).toBe(16);
  let text = '';
  for await (const piece of streamText(asked).textStream) text += piece;
  expect(text.length).toBeGreaterThan(0);
  const { steps } = await generateText({
    model: provider,
    prompt: 'How is the weather?',
    toolChoice: 'required',
    providerOptions: { openai: { parallelToolCalls: false } },
    tools: {
      weather: tool({
        description: 'The weather of a place.',
        inputSchema: z.object({ place: z.enum(['Oslo', 'Rome']) }),
        execute: ({ place }) => `sun in ${place}`,
      }),
    },
  });
  expect(steps[0]!.toolResults.length).toBeGreaterThan(0);
});
