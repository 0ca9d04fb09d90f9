/**
 * Tools that ask a live view as its clients do: by fetch, by bytes on a socket, and as a reader of server-sent events.
 */
import { connect } from 'node:net';
import { expect } from 'vitest';
import { ANSWERS } from '../../../../engine/serve/answers.ts';
import { entriesOf } from '../on-reference.ts';

/** JSON under a path, which must be there. */
export async function ask<T>(url: string, path: string, headers: Readonly<Record<string, string>> = {}): Promise<T> {
  const response = await fetch(url + path, { headers });
  const text = await response.text();
  expect(response.status, `${path}: ${text}`).toBe(200);
  return JSON.parse(text) as T;
}

/** What is refused: the status and the code of its error, whose form is checked. */
export async function refusal(
  url: string,
  path: string,
  init: RequestInit = {},
): Promise<[status: number, code: string]> {
  const response = await fetch(url + path, init);
  const body = ANSWERS.error.parse(await response.json());
  expect(response.headers.get('content-type')).toBe('application/json; charset=utf-8');
  return [response.status, body.error.code!];
}

/** Sends bytes as they are. → all that came back until the server ended the connection */
export function raw(url: string, bytes: string): Promise<string> {
  const { hostname, port } = new URL(url);
  return new Promise((resolve) => {
    let text = '';
    const socket = connect(Number(port), hostname);
    socket.on('data', (chunk) => (text += chunk));
    // A connection that is cut off is an answer too.
    socket.on('error', () => {});
    socket.on('close', () => resolve(text));
    socket.on('connect', () => socket.write(bytes));
  });
}

export const statusOf = (answer: string): number => Number(/^HTTP\/1\.1 (\d{3})/.exec(answer)?.[1]);

export interface Told {
  readonly id: string;
  readonly seq: number;
  readonly session: string;
}

/** Follows decisions until `enough` says so, and goes. → all that it was told */
export async function follow(
  url: string,
  path: string,
  enough: (told: readonly Told[]) => boolean,
  headers: Readonly<Record<string, string>> = {},
  onOpen: () => void = () => {},
): Promise<Told[]> {
  const response = await fetch(url + path, { headers });
  expect(response.headers.get('content-type')).toBe('text/event-stream; charset=utf-8');
  const told: Told[] = [];
  let text = '';
  const decoder = new TextDecoder();
  onOpen();
  for await (const chunk of response.body!) {
    text += decoder.decode(chunk as Uint8Array, { stream: true });
    const events = text.split('\n\n');
    text = events.pop()!;
    for (const event of events) {
      const [, id, data] = /^id: (\S+)\nevent: decision\ndata: (.*)$/.exec(event) ?? [];
      if (data === undefined) expect(event).toMatch(/^(:|retry: \d+)$/);
      else told.push({ id: id!, ...ANSWERS.decision.parse(JSON.parse(data)) });
    }
    // Leaving the loop closes the connection.
    if (enough(told)) break;
  }
  return told;
}

/** Decisions of a session as the log has them. */
export const decisionSeqs = (state: string, session: string): number[] =>
  entriesOf(state, session, 'decision').map(({ seq }) => seq);
