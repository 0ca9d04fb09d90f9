// Who may ask the live view, and how much: each limit is crossed by a client on a real socket, and a client within it
// is answered.
import { writeFileSync } from 'node:fs';
import { connect, type Socket } from 'node:net';
import { join } from 'node:path';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { type LiveView, type ServeOptions, serve } from '../../../../engine/index.ts';
import { ANSWERS } from '../../../../engine/serve/answers.ts';
import { addressOf, readToken } from '../../../../engine/serve/guard.ts';
import { logDir } from '../../../../engine/state/folder.ts';
import { KvError } from '../../../../native/index.ts';
import { type DecisionBody, openWitnessLog, type WitnessLog } from '../../../../witness/index.ts';
import { scratchFolders } from '../../witness/folder.ts';
import { codeOf } from '../on-reference.ts';
import { ask, follow, raw, refusal, statusOf } from './ask.ts';

const folder = scratchFolders();
const TOKEN = 'dGhpcyBpcyBhIHRva2Vu';
let state = '';
let log: WitnessLog;

beforeAll(async () => {
  state = folder();
  log = await openWitnessLog({ dir: logDir(state) });
  log.append('s', 'note', { n: 1 });
  await log.flush();
});
afterAll(() => log.close());

const view = (options: ServeOptions = {}): Promise<LiveView> => serve(state, { port: 0, ...options });
const get = (path: string, ...headers: string[]): string =>
  [`GET ${path} HTTP/1.1`, 'connection: close', ...headers, '', ''].join('\r\n');
const HOST = 'host: localhost';

describe('methods and sizes', () => {
  test('only GET and HEAD are served, and HEAD has no body', async () => {
    await using live = await view();
    for (const method of ['POST', 'PUT', 'DELETE', 'PATCH', 'OPTIONS'])
      expect([method, ...(await refusal(live.url, '/v1/sessions', { method }))]).toEqual([method, 405, 'unsupported']);
    const head = await fetch(`${live.url}/v1/sessions`, { method: 'HEAD' });
    expect([head.status, await head.text()]).toEqual([200, '']);
    expect(Number(head.headers.get('content-length'))).toBeGreaterThan(0);
    const stream = await fetch(`${live.url}/v1/decisions/stream`, { method: 'HEAD' });
    expect([stream.status, await stream.text()]).toEqual([200, '']);
  });

  test('a client of an OpenAI server is told that nothing is generated here', async () => {
    await using live = await view();
    for (const init of [{}, { method: 'POST', body: '{}' }]) {
      const answer = await fetch(`${live.url}/v1/chat/completions`, init);
      expect(ANSWERS.error.parse(await answer.json()).error.hint).toContain('clients of OpenAI servers are not served');
    }
  });

  test('answers tell a browser not to guess, keep, frame or run them, and no other origin to read them', async () => {
    await using live = await view();
    const { headers } = await fetch(`${live.url}/v1/sessions`, { headers: { origin: 'https://elsewhere.example' } });
    expect(headers.get('x-content-type-options')).toBe('nosniff');
    expect(headers.get('cache-control')).toBe('no-store');
    expect(headers.get('content-security-policy')).toContain("default-src 'none'");
    expect(headers.get('access-control-allow-origin')).toBeNull();
  });

  test('one origin may read answers where it is named, and no other', async () => {
    await using live = await view({ allowOrigin: 'https://dashboard.example' });
    const allowed = async (origin: string): Promise<string | null> =>
      (await fetch(`${live.url}/v1/sessions`, { headers: { origin } })).headers.get('access-control-allow-origin');
    expect(await allowed('https://dashboard.example')).toBe('https://dashboard.example');
    expect(await allowed('https://elsewhere.example')).toBeNull();
  });

  test('bodies, long addresses and long headers are refused', async () => {
    await using live = await view();
    expect(statusOf(await raw(live.url, get('/v1/sessions', HOST, 'content-length: 5')))).toBe(413);
    expect(statusOf(await raw(live.url, get('/v1/sessions', HOST, 'transfer-encoding: chunked')))).toBe(413);
    expect(statusOf(await raw(live.url, get(`/v1/${'x'.repeat(5000)}`, HOST)))).toBe(414);
    expect(statusOf(await raw(live.url, get('/v1/sessions', HOST, `x: ${'x'.repeat(9000)}`)))).toBe(431);
    expect(statusOf(await raw(live.url, get('/v1/sessions', HOST)))).toBe(200);
  });

  test('what is no HTTP, no path of ours, or wants another protocol is refused', async () => {
    await using live = await view();
    expect(statusOf(await raw(live.url, 'hello\r\n\r\n'))).toBe(400);
    expect(await raw(live.url, 'hello\r\n\r\n')).toMatch(/\r\n\r\n\{"error":\{.*"code":"bad-argument".*\}\}\n$/);
    expect(statusOf(await raw(live.url, get('http://localhost/v1/sessions', HOST)))).toBe(400);
    expect(statusOf(await raw(live.url, get('/../v1/sessions', HOST)))).toBe(404);
    expect(statusOf(await raw(live.url, get('/v1/sessions', HOST, 'expect: 100-continue')))).toBe(200);
    expect(await raw(live.url, 'CONNECT localhost:1 HTTP/1.1\r\nhost: localhost\r\n\r\n')).toBe('');
    const upgrade = get('/v1/sessions', HOST, 'upgrade: websocket').replace('connection: close', 'connection: upgrade');
    expect(await raw(live.url, upgrade)).toBe('');
    expect((await ask<{ rows: unknown[] }>(live.url, '/v1/sessions')).rows).toEqual([]);
  });
});

describe('Host', () => {
  test.each([
    ['localhost', 200],
    ['localhost:9470', 200],
    ['127.0.0.1:80', 200],
    ['[::1]:9470', 200],
    ['LOCALHOST', 200],
    ['attacker.example', 403],
    ['localhost.attacker.example', 403],
    ['127.0.0.1.attacker.example', 403],
    ['attacker.example:9470', 403],
    ['192.168.0.1', 403],
    ['', 403],
  ])('%s is answered with %i on loopback, so that a name that was pointed here reads nothing', async (host, status) => {
    await using live = await view();
    expect(statusOf(await raw(live.url, get('/v1/sessions', `host: ${host}`)))).toBe(status);
  });
});

describe('the token', () => {
  test('is needed by whoever asks, and compared whole', async () => {
    await using live = await view({ token: TOKEN });
    const by = (authorization: string): RequestInit => ({ headers: { authorization } });
    for (const wrong of ['Bearer', `Bearer ${TOKEN}x`, `Bearer ${TOKEN.slice(1)}`, `Basic ${TOKEN}`, TOKEN])
      expect([wrong, ...(await refusal(live.url, '/metrics', by(wrong)))]).toEqual([wrong, 401, 'not-allowed']);
    const bare = await fetch(`${live.url}/openapi.json`);
    expect([bare.status, bare.headers.get('www-authenticate')]).toEqual([401, 'Bearer']);
    expect((await fetch(`${live.url}/metrics`, by(`Bearer ${TOKEN}`))).status).toBe(200);
  });

  test('is what lets a server listen where other machines reach it; there, Host may be anything', async () => {
    expect(await codeOf(view({ host: '0.0.0.0' }))).toBe('bad-argument');
    expect(await codeOf(view({ host: '::' }))).toBe('bad-argument');
    await using live = await view({ host: '0.0.0.0', token: TOKEN });
    const url = live.url.replace('0.0.0.0', '127.0.0.1');
    const authorization = `authorization: Bearer ${TOKEN}`;
    expect(statusOf(await raw(url, get('/v1/sessions', 'host: metrics.example', authorization)))).toBe(200);
    expect(statusOf(await raw(url, get('/v1/sessions', 'host: metrics.example')))).toBe(401);
  });

  test('comes from a file, without the line feed; one that can be guessed is refused', () => {
    const path = join(folder(), 'token');
    const read = (content: string): string => {
      writeFileSync(path, content);
      try {
        return readToken(path);
      } catch (error) {
        return (error as KvError).code;
      }
    };
    expect(read(`${TOKEN}\n`)).toBe(TOKEN);
    for (const bad of ['', 'secret', `${TOKEN} ${TOKEN}`, 'ü'.repeat(20)]) expect(read(bad)).toBe('bad-config');
    expect(() => readToken(join(folder(), 'none'))).toThrow(KvError);
  });
});

describe('rates, times and connections', () => {
  test('an address may ask twice as often for a moment', async () => {
    await using live = await view({ requestsPerSecond: 2 });
    const statuses: number[] = [];
    for (let n = 0; n < 4; n++) statuses.push((await fetch(`${live.url}/openapi.json`)).status);
    expect(statuses).toEqual([200, 200, 200, 200]);
  });

  test('an address that asks too often is told when to come again', async () => {
    // One in an hour: no machine is so slow that the second one comes late enough.
    await using live = await view({ requestsPerSecond: 1 / 3600 });
    expect((await fetch(`${live.url}/openapi.json`)).status).toBe(200);
    const response = await fetch(`${live.url}/openapi.json`);
    expect(response.status).toBe(429);
    expect(Number(response.headers.get('retry-after'))).toBeGreaterThan(1);
  });

  test('a wrong token counts as a request, so that tokens cannot be tried at will', async () => {
    await using live = await view({ token: TOKEN, requestsPerSecond: 1 / 3600 });
    expect((await fetch(`${live.url}/metrics`)).status).toBe(401);
    expect((await fetch(`${live.url}/metrics`)).status).toBe(429);
  });

  test('IPv6 counts by network, IPv4 by address', () => {
    expect(addressOf('2001:db8:1:2:3:4:5:6')).toBe(addressOf('2001:db8:1:2::ffff'));
    expect(addressOf('2001:db8:1:2::1')).not.toBe(addressOf('2001:db8:1:3::1'));
    expect(addressOf('::1')).toBe('0:0:0:0');
    expect(addressOf('::ffff:10.0.0.1')).toBe('10.0.0.1');
    expect(addressOf('10.0.0.1')).not.toBe(addressOf('10.0.0.2'));
  });

  test('a client that sends its request byte by byte is cut off', async () => {
    await using live = await view({ requestMs: 200 });
    const { hostname, port } = new URL(live.url);
    const answer = await new Promise<string>((resolve) => {
      let text = '';
      const socket = connect(Number(port), hostname);
      const drip = setInterval(() => socket.write('x'), 20);
      socket.on('connect', () => socket.write('GET /v1/sessions HTTP/1.1\r\nhost: localhost\r\nx: '));
      socket.on('data', (chunk) => (text += chunk));
      socket.on('error', () => {});
      socket.on('close', () => {
        clearInterval(drip);
        resolve(text);
      });
    });
    expect(statusOf(answer)).toBe(408);
    expect(answer).toMatch(/\r\n\r\n\{"error":\{"message":"the request was not there in time".*\}\}\n$/);
    expect((await ask<{ rows: unknown[] }>(live.url, '/v1/sessions')).rows).toEqual([]);
  });

  test('more connections than are allowed are closed, and those that are open go on', async () => {
    await using live = await view({ connectionsMax: 3 });
    const { hostname, port } = new URL(live.url);
    const open = (): Promise<Socket> =>
      new Promise((resolve) => {
        const socket = connect(Number(port), hostname, () => resolve(socket));
        socket.on('error', () => {});
      });
    const kept = [await open(), await open(), await open()];
    const further = await open();
    await new Promise((resolve) => further.once('close', resolve));
    const answered = new Promise<string>((resolve) => kept[0]!.once('data', (chunk) => resolve(String(chunk))));
    kept[0]!.write(get('/openapi.json', HOST));
    expect(statusOf(await answered)).toBe(200);
    for (const socket of kept) socket.destroy();
  });
});

describe('clients that follow decisions', () => {
  test('are limited in number', async () => {
    await using live = await view({ stream: { clientsMax: 1 } });
    const first = await fetch(`${live.url}/v1/decisions/stream`);
    expect(await refusal(live.url, '/v1/decisions/stream')).toEqual([503, 'busy']);
    await first.body!.cancel();
    for (let status = 503; status !== 200; ) {
      const next = await fetch(`${live.url}/v1/decisions/stream`);
      ({ status } = next);
      await next.body!.cancel();
      await new Promise((resolve) => setTimeout(resolve, 30));
    }
  });

  test('hear a heartbeat', async () => {
    await using live = await view({ stream: { heartbeatMs: 50, stalledMs: 50 } });
    const listening = await fetch(`${live.url}/v1/decisions/stream`);
    const reader = listening.body!.getReader();
    let text = '';
    while (!text.includes(':\n\n')) text += new TextDecoder().decode((await reader.read()).value);
    expect(text).toMatch(/^retry: 2000\n\n/);
    await reader.cancel();
  });

  test.each([
    ['of what they missed', '?after=start'],
    ['of what is written', ''],
  ])('are cut off and counted when they do not read %s, and others are not', async (_, query) => {
    const dir = folder();
    await using writer = {
      log: await openWitnessLog({ dir: logDir(dir) }),
      [Symbol.asyncDispose]: () => writer.log.close(),
    };
    const write = async (): Promise<void> => {
      for (let n = 0; n < DECISIONS; n++) writer.log.append('s', 'decision', decision(n));
      await writer.log.flush();
    };
    if (query !== '') await write();
    await using live = await serve(dir, { port: 0, stream: { stalledMs: 300, heartbeatMs: 300 } });
    const { hostname, port } = new URL(live.url);
    const silent = connect(Number(port), hostname);
    silent.on('error', () => {});
    const gone = new Promise((resolve) => silent.once('close', resolve));
    const heard = new Promise<void>((resolve) =>
      silent.once('data', () => {
        silent.pause();
        resolve();
      }),
    );
    silent.write(`GET /v1/decisions/stream${query} HTTP/1.1\r\nhost: localhost\r\n\r\n`);
    let other: Promise<{ readonly seq: number }[]>;
    const opened = new Promise<void>((resolve) => {
      const path = `/v1/decisions/stream${query}`;
      other = follow(live.url, path, (told) => told.length === DECISIONS, {}, resolve);
    });
    // Only when both have their answers is there something new to tell.
    await Promise.all([heard, opened]);
    if (query === '') await write();
    expect((await other!).map(({ seq }) => seq)).toEqual(Array.from({ length: DECISIONS }, (_, seq) => seq));
    for (let count = '0'; count === '0'; ) {
      await new Promise((resolve) => setTimeout(resolve, 100));
      const text = await (await fetch(`${live.url}/metrics`)).text();
      count = /^palimpsest_stream_clients_dropped_total (\d+)$/m.exec(text)![1]!;
      expect(['0', '1']).toContain(count);
    }
    silent.resume();
    await gone;
  });
});

/** More bytes than the system holds for a connection that nobody reads. */
const DECISIONS = 15_000;

function decision(page: number): DecisionBody {
  const because = {
    threshold: 'price.slack',
    measured: 1,
    bound: 2,
    unit: 'KLD/byte',
    origin: 'default',
    rule: 'price',
  } as const;
  return {
    situation: 0,
    order: page,
    decision: {
      layer: 0,
      page,
      side: 'k',
      from: 'q8',
      to: 'rot4',
      epsilonFrom: 0,
      epsilonTo: 0.01,
      price: 1e-9,
      bytesFreed: 4096,
      retry: false,
      because,
    },
    epsilonNow: null,
    verdict: { accepted: true, because },
    bytesBefore: 8192,
    bytesAfter: 4096,
    tokens: 256,
  };
}

test('options that cannot be are refused by name', async () => {
  for (const options of [
    { port: 65_536 },
    { port: 1.5 },
    { host: '' },
    { token: 'short' },
    { allowOrigin: '*' },
    { requestsPerSecond: 0 },
    { connectionsMax: Number.NaN },
    { stream: { clientsMax: -1 } },
    { stream: { nothing: 1 } as object },
    { prt: 1 } as object,
  ] as ServeOptions[])
    expect([options, ['bad-argument', 'bad-config'].includes(await codeOf(serve(state, options)))]).toEqual([
      options,
      true,
    ]);
});

test('a port that is taken is refused', async () => {
  await using live = await view();
  expect(await codeOf(view({ port: Number(new URL(live.url).port) }))).toBe('io');
});
