// Caches that share: a cache and its forks share pages, a budget and every move of a shared page; caches of one pool
// share its bytes. Random keys and values, real logs; budgets are kept at every step, formats of shared pages are the
// same for all, every log replays, and who was refused goes on.
import { describe, expect, it } from 'vitest';
import { openCache, openPool, type PolicyCache } from '../../../../engine/index.ts';
import { logDir } from '../../../../engine/state/folder.ts';
import { readLog, replaySession } from '../../../../witness/index.ts';
import { normals, uniform } from '../../../native/dense.ts';
import { codeOf } from '../../../refusal.ts';
import { scratchFolders } from '../../witness/folder.ts';

const folder = scratchFolders();
const SHAPE = { layers: 3, queryHeads: 4, kvHeads: 2, headDim: 64 };
const ROW = SHAPE.kvHeads * SHAPE.headDim;
const CHUNK = 64;

/** One step of CHUNK tokens. → what the last layer gave */
function step(cache: PolicyCache, random: () => number): Float32Array {
  let out = new Float32Array(0);
  for (let layer = 0; layer < SHAPE.layers; layer++) {
    cache.append(layer, normals(random, CHUNK * ROW), normals(random, CHUNK * ROW), normals(random, CHUNK * 32));
    out = Float32Array.from(cache.attention(layer, normals(random, CHUNK * 2 * ROW)));
  }
  return out;
}

const fill = (cache: PolicyCache, tokens: number, random: () => number): void => {
  for (let done = 0; done < tokens; done += CHUNK) step(cache, random);
};

describe('a fork in fixed formats', () => {
  // Forty sides leave the window at once, and a step moves sixteen of them: the rest is still on its way.
  it('has pages of its own where its origin is about to move them, counts them, and both logs replay', async () => {
    const dir = folder();
    const shape = { layers: 20, queryHeads: 2, kvHeads: 1, headDim: 64 };
    const random = uniform(35);
    const inputs = Array.from({ length: 700 }, () => [64, 64, 128].map((width) => normals(random, width)));
    const steps = (cache: PolicyCache, from: number, to: number): string => {
      let seen = '';
      for (const [k, v, q] of inputs.slice(from, to)) {
        for (let layer = 0; layer < shape.layers; layer++) {
          cache.append(layer, k!, v!);
          seen = [...cache.attention(layer, q!)].join();
        }
      }
      return seen;
    };
    const open = (): Promise<PolicyCache> => openCache({ ...shape, cacheTypes: 'rot4:rot2', stateDir: dir });
    const [alone, cold, origin] = [await open(), await open(), await open()];
    for (const one of [alone, cold, origin]) steps(one, 0, 257);
    const before = origin.memoryUsage();
    const fork = origin.fork();
    expect(fork.memoryUsage().pageBytes).toBe(before.pageBytes);
    expect(steps(fork, 400, 600)).toBe(steps(cold, 400, 600));
    expect(steps(origin, 257, 300)).toBe(steps(alone, 257, 300));
    const counted = (one: PolicyCache): unknown => one.report().layers.map(({ kPages, vPages }) => [kPages, vPages]);
    expect([counted(origin), counted(fork)]).toEqual([counted(alone), counted(cold)]);
    const caches = [alone, cold, origin, fork];
    for (const one of caches) await one.close();
    for (const { session } of caches)
      expect(replaySession([...readLog(logDir(dir), { session })])).toMatchObject({ equal: true, complete: true });
  });
});

describe('a live fork under a byte budget', () => {
  it('meets pressure by moves that count once for all, and both logs replay', async () => {
    const dir = folder();
    const kvBudget = 1_100_000;
    const parent = await openCache({ ...SHAPE, kvBudget, tokensExpected: 1600, stateDir: dir });
    const random = uniform(31);
    fill(parent, 1024, random);
    const fork = parent.fork();
    const before = fork.report();
    expect(before.layers.map(({ kPages, vPages }) => [kPages, vPages])).toEqual(
      parent.report().layers.map(({ kPages, vPages }) => [kPages, vPages]),
    );
    // Both write on, in turn; what they share is moved by one or the other.
    for (let i = 0; i < 8; i++) {
      expect(step(fork, random).every(Number.isFinite)).toBe(true);
      expect(step(parent, random).every(Number.isFinite)).toBe(true);
      expect(parent.memoryUsage().peakBytes).toBeLessThanOrEqual(kvBudget);
    }
    expect(fork.qualityMetrics()).toMatchObject({ tokens: 1024 + 8 * CHUNK });
    expect(fork.qualityMetrics().decisions).toBeGreaterThan(0);
    await parent.close();
    // The fork outlives its parent, whose bytes are free again.
    step(fork, random);
    await fork.close();
    const told = [parent, fork].map(({ session }) => {
      const entries = [...readLog(logDir(dir), { session })];
      expect(replaySession(entries)).toMatchObject({ equal: true, complete: true });
      return entries.filter(({ kind }) => kind === 'change').length;
    });
    expect(told.reduce((a, b) => a + b)).toBeGreaterThan(0);
  });

  it('hears of moves before it is used: its log begins with itself, and replays', async () => {
    const dir = folder();
    const parent = await openCache({ ...SHAPE, kvBudget: 1_100_000, tokensExpected: 1600, stateDir: dir });
    const random = uniform(36);
    fill(parent, 1024, random);
    const forks = [parent.fork(), parent.fork()];
    fill(parent, 256, random);
    step(forks[0]!, random);
    for (const one of [parent, ...forks]) await one.close();
    for (const { session } of forks) {
      const entries = [...readLog(logDir(dir), { session })];
      expect(entries.map(({ kind }) => kind).slice(0, 2)).toEqual(['open', 'change']);
      expect(replaySession(entries)).toMatchObject({ equal: true, complete: true });
    }
  });

  it('is refused with the numbers when no move is left, and parent and fork go on when there is room', async () => {
    const parent = await openCache({ ...SHAPE, kvBudget: 1_500_000, cacheTypes: 'rot4', tokensExpected: 1024 });
    const random = uniform(32);
    fill(parent, 1024, random);
    const [first, second] = [parent.fork(), parent.fork()];
    let tokens = 0;
    let code = 'no error';
    for (; code === 'no error' && tokens < 4000; tokens += CHUNK) code = codeOf(() => step(first, random));
    expect(code).toBe('budget-too-small');
    // Until its next page is due a cache has what it needs.
    for (code = 'no error'; code === 'no error'; ) code = codeOf(() => step(second, random));
    expect(code).toBe('budget-too-small');
    await first.close();
    fill(second, 128, random);
    fill(parent, 128, random);
    await second.close();
    await parent.close();
  });

  it('is made between two steps only', async () => {
    const cache = await openCache(SHAPE);
    const random = uniform(33);
    cache.append(0, normals(random, ROW), normals(random, ROW));
    expect(codeOf(() => cache.fork())).toBe('busy');
    await cache.close();
    expect(codeOf(() => cache.fork())).toBe('closed');
  });
});

describe('caches of one pool', () => {
  it('keep their own budgets and that of the pool', async () => {
    const dirs = [folder(), folder(), folder()];
    const pool = openPool(2_300_000);
    const budgets = [800_000, 650_000, undefined];
    const caches = await Promise.all(
      budgets.map((kvBudget, i) =>
        openCache({
          ...SHAPE,
          pool,
          tokensExpected: 1100,
          openFormat: 'f16',
          windowTokens: 128,
          stateDir: dirs[i]!,
          ...(kvBudget ? { kvBudget } : {}),
        }),
      ),
    );
    const random = uniform(34);
    for (let i = 0; i < 17; i++) {
      for (const cache of caches) step(cache, random);
      expect(pool.usedBytes).toBeLessThanOrEqual(pool.budgetBytes);
      expect(pool.usedBytes).toBe(caches.reduce((sum, cache) => sum + cache.memoryUsage().totalBytes, 0));
      for (const [at, budget] of budgets.entries())
        expect(caches[at]!.memoryUsage().peakBytes).toBeLessThanOrEqual(budget ?? pool.budgetBytes);
    }
    for (const [i, cache] of caches.entries()) {
      expect(cache.qualityMetrics().decisions).toBeGreaterThan(0);
      await cache.close();
      expect(replaySession([...readLog(logDir(dirs[i]!), { session: cache.session })])).toMatchObject({ equal: true });
    }
    expect(pool.usedBytes).toBe(0);
    pool.close();
  });
});

describe('caches of one pool that step at once', () => {
  it('find room for all layers before the first: who comes second is refused there, and the first goes on', async () => {
    const random = uniform(33);
    const pool = openPool(100_000_000);
    const caches = await Promise.all([1, 2, 3].map(() => openCache({ ...SHAPE, pool, policy: 'none' })));
    const [measured, first, second] = caches as [PolicyCache, PolicyCache, PolicyCache];
    for (const cache of caches) fill(cache, 128, random);
    const before = pool.usedBytes;
    step(measured, random);
    const stepBytes = pool.usedBytes - before;
    expect(stepBytes).toBeGreaterThan(0);
    pool.setBudget(pool.usedBytes + Math.floor(1.5 * stepBytes));
    const append = (cache: PolicyCache, layer: number): void =>
      cache.append(layer, normals(random, CHUNK * ROW), normals(random, CHUNK * ROW));
    append(first, 0);
    expect(codeOf(() => append(second, 0))).toMatch(/^budget-/);
    for (let layer = 0; layer < SHAPE.layers; layer++) {
      if (layer > 0) append(first, layer);
      first.attention(layer, normals(random, CHUNK * 2 * ROW));
    }
    expect([first.length, second.length]).toEqual([192, 128]);
    for (const cache of caches) await cache.close();
    pool.close();
  });
});
