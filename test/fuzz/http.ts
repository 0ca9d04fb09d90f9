/**
 * Requests to the live view, damaged: whatever is sent, the answer is one that a client can be given, never "our
 * fault", and the server answers the next.
 */
import { connect } from 'node:net';
import { join } from 'node:path';
import { type LiveView, serve } from '../../engine/index.ts';
import { ROUTES } from '../../engine/serve/routes.ts';
import { KvError } from '../../native/index.ts';
import { one, type Random } from './case.ts';
import { BINARY, type Mutation } from './mutate.ts';

const STATE = join(import.meta.dirname, '../fixtures/base-state');
const request = (target: string): Buffer =>
  Buffer.from(`GET ${target} HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n`);

const WORDS: readonly string[] = [
  ...[
    '',
    '0',
    '-1',
    '1',
    '7',
    '17',
    '1e9',
    '1e999',
    '9007199254740993',
    '4294967296',
    '0:17',
    '9999:1',
    'NaN',
    'null',
    'k',
    'kv',
    'rot4',
    'true',
  ],
  ...[
    'e48a4c5f',
    '95221492',
    '../../etc/passwd',
    '%2e%2e%2f',
    '%00',
    '%',
    '%ff%fe',
    '__proto__',
    'constructor',
    'ü',
    "' or 1=1 --",
    'x'.repeat(3000),
  ],
  ...['2026-01-31', '2026-01-31T00:00:00Z', '[]', '{}', 'a,b', '*', '.*(a+)+$'],
];

/** Another route, with names of parameters that it knows and values that make no sense. */
const otherRoute: Mutation = (_, random) => {
  const { path, inQuery } = one(random, ROUTES);
  const names = [...Object.keys(inQuery.shape), '__proto__', 'limit', 'extra'];
  const filled = path.replace(/\{\w+\}/g, () => one(random, WORDS));
  const query = Array.from(
    { length: Math.floor(random() * 4) },
    () => `${one(random, names)}=${one(random, WORDS)}`,
  ).join('&');
  return request(`${filled}${query === '' ? '' : `?${query}`}`.replaceAll(' ', '+'));
};

/** A line of the head more, out of place. */
const otherHead: Mutation = (content, random) => {
  const line = one(random, [
    ...[
      'Content-Length: 99999999999',
      'Content-Length: -1',
      'Transfer-Encoding: chunked',
      'Range: bytes=0-',
      'Upgrade: websocket',
    ],
    ...[
      'Authorization: Bearer x',
      'Last-Event-ID: -1',
      'Last-Event-ID: 1e99',
      'Host: a',
      'Origin: null',
      'Expect: 100-continue',
      `X: ${'y'.repeat(9000)}`,
    ],
  ]);
  const method = one(random as Random, [
    'GET',
    'HEAD',
    'POST',
    'PUT',
    'DELETE',
    'OPTIONS',
    'TRACE',
    'CONNECT',
    'get',
    'G\0T',
  ]);
  return Buffer.from(content.toString('latin1').replace('\r\n', `\r\n${line}\r\n`).replace(/^\w+/, method), 'latin1');
};

const LINES: readonly Mutation[] = [otherRoute, otherHead];
export const HTTP: readonly Mutation[] = [...BINARY, ...LINES, ...LINES, ...LINES, ...LINES, ...LINES];
export const REQUEST = request('/v1/decisions?limit=3&layer=1');

const QUIET_MS = 300;
/** Answers take milliseconds: whoever waits so long waits for nothing, on any machine. */
const HANGS_MS = 300_000;
let view: LiveView | null = null;

/** Sends bytes and ends. → the first bytes of the answer, '' for a connection that was closed */
const answerTo = (bytes: Uint8Array): Promise<string> =>
  new Promise((resolve, reject) => {
    const { hostname, port } = new URL(view!.url);
    const socket = connect(Number(port), hostname, () => socket.write(bytes));
    let text = '';
    // A request that is not whole is waited for. A sound one is whole, however long its answer takes on a busy machine.
    const over = setTimeout(() => socket.end(), REQUEST.equals(bytes) ? HANGS_MS : QUIET_MS);
    const timer = setTimeout(() => reject(new Error(`no answer after ${HANGS_MS / 1000} s`)), HANGS_MS);
    socket.on('data', (chunk) => {
      text += chunk.toString('latin1');
      // Events of the log never end.
      if (text.includes('\r\n\r\n')) socket.destroy();
    });
    socket.on('error', () => {});
    socket.on('close', () => {
      clearTimeout(timer);
      clearTimeout(over);
      resolve(text);
    });
  });

/** Starts the server, if it does not run. What that costs belongs to no request. */
export async function openServer(): Promise<void> {
  if (view !== null) return;
  view = await serve(STATE, { port: 0, requestsPerSecond: 1e6, requestMs: 2000 });
  // Its thread starts with the first question.
  await (await fetch(`${view.url}/v1/sessions`)).text();
}

/** Throws what a client is refused with as a KvError, and an Error where the server says that it is to blame. */
export async function sendRequest(bytes: Uint8Array): Promise<void> {
  await openServer();
  const status = Number(/^HTTP\/1\.1 (\d{3})/.exec(await answerTo(bytes))?.[1] ?? 400);
  if (status >= 500 && status !== 503) throw new Error(`the server answered ${status}`);
  if (status >= 400) throw new KvError('bad-argument', `the server answered ${status}`);
}

export async function closeServer(): Promise<void> {
  await view?.close();
  view = null;
}
