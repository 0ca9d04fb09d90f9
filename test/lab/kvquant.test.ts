// KVQuant on the bench, as published: outliers are exact and no more than there may be, levels for a normal are those
// of Lloyd and Max, Q-Norm keeps mean and deviation, keys before RoPE that are not rounded are the keys, and sequences
// hold the bytes that the formulas say.
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { RopeTable } from '../../engine/transformer/rope.ts';
import { Runtime } from '../../engine/transformer/runtime/runtime.ts';
import { everyCache, kindOf } from '../../lab/evaluate/every-cache.ts';
import { CHRONICLE, passagesOf } from '../../lab/evaluate/passages.ts';
import {
  channelRanges,
  codeGrid,
  fitGrid,
  fitLevels,
  type Grid,
  kvQuantCaches,
  kvQuantOf,
  kvQuantPageBytes,
  kvQuantPages,
  normed,
} from '../../lab/methods/kvquant.ts';
import { pageMethodOf } from '../../lab/methods/methods.ts';
import { f16Bytes, readPaged, unrotate } from '../../lab/methods/paged.ts';
import { inHalf } from '../../lab/methods/rot-head.ts';
import { gaussians } from '../../lab/methods/words.ts';
import { PAGE_TOKENS, SINK_TOKENS } from '../../native/index.ts';
import { MODEL } from '../unit/engine/on-reference.ts';

const WIDTH = 192;
const energy = (x: Float32Array): number => x.reduce((sum, one) => sum + one * one, 0);
const between = (x: Float32Array, y: Float32Array): Float32Array => x.map((one, i) => one - y[i]!);
const published = (bits: 2 | 3 | 4) => ({ bits, variant: 'published' }) as const;

/** Normal rows whose channels have scales of their own, and elements far out here and there. */
function rows(seed: number): Float32Array {
  const scale = gaussians(WIDTH, 99).map((one) => Math.exp(one));
  return gaussians(PAGE_TOKENS * WIDTH, seed).map((one, i) => one * scale[i % WIDTH]! * (i % 997 === 5 ? 20 : 1));
}

describe('levels', () => {
  it('for a normal are those of Lloyd and Max, within 2%, once the range is taken off again (T12)', () => {
    const x = gaussians(200_000, 4);
    const range = x.reduce((most, one) => Math.max(most, Math.abs(one)), 0);
    const unit = x.map((one) => one / range);
    const four = Array.from(fitLevels(unit, 4, 1), (one) => one * range);
    for (const [at, level] of [-1.51, -0.4528, 0.4528, 1.51].entries())
      expect(Math.abs(four[at]! - level)).toBeLessThan(0.02 * 1.51);
    // More levels are still on their way after 50 rounds, at an error that hardly falls any more (Max 1960).
    for (const [count, least] of [
      [8, 0.03454],
      [16, 0.009497],
    ] as const) {
      const levels = Array.from(fitLevels(unit, count, 1), (one) => one * range);
      const error = x.reduce((sum, one) => sum + Math.min(...levels.map((level) => (level - one) ** 2)), 0) / x.length;
      expect(error / least).toBeGreaterThan(0.98);
      expect(error / least).toBeLessThan(1.02);
    }
  });

  it('err no more with more of them, and Q-Norm gives decoded numbers the mean and deviation they had, at the price of error', () => {
    const x = gaussians(20_000, 8).map((one) => 0.3 + one / 4);
    const decoded = (levels: Float64Array): Float32Array =>
      x.map((one) => levels.reduce((best, level) => (Math.abs(level - one) < Math.abs(best - one) ? level : best)));
    const error = (levels: Float64Array): number => energy(between(decoded(levels), x));
    const [two, three, four] = [4, 8, 16].map((count) => fitLevels(x, count, 1));
    expect(error(three!)).toBeLessThan(error(two!));
    expect(error(four!)).toBeLessThan(error(three!));
    const moments = (of: Float32Array): readonly [number, number] => {
      const mean = of.reduce((sum, one) => sum + one, 0) / of.length;
      return [mean, Math.sqrt(of.reduce((sum, one) => sum + (one - mean) ** 2, 0) / of.length)];
    };
    const [mean, deviation] = moments(x);
    const plain = moments(decoded(two!));
    expect(plain[1] / deviation).toBeLessThan(0.95);
    // The codes are those of the levels before they were stretched.
    const stretched = normed(two!, x);
    const places = decoded(two!).map(
      (one) => stretched[two!.indexOf(one)] ?? stretched[[...two!].findIndex((level) => Math.fround(level) === one)]!,
    );
    const after = moments(places);
    expect(after[0]).toBeCloseTo(mean, 3);
    expect(after[1] / deviation).toBeCloseTo(1, 3);
    expect(energy(between(places, x))).toBeGreaterThan(error(two!));
  });
});

describe('outliers', () => {
  it('are exact in f16, and are what lies outside of the ranges of channels, or at both ends of a token (T12)', () => {
    for (const side of ['k', 'v'] as const) {
      const grid = fitGrid(rows(1), WIDTH, side, published(3));
      const asked = rows(2);
      const coded = asked.slice();
      const outliers = codeGrid(coded, WIDTH, grid, SINK_TOKENS);
      const exact = inHalf(asked.slice());
      expect(outliers.length).toBeGreaterThan(0);
      for (const i of outliers) expect(coded[i]).toBe(exact[i]);
      expect(coded.subarray(0, SINK_TOKENS * WIDTH)).toEqual(asked.subarray(0, SINK_TOKENS * WIDTH));
      expect(Math.min(...outliers)).toBeGreaterThanOrEqual(SINK_TOKENS * WIDTH);
      const share = outliers.length / ((PAGE_TOKENS - SINK_TOKENS) * WIDTH);
      if (side === 'v') expect(outliers.length).toBe(2 * (PAGE_TOKENS - SINK_TOKENS));
      else expect(share).toBeLessThan(0.03);
      // Elements that are far out are the first to be kept.
      for (let i = SINK_TOKENS * WIDTH; i < asked.length; i++)
        if (side === 'k' && (asked[i]! > grid.channels!.high[i % WIDTH]! || asked[i]! < grid.channels!.low[i % WIDTH]!))
          expect(outliers).toContain(i);
    }
  });

  it('of keys stay within the room of a token where it is reserved, and the farthest have it (T12)', () => {
    const method = { bits: 3, variant: 'capped' } as const;
    const grid = fitGrid(rows(1), WIDTH, 'k', method);
    expect(grid.most).toBe(2);
    const asked = rows(2).map((one, i) => (Math.floor(i / WIDTH) === 9 ? 30 * one : one));
    const outliers = codeGrid(asked.slice(), WIDTH, grid);
    const ofToken = (t: number): number => outliers.filter((i) => Math.floor(i / WIDTH) === t).length;
    expect(ofToken(9)).toBe(2);
    for (let t = 0; t < PAGE_TOKENS; t++) expect(ofToken(t)).toBeLessThanOrEqual(2);
    const free = codeGrid(asked.slice(), WIDTH, { ...grid, most: WIDTH });
    expect(free.length).toBeGreaterThan(outliers.length);
    for (const i of outliers) expect(free).toContain(i);
  });

  it('are about as many as asked for in rows like those of the calibration, and make the range of channels narrower', () => {
    const fitted = gaussians(4000 * 8, 1);
    const ranges = channelRanges(fitted, 8, 0.01);
    const whole = channelRanges(fitted, 8, 0);
    for (let c = 0; c < 8; c++) {
      expect(ranges.high[c]).toBeLessThan(whole.high[c]!);
      expect(ranges.low[c]).toBeGreaterThan(whole.low[c]!);
      expect(ranges.high[c]).toBeGreaterThan(2.3);
      expect(ranges.high[c]).toBeLessThan(2.9);
    }
    const grid: Grid = { levels: fitLevels(gaussians(1000, 2), 8, 1), channels: ranges, share: 0.01, most: 8 };
    const found = codeGrid(gaussians(4000 * 8, 3), 8, grid).length / (4000 * 8);
    expect(found).toBeGreaterThan(0.007);
    expect(found).toBeLessThan(0.013);
  });
});

describe('a model', () => {
  let runtime: Runtime;
  beforeAll(async () => {
    runtime = await Runtime.open({ model: MODEL, dense: 'exact', threads: 1 });
  });
  afterAll(() => runtime.close());

  it('scores queries alike whether keys are decoded and then rotated, or rotated as they were, where nothing is rounded (T12)', () => {
    const { config } = runtime.model;
    const { kvHeads, headDim } = config;
    const width = kvHeads * headDim;
    const rope = new RopeTable(config, 2 * PAGE_TOKENS);
    const rotated = gaussians(PAGE_TOKENS * width, 12);
    rope.apply(rotated, PAGE_TOKENS, kvHeads, PAGE_TOKENS);
    const before = rotated.slice();
    unrotate(before, kvHeads, PAGE_TOKENS, rope, config);
    const exact: Grid = { levels: null, channels: channelRanges(before, width, 0), share: 0, most: 0 };
    expect(codeGrid(before, width, exact)).toEqual([]);
    rope.apply(before, PAGE_TOKENS, kvHeads, PAGE_TOKENS);
    const query = gaussians(width, 13);
    for (let t = 0; t < PAGE_TOKENS; t += 17) {
      const dot = (x: Float32Array): number => query.reduce((sum, one, c) => sum + one * x[t * width + c]!, 0);
      expect(Math.abs(dot(before) - dot(rotated)) / Math.sqrt(energy(query) * width)).toBeLessThan(1e-6);
    }
  });

  it('holds what the formulas say: codes, the range of a token, two pointers, and four bytes of each outlier', async () => {
    const { config } = runtime.model;
    const width = config.kvHeads * config.headDim;
    const [passage] = passagesOf(runtime.model.tokenizer, CHRONICLE, 1, 384);
    const rest = f16Bytes(config, SINK_TOKENS + PAGE_TOKENS);
    const pages = 2 * config.layers;
    const atRest = async (cache: string): Promise<number> =>
      (await readPaged(runtime, kvQuantPages(kvQuantOf(cache)!), { ids: passage!.ids, scored: 64 })).bytesAtRest - rest;
    expect((8 * kvQuantPageBytes(width, published(3))) / (2 * PAGE_TOKENS * width)).toBeCloseTo(
      3 + (8 * 12) / (2 * width),
      9,
    );
    const dense = await atRest('kvquant3-dense');
    expect(dense).toBe(pages * PAGE_TOKENS * ((2 * 3 * width) / 8 + 4));
    const capped = (await atRest('kvquant3-capped')) - pages * kvQuantPageBytes(width, published(3));
    // Tokens of coded pages have two outlying values each, and no more keys than there is room for.
    const tokens = config.layers * (2 * PAGE_TOKENS - SINK_TOKENS);
    expect(capped / 4).toBeGreaterThanOrEqual(2 * tokens);
    expect(capped / 4).toBeLessThanOrEqual((2 + Math.ceil(width / 100)) * tokens);
  });
});

it('names are those of methods, and no others', () => {
  for (const cache of kvQuantCaches()) {
    expect(pageMethodOf(cache), cache).not.toBeNull();
    expect(everyCache()).toContain(cache);
    expect(kindOf(cache)).toBe('kvquant');
  }
  for (const other of ['kvquant8', 'kvquant', 'kvquant3-raw', 'kvquant2-rope', 'kvquant2:kvquant2'])
    expect(pageMethodOf(other), other).toBeNull();
});
