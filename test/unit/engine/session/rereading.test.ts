// A stated divergence is measured: tokens are read a second time over originals, or over pages with twice the errors.
// What is reported is what the same session puts out once its pages are exchanged for their originals; it is in the
// log, decides what is spent, and replays; and it is not done where nothing could come of it.
import { describe, expect, it } from 'vitest';
import type { SessionOptions } from '../../../../engine/options/types.ts';
import {
  addDivergence,
  divergenceBetween,
  divergenceOf,
  emptySums,
  logSumExp,
  NO_TARGET,
} from '../../../../engine/session/divergence.ts';
import { Session } from '../../../../engine/session/session.ts';
import { SIDES } from '../../../../native/index.ts';
import { defaultThresholds, type RereadReport, type ThresholdId, thresholdOf } from '../../../../policy/index.ts';
import { type Entry, replaySession } from '../../../../witness/index.ts';
import { normals, uniform } from '../../../native/dense.ts';
import { scratchFolders } from '../../witness/folder.ts';
import { ids } from '../on-reference.ts';
import { type Logged, logged, onRuntime } from '../on-runtime.ts';

const folder = scratchFolders();
const TOKENS = 1400;
const ROWS = 32;
/** Where tokens are read twice: the last of a step, from a fifth of the length on, as long as moves can follow. */
const PLACES = [352, 608, 864, 1120];
const prompt = ids(TOKENS);
const ON: Partial<Record<ThresholdId, number>> = { 'reread.every': 256 };

describe('reading twice', () => {
  const { runtime } = onRuntime();
  const stated = { kldBudget: 0.002, tokensExpected: TOKENS, originals: 'memory' } as const;

  function opened(
    options: SessionOptions,
    values: Partial<Record<ThresholdId, number>> = ON,
    log: Parameters<typeof Session.open>[1]['log'] = null,
  ): Session {
    const set = defaultThresholds(runtime().shape.layers);
    const changed = Object.entries(values).map(([id, value]) => [
      id,
      { ...thresholdOf(set, id as ThresholdId), value, origin: 'option' as const },
    ]);
    const thresholds = { ...set, thresholds: { ...set.thresholds, ...Object.fromEntries(changed) } };
    return Session.open(runtime(), { ...stated, compareTokens: ROWS, ...options, log, thresholds });
  }

  async function reread(
    work: (session: Session) => Promise<void>,
    options: SessionOptions = {},
    values: Partial<Record<ThresholdId, number>> = ON,
  ): Promise<Logged & { reports: RereadReport[] }> {
    const run = await logged(folder(), (log) => opened(options, values, log), work);
    const { entries } = run;
    const reports = entries.flatMap(({ body }) => {
      const { situation } = body as { situation?: { reread?: RereadReport } };
      return situation?.reread === undefined ? [] : [situation.reread];
    });
    return { ...run, reports };
  }

  const read = async (session: Session): Promise<void> => {
    await session.read(prompt);
  };

  async function meanKld(exact: Float32Array, ours: Float32Array): Promise<number> {
    const sums = emptySums();
    const targets = new Int32Array(ROWS).fill(NO_TARGET);
    await addDivergence(sums, runtime().dense, exact, ours, targets, runtime().model.config.hiddenSize);
    return sums.klds.reduce((sum, kld) => sum + kld, 0) / ROWS;
  }

  it('finds what the session puts out once its pages are exchanged for their originals', async () => {
    const { reports } = await reread(read);
    expect(reports.map(({ tokens }) => tokens)).toEqual(PLACES);
    for (const { tokens, rows, meanKld: reported } of reports.slice(-2)) {
      expect(rows).toBe(ROWS);
      const session = opened({});
      await session.read(prompt.slice(0, tokens + ROWS));
      const ours = session.hiddenRows().slice();
      const { originals, kv, shape } = session.governed;
      let exchanged = 0;
      for (let layer = 0; layer < shape.layers; layer++)
        for (let page = 0; page < kv.table(layer).pages; page++)
          for (const side of SIDES) {
            const original = originals!.read(layer, page, side);
            if (original === null) continue;
            kv.exchangeSide(layer, page, side, original);
            exchanged++;
          }
      expect(exchanged).toBeGreaterThan(0);
      session.rewind(tokens);
      await session.read(prompt.slice(tokens, tokens + ROWS));
      const exact = session.hiddenRows().slice();
      session.close();
      const really = await meanKld(exact, ours);
      expect(really).toBeGreaterThan(1e-6);
      expect(reported / really).toBeCloseTo(1, 1);
    }
  });

  it('is in the log, which replays, and in what the session says at its end', async () => {
    const { entries, reports, session } = await reread(async (one) => {
      await read(one);
      expect(one.report().summary.measured).toMatchObject({ tokens: 4 * ROWS, level: { samples: 4 } });
      expect(one.report().stated).toMatchObject({ measuredTokens: 4 * ROWS });
    });
    expect(reports).toHaveLength(PLACES.length);
    expect(replaySession(entries)).toMatchObject({ equal: true });
    // Without one of the reports other moves would have been decided.
    const without = entries.map((entry) => {
      const { situation } = entry.body as { situation?: Record<string, unknown> };
      if (situation?.['reread'] === undefined) return entry;
      const { reread: _, ...rest } = situation;
      return { ...entry, body: { ...entry.body, situation: rest } } as Entry;
    });
    expect(replaySession(without).equal).toBe(false);
    expect(session.isClosed).toBe(true);
  });

  it('goes on while an answer is written, a token at a time', async () => {
    const { reports, entries } = await reread(
      async (session) => {
        await session.read(prompt.slice(0, 600));
        for await (const _ of session.generate(null, { maxTokens: 500, temperature: 1, seed: 3, stop: [] }));
      },
      { kldBudget: 0.02 },
    );
    expect(reports.some(({ tokens, rows }) => tokens >= 640 && rows === ROWS)).toBe(true);
    expect(replaySession(entries)).toMatchObject({ equal: true });
  });

  it('doubles errors where there are no originals, where these are in few bits, or not of all pages', async () => {
    const exact = await reread(read);
    const none = await reread(read, { originals: 'none' });
    for (const options of [
      { originals: 'none' },
      { originalsFormat: 'trellis4' },
      { originalsBytes: 100_000 },
    ] as const) {
      const { reports, entries } = await reread(read, options);
      expect(reports.map(({ tokens, isDoubled }) => [tokens, isDoubled])).toEqual(PLACES.map((at) => [at, true]));
      expect(reports).toEqual(none.reports);
      expect(replaySession(entries)).toMatchObject({ equal: true });
    }
    expect(exact.reports.some(({ isDoubled }) => isDoubled)).toBe(false);
    // Both say how much it is, to less than a decade: of 32 tokens neither is sure.
    const sum = ({ reports }: typeof exact): number => reports.reduce((nats, { meanKld: one }) => nats + one, 0);
    expect(Math.abs(Math.log10(sum(none) / sum(exact)))).toBeLessThan(1);
  });

  it('is not done where nothing is stated, or where it is not asked for', async () => {
    for (const [options, values] of [
      [{ kldBudget: undefined, kvBudget: '30%' }, ON],
      [{}, { 'reread.every': 0 }],
      [{ policy: 'uniform', kldBudget: undefined, kvBudget: '30%' }, ON],
    ] as [SessionOptions, Partial<Record<ThresholdId, number>>][]) {
      const { reports } = await reread(read, options, values);
      expect(reports).toEqual([]);
    }
  });

  it('is given up for tokens that are taken back, and done where they are read again', async () => {
    const { reports } = await reread(async (session) => {
      await session.read(prompt.slice(0, 864));
      await session.read(prompt.slice(864, 876));
      session.rewind(850);
      await session.read(prompt.slice(850));
    });
    expect(reports.map(({ tokens }) => tokens)).toEqual(PLACES);
  });

  it('that finds more than was stated says that it is broken, and by how many tokens it knows', async () => {
    const both = { kvBudget: '30%', kldBudget: 1, priority: 'bytes' } as const;
    const statedAt = (session: Session) => session.governed.stated!.report();
    const predicted = statedAt((await reread(read, both, { 'reread.every': 0 })).session).worstNats;
    const kldBudget = 2 * predicted;
    const unmeasured = await reread(read, { ...both, kldBudget }, { 'reread.every': 0 });
    expect(statedAt(unmeasured.session)).toMatchObject({ timesBroken: 0, measuredTokens: 0 });
    const { entries, session } = await reread(read, { ...both, kldBudget }, { ...ON, 'reread.seen': 0.01 });
    const [note] = entries.map(({ body }) => body).filter((body) => 'statedDivergence' in body);
    expect(note).toMatchObject({ statedDivergence: 'broken', budgetNats: kldBudget });
    expect((note as { measuredTokens: number }).measuredTokens).toBeGreaterThanOrEqual(ROWS);
    expect(statedAt(session).timesBroken).toBe(1);
  });
});

it('the divergence of two rows in one pass is that of their sums', () => {
  const random = uniform(7);
  for (const scale of [0, 1e-3, 0.1, 3]) {
    const exact = normals(random, 4000).map((one) => 4 * one);
    const ours = exact.map((one, i) => one + scale * normals(random, 1)[0]! * (i % 3));
    const [p, q] = [logSumExp(exact), logSumExp(ours)];
    const expected = divergenceOf(exact, p.logSum, ours, q.logSum);
    expect(Math.abs(divergenceBetween(exact, ours) - expected)).toBeLessThan(1e-9 + 1e-6 * expected);
  }
});
