/**
 * Canaries over openCache on made-up rows: originals stay within their share of the budget and the cache within all of
 * it, what probes say reaches policy and log and is replayed, and nothing but position decides what is watched.
 */
import { describe, expect, it } from 'vitest';
import { openCache, type PolicyCache } from '../../../../engine/index.ts';
import { logDir } from '../../../../engine/state/folder.ts';
import { KvError } from '../../../../native/index.ts';
import {
  Arrows,
  type CanaryReport,
  defaultThresholds,
  type LayerChange,
  type ThresholdSet,
} from '../../../../policy/index.ts';
import { type DecisionBody, readLog, replaySession, type SituationBody, verifyLog } from '../../../../witness/index.ts';
import { normals, uniform } from '../../../native/dense.ts';
import { scratchFolders } from '../../witness/folder.ts';

const folder = scratchFolders();
const SHAPE = { layers: 3, queryHeads: 4, kvHeads: 2, headDim: 64 };
const ROW = SHAPE.kvHeads * SHAPE.headDim;
const TOKENS = 2000;
const F16_BYTES = TOKENS * SHAPE.layers * ROW * 4;

function read(cache: PolicyCache, tokens: number, random: () => number, chunk = 128): void {
  for (let done = 0; done < tokens; done += chunk) {
    const count = Math.min(chunk, tokens - done);
    for (let layer = 0; layer < SHAPE.layers; layer++) {
      cache.append(layer, normals(random, count * ROW), normals(random, count * ROW));
      cache.attention(layer, normals(random, count * 2 * ROW));
    }
  }
}

const withShare = (share: number, more: Readonly<Record<string, number>> = {}): ThresholdSet => {
  const set = defaultThresholds(SHAPE.layers);
  // Errors of rows that are noise are large, and are not what is asked about here.
  const values = { 'canary.share': share, 'quality.epsilon': 1e6, 'quality.kld': 1e6, ...more };
  const thresholds = Object.entries(values).map(([id, value]) => [id, { ...set.thresholds[id]!, value }]);
  return { ...set, thresholds: { ...set.thresholds, ...Object.fromEntries(thresholds) } };
};

const situations = (dir: string, session: string): SituationBody['situation'][] =>
  [...readLog(logDir(dir), { session, kinds: ['situation'] })].map(({ body }) => (body as SituationBody).situation);

const kvBudget = Math.floor(0.3 * F16_BYTES);

const openWatched = (stateDir: string): Promise<PolicyCache> =>
  openCache({ ...SHAPE, kvBudget, tokensExpected: TOKENS, stateDir, thresholds: withShare(0.05) });

const reports = (dir: string, session: string): CanaryReport[] =>
  situations(dir, session).flatMap(({ canaries = [] }) => canaries);

/** All of a session of this many tokens within a fifth of f16, with the share that is the default. */
async function readWatched(tokens: number, seed = 5): Promise<SituationBody['situation'][]> {
  const dir = folder();
  const budget = Math.floor((0.22 * F16_BYTES * tokens) / TOKENS);
  const thresholds = withShare(0.0025);
  const cache = await openCache({ ...SHAPE, kvBudget: budget, tokensExpected: tokens, stateDir: dir, thresholds });
  read(cache, tokens, uniform(seed));
  expect(cache.memoryUsage().peakBytes).toBeLessThanOrEqual(budget);
  await cache.close();
  expect(replaySession([...readLog(logDir(dir), { session: cache.session })])).toMatchObject({ equal: true });
  return situations(dir, cache.session);
}

describe('canary rows', () => {
  it.each([1024, 2048, 4096])(
    'watch every layer and side within a fifth of f16, for less than 0.003 of it (%i tokens)',
    async (tokens) => {
      const seen = await readWatched(tokens);
      const told = seen.flatMap(({ canaries = [] }) => canaries);
      const watched = new Set(told.map(({ layer, side }) => `${layer}${side}`));
      expect(watched.size).toBe(2 * SHAPE.layers);
      for (const { rows, from, to, epsilonPromised } of told) {
        expect(rows).toBeGreaterThan(0);
        expect([from, to === from, epsilonPromised > 0]).toEqual(['q8', false, true]);
      }
      // The budget of a situation is without what is kept.
      for (const { canaryBytes = 0, budgetBytes } of seen)
        expect(canaryBytes / (budgetBytes! + canaryBytes)).toBeLessThanOrEqual(0.003);
      const logs = told.map(({ epsilonNow, epsilonPromised }) => Math.log(epsilonNow / epsilonPromised));
      expect(logs.length).toBeGreaterThan(20);
      // Rows and queries are alike throughout, so what was promised is what comes.
      expect(Math.abs(logs.reduce((sum, log) => sum + log, 0) / logs.length)).toBeLessThan(0.3);
    },
  );

  it('are the same for the same positions, whatever is read, and none where canary.rows is 0', async () => {
    const dir = folder();
    const options = { ...SHAPE, kvBudget: Math.floor(0.22 * F16_BYTES), tokensExpected: TOKENS, stateDir: dir };
    const none = await openCache({ ...options, thresholds: withShare(0.0025, { 'canary.rows': 0 }) });
    read(none, TOKENS, uniform(5));
    await none.close();
    // A whole side does not fit into this share.
    expect(situations(dir, none.session).some(({ canaryBytes }) => canaryBytes !== undefined)).toBe(false);
    const places = async (seed: number): Promise<string[]> => {
      const told = (await readWatched(TOKENS, seed)).flatMap(({ canaries = [] }) => canaries);
      return [...new Set(told.map(({ layer, side, rows }) => `${layer}${side}${rows}`))].sort();
    };
    expect(await places(1)).toEqual(await places(2));
  });
});

describe('canaries', () => {
  it.each([1, 128])(
    'are probed, told and logged, and the budget holds all of it (%i tokens at a time)',
    async (chunk) => {
      const dir = folder();
      const cache = await openWatched(dir);
      read(cache, TOKENS, uniform(5), chunk);
      expect(cache.memoryUsage().peakBytes).toBeLessThanOrEqual(kvBudget);
      await cache.close();
      const seen = reports(dir, cache.session);
      expect(seen.length).toBeGreaterThan(10);
      for (const { epsilonNow, epsilonPromised, age, from, to } of seen) {
        expect([from, to]).not.toContain('f16');
        expect(age).toBeGreaterThan(0);
        // Rows and queries are alike throughout, so what was promised is what comes.
        expect(epsilonNow / epsilonPromised).toBeGreaterThan(0.3);
        expect(epsilonNow / epsilonPromised).toBeLessThan(3);
      }
      expect(new Set(seen.map(({ page }) => page)).size, 'pages are renewed').toBeGreaterThan(1);
      for (const { canaryBytes = 0 } of situations(dir, cache.session))
        expect(canaryBytes).toBeLessThanOrEqual(0.05 * kvBudget);
      const entries = [...readLog(logDir(dir), { session: cache.session })];
      expect(replaySession(entries)).toMatchObject({ equal: true, complete: true });
      expect(verifyLog(logDir(dir)).problem).toBeNull();
    },
  );

  it('are the same pages for the same positions, whatever is read', async () => {
    const watched = async (seed: number): Promise<string[]> => {
      const dir = folder();
      const cache = await openWatched(dir);
      read(cache, TOKENS, uniform(seed));
      await cache.close();
      return [...new Set(reports(dir, cache.session).map(({ layer, side }) => `${layer}${side}`))].sort();
    };
    expect(await watched(1)).toEqual(await watched(2));
  });

  it('are not kept where their share is 0, in forks, and where no byte is left for them', async () => {
    const dir = folder();
    const options = { ...SHAPE, kvBudget: Math.floor(0.3 * F16_BYTES), tokensExpected: TOKENS, stateDir: dir };
    const none = await openCache({ ...options, thresholds: withShare(0) });
    read(none, TOKENS, uniform(6));
    await none.close();
    expect(reports(dir, none.session)).toEqual([]);
    const origin = await openCache({ ...options, kvBudget: Math.floor(0.6 * F16_BYTES), thresholds: withShare(0.1) });
    read(origin, TOKENS, uniform(6));
    const fork = origin.fork();
    await origin.close();
    read(fork, 300, uniform(8));
    expect(reports(dir, fork.session)).toEqual([]);
    await fork.close();
    // The lowest budget that can be kept without originals is kept with a large share for them too: they go before a
    // move is refused for want of room.
    const tightest = async (share: number, thresholds: ThresholdSet): Promise<PolicyCache | null> => {
      const cache = await openCache({ ...options, kvBudget: Math.floor(share * F16_BYTES), thresholds }).catch(
        () => null,
      );
      try {
        if (cache !== null) read(cache, TOKENS, uniform(7));
        return cache;
      } catch (error) {
        if (!(error instanceof KvError && error.code === 'budget-too-small')) throw error;
        await cache!.close();
        return null;
      }
    };
    let lowest = 0.22;
    for (let cache = null as PolicyCache | null; cache === null; lowest += 0.01) {
      cache = await tightest(lowest + 0.01, withShare(0));
      await cache?.close();
    }
    const tight = (await tightest(lowest, withShare(0.2)))!;
    await tight.close();
    expect(situations(dir, tight.session).some(({ canaryBytes = 0 }) => canaryBytes > 0)).toBe(true);
    expect(replaySession([...readLog(logDir(dir), { session: tight.session })])).toMatchObject({ equal: true });
  });

  it('catch a page that later queries ask for in another way: its layer is watched, degraded and put back, and recovers', async () => {
    const dir = folder();
    const tokens = 4000;
    const cache = await openCache({
      ...SHAPE,
      kvBudget: Math.floor(0.28 * tokens * SHAPE.layers * ROW * 4),
      tokensExpected: tokens,
      stateDir: dir,
      // Noise does not fade with age, so what is too much lies closer to what is promised. Queries that ask for one
      // page alone are a change of topic too.
      // Whole sides alone: rows cannot be put back.
      thresholds: withShare(0.1, {
        'canary.rows': 0,
        'quality.watched': 0.56,
        'quality.watched.leave': 0.55,
        'quality.degraded': 0.58,
        'quality.degraded.leave': 0.57,
        'quality.shift': 1e3,
      }),
    });
    const random = uniform(11);
    const keys: Float32Array[] = [];
    let at = 0;
    /** One page; queries of `asked` ask for rows of the page in it. */
    const step = (asked: { readonly layer: number; readonly page: number } | null): void => {
      for (let layer = 0; layer < SHAPE.layers; layer++) {
        const [k, v, q] = [normals(random, 128 * ROW), normals(random, 128 * ROW), normals(random, 256 * ROW)];
        if (layer === asked?.layer) {
          // Head by head the key of a row of that page, for every query.
          const page = keys[asked.page * SHAPE.layers + layer]!;
          for (let i = 0; i < q.length; i++) {
            const [t, head, c] = [Math.floor(i / 256), Math.floor((i % 256) / 128), i % 64];
            q[i] = 1.6 * page[t * ROW + head * 64 + c]!;
          }
        }
        keys.push(k);
        cache.append(layer, k, v);
        cache.attention(layer, q);
      }
      at += 128;
    };
    const notes = (): LayerChange[] =>
      [...readLog(logDir(dir), { session: cache.session, kinds: ['note'] })].flatMap(
        ({ body }) => (body as { layerChanges?: LayerChange[] }).layerChanges ?? [],
      );
    while (at < 2304) step(null);
    await cache.flush();
    expect(notes(), 'nothing is wrong yet').toEqual([]);
    // Its values are what queries then read almost alone; an error of its keys hardly changes whom they ask.
    const { layer, page } = reports(dir, cache.session).findLast(({ side }) => side === 'v')!;
    const planted = at;
    while (at < planted + 384) step({ layer, page });
    await cache.flush();
    expect(notes().map((note) => [note.layer, note.source])).toContainEqual([layer, 'error']);
    while (at < planted + 512) step({ layer, page });
    while (at < 5376) step(null);
    await cache.close();
    const arrows = new Arrows();
    for (const note of notes()) if (note.layer === layer) arrows.see([note.state]);
    const taken = [...arrows.counts].flatMap(([arrow, count]) => (count > 0 ? [arrow] : []));
    expect(taken).toEqual(
      expect.arrayContaining([
        'quality: healthy → watched',
        'quality: watched → degraded',
        'quality: degraded → recovering',
        'quality: recovering → healthy',
      ]),
    );
    const entries = [...readLog(logDir(dir), { session: cache.session })];
    const putBack = entries.filter(
      ({ kind, body }) => kind === 'decision' && (body as DecisionBody).decision.because.rule === 'put-back',
    );
    expect(putBack.length).toBeGreaterThan(0);
    expect(replaySession(entries)).toMatchObject({ equal: true, complete: true });
  });
});
