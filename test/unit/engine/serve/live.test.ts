// Snapshots of a server for its page: what they say of an engine that works, that readers share them, and that none is
// made while nobody reads. The engine, its log and the connections are real.
import { createServer, type Server } from 'node:http';
import type { AddressInfo } from 'node:net';
import { afterAll, beforeAll, expect, test } from 'vitest';
import type { Engine, EngineSession } from '../../../../engine/index.ts';
import { ANSWERS } from '../../../../engine/serve/answers.ts';
import { Live } from '../../../../engine/serve/live.ts';
import type { Snapshot } from '../../../../engine/serve/page/snapshot.ts';
import { LogReader } from '../../../../engine/serve/reader.ts';
import { logDir } from '../../../../engine/state/folder.ts';
import { scratchFolders } from '../../witness/folder.ts';
import { withEngine, written } from '../on-reference.ts';

const RULES = { clientsMax: 2, stalledMs: 10_000, heartbeatMs: 15_000 };
let engine: Engine;
let state = '';
let session: EngineSession;
let reader: LogReader;
let server: Server;
let url = '';
let live: Live;

withEngine(scratchFolders(), (opened, folder) => {
  engine = opened;
  state = folder;
});
beforeAll(async () => {
  session = await written(engine, { kvBudget: '25%' });
  await session.flush();
  reader = new LogReader(logDir(state));
  live = new Live({ model: 'named', metrics: () => engine.metrics(), reader }, RULES, () => {});
  server = createServer((request, response) => {
    const own = request.url === '/own' ? new Set<string>() : null;
    const asked = { own, who: '', most: Number.POSITIVE_INFINITY };
    live.serve(asked, response, { 'content-type': 'text/event-stream' }).catch(() => response.writeHead(503).end());
  });
  await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', resolve));
  url = `http://127.0.0.1:${(server.address() as AddressInfo).port}`;
});
afterAll(async () => {
  server.closeAllConnections();
  server.close();
  await reader.close();
});

/** What a reader is told until it has enough and goes. */
async function snapshots(enough: (told: readonly Snapshot[]) => boolean = () => true, path = '/'): Promise<Snapshot[]> {
  const leaving = new AbortController();
  const response = await fetch(url + path, { signal: leaving.signal });
  expect(response.status).toBe(200);
  const told: Snapshot[] = [];
  let text = '';
  const decoder = new TextDecoder();
  for await (const chunk of response.body!) {
    text += decoder.decode(chunk as Uint8Array, { stream: true });
    const events = text.split('\n\n');
    text = events.pop()!;
    for (const event of events) {
      const [, data] = /^event: snapshot\ndata: (.*)$/.exec(event)!;
      told.push(ANSWERS.live.parse(JSON.parse(data!)) as unknown as Snapshot);
    }
    if (enough(told)) break;
  }
  leaving.abort();
  return told;
}

test('a snapshot says what the engine and its log say', async () => {
  const [told] = await snapshots();
  const { tokens } = await session.report();
  expect(told).toMatchObject({ model: 'named', hasLog: true, seesAll: true });
  expect(told!.sessions).toEqual([expect.objectContaining({ session: session.id, bytes: expect.any(Number) })]);
  expect(told!.sessions[0]!.tokens).toBeGreaterThan(tokens / 2);
  const { bytes, tiers, tokensPerSecond } = told!.engine!;
  expect(bytes).toBeGreaterThan(0);
  expect(Object.values(tiers).reduce((sum, one) => sum + one, 0)).toBe(bytes);
  // Nothing is known of the time before the first one.
  expect(tokensPerSecond).toBe(0);
});

/** Waits until nobody reads any more. */
async function alone(): Promise<void> {
  while (live.isMaking) await new Promise((resolve) => setTimeout(resolve, 10));
}

test('readers share snapshots', async () => {
  await alone();
  const times: number[][] = [[], []];
  // Both read until they have been told the same.
  const reads = times.map((own) =>
    snapshots((told) => {
      own.push(told.at(-1)!.timeMs);
      return times[0]!.some((timeMs) => times[1]!.includes(timeMs));
    }),
  );
  expect((await Promise.all(reads)).flat().length).toBeGreaterThan(1);
});

test('no more than so many may read, and none is made while nobody does', async () => {
  await alone();
  const leaving = new AbortController();
  const { signal } = leaving;
  for (const status of [200, 200, 503]) expect((await fetch(url, { signal })).status).toBe(status);
  expect(live.isMaking).toBe(true);
  leaving.abort();
  await alone();
  expect(await snapshots()).toHaveLength(1);
});

test('who sees only their own is told of nothing else', async () => {
  await alone();
  const [told] = await snapshots(() => true, '/own');
  expect(told).toMatchObject({ seesAll: false, engine: null, pools: [], sessions: [] });
});
