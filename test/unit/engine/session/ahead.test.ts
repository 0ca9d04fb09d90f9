// Parked sessions whose calls wait in line: their pages are back before they begin, where there is room for them.
import { readdirSync, writeFileSync } from 'node:fs';
import { afterEach, describe, expect, it } from 'vitest';
import { createEngine, type Engine, type EngineOptions, type EngineSession } from '../../../../engine/index.ts';
import { parkedDir } from '../../../../engine/session/park/folder.ts';
import { logDir } from '../../../../engine/state/folder.ts';
import { readLog, replaySession, timeline } from '../../../../witness/index.ts';
import { scratchFolders } from '../../witness/folder.ts';
import { entriesOf, ids, MODEL } from '../on-reference.ts';
import { parseExposition } from '../serve/exposition.ts';

const folder = scratchFolders();
let engine: Engine;
afterEach(() => engine.close());

async function open(stateDir: string, options: Partial<EngineOptions>): Promise<void> {
  engine = await createEngine({ model: MODEL, threads: 1, stateDir, kvBudget: '8MiB', ...options });
}

async function metric(name: string): Promise<number> {
  const families = parseExposition(await engine.metrics());
  const { samples } = families.find((one) => one.name === `palimpsest_${name}`)!;
  return samples.reduce((sum, { value }) => sum + value, 0);
}

const answer = (session: EngineSession, maxTokens: number) =>
  session.generate(ids(5, 9), { maxTokens, temperature: 1, seed: 4 });

/** One that writes, beside which nobody may, and one that is parked. */
async function pair(tokens = 600): Promise<readonly [EngineSession, EngineSession]> {
  const [busy, parked] = [await engine.openSession(), await engine.openSession()];
  await parked.read(ids(tokens, 2));
  await busy.setLowMemory(true);
  await busy.setLowMemory(false);
  expect((await parked.report()).parked).not.toBe(null);
  return [busy, parked];
}

describe.each(['disk', 'memory'] as const)(
  'a session that is parked in %s, whose call waits in line',
  (idleSessions) => {
    it('has its pages back before it begins, answers as it would have, and the log says so', async () => {
      const texts: string[] = [];
      for (const maxConcurrent of [1, 2]) {
        const dir = folder();
        await open(dir, { idleSessions, maxConcurrent });
        const [busy, parked] = await pair();
        const writing = answer(busy, 200);
        const waiting = answer(parked, 10);
        if (maxConcurrent === 1) {
          while ((await metric('sessions_fetched_ahead_total')) === 0);
          expect(await metric('num_requests_waiting')).toBe(1);
          expect(await metric('num_requests_running')).toBe(1);
          expect((await parked.report()).parked).toBe(null);
          expect(readdirSync(idleSessions === 'disk' ? parkedDir(dir) : dir)).not.toContain(`${parked.id}.parked`);
        }
        texts.push(await waiting.text());
        await writing.result;
        await engine.close();
        const woken = entriesOf(dir, parked.id, 'note').filter(({ body }) => body['idle'] === 'woken');
        expect(woken.map(({ body }) => body['ahead'] ?? false)).toEqual([maxConcurrent === 1]);
        const told = timeline(logDir(dir), parked.id).map(({ text }) => text);
        expect(told.some((text) => text.startsWith('Read back while its call waited'))).toBe(maxConcurrent === 1);
        expect(replaySession(readLog(logDir(dir), { session: parked.id }))).toMatchObject({ equal: true });
      }
      expect(texts[0]).toBe(texts[1]);
    });
  },
);

describe('pages that cannot be back before', () => {
  it('stay parked until the call begins where their file is damaged, and are read again then', async () => {
    const dir = folder();
    await open(dir, { idleSessions: 'disk', maxConcurrent: 1 });
    const [busy, parked] = await pair();
    writeFileSync(`${parkedDir(dir)}/${parked.id}.parked`, 'no session');
    const writing = answer(busy, 60);
    const waiting = answer(parked, 10);
    expect((await waiting.result).tokens).toBe(10);
    expect((await writing.result).tokens).toBe(60);
    expect(await metric('sessions_fetched_ahead_total')).toBe(0);
    await engine.close();
    const woken = entriesOf(dir, parked.id, 'note').filter(({ body }) => body['idle'] === 'woken');
    expect(woken.map(({ body }) => body['by'])).toEqual(['reading']);
  });

  it('take nothing of those at work: where only they could give room, the session stays parked', async () => {
    const dir = folder();
    await open(dir, { idleSessions: 'disk', maxConcurrent: 1, kvBudget: '1.5MiB' });
    const [busy, parked] = await pair(700);
    await busy.read(ids(900, 3));
    expect((await parked.report()).parked).not.toBe(null);
    const writing = busy.generate(null, { maxTokens: 120, temperature: 1, seed: 4 });
    const waiting = answer(parked, 5);
    while ((await metric('num_requests_waiting')) === 0);
    expect((await parked.report()).parked).not.toBe(null);
    expect(await metric('num_requests_running')).toBe(1);
    expect((await writing.result).tokens).toBe(120);
    expect((await waiting.result).tokens).toBe(5);
    expect(await metric('sessions_fetched_ahead_total')).toBe(0);
  });
});
