// Modifiers of the rot family on the bench: what each is published to do to rows is asked of rows that are drawn and of
// those of the reference model, bytes are those of the formulas, and a model that is read with nothing coded is the
// exact one.
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { Runtime } from '../../engine/transformer/runtime/runtime.ts';
import { everyCache, kindOf } from '../../lab/evaluate/every-cache.ts';
import { CHRONICLE, type Passage, passagesOf } from '../../lab/evaluate/passages.ts';
import { Scorer } from '../../lab/evaluate/score.ts';
import { narrowed } from '../../lab/methods/allocation.ts';
import { ANCHOR_ROWS, deltaCode, dpcmCode } from '../../lab/methods/delta.ts';
import type { Place } from '../../lab/methods/headwise.ts';
import { lowRankBytes, lowRankOf } from '../../lab/methods/lowrank.ts';
import { Masses } from '../../lab/methods/masses.ts';
import { pageMethodOf } from '../../lab/methods/methods.ts';
import { modifiedCaches, modifiedOf } from '../../lab/methods/modifiers.ts';
import { ownRows } from '../../lab/methods/own-rows.ts';
import { f16Bytes, type KeptRows, type PageMethod, readPaged } from '../../lab/methods/paged.ts';
import { codedRow, codeRot, type RotBits, rotHeadBytes, scaleUnit } from '../../lab/methods/rot-head.ts';
import { gaussians } from '../../lab/methods/words.ts';
import { product, singularVectors, transposed } from '../../lab/methods/xquant.ts';
import { PAGE_TOKENS, pageBytes, SINK_TOKENS } from '../../native/index.ts';
import { MODEL } from '../unit/engine/on-reference.ts';

const D = 64;
const PLACE: Place = { layer: 0, side: 'k', head: 0, page: 1, firstRow: 0 };
const energy = (x: Float32Array): number => x.reduce((sum, one) => sum + one * one, 0);
const between = (x: Float32Array, y: Float32Array): Float32Array => x.map((one, i) => one - y[i]!);
/** Squared error of rows after a code, over their own square. */
const errorOf = (rows: Float32Array, code: (rows: Float32Array) => unknown): number => {
  const coded = rows.slice();
  code(coded);
  return energy(between(coded, rows)) / energy(rows);
};

/** Rows in which each is ρ times the one before and something new, all of variance 1. */
function correlated(rho: number, seed: number): Float32Array {
  const rows = gaussians(PAGE_TOKENS * D, seed);
  for (let i = D; i < rows.length; i++) rows[i] = rho * rows[i - D]! + Math.sqrt(1 - rho * rho) * rows[i]!;
  return rows;
}

describe('low rank (T18)', () => {
  it('takes of white noise what its largest directions hold, as published: 11.6% and 21.9% for ranks 4 and 8 of 360 rows', () => {
    for (const [rank, share] of [
      [4, 0.116],
      [8, 0.219],
    ] as const) {
      const noise = gaussians(360 * D, rank);
      const left = energy(between(noise, lowRankOf(noise, D, rank))) / energy(noise);
      expect(1 - left).toBeGreaterThan(share - 0.012);
      expect(1 - left).toBeLessThan(share + 0.006);
    }
  });

  it('finds nearly what singular vectors would, all of a matrix of that rank, and nothing in nothing', () => {
    const rows = gaussians(PAGE_TOKENS * D, 3).map((one, i) => one * (i % D === 5 ? 4 : 1));
    const basis = singularVectors(transposed(rows, D), PAGE_TOKENS).subarray(0, 2 * PAGE_TOKENS);
    const best = energy(product(basis, transposed(rows, D), PAGE_TOKENS));
    expect(energy(lowRankOf(rows, D, 2)) / best).toBeGreaterThan(0.99);
    // All directions are the rows themselves, but for factors in f16.
    expect(energy(between(rows, lowRankOf(rows, D, D))) / energy(rows)).toBeLessThan(1e-4);
    const narrow = product(gaussians(PAGE_TOKENS * 2, 4), gaussians(D * 2, 5), 2);
    expect(energy(between(narrow, lowRankOf(narrow, D, 2))) / energy(narrow)).toBeLessThan(1e-6);
    expect(lowRankOf(new Float32Array(PAGE_TOKENS * D), D, 4)).toEqual(new Float32Array(PAGE_TOKENS * D));
  });

  it('lowers the error of every page more the higher its rank, and costs more than it brings in noise', () => {
    for (let seed = 0; seed < 4; seed++) {
      const rows = gaussians(PAGE_TOKENS * D, 10 + seed);
      const coded = rows.slice();
      codeRot(coded, 2, 0);
      const left = between(rows, coded);
      let last = energy(left);
      for (const rank of [1, 2, 4, 8]) {
        const now = energy(between(left, lowRankOf(left, D, rank)));
        expect(now).toBeLessThan(last);
        last = now;
      }
      // Rank 4 costs 1.5 bits, of which one would leave a quarter.
      expect((8 * lowRankBytes(4, D)) / (PAGE_TOKENS * D)).toBe(1.5);
      expect(energy(between(left, lowRankOf(left, D, 4))) / energy(left)).toBeGreaterThan(0.7);
    }
  });
});

describe('differences (T17)', () => {
  it('err by the error of the row at hand, where those of exact rows add up', () => {
    const rows = correlated(0.98, 21);
    const unit = scaleUnit(rows);
    const errorOfRow = (decoded: Float32Array, t: number): number =>
      energy(between(decoded.subarray(t * D, (t + 1) * D), rows.subarray(t * D, (t + 1) * D)));
    const mean = (decoded: Float32Array, from: number, to: number): number =>
      Array.from({ length: to - from }, (_, i) => errorOfRow(decoded, from + i)).reduce((sum, one) => sum + one, 0) /
      (to - from);
    const closed = rows.slice();
    dpcmCode(3)(closed, PLACE);
    const open = rows.slice();
    for (let t = 1; t < PAGE_TOKENS; t++) {
      const difference = between(rows.subarray(t * D, (t + 1) * D), rows.subarray((t - 1) * D, t * D));
      const coded = codedRow(difference, 3, unit);
      for (let c = 0; c < D; c++) open[t * D + c] = open[(t - 1) * D + c]! + coded[c]!;
    }
    // Rows behind the first of a stretch, early and late in the page.
    expect(mean(closed, 100, 128) / mean(closed, 4, ANCHOR_ROWS)).toBeLessThan(2);
    expect(mean(open, 100, 128) / mean(open, 4, ANCHOR_ROWS)).toBeGreaterThan(3);
  });

  it('help above a correlation of one half, and a fitted share of the row before never hurts', () => {
    const plain = (bits: RotBits) => (rows: Float32Array) => codeRot(rows, bits, 0);
    const fitted = (bits: RotBits) => (rows: Float32Array) => dpcmCode(bits)(rows, PLACE);
    // The row before in full, without anchors: the rule of one half.
    const whole = (rows: Float32Array): void => {
      let before = new Float32Array(D);
      const unit = scaleUnit(rows);
      for (let t = 0; t < PAGE_TOKENS; t++) {
        const coded = codedRow(
          rows.slice(t * D, (t + 1) * D).map((one, c) => one - before[c]!),
          3,
          unit,
        );
        before = before.map((one, c) => one + coded[c]!);
        rows.set(before, t * D);
      }
    };
    const gain = (rho: number, code: (rows: Float32Array) => unknown): number =>
      errorOf(correlated(rho, 31), code) / errorOf(correlated(rho, 31), plain(3));
    expect(gain(0.3, whole)).toBeGreaterThan(1.2);
    expect(gain(0.8, whole)).toBeLessThan(0.8);
    expect(gain(0, fitted(3))).toBeLessThan(1.05);
    expect(gain(0.5, fitted(3))).toBeLessThan(0.9);
    expect(gain(0.9, fitted(3))).toBeLessThan(0.35);
  });

  it('begin anew with an anchor where rows jump and every 32 rows, and count it', () => {
    const row = gaussians(D, 41);
    const alike = Float32Array.from({ length: PAGE_TOKENS * D }, (_, i) => row[i % D]! * (i < 50 * D ? 1 : -1));
    const coded = alike.slice();
    const bytes = deltaCode(3)(coded, PLACE);
    // Rows 0, 32, 50 and 82 and 114.
    const codes = (anchors: number): number => anchors * 2 * D + (PAGE_TOKENS - anchors) * (24 + 1) + 16 + 1;
    expect(bytes).toBe(codes(5));
    expect(errorOf(alike, (rows) => deltaCode(3)(rows, PLACE))).toBeLessThan(1e-6);
    // Independent rows are all anchors.
    expect(deltaCode(3)(gaussians(PAGE_TOKENS * D, 42), PLACE)).toBe(codes(PAGE_TOKENS));
  });
});

describe('bits by weight', () => {
  const sum = (of: readonly number[]): number => of.reduce((all, one) => all + one, 0);

  it('add up to what is allowed, are equal where weights are, and follow pages that change their places', () => {
    const four = Array.from({ length: 8 }, () => 4 as RotBits);
    expect(
      narrowed(
        four,
        four.map(() => 1),
        24,
      ),
    ).toEqual(four.map(() => 3));
    const weights = [8, 1, 0.5, 30, 2, 0.1, 4, 1.5];
    const bits = narrowed(four, weights, 20);
    expect(sum(bits)).toBe(20);
    expect(bits[3]).toBe(4);
    expect(bits[5]).toBe(1);
    for (const [i, one] of weights.entries())
      for (const [j, other] of weights.entries()) if (one > other) expect(bits[i]!).toBeGreaterThanOrEqual(bits[j]!);
    const turned = narrowed(four, weights.toReversed(), 20);
    expect(turned).toEqual(bits.toReversed());
  });

  it('leave less weighted error than equal ones: with all weight on a half, 72.5% less at most', () => {
    const distortion = { 4: 0.0091, 3: 0.0345, 2: 0.1324, 1: 0.57 };
    const weights = [1, 1, 1, 1, 1e-9, 1e-9, 1e-9, 1e-9];
    const bits = narrowed(
      weights.map(() => 4),
      weights,
      24,
    );
    const error = sum(weights.map((weight, page) => weight * distortion[bits[page]!]));
    expect(1 - error / (4 * distortion[3])).toBeCloseTo(0.73, 1);
  });
});

describe('the reference model', () => {
  const CONTEXT = 512;
  let runtime: Runtime;
  let passage: Passage;
  let scorer: Scorer;
  beforeAll(async () => {
    runtime = await Runtime.open({ model: MODEL, dense: 'exact', threads: 1 });
    [passage] = passagesOf(runtime.model.tokenizer, CHRONICLE, 1, CONTEXT) as [Passage];
    scorer = new Scorer(runtime);
  });
  afterAll(() => runtime.close());

  const readWith = async (method: PageMethod) => {
    const { hidden, ...bytes } = await readPaged(runtime, method, { ids: passage.ids, scored: CONTEXT / 2 });
    return { ...bytes, kld: (await scorer.against(passage, hidden)).meanKld };
  };
  const read = (cache: string) => readWith(pageMethodOf(cache)!);

  it('is the exact one where nothing is coded', async () => {
    const { config } = runtime.model;
    const { kld, bytes, bytesAtRest, bytesF16 } = await readWith(() => ({
      code: () => {},
      heldBytes: (coded, windowTokens) => f16Bytes(config, coded * PAGE_TOKENS + windowTokens),
    }));
    expect(kld).toBeLessThan(1e-9);
    expect(bytes).toBe(bytesAtRest);
    expect(bytesAtRest - f16Bytes(config, SINK_TOKENS)).toBe(bytesF16);
  });

  it('holds the bytes of its formats and of what is added to them', async () => {
    const { config } = runtime.model;
    const { layers, kvHeads, headDim } = config;
    const [coded, heads] = [CONTEXT / PAGE_TOKENS - 1, layers * kvHeads];
    const pages = heads * coded;
    const rest = f16Bytes(config, SINK_TOKENS + PAGE_TOKENS);
    for (const bits of [2, 3, 4] as const) {
      // Pages of a cache are padded to whole lines.
      const padded = pageBytes(`rot${bits}`, kvHeads, headDim) / kvHeads - rotHeadBytes(bits, headDim);
      expect(padded).toBeGreaterThanOrEqual(0);
      expect(padded * kvHeads).toBeLessThan(3 * 64);
    }
    const plain = rest + pages * 2 * rotHeadBytes(2, headDim);
    const expected: Record<string, number> = {
      'rot2+plain': plain,
      // A sum a page, and the bits of both sides.
      'rot2+mass': plain + layers * coded * (4 + 2),
      'rot2+prerope': plain,
      'rot2+nomean': plain - pages * 2 * (headDim + 2),
      'rot2+lowrank1': plain + pages * 2 * lowRankBytes(1, headDim),
      'rot2+dpcm': plain + pages * 2 * 2,
      'rot2+gqa': plain + (pages * PAGE_TOKENS * headDim) / 8,
      // A sum for each token in the window.
      'rot2+anchors2': plain + pages * 2 * (4 * headDim + 1) + heads * PAGE_TOKENS * 4,
      'rot2+anchors2k': plain + pages * 2 * (2 * headDim + 1) + heads * PAGE_TOKENS * 4,
      'rot2+ends1': plain + (2 * (2 / layers) * pages * PAGE_TOKENS * headDim) / 8,
      'rot2+middle1': plain + (2 * (2 / layers) * pages * PAGE_TOKENS * headDim) / 8,
    };
    const klds = new Map<string, number>();
    for (const [cache, bytes] of Object.entries(expected)) {
      const { kld, bytesAtRest } = await read(cache);
      expect(bytesAtRest, cache).toBe(bytes);
      expect(kld, cache).toBeGreaterThan(0);
      klds.set(cache, kld);
    }
    // Whatever adds bytes takes off divergence; bits by attention do not (docs/lab/formats.md).
    for (const cache of ['rot2+lowrank1', 'rot2+gqa', 'rot2+anchors2'])
      expect(klds.get(cache), cache).toBeLessThan(klds.get('rot2+plain')!);
    expect(klds.get('rot2+nomean')).toBeGreaterThan(klds.get('rot2+plain')!);
  });

  it('gives attention to its tokens that adds up to one for every query, and to pages what their tokens get (T23)', async () => {
    const { config } = runtime.model;
    const { layers, kvHeads, queryHeads, headDim } = config;
    const masses = new Masses(config, 2 * PAGE_TOKENS);
    const [tokens, nd] = [2 * PAGE_TOKENS, kvHeads * headDim];
    const kept: KeptRows = { k: gaussians(tokens * nd, 51), v: new Float32Array(tokens * nd) };
    const seen = Array.from({ length: 2 }, (_, page) => {
      const q = new Float32Array(PAGE_TOKENS * queryHeads * headDim);
      masses.see({ layer: 0, tokens: PAGE_TOKENS, q, k: kept.k, v: kept.v, x: q }, page * PAGE_TOKENS, kept);
      return [masses.ofPage(0, 0), masses.averageOfPage(0, 0)] as const;
    });
    // Queries of zeros give every token before them the same: 1/(t + 1), of which the sinks are left out.
    const share = (from: number, count = PAGE_TOKENS): number =>
      Array.from({ length: count }, (_, i) => from + i).reduce(
        (sum, t) => sum + (Math.min(t + 1, PAGE_TOKENS) - Math.min(t + 1, SINK_TOKENS)) / (t + 1),
        0,
      );
    expect(seen[0]![0]).toBeCloseTo(share(0) / PAGE_TOKENS, 5);
    expect(seen[1]![0]).toBeCloseTo((share(0) + share(PAGE_TOKENS)) / (2 * PAGE_TOKENS), 5);
    // Of the mean of sixteen queries a tenth enters the average, of which nine tenths stay.
    let average = 0;
    for (const [page, [, moving]] of seen.entries()) {
      for (let from = page * PAGE_TOKENS; from < (page + 1) * PAGE_TOKENS; from += 16)
        average = 0.9 * average + (0.1 * share(from, 16)) / 16;
      expect(moving).toBeCloseTo(average, 5);
    }
    expect(masses.ofPage(layers - 1, 0)).toBe(0);
  });

  it('has keys of which neighbours are less alike than an anchor needs', async () => {
    const [{ k }] = (await ownRows(runtime, 2 * PAGE_TOKENS)) as [KeptRows];
    const { kvHeads, headDim } = runtime.model.config;
    const rows = Float32Array.from(
      { length: PAGE_TOKENS * headDim },
      (_, i) => k[(PAGE_TOKENS + Math.floor(i / headDim)) * kvHeads * headDim + (i % headDim)]!,
    );
    // Most rows become anchors, so differences take nearly all of f16.
    const bits = (8 * deltaCode(3)(rows.slice(), PLACE)) / rows.length;
    expect(bits).toBeGreaterThan(12);
    // A fitted share of the row before is worth a twentieth of the error at most, and rows near zero coded from zero
    // are worth as much.
    const share = errorOf(rows, (coded) => dpcmCode(2)(coded, PLACE)) / errorOf(rows, (coded) => codeRot(coded, 2, 0));
    expect(Math.abs(share - 1)).toBeLessThan(0.05);
  });
});

it('names are those of modifiers, and no others', () => {
  for (const cache of modifiedCaches()) {
    expect(modifiedOf(cache), cache).not.toBeNull();
    expect(kindOf(cache)).toBe('modified');
    expect(everyCache()).toContain(cache);
  }
  expect(modifiedOf('rot3:rot2+lowrank4')).toEqual({
    bits: { k: 3, v: 2 },
    name: 'lowrank',
    count: 4,
    sides: ['k', 'v'],
  });
  expect(modifiedOf('rot2+anchors2k')).toEqual({ bits: { k: 2, v: 2 }, name: 'anchors', count: 2, sides: ['k'] });
  for (const other of [
    'rot2',
    'rot2:rot2',
    'rot2:rot2+q8',
    'rot2+lowrank',
    'rot2+mass2',
    'rot2+ends2k',
    'rot5+plain',
    'rot2+anchors0',
  ])
    expect(modifiedOf(other), other).toBeNull();
});
