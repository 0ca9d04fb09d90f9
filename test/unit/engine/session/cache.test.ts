// openCache as a program with a runtime of its own uses it, on random keys and values: attention is right, the budget
// holds, thresholds travel through files, everything that can be got wrong is one KvError, and nothing is left behind.
import { readdirSync } from 'node:fs';
import { join } from 'node:path';
import { inspect } from 'node:util';
import { describe, expect, it } from 'vitest';
import { type OpenCacheOptions, openCache, type PolicyCache } from '../../../../engine/index.ts';
import { logDir } from '../../../../engine/state/folder.ts';
import { KV_ERROR_CODES, KvError, type KvErrorCode, startThread } from '../../../../native/index.ts';
import { readLog, replaySession, type SituationBody, verifyLog } from '../../../../witness/index.ts';
import { denseAttention, normals, relativeError, uniform } from '../../../native/dense.ts';
import { scratchFolders } from '../../witness/folder.ts';

const folder = scratchFolders();
const SHAPE = { layers: 3, queryHeads: 4, kvHeads: 2, headDim: 64 };
const ROW = SHAPE.kvHeads * SHAPE.headDim;
const QUERY = SHAPE.queryHeads * SHAPE.headDim;
const F16_BYTES_PER_TOKEN = SHAPE.layers * ROW * 4;

/** One step of `tokens` tokens through all layers. → what each layer was given and gave. */
function step(cache: PolicyCache, random: () => number, tokens: number, withX = false) {
  return Array.from({ length: cache.shape.layers }, (_, layer) => {
    const [k, v, q] = [normals(random, tokens * ROW), normals(random, tokens * ROW), normals(random, tokens * QUERY)];
    if (withX) cache.append(layer, k, v, normals(random, tokens * 32));
    else cache.append(layer, k, v);
    return { k, v, q, out: cache.attention(layer, q) };
  });
}

const caught = (work: () => unknown): unknown => {
  try {
    work();
  } catch (error) {
    return error;
  }
  return new Error('was not refused');
};

/** The code of the KvError that `work` must end in. */
async function codeOf(work: () => unknown, what = ''): Promise<KvErrorCode> {
  let error: unknown = new Error('was not refused');
  try {
    await work();
  } catch (reason) {
    error = reason;
  }
  expect(error, `${what}: ${String(error)}`).toBeInstanceOf(KvError);
  expect(Object.keys(KV_ERROR_CODES)).toContain((error as KvError).code);
  return (error as KvError).code;
}

describe('attention', () => {
  it('is that of the plain formula as long as nothing was moved, close to it in 8 bits', async () => {
    const cache = await openCache(SHAPE);
    const random = uniform(1);
    const given: { k: number[]; v: number[] }[] = Array.from({ length: SHAPE.layers }, () => ({ k: [], v: [] }));
    for (const tokens of [1, 100, 27, 128, 1, 60]) {
      const exactSoFar = given[0]!.k.length / ROW + tokens <= 128;
      for (const [layer, { k, v, q, out }] of step(cache, random, tokens).entries()) {
        given[layer]!.k.push(...k);
        given[layer]!.v.push(...v);
        const dense = denseAttention(SHAPE, q, Float32Array.from(given[layer]!.k), Float32Array.from(given[layer]!.v));
        expect(relativeError(out, dense.out)).toBeLessThan(exactSoFar ? 1e-3 : 1e-2);
      }
    }
    expect(cache.qualityMetrics()).toMatchObject({ tokens: 317, decisions: 0, predictedKld: null });
    await cache.close();
  });

  it('in f16 runs any head size', async () => {
    const shape = { layers: 1, queryHeads: 2, kvHeads: 1, headDim: 40 };
    expect(await codeOf(() => openCache({ ...shape, kvBudget: '1MiB' }))).toBe('unsupported');
    const cache = await openCache(shape);
    const random = uniform(2);
    const [k, v, q] = [normals(random, 300 * 40), normals(random, 300 * 40), normals(random, 300 * 80)];
    cache.append(0, k, v);
    expect(relativeError(cache.attention(0, q), denseAttention(shape, q, k, v).out)).toBeLessThan(1e-3);
    await cache.close();
  });
});

describe('a budget', () => {
  it.each([
    ['one by one', 1, 'price'],
    ['in pages', 128, 'price'],
    ['in pieces that end nowhere in particular', 60, 'price'],
    ['in pages', 128, 'uniform'],
    ['in pieces that end nowhere in particular', 100, 'age'],
  ])('holds over 1,500 tokens %s (%i at a time, %s)', async (_, chunk, policy) => {
    const dir = folder();
    const kvBudget = Math.floor(0.35 * 1500 * F16_BYTES_PER_TOKEN);
    const cache = await openCache({ ...SHAPE, kvBudget, tokensExpected: 1500, policy, stateDir: dir });
    const random = uniform(3);
    for (let tokens = 0; tokens < 1500; tokens += chunk) {
      step(cache, random, Math.min(chunk, 1500 - tokens), true);
      const { totalBytes, peakBytes, budgetBytes } = cache.memoryUsage();
      expect(budgetBytes).toBe(kvBudget);
      if (!(totalBytes <= peakBytes && peakBytes <= kvBudget))
        expect([totalBytes, peakBytes]).toEqual(['at most', kvBudget]);
    }
    const quality = cache.qualityMetrics();
    expect(quality.tokens).toBe(1500);
    expect(quality.decisions).toBeGreaterThan(10);
    expect(cache.memoryUsage().f16Bytes).toBe(1500 * F16_BYTES_PER_TOKEN);
    expect(quality.effectiveBits).toBeCloseTo((16 * cache.memoryUsage().totalBytes) / (1500 * F16_BYTES_PER_TOKEN), 9);
    if (policy === 'price') {
      expect(quality.predictedKld).toBeGreaterThan(0);
      expect(quality.priceThreshold).toBeGreaterThan(0);
      expect(quality.layerEpsilonMax.some((epsilon) => epsilon > 0)).toBe(true);
    }
    expect(await cache.flush()).toBeGreaterThan(quality.decisions);
    await cache.close();
    const entries = [...readLog(logDir(dir), { session: cache.session })];
    expect(entries.filter(({ kind }) => kind === 'open')).toHaveLength(1);
    expect(entries.filter(({ kind }) => kind === 'close')).toHaveLength(1);
    expect(entries.at(-1)!.body).toMatchObject({ tokens: 1500, decisions: quality.decisions, reason: 'done' });
    expect(replaySession(entries)).toMatchObject({ equal: true, complete: true, decisions: quality.decisions });
    expect(verifyLog(logDir(dir)).problem).toBeNull();
  });

  it('that too large a piece would break refuses the piece whole, and smaller ones still fit', async () => {
    const kvBudget = Math.floor(0.35 * 1500 * F16_BYTES_PER_TOKEN);
    const cache = await openCache({ ...SHAPE, kvBudget, tokensExpected: 1500 });
    const random = uniform(4);
    expect(await codeOf(() => step(cache, random, 1500))).toBe('budget-exceeded');
    expect(cache.memoryUsage().pageBytes).toBe(0);
    for (let tokens = 0; tokens < 1500; tokens += 100) step(cache, random, 100);
    expect(cache.qualityMetrics().tokens).toBe(1500);
    await cache.close();
  });

  it('in divergence is not overspent', async () => {
    const cache = await openCache({ ...SHAPE, kldBudget: 0.05, tokensExpected: 1000 });
    const random = uniform(5);
    for (let tokens = 0; tokens < 1000; tokens += 125) step(cache, random, 125, true);
    const { predictedKld, decisions } = cache.qualityMetrics();
    expect(decisions).toBeGreaterThan(0);
    expect(predictedKld).toBeGreaterThan(0);
    expect(predictedKld).toBeLessThanOrEqual(0.05);
    await cache.close();
  });
});

describe('16,384 tokens of 32 layers at once', () => {
  // Some 8,000 reports of trials: more than one entry of the log holds.
  it('are told to policy and log in pieces, and replay', async () => {
    const shape = { layers: 32, queryHeads: 1, kvHeads: 1, headDim: 64 };
    const dir = folder();
    const cache = await openCache({ ...shape, kldBudget: 0.5, tokensExpected: 20_000, stateDir: dir });
    const random = uniform(12);
    for (const tokens of [16_384, 130]) {
      const rows = normals(random, tokens * 64);
      for (let layer = 0; layer < shape.layers; layer++) {
        cache.append(layer, rows, rows);
        cache.attention(layer, rows.subarray(0, 64 * 16));
      }
    }
    const { decisions } = cache.qualityMetrics();
    expect(decisions).toBeGreaterThan(2048);
    await cache.close();
    const entries = [...readLog(logDir(dir), { session: cache.session })];
    const told = entries.flatMap(({ kind, body }) => (kind === 'situation' ? [(body as SituationBody).situation] : []));
    expect(Math.max(...told.map(({ trials, outcomes }) => Math.max(trials.length, outcomes.length)))).toBe(2048);
    expect(told.reduce((sum, { trials }) => sum + trials.length, 0)).toBe(2 * shape.layers * 128);
    expect(replaySession(entries)).toMatchObject({ equal: true, complete: true, decisions });
  });
});

describe('thresholds', () => {
  it('are adapted, saved, and start another cache; the log of that one names them once', async () => {
    const dir = folder();
    const path = join(dir, 'thresholds.json');
    const options: OpenCacheOptions = {
      ...SHAPE,
      kvBudget: 700_000,
      tokensExpected: 800,
      openFormat: 'f16',
      windowTokens: 128,
    };
    const first = await openCache(options);
    const random = uniform(6);
    for (let i = 0; i < 8; i++) step(first, random, 100, true);
    const { priceThreshold, ...quality } = first.qualityMetrics();
    const predictedKld = quality.predictedKld!;
    expect(predictedKld).toBeGreaterThan(0);
    const before = first.adaptThresholds({ meanKld: predictedKld }).c;
    // The same feedback again says nothing new.
    for (let i = 0; i < 3; i++)
      expect(first.adaptThresholds({ meanKld: 4 * predictedKld }).c).toBeCloseTo(2 * before, 6);
    await first.saveThresholds(path);
    await first.close();

    const second = await openCache({ ...options, stateDir: dir });
    await second.loadThresholds(path);
    await second.loadThresholds(path);
    for (let i = 0; i < 8; i++) step(second, random, 100, true);
    expect(await codeOf(() => second.loadThresholds(path))).toBe('busy');
    await second.close();
    const entries = [...readLog(logDir(dir), { session: second.session })];
    const opened = entries.filter(({ kind }) => kind === 'open');
    expect(opened).toHaveLength(1);
    const { thresholds } = (
      opened[0]!.body as {
        context: { thresholds: { c: number; thresholds: Record<string, { value: number; origin: string }> } };
      }
    ).context;
    expect(thresholds.c).toBeCloseTo(2 * before, 6);
    expect(thresholds.thresholds['price.start']).toMatchObject({ value: priceThreshold, origin: 'file' });
    expect(replaySession(entries)).toMatchObject({ equal: true });
  });

  it('that arrive when tokens have come, or after close, are refused', async () => {
    const path = join(folder(), 'thresholds.json');
    const cache = await openCache(SHAPE);
    await cache.saveThresholds(path);
    const late = cache.loadThresholds(path);
    step(cache, uniform(7), 10);
    expect(await codeOf(() => late)).toBe('busy');
    expect(cache.qualityMetrics().tokens).toBe(10);
    await cache.close();
    const other = await openCache(SHAPE);
    const never = other.loadThresholds(path);
    await other.close();
    expect(await codeOf(() => never)).toBe('closed');
  });

  it('of another shape or another model are refused and change nothing', async () => {
    const path = join(folder(), 'thresholds.json');
    const one = await openCache(SHAPE);
    await one.saveThresholds(path);
    await one.close();
    const wider = await openCache({ ...SHAPE, layers: 4 });
    expect(await codeOf(() => wider.loadThresholds(path))).toBe('model-mismatch');
    step(wider, uniform(7), 10);
    await wider.close();
    const named = await openCache({ ...SHAPE, modelDigest: 'abc' });
    expect(await codeOf(() => named.loadThresholds(path))).toBe('model-mismatch');
    expect(await codeOf(() => named.loadThresholds(join(folder(), 'none.json')))).toBe('not-found');
    expect(await codeOf(() => named.loadThresholds(7 as never))).toBe('bad-argument');
    expect(await codeOf(() => named.saveThresholds('' as never))).toBe('bad-argument');
    await named.close();
  });
});

describe('misuse', () => {
  it('of openCache is one KvError, and nothing is made', async () => {
    const dir = join(folder(), 'state');
    const bad: unknown[] = [
      undefined,
      null,
      7,
      {},
      { ...SHAPE, layers: 0 },
      { ...SHAPE, layers: 1e12 },
      { ...SHAPE, layers: Number.NaN },
      { ...SHAPE, layers: '3' },
      { ...SHAPE, queryHeads: 3 },
      { ...SHAPE, kvHeads: -1 },
      { ...SHAPE, kvHeads: 2 ** 31 },
      { ...SHAPE, headDim: 63 },
      { ...SHAPE, headDim: 1e9 },
      { ...SHAPE, kvBudget: '25%' },
      { ...SHAPE, kvBudget: 1000 },
      { ...SHAPE, kvBudget: Number.NaN },
      { ...SHAPE, kvBudget: 'lots' },
      { ...SHAPE, kldBudget: -1 },
      { ...SHAPE, tokensExpected: 0 },
      { ...SHAPE, policy: 'guess' },
      { ...SHAPE, policy: 'fixed' },
      { ...SHAPE, cacheTypes: { k: 'rot9', v: 'rot2' } },
      { ...SHAPE, skipLayers: [3] },
      { ...SHAPE, skipLayers: 1 },
      { ...SHAPE, scale: Number.NaN },
      { ...SHAPE, slidingWindow: [1] },
      { ...SHAPE, slidingWindow: [0, 0, 0] },
      { ...SHAPE, alibiSlopes: new Float32Array(3) },
      { ...SHAPE, alibiSlopes: [1, 2, 3, 4] },
      { ...SHAPE, threads: 0 },
      { ...SHAPE, threads: 1e6 },
      { ...SHAPE, outputSketch: [new Float32Array(1)] },
      { ...SHAPE, outputSketch: [1, 2, 3] },
      { ...SHAPE, thresholds: {} },
      { ...SHAPE, thresholds: 7 },
      { ...SHAPE, stateDir: 7 },
    ];
    for (const options of bad) {
      const given = typeof options === 'object' && options !== null ? { stateDir: dir, ...options } : options;
      await codeOf(() => openCache(given as never), inspect(options, { depth: 1, maxArrayLength: 4 }));
    }
    expect(await codeOf(() => openCache({ ...SHAPE, kvBudget: 1000 }))).toBe('budget-too-small');
    // What failed holds no lock: the first series of the log is free, and nobody made a second one.
    await (await openCache({ ...SHAPE, stateDir: dir })).close();
    expect(readdirSync(logDir(dir))).toEqual(['00000000.wal']);
    expect([...readLog(logDir(dir))].filter(({ kind }) => kind === 'open' || kind === 'close')).toEqual([]);
    expect(readdirSync(dir).sort()).toEqual(['log', 'memory']);
  });

  it('of a cache is one KvError, and the cache goes on as if nothing had been', async () => {
    const options: OpenCacheOptions = {
      ...SHAPE,
      kvBudget: 500_000,
      tokensExpected: 520,
      openFormat: 'f16',
      windowTokens: 128,
    };
    const [cache, twin] = [await openCache(options), await openCache(options)];
    const f = (length: number, value = 0.5): Float32Array => new Float32Array(length).fill(value);
    const nan = f(ROW);
    nan[5] = Number.NaN;
    const bad = (layer: number): [string, () => unknown][] => [
      ['attention without the append', () => cache.attention(layer, f(QUERY * 400))],
      ['no arrays', () => cache.append(layer, undefined as never, undefined as never)],
      ['plain arrays', () => cache.append(layer, [1, 2] as never, [1, 2] as never)],
      ['float64', () => cache.append(layer, new Float64Array(ROW) as never, new Float64Array(ROW) as never)],
      ['empty', () => cache.append(layer, f(0), f(0))],
      ['half a row', () => cache.append(layer, f(ROW / 2), f(ROW / 2))],
      ['k without v', () => cache.append(layer, f(ROW), f(2 * ROW))],
      ['NaN in k', () => cache.append(layer, nan, f(ROW))],
      ['infinity in v', () => cache.append(layer, f(ROW), f(ROW, Number.POSITIVE_INFINITY))],
      ['beyond f16', () => cache.append(layer, f(ROW, 70_000), f(ROW))],
      ['x of half a number', () => cache.append(layer, f(2 * ROW), f(2 * ROW), f(3))],
      ['x empty', () => cache.append(layer, f(ROW), f(ROW), f(0))],
      ['x no array', () => cache.append(layer, f(ROW), f(ROW), 'x' as never)],
      ['x NaN', () => cache.append(layer, f(ROW), f(ROW), f(8, Number.NaN))],
      ['layer −1', () => cache.append(-1, f(ROW), f(ROW))],
      ['layer beyond', () => cache.append(3, f(ROW), f(ROW))],
      ['layer NaN', () => cache.append(Number.NaN, f(ROW), f(ROW))],
      ['layer as text', () => cache.append('0' as never, f(ROW), f(ROW))],
      ['layer out of turn', () => cache.append(layer === 2 ? 0 : layer + 1, f(ROW), f(ROW))],
      ['q no array', () => cache.attention(layer, undefined as never)],
      ['q plain', () => cache.attention(layer, [1] as never)],
      ['q half a row', () => cache.attention(layer, f(QUERY / 2))],
      ['q empty', () => cache.attention(layer, f(0))],
      ['q of a layer beyond', () => cache.attention(9, f(QUERY))],
      ['no feedback', () => cache.adaptThresholds(undefined as never)],
      ['feedback NaN', () => cache.adaptThresholds({ meanKld: Number.NaN })],
      ['feedback negative', () => cache.adaptThresholds({ meanKld: -1 })],
    ];
    const [a, b, c] = [uniform(8), uniform(8), uniform(9)];
    for (let round = 0; round < 4; round++) {
      const wanted = step(twin, b, 130, true);
      for (let layer = 0; layer < SHAPE.layers; layer++) {
        for (const [name, work] of bad(layer))
          expect(caught(work), `round ${round}, layer ${layer}: ${name}`).toBeInstanceOf(KvError);
        const [k, v, q] = [normals(a, 130 * ROW), normals(a, 130 * ROW), normals(a, 130 * QUERY)];
        cache.append(layer, k, v, normals(a, 130 * 32));
        expect(
          caught(() => cache.append(layer, k, v)),
          'the same layer twice',
        ).toBeInstanceOf(KvError);
        const infinite = normals(c, QUERY);
        infinite[3] = Number.NEGATIVE_INFINITY;
        expect(caught(() => cache.attention(layer, infinite))).toBeInstanceOf(KvError);
        expect(cache.attention(layer, q)).toEqual(wanted[layer]!.out);
      }
      expect(cache.memoryUsage()).toEqual(twin.memoryUsage());
      expect(cache.qualityMetrics()).toEqual(twin.qualityMetrics());
    }
    expect(cache.qualityMetrics().decisions).toBeGreaterThan(0);
    await cache.close();
    await twin.close();
  });

  it('cache types are a pair or its text, and a head size without codes gets f16', async () => {
    const written: unknown[] = [];
    for (const cacheTypes of ['rot4:rot2', { k: 'rot4', v: 'rot2' }] as const) {
      const cache = await openCache({ ...SHAPE, cacheTypes });
      for (let page = 0; page < 4; page++) {
        for (let layer = 0; layer < SHAPE.layers; layer++) {
          const rows = Float32Array.from({ length: 128 * ROW }, (_, i) => Math.sin(i * (layer + 1)));
          cache.append(layer, rows, rows);
          cache.attention(
            layer,
            Float32Array.from({ length: 128 * QUERY }, (_, i) => Math.cos(i)),
          );
        }
      }
      written.push([cache.memoryUsage().totalBytes, cache.qualityMetrics().decisions]);
      await cache.close();
    }
    expect(written[0]).toEqual(written[1]);
    const odd = { ...SHAPE, headDim: 48 };
    await (await openCache(odd)).close();
    await (await openCache({ ...odd, cacheTypes: 'f16' })).close();
    const error = await openCache({ ...odd, kvBudget: '64MiB' }).catch((thrown: unknown) => thrown);
    expect(error).toMatchObject({ code: 'unsupported', hint: expect.stringContaining('leave out the budget') });
  });

  it('after close is refused; closing again does nothing', async () => {
    const cache = await openCache(SHAPE);
    await cache.close();
    const row = new Float32Array(ROW);
    const calls: (() => unknown)[] = [
      () => cache.append(0, row, row),
      () => cache.attention(0, new Float32Array(QUERY)),
      () => cache.memoryUsage(),
      () => cache.qualityMetrics(),
      () => cache.adaptThresholds({ meanKld: 1 }),
      () => cache.flush(),
      () => cache.saveThresholds('x'),
      () => cache.loadThresholds('x'),
    ];
    for (const call of calls) expect(await codeOf(call)).toBe('closed');
    await cache.close();
    await cache[Symbol.asyncDispose]();
    expect(readdirSync('.')).not.toContain('x');
  });
});

describe('life', () => {
  it('works in a thread', async () => {
    const dir = folder();
    const worker = startThread(new URL('./cache-worker.ts', import.meta.url), { stateDir: dir, shape: SHAPE });
    const answer = await new Promise<unknown>((resolve, reject) => {
      worker.once('message', resolve);
      worker.once('error', reject);
      worker.once('exit', (code) => reject(new Error(`exit ${code}`)));
    });
    await worker.terminate();
    const here = await openCache({
      ...SHAPE,
      kvBudget: 700_000,
      tokensExpected: 800,
      openFormat: 'f16',
      windowTokens: 128,
    });
    const random = uniform(10);
    let sum = 0;
    for (let i = 0; i < 8; i++) for (const { out } of step(here, random, 100)) sum += out.reduce((a, b) => a + b, 0);
    expect(answer).toEqual({ sum, quality: here.qualityMetrics() });
    expect(here.qualityMetrics().decisions).toBeGreaterThan(0);
    await here.close();
    expect(verifyLog(logDir(dir)).problem).toBeNull();
  });

  it('opened and closed fifty times, and failed to open fifty times, keeps no memory', async () => {
    const shape = { layers: 8, queryHeads: 8, kvHeads: 8, headDim: 128 };
    const cycle = async (): Promise<number> => {
      const cache = await openCache({ ...shape, cacheTypes: { k: 'rot4', v: 'rot4' } });
      const rows = new Float32Array(300 * 1024).fill(0.25);
      for (let layer = 0; layer < shape.layers; layer++) {
        cache.append(layer, rows, rows);
        cache.attention(layer, rows.subarray(0, 1024));
      }
      const { totalBytes } = cache.memoryUsage();
      await cache.close();
      await codeOf(() => openCache({ ...shape, outputSketch: Array.from({ length: 8 }, () => new Float32Array(3)) }));
      return totalBytes;
    };
    const bytes = await cycle();
    expect(bytes).toBeGreaterThan(6e6);
    for (let i = 0; i < 5; i++) await cycle();
    const before = process.memoryUsage().rss;
    for (let i = 0; i < 45; i++) expect(await cycle()).toBe(bytes);
    // Kept, they would be 45 times that and 45 times the open pages of what failed: more than 400 MB.
    expect(process.memoryUsage().rss - before).toBeLessThan(12 * bytes);
  });
});
