// Budgets that are certain to fail are refused when a cache is opened, with numbers that are enough; those that are
// accepted hold to the planned length, with a floor, skipped layers, fixed pairs and tables; and of two budgets that
// cannot both be kept the one ranked second gives way.
import { describe, expect, it } from 'vitest';
import { type OpenCacheOptions, openCache, type PolicyCache } from '../../../../engine/index.ts';
import { LogView } from '../../../../engine/serve/log-view.ts';
import { logDir } from '../../../../engine/state/folder.ts';
import { KvError } from '../../../../native/index.ts';
import { type Entry, readLog, replaySession, timeline } from '../../../../witness/index.ts';
import { collect } from '../../../../witness/report/collect.ts';
import { normals, uniform } from '../../../native/dense.ts';
import { isForHome } from '../../../tier.ts';
import { scratchFolders } from '../../witness/folder.ts';

const folder = scratchFolders();
const SHAPE = { layers: 3, queryHeads: 4, kvHeads: 2, headDim: 64 };
const ROW = SHAPE.kvHeads * SHAPE.headDim;
const TOKENS = 1400;

function fill(cache: PolicyCache, tokens: number, chunk = 64): void {
  const random = uniform(21);
  for (let done = 0; done < tokens; done += chunk) {
    const count = Math.min(chunk, tokens - done);
    for (let layer = 0; layer < SHAPE.layers; layer++) {
      cache.append(layer, normals(random, count * ROW), normals(random, count * ROW), normals(random, count * 32));
      cache.attention(layer, normals(random, count * 2 * ROW));
    }
  }
}

async function refusal(options: OpenCacheOptions): Promise<KvError> {
  const error = await openCache(options).then(
    (cache) => cache.close(),
    (reason: unknown) => reason,
  );
  expect(error).toBeInstanceOf(KvError);
  return error as KvError;
}

describe('a byte budget', () => {
  const cases: [string, Partial<OpenCacheOptions>][] = [
    // Without limits: governed.test.ts, where layers bear what 2 bits do to them. The only layer that moves beside
    // skipped ones would not bear 1 bit.
    ['with a floor', { cacheTypes: 'rot4' }],
    ['with a floor whose keys may not follow', { cacheTypes: 'rot2:rot4' }],
    ['with skipped layers', { skipLayers: [0, 2], cacheTypes: 'rot2' }],
    ['of a fixed pair', { policy: 'fixed', cacheTypes: 'rot4:rot2' }],
    ['of a fixed pair with one side in f16', { policy: 'fixed', cacheTypes: { k: 'f16', v: 'rot4' } }],
    ['of a table', { cacheTypes: ['rot4', 'q8', 'rot3:rot2'] }],
    ['of nothing that moves', { policy: 'none' }],
    ['of uniform formats with a floor', { policy: 'uniform', cacheTypes: 'rot3' }],
    ['with open pages in 16 bits', { openFormat: 'f16', cacheTypes: 'rot4' }],
    [
      'with open pages in 16 bits and pages that stay in the window',
      { openFormat: 'f16', windowTokens: 128, cacheTypes: 'rot4' },
    ],
    [
      'with open pages in 8 bits and pages that stay in the window',
      { openFormat: 'q8', windowTokens: 128, cacheTypes: 'rot4' },
    ],
    ['with open pages in 8 bits', { openFormat: 'q8', cacheTypes: 'rot4' }],
    ['with open pages in 8 bits and skipped layers', { openFormat: 'q8', skipLayers: [1], cacheTypes: 'rot4' }],
    ['of uniform formats with open pages in 8 bits', { openFormat: 'q8', policy: 'uniform' }],
    ['of old and young pages with open pages in 8 bits', { openFormat: 'q8', policy: 'age' }],
  ];
  const all = [1, 64].flatMap((piece) => cases.map(([name, limits]) => [name, limits, piece] as const));
  it.each(all.filter((_, place) => isForHome(place, 5)))(
    '%s is refused when it cannot hold, and holds when it can',
    async (_, limits, piece) => {
      const options = { ...SHAPE, tokensExpected: TOKENS, ...limits };
      const { code, values } = await refusal({ ...options, kvBudget: 1000 });
      expect(code).toBe('budget-too-small');
      const kvBudget = Number(values['neededBytes']);
      expect((await refusal({ ...options, kvBudget: kvBudget - 1 })).code).toBe('budget-too-small');
      const dir = folder();
      const cache = await openCache({ ...options, kvBudget, stateDir: dir });
      fill(cache, TOKENS, piece);
      expect(cache.memoryUsage().peakBytes).toBeLessThanOrEqual(kvBudget);
      await cache.close();
      expect(replaySession([...readLog(logDir(dir), { session: cache.session })])).toMatchObject({ equal: true });
    },
  );

  it('is the smaller the less the window takes', async () => {
    const needed = async (window: Partial<OpenCacheOptions>): Promise<number> =>
      Number((await refusal({ ...SHAPE, tokensExpected: TOKENS, kvBudget: 1000, ...window })).values['neededBytes']);
    const sixteen = await needed({ openFormat: 'f16', windowTokens: 128 });
    const eight = await needed({ openFormat: 'q8', windowTokens: 128 });
    const half = await needed({ openFormat: 'q8' });
    expect([eight < sixteen, half < eight]).toEqual([true, true]);
    expect(await needed({ openFormat: 'q8', windowTokens: 64 })).toBe(half);
  });

  it('refuses windows that are none', async () => {
    for (const bad of [{ openFormat: 'rot4' }, { windowTokens: 32 }, { openFormat: 'q8', cacheTypes: 'f16:rot4' }])
      expect((await refusal({ ...SHAPE, ...(bad as Partial<OpenCacheOptions>) })).code).toBe('bad-argument');
  });
});

describe('a budget in bytes and one in divergence', () => {
  const both = { ...SHAPE, tokensExpected: TOKENS, kvBudget: 700_000, kldBudget: 1e-4 };

  it.each(['bytes', 'kld'] as const)(
    'that cannot both be kept: the one in %s is, and the log says so',
    async (priority) => {
      const dir = folder();
      const cache = await openCache({ ...both, priority, stateDir: dir });
      fill(cache, TOKENS);
      const { predictedKld } = cache.qualityMetrics();
      const { peakBytes } = cache.memoryUsage();
      if (priority === 'bytes') {
        expect(peakBytes).toBeLessThanOrEqual(both.kvBudget);
        expect(predictedKld).toBeGreaterThan(both.kldBudget);
      } else {
        expect(peakBytes).toBeGreaterThan(both.kvBudget);
        expect(predictedKld).toBeLessThanOrEqual(both.kldBudget);
      }
      const gaveWay = priority === 'bytes' ? 'kld' : 'bytes';
      const isBroken = priority === 'bytes';
      expect(cache.report()).toMatchObject({ gaveWay, budgetBytes: both.kvBudget, stated: { isBroken } });
      await cache.close();
      const entries = [...readLog(logDir(dir), { session: cache.session })];
      const [tokens, expectedNats] = [expect.any(Number), expect.any(Number)];
      const told = { statedDivergence: 'broken', tokens, budgetNats: both.kldBudget, expectedNats, measuredTokens: 0 };
      expect(entries.filter(({ kind }) => kind === 'note').map(({ body }) => body)).toEqual([
        { gaveWay, tokens, budgetBytes: expect.any(Number), kldBudget: both.kldBudget },
        ...(isBroken ? [told] : []),
      ]);
      expect(replaySession(entries)).toMatchObject({ equal: true, complete: true });
    },
  );

  it('of which the one in divergence is broken: whoever reads the log is told, and that it is kept again', async () => {
    const dir = folder();
    const cache = await openCache({ ...both, priority: 'bytes', stateDir: dir });
    fill(cache, TOKENS);
    expect(cache.metrics()).toContain('stated_divergence_broken_total 1');
    await cache.flush();
    const entries = [...readLog(logDir(dir), { session: cache.session })];
    const broken = entries.find(({ body }) => 'statedDivergence' in body)!;
    const kept = { ...broken, body: { ...broken.body, statedDivergence: 'kept', expectedNats: 5e-5 } } as Entry;
    const view = new LogView();
    for (const [more, now, says] of [
      [entries, 'broken', /^The stated divergence is broken: [\d.e-]+ nats are expected, and 1\.00e-4 were stated\.$/],
      [[kept], 'kept', /^The stated divergence is kept again: 5\.00e-5 nats are expected of 1\.00e-4\.$/],
    ] as const) {
      for (const entry of more) view.add(entry);
      expect(view.session(cache.session).quality.statedDivergence).toBe(now);
      expect(view.metrics()).toContain('stated_divergence_broken_total 1');
      const { happenings } = collect([...entries, ...more]).data;
      expect(happenings.map(({ text }) => text)).toContainEqual(expect.stringMatching(says));
    }
    const told = timeline(logDir(dir), cache.session).filter(({ text }) => text.startsWith('The stated divergence'));
    expect(told).toHaveLength(1);
    await cache.close();
  });

  it('keeps the one in bytes unless told otherwise', async () => {
    const cache = await openCache(both);
    fill(cache, TOKENS);
    expect(cache.report().gaveWay).toBe('kld');
    await cache.close();
  });

  it('of which one is certain to fail are refused at once', async () => {
    expect(await refusal({ ...both, kldBudget: 0 })).toMatchObject({ code: 'budget-too-small' });
  });
});

describe('without a budget', () => {
  it('a shape that no memory holds is refused with the numbers', async () => {
    const error = await refusal({ layers: 4096, queryHeads: 1024, kvHeads: 1024, headDim: 256 });
    expect(error).toMatchObject({
      code: 'budget-too-small',
      values: { neededBytes: expect.any(Number), memoryBytes: expect.any(Number) },
    });
    expect(error.values['neededBytes']).toBeGreaterThan(error.values['memoryBytes'] as number);
    expect(await refusal({ ...SHAPE, tokensExpected: 1e12 })).toMatchObject({ code: 'budget-too-small' });
  });
});
