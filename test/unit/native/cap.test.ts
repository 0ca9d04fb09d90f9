/**
 * Scores that a hyperbolic tangent keeps below a cap: the kernel against float64 on every instruction set, and
 * attention and trials over every format and form of a page against plain attention in float64, with caps that scores
 * reach, so that the uncapped answer is far away.
 */
import { afterAll, describe, expect, it, test } from 'vitest';
import {
  encodeLatent,
  fromHalf,
  type KvCache,
  type KvCacheOptions,
  LATENT_NAMES,
  nativeInfo,
  openKvCache,
  openPool,
  SERVED_FORMATS,
  setIsa,
  toHalf,
} from '../../../native/index.ts';
import { bits, expectSame, misaligned } from '../../native/bits.ts';
import { CODED_TOLERANCE, denseOf, F16_TOLERANCE, normals, relativeError, uniform } from '../../native/dense.ts';
import { availableIsas, loadKernels } from '../../native/kernels-binding.ts';

const { available, isa: best } = nativeInfo();
afterAll(() => setIsa(best));

const kernels = loadKernels();
/** The error that native/kernels/cap.h states. */
const TANH_ERROR = 4e-7;

const shape = { layers: 1, queryHeads: 6, kvHeads: 2, headDim: 64 };
const ROW = 2 * 64;
const QUERY = 6 * 64;
const CAP = 2;
/** Queries three times as large as keys have scores of three or so, of which the cap leaves 1.8. */
const SIZE = 3;

function open(options: Partial<KvCacheOptions> = {}): KvCache {
  return openKvCache({ shape, pool: openPool(2 ** 28), scoreCap: CAP, ...options });
}

function filled(tokens: number, options: Partial<KvCacheOptions> = {}): KvCache {
  const cache = open(options);
  const random = uniform(tokens);
  cache.append(0, normals(random, tokens * ROW), normals(random, tokens * ROW));
  return cache;
}

/**
 * Attends some queries; the output is that of capped attention over what the cache decodes, and not that of uncapped
 * attention.
 */
function agree(cache: KvCache, queries: number, bound: number, options: Parameters<typeof denseOf>[3] = {}): void {
  const q = normals(uniform(queries), queries * QUERY, SIZE);
  const out = new Float32Array(q.length);
  const lse = new Float32Array(queries * shape.queryHeads);
  cache.attend(0, q, out, { lse });
  const expected = denseOf(cache, 0, q, { ...options, scoreCap: CAP });
  expect(relativeError(out, expected.out)).toBeLessThan(bound);
  for (const [i, value] of lse.entries()) expect(Math.abs(value - expected.lse[i]!)).toBeLessThan(10 * bound);
  expect(relativeError(out, denseOf(cache, 0, q, options).out)).toBeGreaterThan(0.2);
}

describe('the kernel', () => {
  /** Every part of the range closely, both ends, and what is beyond them. */
  const values = Float32Array.from([
    ...Array.from({ length: 200_001 }, (_, i) => (i - 100_000) / 10_000),
    ...Array.from({ length: 4000 }, (_, i) => (i % 2 === 0 ? 1 : -1) * 2 ** (-100 + i / 40)),
    ...[0, -0, 9, -9, 8.999999, 9.000001, 1e20, -1e20, 3e38, Infinity, -Infinity, 2 ** -149],
  ]);

  test('is off by no more than it says, on every instruction set by the same bits, whatever the length', () => {
    let first: Float32Array | undefined;
    for (const [name, isa] of availableIsas(kernels)) {
      const x = misaligned(values);
      kernels.capScores(isa, x.length, 1, x);
      let worst = 0;
      for (const [i, value] of x.entries()) {
        const exact = Math.tanh(values[i]!);
        if (exact !== 0 && Math.abs(exact) > 2 ** -120)
          worst = Math.max(worst, Math.abs(value - exact) / Math.abs(exact));
      }
      expect(worst, name).toBeLessThan(TANH_ERROR);
      first ??= x;
      expectSame(bits(x), bits(first), name);
      for (const count of [0, 1, 3, 4, 5, 15, 16, 17, 31]) {
        const some = misaligned(values.subarray(100, 132));
        kernels.capScores(isa, count, 1, some);
        expectSame(bits(some.subarray(0, count)), bits(first.subarray(100, 100 + count)), `${name}, ${count}`);
        expectSame(bits(some.subarray(count)), bits(values.subarray(100 + count, 132)), `${name} beyond ${count}`);
      }
    }
  });

  test('takes any cap; what is no number stays none', () => {
    for (const [name, isa] of availableIsas(kernels)) {
      for (const cap of [1e-20, 1e-3, 30, 72.13, 1e20]) {
        const given = Float32Array.from([0.3, -2, 1e3, -1e30, 3e38, 0]);
        const x = given.slice();
        kernels.capScores(isa, x.length, cap, x);
        for (const [i, value] of x.entries()) {
          const exact = Math.fround(cap) * Math.tanh(given[i]! / Math.fround(cap));
          expect(Math.abs(value - exact), `${name}: ${given[i]} below ${cap}`).toBeLessThanOrEqual(
            2 * TANH_ERROR * Math.abs(exact),
          );
        }
      }
      const none = Float32Array.of(Number.NaN);
      kernels.capScores(isa, 1, 50, none);
      expect(none[0]).toBeNaN();
    }
  });
});

describe('attention', () => {
  it.each(available)('over keys and values of every format, of one token and of many, on %s', (isa) => {
    setIsa(isa);
    for (const windowFormat of ['q8', 'f16'] as const) {
      for (const format of SERVED_FORMATS) {
        const cache = filled(300, { windowFormat });
        if (format !== 'f16' || windowFormat === 'f16') {
          cache.transcode(0, 0, 'kv', format);
          cache.transcode(0, 1, 'k', format);
        }
        const isExact = windowFormat === 'f16' && format === 'f16';
        for (const queries of [1, 9]) agree(cache, queries, isExact ? F16_TOLERANCE : CODED_TOLERANCE);
        cache.close();
      }
    }
    setIsa(best);
  });

  it('over open rows in either format, sinks beside them, windows and ALiBi', () => {
    const alibiSlopes = Float32Array.from({ length: 6 }, (_, h) => 2 ** -(h + 4));
    for (const openFormat of ['f16', 'q8'] as const) {
      for (const tokens of [20, 100, 200]) {
        const cache = filled(tokens, { openFormat });
        cache.truncate(tokens);
        agree(cache, 5, CODED_TOLERANCE);
      }
      const windowed = filled(400, { openFormat, slidingWindow: [150] });
      windowed.truncate(400);
      agree(windowed, 30, CODED_TOLERANCE, { window: 150 });
      // Slopes are taken from capped scores.
      const sloped = filled(400, { openFormat, alibiSlopes });
      sloped.truncate(400);
      agree(sloped, 30, CODED_TOLERANCE, { slopes: alibiSlopes });
    }
  });

  it('shared by threads, whose parts are merged', () => {
    for (const threads of [1, 2, 3]) agree(filled(12_000, { threads, windowFormat: 'q8' }), 1, CODED_TOLERANCE);
  });

  it.each(LATENT_NAMES)('over pages held as %s', (name) => {
    const cache = filled(400);
    const random = uniform(5);
    const width = 96;
    cache.setLatentWeights(0, { width, wk: normals(random, ROW * width, 0.1), wv: normals(random, ROW * width, 0.1) });
    for (const page of [0, 1])
      cache.holdLatent(0, page, name, encodeLatent(name, normals(random, 128 * width), width, page === 0 ? 4 : 0));
    agree(cache, 5, CODED_TOLERANCE);
  });

  it('with no cap, or one far above all scores, answers as without one', () => {
    const q = normals(uniform(1), 9 * QUERY, SIZE);
    const [plain, none, far] = [{}, { scoreCap: null }, { scoreCap: 1e6 }].map((options) => {
      const cache = openKvCache({ shape, pool: openPool(2 ** 28), ...options });
      const random = uniform(2);
      cache.append(0, normals(random, 300 * ROW), normals(random, 300 * ROW));
      cache.transcode(0, 0, 'kv', 'rot4');
      const out = new Float32Array(q.length);
      cache.attend(0, q, out);
      return out;
    });
    expectSame(bits(none!), bits(plain!));
    expect(relativeError(far!, plain!)).toBeLessThan(1e-4);
  });

  it('forks cap as well', () => {
    const cache = filled(300);
    agree(cache.fork(), 5, CODED_TOLERANCE);
  });
});

describe('a trial', () => {
  it('says what capped attention would lose, and not what uncapped attention would', () => {
    const [capped, plain] = [CAP, null].map((scoreCap) => {
      const cache = filled(300, { scoreCap });
      // Trials keep queries as halves.
      const q = fromHalf(toHalf(normals(uniform(3), 100 * QUERY, SIZE)));
      cache.attend(0, q, new Float32Array(q.length));
      return { cache, q };
    });
    const candidates = (['k', 'v'] as const).flatMap((side) => [
      { side, format: 'rot4' as const },
      { side, format: 'rot2' as const },
    ]);
    const found = capped!.cache.trial(0, 0, candidates);
    for (const [i, { side, format }] of candidates.entries()) {
      const twin = filled(300);
      twin.transcode(0, 0, side, format);
      let [total, count] = [0, 0];
      for (let t = 0; t < 100; t++) {
        const position = 200 + t;
        if (position % 8 !== 7) continue;
        const q = capped!.q.subarray(t * QUERY, (t + 1) * QUERY);
        const options = { scoreCap: CAP, positions: [position] };
        const [before, after] = [capped!.cache, twin].map((cache) => denseOf(cache, 0, q, options).out);
        total += Math.hypot(...after!.map((x, c) => x - before![c]!)) / Math.hypot(...before!);
        count++;
      }
      expect(count).toBeGreaterThan(10);
      expect(Math.abs(found[i]! - total / count)).toBeLessThan(0.01 * (total / count) + 2e-5);
    }
    const uncapped = plain!.cache.trial(0, 0, candidates);
    for (const i of [0, 1]) expect(Math.abs(uncapped[i]! / found[i]! - 1)).toBeGreaterThan(0.1);
    // In the background it says the same to the bit.
    capped!.cache.startTrial(0, 0, candidates);
    expect(capped!.cache.finishTrials(true)).toEqual([found]);
  });
});
