// The API as HTTP: what is refused and how, bodies of every kind, many at once, and who goes away.
import { once } from 'node:events';
import { createServer } from 'node:http';
import { type AddressInfo, connect } from 'node:net';
import { getRequestListener, type HttpBindings } from '@hono/node-server';
import { Hono } from 'hono';
import { StreamingApi } from 'hono/utils/stream';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { createEngine, type Engine, type LiveView, serve } from '../../../../engine/index.ts';
import { AnswersApi } from '../../../../engine/openai/api.ts';
import { EventStream } from '../../../../engine/openai/event-stream.ts';
import { failureOf, Refusal } from '../../../../engine/openai/failure.ts';
import { KvError } from '../../../../native/index.ts';
import { raw, statusOf } from '../serve/ask.ts';
import { eventsIn, type Served, withServer } from './served.ts';

let served: Served;
withServer(
  (one) => {
    served = one;
  },
  { bodyBytesMax: 64 * 1024 },
);

const CHAT = '/v1/chat/completions';
const messages = [{ role: 'user', content: 'What is wax?' }];
const JSON_TYPE = { 'content-type': 'application/json' };

const post = (path: string, body: unknown, init: RequestInit = {}): Promise<Response> =>
  fetch(served.url + path, {
    method: 'POST',
    body: typeof body === 'string' ? body : JSON.stringify(body),
    ...init,
    headers: { ...JSON_TYPE, ...init.headers },
  });

interface Refused {
  readonly error: {
    readonly message: string;
    readonly type: string;
    readonly param: string | null;
    readonly code: string;
  };
}
async function refused(response: Promise<Response>): Promise<[status: number, type: string, param: string | null]> {
  const answer = await response;
  const { error } = (await answer.json()) as Refused;
  expect(answer.headers.get('content-type')).toMatch(/^application\/json/);
  return [answer.status, error.type, error.param];
}
const answered = async (
  body: object,
): Promise<{ text: string; usage: Record<string, number>; palimpsest: { seed: number } }> => {
  const response = await post(CHAT, { messages, max_tokens: 6, ...body });
  const { choices, ...rest } = (await response.json()) as never as {
    choices: [{ message: { content: string } }];
    usage: Record<string, number>;
    palimpsest: { seed: number };
  };
  return { text: choices[0].message.content, ...rest };
};

test('say what would be right, or why it is not read', async () => {
  const messageOf = async (body: object | string): Promise<string> =>
    ((await (await post(CHAT, body)).json()) as Refused).error.message;
  expect(await messageOf({ messages, logit_bias: { wax: 1 } })).toBe('logit_bias.wax: a key is a token id');
  const properties = { constructor: { type: 'string' } };
  const tools = [{ type: 'function', function: { name: 'f', parameters: { type: 'object', properties } } }];
  expect(await messageOf({ messages, tools })).toMatch(/the body has the key 'constructor', which is not read: every/);
});

test('with an expectation that nobody meets are refused in the same words', async () => {
  const head = [`POST ${CHAT} HTTP/1.1`, `host: ${new URL(served.url).host}`, 'expect: wax', 'content-length: 2'];
  const told = await raw(served.url, `${head.join('\r\n')}\r\n\r\n{}`);
  expect(statusOf(told)).toBe(417);
  expect(told).toMatch(/\r\n\r\n\{"error":\{"message":"/);
});

describe('requests that cannot be answered', () => {
  const INVALID = 'invalid_request_error';
  test.each<[string, object, number, string | null]>([
    ['no messages', { messages: [] }, 400, 'messages'],
    ['messages that are text', { messages: 'x' }, 400, 'messages'],
    ['messages that are null', { messages: null }, 400, 'messages'],
    ['a message that is a number', { messages: [123] }, 400, 'messages[0]'],
    ['a message of nothing', { messages: [{}] }, 400, 'messages[0]'],
    ['a role that is a number', { messages: [{ role: 123, content: 'x' }] }, 400, 'messages[0]'],
    ['content that is a number', { messages: [...messages, { role: 'system', content: 123 }] }, 400, 'messages[1]'],
    [
      'a picture',
      { messages: [{ role: 'user', content: [{ type: 'image_url', image_url: { url: 'x' } }] }] },
      400,
      'messages[0].content[0]',
    ],
    [
      'two answers at the end',
      { messages: [...messages, { role: 'assistant', content: 'a' }, { role: 'assistant', content: 'b' }] },
      400,
      'messages[2]',
    ],
    [
      'arguments that are two objects',
      {
        messages: [
          ...messages,
          {
            role: 'assistant',
            tool_calls: [{ id: 'a', type: 'function', function: { name: 'f', arguments: '{"a":1}{"b":2}' } }],
          },
        ],
      },
      400,
      'messages[1].tool_calls[0].function.arguments',
    ],
    ['a format that is none', { response_format: { type: 'sound' } }, 400, 'response_format.type'],
    [
      'an object whose schema is a number',
      { response_format: { type: 'json_object', schema: 123 } },
      400,
      'response_format.schema',
    ],
    [
      'a schema without a schema',
      { response_format: { type: 'json_schema', json_schema: {} } },
      400,
      'response_format.json_schema.schema',
    ],
    [
      'a schema of a type that is none',
      { response_format: { type: 'json_schema', json_schema: { schema: { type: 'hiccup' } } } },
      400,
      'response_format',
    ],
    ['a grammar that is none', { grammar: 'root ::= (' }, 400, 'grammar'],
    ['a temperature below 0', { temperature: -1 }, 400, 'temperature'],
    ['more answers than there may be', { n: 1000 }, 400, 'n'],
    ['seeds of which the last is none', { n: 2, seed: Number.MAX_SAFE_INTEGER }, 400, 'seed'],
    ['a bias of what is no token', { logit_bias: { x: 1 } }, 400, 'logit_bias.x'],
    ['a tool choice without tools', { tool_choice: 'required' }, 400, 'tool_choice'],
    ['a priority that is none', { priority: 5000 }, 400, 'priority'],
    ['a penalty that is none', { repeat_penalty: -1 }, 400, 'repeat_penalty'],
    ['a bias of no token of this model', { logit_bias: { 999999: 1 } }, 400, 'logit_bias'],
    ['a bias that is too large', { logit_bias: { 5: 1e300 } }, 400, 'logit_bias'],
    ['a budget in words', { kv_budget: 'plenty' }, 400, 'kv_budget'],
    ['a budget that holds nothing', { kv_budget: '1KiB' }, 413, 'kv_budget'],
    ['a tool that is none', { tools: [{ type: 'function', function: {} }] }, 400, 'tools[0]'],
    ['tools of which the second is none', { tools: [{ name: 'f' }, { name: 5 }] }, 400, 'tools[1]'],
    ['no such model', { model: 'gpt-5' }, 404, 'model'],
  ])('%s', async (_, body, status, param) => {
    expect(await refused(post(CHAT, { messages, ...body }))).toEqual([
      status,
      status === 404 ? 'not_found_error' : INVALID,
      param,
    ]);
    // What is refused is refused in a stream as well, before it begins.
    expect((await post(CHAT, { messages, stream: true, ...body })).status).toBe(status);
  });

  test('what is no JSON, or is not said to be', async () => {
    expect(await refused(post(CHAT, '{"messages": ['))).toEqual([400, INVALID, null]);
    expect(await refused(post(CHAT, '[]'))).toEqual([400, INVALID, null]);
    expect(await refused(post(CHAT, { messages }, { headers: { 'content-type': 'text/plain' } }))).toEqual([
      400,
      INVALID,
      null,
    ]);
    expect((await fetch(served.url + CHAT)).status).toBe(405);
    expect(await refused(post('/v1/nothing', { input: 'x' }))).toEqual([404, 'not_found_error', null]);
  });

  test('a prompt that is too long is told with both numbers', async () => {
    const response = await post(CHAT, { messages: [{ role: 'user', content: 'word '.repeat(5000) }], stream: true });
    expect(response.status).toBe(400);
    const { error } = (await response.json()) as Refused & { error: { n_prompt_tokens: number; n_ctx: number } };
    expect(error).toMatchObject({ type: 'exceed_context_size_error', code: 'context_length_exceeded', n_ctx: 4096 });
    expect(error.n_prompt_tokens).toBeGreaterThan(4096);
  });

  test('a body that is too long, of known and of unknown length, disturbs no other request of its connection', async () => {
    const { host } = new URL(served.url);
    const head = `POST ${CHAT} HTTP/1.1\r\nhost: ${host}\r\ncontent-type: application/json\r\n`;
    const big = 'x'.repeat(100_000);
    const known = await raw(served.url, `${head}content-length: ${10 * 2 ** 20}\r\n\r\n${big}`);
    expect([statusOf(known), known.match(/HTTP\/1\.1/g)]).toEqual([413, ['HTTP/1.1']]);
    const chunk = `${big.length.toString(16)}\r\n${big}\r\n`;
    const unknown = await raw(served.url, `${head}transfer-encoding: chunked\r\n\r\n${chunk}${chunk}0\r\n\r\n`);
    expect(statusOf(unknown)).toBe(413);
  });
});

test('a body in chunks, and one that waits to be asked for, are read', async () => {
  const { host } = new URL(served.url);
  const head = `POST /tokenize HTTP/1.1\r\nhost: ${host}\r\ncontent-type: application/json\r\nconnection: close\r\n`;
  const body = '{"content":"wax"}';
  const chunks = [...body].map((letter) => `1\r\n${letter}\r\n`).join('');
  expect(statusOf(await raw(served.url, `${head}transfer-encoding: chunked\r\n\r\n${chunks}0\r\n\r\n`))).toBe(200);
  const waiting = await raw(served.url, `${head}content-length: ${body.length}\r\nexpect: 100-continue\r\n\r\n${body}`);
  expect(waiting.match(/HTTP\/1\.1 \d+/g)).toEqual(['HTTP/1.1 100', 'HTTP/1.1 200']);
});

test('tokens, their text and the prompt of a conversation are those of the engine', async () => {
  const told = async (path: string, body: object): Promise<unknown> => (await post(path, body)).json();
  const ids = await served.engine.tokenize('bees wax', 100, false);
  expect(await told('/tokenize', { content: 'bees wax' })).toEqual({ tokens: ids });
  expect(await told('/tokenize', { content: 'bees wax', add_special: true })).toEqual({
    tokens: await served.engine.tokenize('bees wax'),
  });
  expect(await told('/detokenize', { tokens: ids })).toEqual({ content: await served.engine.detokenize(ids) });
  expect(await told('/detokenize', { tokens: [] })).toEqual({ content: '' });
  expect(await refused(post('/detokenize', { tokens: [10 ** 7] }))).toEqual([400, 'invalid_request_error', null]);
  expect(await told('/apply-template', { messages })).toEqual({
    prompt: await served.engine.render(messages as never, { template: 'hermes' }),
  });
});

test('a seed gives the same answer again, also one that was drawn here, and a last message of the assistant goes on', async () => {
  const drawn = await answered({});
  expect((await answered({ seed: drawn.palimpsest.seed })).text).toBe(drawn.text);
  const begun = [...messages, { role: 'assistant', content: 'Wax is' }];
  const more = await answered({ messages: begun, seed: 1 });
  const prompt = await served.engine.render(begun as never, { template: 'hermes', continueFinalMessage: true });
  expect(more.usage['prompt_tokens']).toBe((await served.engine.tokenize(prompt, 1000, false)).length);
});

test('texts in parts are texts, a developer is the system, and ids of calls may be left out', async () => {
  const plain = [
    { role: 'system', content: 'Be brief.' },
    { role: 'user', content: 'What is\nwax?' },
  ];
  const parts = [
    { role: 'developer', content: [{ type: 'text', text: 'Be brief.' }] },
    {
      role: 'user',
      content: [
        { type: 'text', text: 'What is' },
        { type: 'text', text: 'wax?' },
      ],
    },
  ];
  const call = { id: null, type: 'function', function: { name: 'f', arguments: '{}' } };
  expect((await answered({ messages: parts, seed: 3 })).text).toBe((await answered({ messages: plain, seed: 3 })).text);
  const called = [
    ...messages,
    { role: 'assistant', content: null, tool_calls: [call] },
    { role: 'tool', tool_call_id: null, content: '3' },
  ];
  expect((await post(CHAT, { messages: called, max_tokens: 2 })).status).toBe(200);
});

test('a hundred streams at once have whole characters, each all of them', async () => {
  const said = 'žluťoučký kůň 日本語 🐎 e\u0301';
  const body = { messages, grammar: `root ::= "${said}"`, max_tokens: 200, stream: true };
  const texts = await Promise.all(
    Array.from({ length: 100 }, async () => {
      const events = eventsIn(await (await post(CHAT, body)).text());
      expect(events.at(-1)).toBe('[DONE]');
      const chunks = events
        .slice(0, -1)
        .map((event) => JSON.parse(event) as { choices: [{ delta: { content?: string } }] });
      return chunks.map(({ choices }) => choices[0].delta.content ?? '').join('');
    }),
  );
  expect(new Set(texts)).toEqual(new Set([said]));
});

test('a path that is none is told in other words than by a server that answers nothing', async () => {
  const { error } = (await (await fetch(`${served.url}/v1`)).json()) as { error: { hint: string } };
  expect(error.hint).toBe('/openapi.json lists what there is');
});

test('as many as may ask have a connection each', async () => {
  await using live = await serve(served.engine, { port: 0, answers: { requestsMax: 90 } });
  const body = JSON.stringify({ messages, max_tokens: 1 });
  const statuses = await Promise.all(
    Array.from({ length: 90 }, async () => {
      const init = { method: 'POST', body, headers: JSON_TYPE };
      return (await fetch(live.url + CHAT, init).catch(() => ({ status: 0 }))).status;
    }),
  );
  expect(new Set(statuses)).toEqual(new Set([200]));
});

test('a reader that takes nothing is left', async () => {
  const { writable, readable } = new TransformStream();
  const out = new StreamingApi(writable, readable);
  await new Promise<void>((left) => {
    const events = new EventStream(out, left, 20);
    void events.send({ a: 1 }).then(() => events.send({ a: 2 }));
  });
  expect(out.aborted).toBe(true);
});

test('the connection of a reader that takes nothing is cut, so that what it has looks like no whole answer', async () => {
  const app = new Hono<{ Bindings: HttpBindings }>();
  const api = new AnswersApi(served.engine, {}, null, 200);
  api.serveOn(app, () => ({}));
  const listener = getRequestListener(app.fetch, { overrideGlobalObjects: false });
  const server = createServer((request, response) => void listener(request, response)).listen(0, '127.0.0.1');
  await once(server, 'listening');
  // The first events have all of this in them, which is more than a connection holds.
  const body = JSON.stringify({ input: 'Wax?', stream: true, max_output_tokens: 1, metadata: { a: 'x'.repeat(7e6) } });
  const socket = connect((server.address() as AddressInfo).port, '127.0.0.1').pause();
  socket.on('error', () => {});
  socket.write(`POST /v1/responses HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-type: application/json\r\n`);
  socket.write(`content-length: ${body.length}\r\n\r\n${body}`);
  const connections = (): Promise<number> =>
    new Promise((resolve) => server.getConnections((_, count) => resolve(count)));
  await expect.poll(connections).toBe(1);
  await expect.poll(connections, { timeout: 20_000 }).toBe(0);
  socket.destroy();
  server.close();
  await api.close();
}, 60_000);

describe('an engine that answers one at a time', () => {
  let engine: Engine;
  let view: LiveView;
  const TOKEN = 'dGhpcyBpcyBhIHRva2Vu';
  const key = { authorization: `Bearer ${TOKEN}` };
  beforeAll(async () => {
    engine = await createEngine({
      model: 'reference',
      threads: 1,
      stateDir: null,
      kvBudget: 2 ** 26,
      maxConcurrent: 1,
    });
    view = await serve(engine, {
      port: 0,
      token: TOKEN,
      allowOrigin: 'https://a.example',
      answers: { requestsMax: 2 },
    });
  });
  afterAll(async () => {
    await view.close();
    await engine.close();
  });
  const asked = (body: object, init: RequestInit = {}): Promise<Response> =>
    fetch(view.url + CHAT, {
      method: 'POST',
      body: JSON.stringify({ messages, ...body }),
      ...init,
      headers: { ...JSON_TYPE, ...key, ...init.headers },
    });
  const waiting = async (count: number): Promise<void> => {
    while (!new RegExp(`num_requests_waiting ${count}$`, 'm').test(await engine.metrics()))
      await new Promise(setImmediate);
  };

  test('whoever goes away leaves the queue, and more than may ask are told to come back', async () => {
    const first = new AbortController();
    const long = await asked({ stream: true, max_tokens: 3000 }, { signal: first.signal });
    const second = new AbortController();
    const queued = asked({}, { signal: second.signal }).catch(() => null);
    await waiting(1);
    const third = await asked({});
    expect([third.status, third.headers.get('retry-after')]).toEqual([429, '1']);
    expect(await third.json()).toMatchObject({ error: { type: 'rate_limit_error', code: 'busy' } });
    // What takes the model's thread but no cache is counted as well.
    const tokens = async (content: string): Promise<Response> =>
      fetch(`${view.url}/tokenize`, {
        method: 'POST',
        body: JSON.stringify({ content }),
        headers: { ...JSON_TYPE, ...key },
      });
    expect((await tokens('wax')).status).toBe(429);
    second.abort();
    expect(await queued).toBeNull();
    await waiting(0);
    first.abort();
    await expect(long.text()).rejects.toThrow();
    // That a client went away is told by its connection, which ends a moment after the client's own call does.
    let next = await asked({ max_tokens: 2 });
    while (next.status === 429) next = await asked({ max_tokens: 2 });
    expect(next.status).toBe(200);
    expect((await tokens('wax')).status).toBe(200);
    expect(await refused(tokens('x'.repeat(2 ** 18 + 1)))).toEqual([400, 'invalid_request_error', 'content']);
  });

  test('nobody is answered without the key but who asks whether it is there', async () => {
    const none = await fetch(view.url + CHAT, { method: 'POST', body: '{}', headers: JSON_TYPE });
    expect([none.status, ((await none.json()) as Refused).error.type]).toEqual([401, 'authentication_error']);
    expect((await fetch(`${view.url}/v1/models`)).status).toBe(401);
    expect((await fetch(`${view.url}/v1/models`, { headers: { 'x-api-key': TOKEN } })).status).toBe(200);
    expect(await (await fetch(`${view.url}/health`)).json()).toEqual({ status: 'ok' });
  });

  test('pages of other origins have nothing answered, and those of the one that is named may ask', async () => {
    const foreign = await asked({}, { headers: { origin: 'https://b.example' } });
    expect([foreign.status, ((await foreign.json()) as Refused).error.type]).toEqual([403, 'permission_error']);
    const origin = { origin: 'https://a.example' };
    const before = await fetch(view.url + CHAT, { method: 'OPTIONS', headers: origin });
    expect([before.status, before.headers.get('access-control-allow-origin')]).toEqual([204, origin.origin]);
    expect(before.headers.get('access-control-allow-headers')).toMatch(/authorization/);
    // Clients have headers of their own, and responses are removed.
    const wanted = { 'access-control-request-headers': 'authorization,x-stainless-lang' };
    const asks = await fetch(`${view.url}/v1/responses/x`, { method: 'OPTIONS', headers: { ...origin, ...wanted } });
    expect(asks.headers.get('access-control-allow-headers')).toMatch(/x-stainless-lang/);
    expect(asks.headers.get('access-control-allow-methods')).toMatch(/DELETE/);
    const named = await asked({ max_tokens: 2 }, { headers: origin });
    expect([named.status, named.headers.get('access-control-allow-origin')]).toEqual([200, origin.origin]);
    expect((await fetch(view.url + CHAT, { method: 'OPTIONS', headers: { origin: 'https://b.example' } })).status).toBe(
      405,
    );
  });

  test('answers that are cut off by the end of the server leave no session behind in the engine', async () => {
    const live = await serve(engine, { port: 0, answers: {} });
    const body = JSON.stringify({ messages, stream: true, max_tokens: 3000 });
    const cut = await fetch(live.url + CHAT, { method: 'POST', body, headers: JSON_TYPE });
    const open = async (): Promise<number> => Number(/sessions_open (\d+)/.exec(await engine.metrics())![1]);
    const before = await open();
    await live.close();
    await expect(cut.text()).rejects.toThrow();
    await expect.poll(open).toBe(before - 1);
  });

  test('what goes wrong in the middle of an answer is its last event', async () => {
    const own = await createEngine({ model: 'reference', threads: 1, stateDir: null });
    await using live = await serve(own, { port: 0, answers: {} });
    const body = JSON.stringify({ messages, stream: true, max_tokens: 3000 });
    const response = await fetch(live.url + CHAT, { method: 'POST', body, headers: JSON_TYPE });
    let text = '';
    for await (const piece of response.body!.pipeThrough(new TextDecoderStream())) {
      if (text === '') void own.terminate();
      text += piece;
    }
    const events = eventsIn(text);
    expect(JSON.parse(events.at(-1)!)).toMatchObject({ error: { code: 'closed', type: 'overloaded_error' } });
    expect(events).not.toContain('[DONE]');
  });
});

test('requests are counted by how they were answered', async () => {
  const counts = async () => {
    const text = await (await fetch(`${served.url}/metrics`)).text();
    return ['answered', 'refused'].map((outcome) =>
      Number(new RegExp(`http_requests_total\\{outcome="${outcome}"\\} (\\d+)`).exec(text)![1]),
    );
  };
  const before = await counts();
  await answered({});
  await refused(post(CHAT, { messages: [] }));
  const after = await counts();
  // The answers to the questions for counts are among them.
  expect([after[0]! - before[0]!, after[1]! - before[1]!]).toEqual([2, 1]);
});

test('a server that drains ends what it answers, and takes no more', async () => {
  await using live = await serve(served.engine, { port: 0, answers: {} });
  const body = JSON.stringify({ messages, stream: true, max_tokens: 200, temperature: 0 });
  const response = await fetch(live.url + CHAT, { method: 'POST', body, headers: JSON_TYPE });
  const drained = live.drain(60_000);
  const health = await fetch(`${live.url}/health`);
  expect([health.status, await health.json()]).toEqual([503, { status: 'draining' }]);
  const late = await fetch(live.url + CHAT, { method: 'POST', body, headers: JSON_TYPE });
  expect([late.status, late.headers.get('retry-after')]).toEqual([503, '1']);
  expect(await late.json()).toMatchObject({ error: { code: 'closed' } });
  expect(eventsIn(await response.text()).at(-1)).toBe('[DONE]');
  await drained;
  // Nobody is waited for for ever.
  await using other = await serve(served.engine, { port: 0, answers: {} });
  const gone = new AbortController();
  await fetch(other.url + CHAT, {
    method: 'POST',
    body: body.replace('200', '3000'),
    headers: JSON_TYPE,
    signal: gone.signal,
  });
  await other.drain(1);
  gone.abort();
});

test('what a waiting conversation fails with is a fault of ours, which the next request does not meet', () => {
  const thrown = new Refusal(500, new KvError('sealed', 'erased'), { 'x-should-retry': 'true' });
  expect(failureOf(thrown)).toMatchObject({
    status: 500,
    error: { type: 'server_error', code: 'sealed' },
    headers: { 'x-should-retry': 'true' },
  });
});
