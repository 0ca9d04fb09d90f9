/**
 * The contract of the SQL index, run over every database: its tables say what the log says, however the log grew,
 * whatever happened to the tables meanwhile, and whoever edited them; and a question can read but never write.
 */

import { cpSync, rmSync } from 'node:fs';
import { join } from 'node:path';
import { isDeepStrictEqual } from 'node:util';
import { describe, expect, test } from 'vitest';
import { experiencesOf } from '../../memory/index.ts';
import { KvError } from '../../native/index.ts';
import {
  type AuditIndex,
  type AuditIndexOptions,
  COUNT_KEYS,
  type Entry,
  openAuditIndex,
  openLogQuery,
  openWitnessLog,
  readLog,
  verifyLog,
} from '../../witness/index.ts';
import { seeded } from '../random.ts';
import { randomFilter, rowsBy } from './questions.ts';
import { writeSessions } from './store-data.ts';

export interface Store {
  /** A folder of its own for one test. */
  fresh(): string;
  /** Where the index of a test folder lives; the same folder, the same index. */
  where(dir: string): Omit<AuditIndexOptions, 'logDir'>;
  /** Runs statements on that database from outside, as somebody with rights on it could. */
  tamper(dir: string, ...statements: string[]): Promise<void>;
}

/** A start time like no other run's, so that logs on a shared server do not meet; logs have random ids anyway. */
const START_MS = 1_760_000_000_000;

const logIdOf = (logDir: string): string => verifyLog(logDir).logId ?? '';

/** Rows of a table in order of seq, by the names of its columns. */
async function rowsOf(index: AuditIndex, table: string, logDir: string): Promise<Record<string, unknown>[]> {
  const { columns, rows } = await index.query(
    `select * from ${table} where log_id = '${logIdOf(logDir)}' order by seq`,
    100_000,
  );
  return rows.map((row) => Object.fromEntries(columns.map((column, at) => [column, row[at]])));
}

/** A field of a row by the name of its column: format_from → from where it is called so, else formatFrom. */
const SPELLED: Readonly<Record<string, string>> = {
  format_from: 'from',
  format_to: 'to',
  plan_order: 'order',
  because_rule: 'rule',
  because_threshold: 'threshold',
  because_measured: 'measured',
  because_bound: 'bound',
  because_unit: 'unit',
  because_origin: 'origin',
  ending: 'end',
};
const fieldOf = (column: string): string =>
  SPELLED[column] ?? column.replace(/_(.)/g, (_, c: string) => c.toUpperCase());

const told = (rows: Record<string, unknown>[]): Record<string, unknown>[] =>
  rows.map((row) =>
    Object.fromEntries(
      Object.entries(row)
        .filter(([column]) => column !== 'log_id')
        .map(([column, value]) => [fieldOf(column), value]),
    ),
  );

const bySeq = <T extends { readonly seq: number }>(rows: readonly T[]): T[] => [...rows].sort((a, b) => a.seq - b.seq);

/** As `toEqual`, which takes a second for the rows of a long log and is asked only where they differ. */
function expectRows(found: readonly unknown[], rows: readonly unknown[]): void {
  if (!isDeepStrictEqual(found, rows)) expect(found).toEqual(rows);
}

/** Everything the tables say equals what the log says. */
export async function expectSame(index: AuditIndex, logDir: string): Promise<void> {
  const log = openLogQuery(logDir);
  const inOrder = async (table: string) => told(await rowsOf(index, table, logDir));
  expectRows(await inOrder('decisions'), bySeq(await log.decisions({ limit: 100_000 })));
  expect(await inOrder('sessions')).toEqual(bySeq(await log.sessions({ limit: 1000 })));
  expect(await inOrder('experiences')).toEqual(
    bySeq([...experiencesOf(readLog(logDir))]).map(({ gains, ...rest }) => ({
      ...rest,
      gainsK: gains.k,
      gainsV: gains.v,
    })),
  );
  const points = bySeq([...readLog(logDir, { kinds: ['situation'] })]).map(({ seq }) => seq);
  expect((await rowsOf(index, 'situations', logDir)).map((row) => row['seq'])).toEqual(points);
}

export function storeSuite(name: string, store: Store): void {
  describe(`SQL index: ${name}`, () => {
    // Tries a folder that two writers wrote at once, each more than one batch: seqs leap between them.
    test('holds what all writers of a log wrote', async () => {
      const dir = store.fresh();
      const logDir = join(dir, 'log');
      const first = await openWitnessLog({ dir: logDir });
      await writeSessions(logDir, { seed: 502, sessions: 5, decisionsPerSession: 400, prefix: 'second ' });
      await first.close();
      await writeSessions(logDir, { seed: 503, sessions: 6, decisionsPerSession: 400, prefix: 'first ' });
      const { series } = verifyLog(logDir);
      expect(series.map(({ entries }) => entries > 2000)).toEqual([true, true]);
      const index = await openAuditIndex({ logDir, ...store.where(dir) });
      await expectSame(index, logDir);
      const { entries, wrong } = await index.sync();
      await index.close();
      expect([entries, wrong]).toEqual([verifyLog(logDir).entries, 0]);
    });

    // Tries a log longer than one batch, then a question that only SQL can ask, against the same sums made from the
    // log.
    test('says what the log says, and answers a SELECT over it', async () => {
      const dir = store.fresh();
      const logDir = join(dir, 'log');
      await writeSessions(logDir, { seed: 501, sessions: 7, decisionsPerSession: 400, leaveOpen: true });
      const shares: number[] = [];
      const index = await openAuditIndex({
        logDir,
        ...store.where(dir),
        onProgress: (entries, total) => shares.push(entries / total),
      });
      try {
        expect(index.report).toMatchObject({ rebuilt: null, wrong: 0, entries: 7 * 501 + 6 });
        expect(shares.length).toBeGreaterThan(1);
        expect(shares).toEqual([...shares].sort((a, b) => a - b));
        expect(shares.at(-1)).toBe(1);
        await expectSame(index, logDir);
        const { columns, rows } = await index.query(
          `select layer, count(*)::int as moves, sum(bytes_before - bytes_after)::float8 as freed from decisions
           where accepted and log_id = '${logIdOf(logDir)}' group by layer order by layer; -- per layer`.replace(
            '; --',
            ' --',
          ),
        );
        const sums = new Map<number, [number, number]>();
        for (const row of await openLogQuery(logDir).decisions({ accepted: true, limit: 100_000 })) {
          const [moves, freed] = sums.get(row.layer) ?? [0, 0];
          sums.set(row.layer, [moves + 1, freed + row.bytesBefore - row.bytesAfter]);
        }
        expect(columns).toEqual(['layer', 'moves', 'freed']);
        expect(rows).toEqual([...sums].sort(([a], [b]) => a - b).map(([layer, sum]) => [layer, ...sum]));
        expect(await index.query('select * from generate_series(1, 5)', 3)).toMatchObject({
          rows: [[1], [2], [3]],
          more: true,
        });
        const arrays = String.raw`select array[1.5, null]::float8[], array['a b', 'c,"d\}', 'NULL', '', null], array[[1, 2], [3, 4]],
          '{}'::int8[], array[true, false], array[9007199254740993, 2]::int8[]`;
        expect((await index.query(arrays)).rows).toEqual([
          [
            [1.5, null],
            ['a b', 'c,"d\\}', 'NULL', '', null],
            [
              [1, 2],
              [3, 4],
            ],
            [],
            [true, false],
            ['9007199254740993', 2],
          ],
        ]);
      } finally {
        await index.close();
      }
    });

    test('a question cannot write, and is one question', async () => {
      const dir = store.fresh();
      const logDir = join(dir, 'log');
      await writeSessions(logDir, { seed: 502, sessions: 1, decisionsPerSession: 5 });
      const index = await openAuditIndex({ logDir, ...store.where(dir) });
      for (const sql of [
        'delete from decisions',
        'select 1; delete from decisions',
        'select 1) as x; delete from decisions; select (1',
        'with gone as (delete from decisions returning 1) select * from gone',
        "select set_config('transaction_read_only', 'off', false), lo_from_bytea(0, 'x')",
        'nonsense',
        '',
      ]) {
        await expect(index.query(sql), sql).rejects.toMatchObject({ code: 'database' });
      }
      const faults: readonly [string, number | undefined, RegExp, RegExp][] = [
        // The place is that of what was typed, with its line breaks and blanks.
        [
          '  select lyer\nfrom decisions',
          10,
          /"lyer" does not exist, at character 10: lyer/,
          /decisions has log_id, seq, /,
        ],
        ['select ü.x from (select 1) ü', 8, /at character 8: ü\.x/, /the tables are sessions, decisions, /],
        ['select 1 from', 14, /, at its end$/, /ask one SELECT/],
        ['select * from nothing', 15, /"nothing" does not exist, at character 15: nothing/, /the tables are/],
        ['select 1 / 0', undefined, /division by zero$/, /ask one SELECT/],
        ['delete from decisions', 1, /at character 1: delete|at character 8: from/, /ask one SELECT; decisions has/],
      ];
      for (const [sql, position, message, hint] of faults) {
        const error = await index.query(sql).catch((fault: unknown) => fault as KvError);
        expect(error, sql).toBeInstanceOf(KvError);
        const { code, message: said, hint: told, values } = error as KvError;
        expect([code, said, told], sql).toEqual([
          'database',
          expect.stringMatching(message),
          expect.stringMatching(hint),
        ]);
        if (sql !== 'delete from decisions') expect(values['position'], sql).toBe(position);
        expect(values['sqlState'], sql).toMatch(/^[0-9A-Z]{5}$/);
      }
      await expect(index.query('select 1', 0)).rejects.toMatchObject({ code: 'bad-argument' });
      await expectSame(index, logDir);
      await index.close();
    });

    // Edits, deletes and adds rows between two openings: whoever asks next is told what the log says, and that it was
    // otherwise.
    test('rows that somebody edited, deleted or added are replaced by the log’s', async () => {
      const dir = store.fresh();
      const logDir = join(dir, 'log');
      await writeSessions(logDir, { seed: 503, sessions: 3, decisionsPerSession: 40 });
      await (await openAuditIndex({ logDir, ...store.where(dir) })).close();
      const mine = `log_id = '${logIdOf(logDir)}'`;
      await store.tamper(
        dir,
        `update decisions set accepted = not accepted where ${mine} and seq % 7 = 0`,
        `update sessions set model = 'another' where ${mine} and session = 's1'`,
        `update experiences set price_threshold = 1 where ${mine}`,
        `delete from decisions where ${mine} and seq % 11 = 0`,
        `insert into situations select log_id, seq + 100000, time_ms, session, situation, tokens, bytes, budget_bytes, kld_budget,
         urgent, low_memory, trials, outcomes from situations where ${mine} limit 2`,
      );
      const notes: string[] = [];
      const index = await openAuditIndex({ logDir, ...store.where(dir), onNote: (line) => notes.push(line) });
      await expectSame(index, logDir);
      expect(index.report.wrong).toBeGreaterThan(5);
      expect(notes).toEqual([expect.stringContaining(`${index.report.wrong} rows that the log does not`)]);
      expect(await index.sync()).toMatchObject({ wrong: 0, written: 0 });
      await index.close();
    });

    // Random filters, answered by the tables, by the log, and by looking at every row.
    test('lists and counts as the log does', async () => {
      const dir = store.fresh();
      const logDir = join(dir, 'log');
      const first = await openWitnessLog({ dir: logDir });
      await writeSessions(logDir, { seed: 31, sessions: 4, decisionsPerSession: 60, prefix: 'one ' });
      await first.close();
      await writeSessions(logDir, { seed: 32, sessions: 3, decisionsPerSession: 60, leaveOpen: true });
      const index = await openAuditIndex({ logDir, ...store.where(dir) });
      const log = openLogQuery(logDir);
      const all = await log.decisions({ limit: 100_000 });
      const models = new Map(
        [...readLog(logDir, { kinds: ['open'] })].map((entry) => [entry.session, (entry as Entry<'open'>).body.model]),
      );
      const next = seeded(33);
      for (let round = 0; round < 60; round++) {
        const filter = randomFilter(all, models, next);
        const what = JSON.stringify(filter);
        expect(await index.decisions(filter), what).toEqual(rowsBy(all, models, filter));
        const by = COUNT_KEYS[round % COUNT_KEYS.length]!;
        const [counted, expected] = [await index.counts(by, filter), await log.counts(by, filter)];
        expect(
          counted.map((row) => ({ ...row, epsilonMean: 0 })),
          what,
        ).toEqual(expected.map((row) => ({ ...row, epsilonMean: 0 })));
        for (const [at, { epsilonMean }] of counted.entries())
          expect(epsilonMean ?? 0).toBeCloseTo(expected[at]!.epsilonMean ?? 0, 12);
      }
      const sessions = await log.sessions({ limit: 100 });
      for (const filter of [{}, { limit: 2 }, { model: 'sha256:1' }, { fromMs: sessions[2]!.openedMs }])
        expect(await index.sessions(filter)).toEqual(await log.sessions(filter));
      await expect(index.decisions({ limit: 0 })).rejects.toMatchObject({ code: 'bad-argument' });
      await index.close();
    });

    // Compares heads alone: what the log got since is taken in, also for a session that had begun, and another history
    // is noticed.
    test('takes in what follows the head that it knows, and compares everything where that head is another', async () => {
      const dir = store.fresh();
      const logDir = join(dir, 'log');
      await writeSessions(logDir, { seed: 51, sessions: 2, decisionsPerSession: 20 });
      const copy = join(dir, 'copy');
      cpSync(logDir, copy, { recursive: true });
      const held = await openWitnessLog({ dir: logDir });
      await writeSessions(logDir, { seed: 52, sessions: 2, decisionsPerSession: 20, prefix: 'other', leaveOpen: true });
      const options = { logDir, ...store.where(dir), check: 'head' } as const;
      const index = await openAuditIndex(options);
      expect(index.report).toMatchObject({ isComplete: false, entries: verifyLog(logDir).entries });
      await expectSame(index, logDir);
      expect(await index.sync()).toMatchObject({ entries: 0, written: 0, wrong: 0, isComplete: false });
      // A session that was open is closed, and one begins, in two series.
      const close = [...readLog(logDir, { kinds: ['close'] })].at(-1) as Entry<'close'>;
      const second = await openWitnessLog({ dir: logDir });
      second.append('other1', 'close', close.body);
      await second.close();
      await held.close();
      await writeSessions(logDir, { seed: 53, sessions: 1, decisionsPerSession: 10, prefix: 'third' });
      expect((await index.sync()).entries).toBe(1 + 15);
      await expectSame(index, logDir);
      await index.close();
      // The same log, with another history.
      rmSync(logDir, { recursive: true });
      cpSync(copy, logDir, { recursive: true });
      await writeSessions(logDir, { seed: 54, sessions: 3, decisionsPerSession: 30, prefix: 'elsewhere' });
      const another = await openAuditIndex(options);
      expect(another.report).toMatchObject({ isComplete: true, entries: verifyLog(logDir).entries });
      await expectSame(another, logDir);
      await another.close();
      // What nobody may see until every row is compared: an edit.
      await store.tamper(dir, `update decisions set accepted = not accepted where log_id = '${logIdOf(logDir)}'`);
      const trusting = await openAuditIndex(options);
      expect(trusting.report.wrong).toBe(0);
      await trusting.close();
      const full = await openAuditIndex({ ...options, check: 'rows' });
      expect(full.report.wrong).toBeGreaterThan(100);
      await expectSame(full, logDir);
      await full.close();
    });

    // Times of several years, and some that no calendar month is made for.
    test('keeps rows of any time', async () => {
      const dir = store.fresh();
      const logDir = join(dir, 'log');
      for (const [at, startMs] of [
        0,
        Date.UTC(2019, 11, 31, 23, 59, 59, 900),
        Date.UTC(2024, 1, 29, 23, 59, 59, 900),
        Date.UTC(2099, 11, 31, 23, 59, 59, 900),
        8.6e15,
      ].entries())
        await writeSessions(logDir, {
          seed: 60 + at,
          sessions: 1,
          decisionsPerSession: 100,
          prefix: `${at} `,
          startMs,
        });
      const index = await openAuditIndex({ logDir, ...store.where(dir) });
      await expectSame(index, logDir);
      expect(await index.decisions({ limit: 1000 })).toEqual(await openLogQuery(logDir).decisions({ limit: 1000 }));
      const { rows } = await index.query(
        "select c.relname from pg_inherits join pg_class c on c.oid = inhrelid where inhparent = to_regclass('decisions') order by 1",
      );
      expect(rows.flat()).toEqual(
        expect.arrayContaining([
          'decisions_2024_02',
          'decisions_2024_03',
          'decisions_before_2020',
          'decisions_from_2100',
        ]),
      );
      expect(await index.sync()).toMatchObject({ written: 0, wrong: 0 });
      await index.close();
    });

    // Tries growth: sessions appended between runs, one left open in one run and indexed on in the next.
    test('takes in what the log has got since, and nothing without news', async () => {
      const dir = store.fresh();
      const logDir = join(dir, 'log');
      await writeSessions(logDir, { seed: 1, sessions: 2, decisionsPerSession: 10, leaveOpen: true });
      const index = await openAuditIndex({ logDir, ...store.where(dir) });
      const first = index.report.entries;
      expect(await index.sync()).toMatchObject({ entries: first, written: 0, wrong: 0 });
      await writeSessions(logDir, {
        seed: 2,
        sessions: 3,
        decisionsPerSession: 10,
        prefix: 'later',
        startMs: START_MS + 1e6,
      });
      const report = await index.sync();
      expect(report.entries).toBeGreaterThan(first);
      expect(report).toMatchObject({ rebuilt: null, wrong: 0 });
      await expectSame(index, logDir);
      await index.close();

      const again = await openAuditIndex({ logDir, ...store.where(dir) });
      expect(again.report).toEqual({ ...report, written: 0 });
      await again.close();
      const rebuilt = await openAuditIndex({ logDir, ...store.where(dir), rebuild: true });
      expect(rebuilt.report.written).toBeGreaterThan(50);
      await expectSame(rebuilt, logDir);
      await rebuilt.close();
      await rebuilt.close();
      await expect(rebuilt.query('select 1')).rejects.toMatchObject({ code: 'closed' });
    });

    // Tries a log with the same id and another history (an old copy that went on differently).
    test('follows a log whose history was changed', async () => {
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
      expect(shorter.report.wrong).toBeGreaterThan(0);
      await expectSame(shorter, logDir);
      await writeSessions(logDir, { seed: 5, sessions: 3, decisionsPerSession: 20, prefix: 'two' });
      expect((await shorter.sync()).wrong).toBe(0);
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
      await expectSame(index, logDir);
      await index.close();
    });
  });
}
