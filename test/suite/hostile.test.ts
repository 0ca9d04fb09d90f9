// What servers do that are broken, slow or hostile, and what becomes of those that ask them: a Qdrant, a PostgreSQL, a
// Hub. Real servers on loopback; the program that asks the Qdrant is a process of its own, which has to end by itself.
import { spawn } from 'node:child_process';
import { mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { pathToFileURL } from 'node:url';
import { setFlagsFromString } from 'node:v8';
import { runInNewContext } from 'node:vm';
import { afterAll, describe, expect, test } from 'vitest';
import { logDir } from '../../engine/state/folder.ts';
import { HubClient } from '../../engine/transformer/hub/client.ts';
import { hubSettings } from '../../engine/transformer/hub/settings.ts';
import { QdrantServer } from '../../memory/qdrant-server.ts';
import { readLog } from '../../witness/index.ts';
import { openPostgres } from '../../witness/sql/postgres.ts';
import { refused } from '../refusal.ts';
import { AS_POSTGRES, HostileServer, OVER_HTTP } from './hostile-server.ts';

const library = pathToFileURL(join(import.meta.dirname, '..', '..', 'dist', 'engine', 'index.js')).href;
const root = mkdtempSync(join(tmpdir(), 'palimpsest-hostile-'));
afterAll(() => rmSync(root, { recursive: true, force: true }));

/** Three sessions one after the other in one engine, for each server, all at once: → trouble after each, by server. */
function sessionsOn(urls: Readonly<Record<string, string>>): Promise<{ code: number | null; out: string }> {
  const script = join(root, 'sessions.mjs');
  writeFileSync(
    script,
    `import { createEngine } from ${JSON.stringify(library)};
     const troubles = {};
     await Promise.all(Object.entries(${JSON.stringify(urls)}).map(async ([what, url], n) => {
       const engine = await createEngine({ model: 'reference', threads: 1, stateDir: ${JSON.stringify(root)} + '/' + n, qdrant: { url } });
       troubles[what] = [];
       for (let i = 0; i < 3; i++) {
         const session = await engine.openSession({ kvBudget: '1MiB' });
         for await (const _ of session.generate('Once upon a time', { maxTokens: 4 }));
         troubles[what].push((await session.report()).shared.trouble);
         await session.close();
       }
       await engine.close();
     }));
     console.log(JSON.stringify(troubles));`,
  );
  const child = spawn(process.execPath, [script], {
    timeout: 120_000,
    killSignal: 'SIGKILL',
    stdio: ['ignore', 'pipe', 'inherit'],
  });
  let out = '';
  child.stdout.on('data', (chunk) => (out += chunk));
  return new Promise((resolve) => child.on('close', (code) => resolve({ code, out })));
}

test('a Qdrant that fails in any way costs one wait and one line, and no process', { timeout: 180_000 }, async () => {
  const kinds = Object.keys(OVER_HTTP) as (keyof typeof OVER_HTTP)[];
  const servers = await Promise.all(kinds.map((kind) => HostileServer.open(OVER_HTTP[kind])));
  const urls = Object.fromEntries(kinds.map((kind, n) => [kind, `http://127.0.0.1:${servers[n]!.port}`]));
  const { code, out } = await sessionsOn(urls);
  // It ended by itself: nothing was left that keeps a process.
  expect(code).toBe(0);
  const troubles = JSON.parse(out) as Record<string, string[]>;
  for (const [n, kind] of kinds.entries()) {
    const server = servers[n]!;
    for (const trouble of troubles[kind]!) expect(trouble, kind).toMatch(/Qdrant at http:|did not answer within/);
    // The log has one line of it, however many sessions there were.
    const notes = [...readLog(logDir(join(root, String(n))), { kinds: ['note'] })].map(({ body }) => body);
    expect(notes, kind).toMatchObject([{ what: 'qdrant', isAway: true }]);
    // An engine that opens and three sessions that open and end are seven occasions, of which one is a wait.
    if (/silent|half|stalls|drips|promises/.test(kind)) expect(server.connections, kind).toBeLessThanOrEqual(2);
    expect(server.bytes, kind).toBeLessThan(200e6);
    expect(server.open, kind).toBe(0);
    await server.close();
  }
});

// What fetch has of a signal is not kept by it while it reads a body, so a call was never given up.
test('a Qdrant that stalls is given up however often memory is collected', async () => {
  setFlagsFromString('--expose-gc');
  const collecting = setInterval(runInNewContext('gc') as () => void, 15);
  const server = await HostileServer.open(OVER_HTTP['stalls in the body']);
  try {
    const qdrant = await QdrantServer.open({ url: `http://127.0.0.1:${server.port}` });
    const asked = Array.from({ length: 12 }, () => refused(qdrant.version({ deadlineMs: 300 })));
    expect((await Promise.all(asked)).map(({ code }) => code)).toEqual(new Array(12).fill('aborted'));
    await expect.poll(() => server.open, { timeout: 30_000 }).toBe(0);
  } finally {
    clearInterval(collecting);
    await server.close();
  }
});

describe('a PostgreSQL that', () => {
  test.each(Object.entries(AS_POSTGRES))('%s is left with one error', { timeout: 60_000 }, async (kind, behaviour) => {
    const server = await HostileServer.open(behaviour);
    const url = `postgres://me:secret@127.0.0.1:${server.port}/base`;
    const error = await openPostgres(url, 100, 300).then(
      () => null,
      (refused: unknown) => refused as Error,
    );
    expect(error, kind).toMatchObject({ code: 'database', message: expect.stringContaining('127.0.0.1') });
    expect(error!.message).not.toContain('secret');
    expect(server.connections).toBe(1);
    expect(server.bytes).toBeLessThan(600e6);
    await expect.poll(() => server.open, { timeout: 30_000 }).toBe(0);
    await server.close();
  });
});

describe('a hub that', () => {
  test.each(Object.entries(OVER_HTTP))(
    '%s is given up after some attempts',
    { timeout: 60_000 },
    async (kind, behaviour) => {
      const server = await HostileServer.open(behaviour);
      const endpoint = `http://127.0.0.1:${server.port}`;
      const settings = { ...hubSettings(false, { HF_ENDPOINT: endpoint, HOME: root }), stallMs: 250, pauseMs: 1 };
      const error = await new HubClient(settings).answer(`${endpoint}/api/models/a/b`).then(
        () => null,
        (refused: unknown) => refused as Error,
      );
      expect(error, kind).toMatchObject({ code: 'network' });
      // Node may connect once more for each attempt that was given up.
      expect(server.connections, kind).toBeLessThanOrEqual(10);
      expect(server.bytes, kind).toBeLessThan(200e6);
      await server.close();
    },
  );
});
