/**
 * What node:http takes for no request, or for one that came too late, before anything here has seen it. Its client is
 * told as of any other refusal; node:http would send a status alone.
 */
import { STATUS_CODES } from 'node:http';
import type { Duplex } from 'node:stream';
import { KvError } from '../../native/index.ts';
import { failureOf, Refusal } from '../openai/failure.ts';

/** By the code of node:http, the status that it has for it. */
const STATUSES: Readonly<Record<string, readonly [status: number, message: string]>> = {
  ERR_HTTP_REQUEST_TIMEOUT: [408, 'the request was not there in time'],
  HPE_HEADER_OVERFLOW: [431, 'the headers of the request have too many bytes'],
  HPE_CHUNK_EXTENSIONS_OVERFLOW: [413, 'the body of the request has too many bytes beside what it says'],
};
const NO_REQUEST = [400, 'this is no request of HTTP'] as const;

/** The whole answer, after which the connection ends. */
function answerTo(code: string | undefined, headers: Readonly<Record<string, string>>): string {
  const [status, message] = STATUSES[code ?? ''] ?? NO_REQUEST;
  const { error } = failureOf(new Refusal(status, new KvError('bad-argument', message)));
  const body = `${JSON.stringify({ error })}\n`;
  return [
    `HTTP/1.1 ${status} ${STATUS_CODES[status]}`,
    'content-type: application/json; charset=utf-8',
    `content-length: ${Buffer.byteLength(body)}`,
    'connection: close',
    ...Object.entries(headers).map(([name, value]) => `${name}: ${value}`),
    '',
    body,
  ].join('\r\n');
}

/** Tells it, where nothing of another answer is on its way, and ends the connection. */
export function refuseUnread(
  { code }: NodeJS.ErrnoException,
  socket: Duplex,
  isAnswering: boolean,
  headers: Readonly<Record<string, string>>,
): void {
  if (socket.writable && !isAnswering) socket.write(answerTo(code, headers));
  socket.destroy();
}
