// Logs with right hashes that say nonsense, from a seed: every reader there is answers, or refuses with a KvError, and
// prints nothing that a terminal would obey. Forged from the log of an earlier build and from a recorded session, a
// change or two at a time.

import { join } from 'node:path';
import { describe, expect, it } from 'vitest';
import { experiencesOf, openThresholdBook } from '../../memory/index.ts';
import { KvError } from '../../native/index.ts';
import { createPolicy, defaultThresholds } from '../../policy/index.ts';
import {
  decisionsText,
  type Entry,
  entryText,
  explain,
  explanationText,
  findSession,
  openAuditIndex,
  openLogQuery,
  openWitnessLog,
  readEntry,
  readLog,
  replaySession,
  replayText,
  sessionsText,
  verifyLog,
  verifyText,
} from '../../witness/index.ts';
import { placeEmptySql } from '../empty-sql.ts';
import { mulberry32 } from '../random.ts';
import { scratchFolders } from '../unit/witness/folder.ts';
import { forgeLog, type Loose, mutate } from '../unit/witness/forged.ts';
import { recordSession } from '../unit/witness/session.ts';

const folder = scratchFolders();
const ROUNDS = 40;
const SEED = 22;

async function recorded(): Promise<Loose[]> {
  const dir = folder();
  const log = await openWitnessLog({ dir });
  recordSession(log, 'a', { situations: 3, policy: createPolicy('price'), thresholds: defaultThresholds(2) });
  recordSession(log, 'b', { situations: 2, close: false });
  log.append('', 'recovered', { droppedBytes: 10, segment: '00000000.wal' });
  await log.close();
  return [...readLog(dir)] as unknown as Loose[];
}

const ofBase = (): Loose[] => {
  const all = [...readLog(join(import.meta.dirname, '../fixtures/base-state/log'))];
  return all.filter(({ session }) => session === 'e48a4c5f' || session === '95221492') as unknown as Loose[];
};

/** Whatever the reader does, it is an answer or a KvError; what it prints is plain text. */
async function ask(told: string, reader: () => unknown): Promise<unknown> {
  try {
    const answer = await reader();
    if (typeof answer === 'string') expect(answer, told).toMatch(/^[^\p{Cc}]*(?:\n[^\p{Cc}]*)*$/u);
    return answer;
  } catch (error) {
    if (!(error instanceof KvError)) throw new Error(`${told}: ${(error as Error).stack}`);
    return error;
  }
}

async function askAll(dir: string, told: string): Promise<void> {
  const readers: Record<string, () => unknown> = {
    verify: () => verifyText(verifyLog(dir), 80),
    list: async () => decisionsText(await openLogQuery(dir).decisions({ limit: 1000 }), 80),
    sessions: async () => sessionsText(await openLogQuery(dir).sessions(), 80),
    find: () => findSession(dir, 'e48'),
    learn: () => [...experiencesOf(readLog(dir))].length,
    book: async () => (await openThresholdBook({ dir: null, logId: 'f', entries: () => readLog(dir) })).close(),
  };
  for (const [name, reader] of Object.entries(readers)) await ask(`${told}, ${name}`, reader);
  const entries: Entry[] = [];
  await ask(`${told}, read`, () => {
    for (const entry of readLog(dir)) entries.push(entry);
  });
  for (const session of new Set(entries.map((entry) => entry.session)))
    await ask(`${told}, replay ${session}`, () => replayText(replaySession(readLog(dir, { session }))));
  for (const { seq, kind } of entries.slice(0, 12)) {
    await ask(`${told}, show ${seq}`, () => entryText(readEntry(dir, seq), 80));
    if (kind === 'decision') await ask(`${told}, explain ${seq}`, () => explanationText(explain(dir, seq), 80));
  }
  await ask(`${told}, write`, async () => (await openWitnessLog({ dir })).close());
}

describe('a log that verifies and says nonsense', () => {
  it.each([
    ['the log of an earlier build', ofBase],
    ['a recorded session', recorded],
  ] as const)(`is no fault of ours for any reader: %s, ${ROUNDS} times`, async (_, source) => {
    const entries = await source();
    const random = mulberry32(SEED);
    let refused = 0;
    for (let round = 0; round < ROUNDS; round++) {
      const dir = folder();
      let forged = mutate(entries, random);
      if (random() < 0.3) forged = mutate(forged, random);
      forgeLog(dir, forged);
      if (!verifyLog(dir).ok) refused++;
      await askAll(dir, `seed ${SEED}, round ${round}`);
    }
    // The forgery itself is sound: what is refused, is refused for what it says, and much of it still makes sense.
    expect(refused).toBeGreaterThan(ROUNDS / 3);
    expect(refused).toBeLessThan(ROUNDS);
  });

  it.each<[string, (entries: Loose[]) => Loose[], RegExp]>([
    ['without the open entry', (all) => all.filter(({ kind }) => kind !== 'open'), /no open entry/],
    [
      'without a because',
      (all) => all.map((one) => (one['kind'] === 'decision' ? without(one, 'decision', 'because') : one)),
      /decision\.because/,
    ],
    ['with fractional times', (all) => all.map((one) => ({ ...one, timeMs: 1.5 })), /lacks seq, timeMs/],
    [
      'with a format that nobody knows',
      (all) => JSON.parse(JSON.stringify(all).replaceAll('"rot4"', '"rot9"')) as Loose[],
      /epsilon\.rot9/,
    ],
  ])('is refused by replay by name: %s', async (_, change, message) => {
    const dir = folder();
    forgeLog(dir, change(await recorded()));
    const error = await ask('replay', () => replaySession(readLog(dir, { session: 'a' })));
    expect(error).toBeInstanceOf(KvError);
    expect((error as KvError).message).toMatch(message);
  });

  it('prints terminal escapes in names as text', async () => {
    const dir = folder();
    const steering = '\u001b[2J\u001b]0;pwned\u0007';
    forgeLog(
      dir,
      JSON.parse(
        JSON.stringify(await recorded()).replaceAll('tiny-model', JSON.stringify(steering).slice(1, -1)),
      ) as Loose[],
    );
    expect(verifyLog(dir).ok).toBe(true);
    await askAll(dir, 'escapes');
    expect(sessionsText(await openLogQuery(dir).sessions())).toContain(String.raw`\x1b[2J`);
  });

  it('is no fault of ours for the SQL index', async () => {
    const entries = await recorded();
    const random = mulberry32(SEED);
    for (let round = 0; round < 3; round++) {
      const dir = folder();
      // Only what readers accept gets as far as the database.
      do forgeLog(dir, mutate(mutate(entries, random), random));
      while (!verifyLog(dir).ok);
      const sql = join(folder(), 'sql');
      await placeEmptySql(sql);
      await ask(`seed ${SEED}, round ${round}`, async () => (await openAuditIndex({ logDir: dir, dir: sql })).close());
    }
  });
});

function without(entry: Loose, field: string, inner: string): Loose {
  const copy = structuredClone(entry);
  delete ((copy['body'] as Loose)[field] as Loose)[inner];
  return copy;
}
