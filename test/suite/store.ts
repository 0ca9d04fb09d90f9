/**
 * The contract of the SQL index, run over every database: the same rows as reading the log itself, whatever is asked,
 * however the log grew, and whatever happened to the index meanwhile.
 */
import { cpSync, rmSync } from 'node:fs';
import { join } from 'node:path';
import { describe, expect, test } from 'vitest';
import { experiencesOf } from '../../memory/index.ts';
import {
  type AuditIndex,
  type AuditIndexOptions,
  type DecisionFilter,
  openAuditIndex,
  openLogQuery,
  readLog,
} from '../../witness/index.ts';
import { random } from './index-data.ts';
import { writeSessions } from './store-data.ts';

export interface Store {
  /** A folder of its own for one test. */
  fresh(): string;
  /** Where the index of a test folder lives; the same folder, the same index. */
  where(dir: string): Omit<AuditIndexOptions, 'logDir'>;
}

/** A start time like no other run's, so that logs on a shared server do not meet; logs have random ids anyway. */
const START_MS = 1_760_000_000_000;

/** Everything the index says equals what the log says. */
async function expectSame(index: AuditIndex, logDir: string): Promise<void> {
  const log = openLogQuery(logDir);
  expect(await index.decisions({ limit: 100_000 })).toEqual(await log.decisions({ limit: 100_000 }));
  expect(await index.sessions({ limit: 1000 })).toEqual(await log.sessions({ limit: 1000 }));
  expect(await index.experiences()).toEqual([...experiencesOf(readLog(logDir))]);
}

export function storeSuite(name: string, store: Store): void {
  describe(`SQL index: ${name}`, () => {
    // Tries a log longer than one batch, then every field of a filter, alone and in seeded combinations.
    test('answers every filter as the log does', async () => {
      const dir = store.fresh();
      const logDir = join(dir, 'log');
      const seed = 501;
      await writeSessions(logDir, { seed, sessions: 7, decisionsPerSession: 400, leaveOpen: true });
      const index = await openAuditIndex({ logDir, ...store.where(dir) });
      try {
        expect(index.report.rebuilt).toBeNull();
        expect(index.report.entries).toBe(7 * 501 + 6);
        await expectSame(index, logDir);
        expect((await index.experiences('sha256:1')).every((e) => e.modelDigest === 'sha256:1')).toBe(true);

        const log = openLogQuery(logDir);
        const all = await log.decisions({ limit: 100_000 });
        const middle = all[1400]!;
        const parts: DecisionFilter[] = [
          { session: 's3' },
          { session: 'nobody' },
          { layer: 1 },
          { page: 7 },
          { side: 'v' },
          { reason: 'deficit' },
          { reason: 'trial' },
          { reason: 'pressure.enter' },
          { fromMs: middle.timeMs },
          { toMs: middle.timeMs },
          { tokensMin: middle.tokens },
          { tokensMax: middle.tokens },
          { accepted: false },
          { accepted: true },
          { beforeSeq: middle.seq },
          { limit: 5 },
        ];
        for (const filter of [{}, ...parts]) {
          expect(await index.decisions(filter), JSON.stringify(filter)).toEqual(await log.decisions(filter));
        }
        const next = random(seed);
        let rows = 0;
        for (let i = 0; i < 40; i++) {
          const filter = Object.assign({}, ...parts.filter(() => next() < 0.25)) as DecisionFilter;
          const found = await index.decisions(filter);
          expect(found, `${JSON.stringify(filter)}, seed ${seed}`).toEqual(await log.decisions(filter));
          rows += found.length;
        }
        expect(rows).toBeGreaterThan(0);
        const { openedMs } = (await log.sessions())[3]!;
        for (const filter of [{ fromMs: openedMs }, { toMs: openedMs }, { limit: 2 }]) {
          expect(await index.sessions(filter)).toEqual(await log.sessions(filter));
        }
        await expect(index.decisions({ limit: 0 })).rejects.toMatchObject({ code: 'bad-argument' });
        // Text that would be SQL if it were pasted into it.
        expect(await index.decisions({ session: "s3' or '1'='1" })).toEqual([]);
      } finally {
        await index.close();
      }
    });

    // Tries growth: sessions appended between runs, one left open in one run and indexed on in the next.
    test('continues where it stopped, and again without news', async () => {
      const dir = store.fresh();
      const logDir = join(dir, 'log');
      await writeSessions(logDir, { seed: 1, sessions: 2, decisionsPerSession: 10, leaveOpen: true });
      const index = await openAuditIndex({ logDir, ...store.where(dir) });
      const first = index.report.nextSeq;
      expect((await index.catchUp()).entries).toBe(0);
      await writeSessions(logDir, {
        seed: 2,
        sessions: 3,
        decisionsPerSession: 10,
        prefix: 'later',
        startMs: START_MS + 1e6,
      });
      const report = await index.catchUp();
      expect(report).toMatchObject({ rebuilt: null, entries: report.nextSeq - first });
      await expectSame(index, logDir);
      await index.close();

      const again = await openAuditIndex({ logDir, ...store.where(dir) });
      expect(again.report).toMatchObject({ entries: 0, rebuilt: null });
      await expectSame(again, logDir);
      expect(await again.reindex()).toMatchObject({ entries: report.nextSeq });
      await expectSame(again, logDir);
      await again.close();
      await again.close();
      await expect(again.decisions()).rejects.toMatchObject({ code: 'closed' });
    });

    // Tries a log with the same id and another history (an old copy that went on differently): all rows are read again.
    test('notices that history was changed', async () => {
      const dir = store.fresh();
      const logDir = join(dir, 'log');
      await writeSessions(logDir, { seed: 3, sessions: 1, decisionsPerSession: 20 });
      const copy = join(dir, 'copy');
      cpSync(logDir, copy, { recursive: true });
      await writeSessions(logDir, { seed: 4, sessions: 2, decisionsPerSession: 20, prefix: 'one' });
      const index = await openAuditIndex({ logDir, ...store.where(dir) });
      await index.close();

      rmSync(logDir, { recursive: true });
      cpSync(copy, logDir, { recursive: true });
      const shorter = await openAuditIndex({ logDir, ...store.where(dir) });
      expect(shorter.report.rebuilt).toContain('not the one');
      await expectSame(shorter, logDir);
      await writeSessions(logDir, { seed: 5, sessions: 3, decisionsPerSession: 20, prefix: 'two' });
      expect((await shorter.catchUp()).rebuilt).toBeNull();
      await expectSame(shorter, logDir);
      await shorter.close();
    });

    // Tries another log in the same place: only its rows are seen.
    test('another log is another story', async () => {
      const dir = store.fresh();
      const [a, b] = [join(dir, 'a'), join(dir, 'b')];
      await writeSessions(a, { seed: 6, sessions: 2, decisionsPerSession: 20 });
      await writeSessions(b, { seed: 7, sessions: 1, decisionsPerSession: 30 });
      for (const logDir of [a, b, a]) {
        const index = await openAuditIndex({ logDir, ...store.where(dir) });
        await expectSame(index, logDir);
        await index.close();
      }
    });

    test('no log, and a log without entries', async () => {
      const dir = store.fresh();
      const logDir = join(dir, 'log');
      await expect(openAuditIndex({ logDir, ...store.where(dir) })).rejects.toMatchObject({ code: 'not-found' });
      await writeSessions(logDir, { seed: 8, sessions: 0, decisionsPerSession: 0 });
      const index = await openAuditIndex({ logDir, ...store.where(dir) });
      expect(await index.decisions()).toEqual([]);
      expect(await index.sessions()).toEqual([]);
      await index.close();
    });
  });
}
