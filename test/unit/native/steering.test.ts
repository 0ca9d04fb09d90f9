// Keys that are steered by queries: the factors against the metric they stand for, codes of every instruction set
// against the reference, without feedback those of the plain formats (T11), what a cache makes of the queries that it
// keeps, and what it is for: less error of scores (T11).

import { afterAll, describe, expect, test } from 'vitest';
import { FORMATS, type FormatName, isServed, PAGE_TOKENS } from '../../../native/format.ts';
import { openKvCache, openPool } from '../../../native/index.ts';
import { CODECS, fromHalf, type Head, type ReferenceCodec, toHalf } from '../../../native/reference/index.ts';
import { type Steering, steeringOf } from '../../../native/reference/steering.ts';
import { sameBits } from '../../native/dense.ts';
import { availableIsas, loadKernels } from '../../native/kernels-binding.ts';
import { AWKWARD, awkwardRows, gaussian, gaussianRows } from '../../native/rows.ts';
import { fieldIn, packSide, placesOf } from '../../native/sides.ts';
import { seeded } from '../../random.ts';

const kernels = loadKernels();
const PAIRS = [
  ['rotq4', 'rot4'],
  ['rotq3', 'rot3'],
  ['rotq2', 'rot2'],
  ['squat4', 'kivi4'],
  ['squat2', 'kivi2'],
] as const;
/** Those that this build computes. */
const SERVED = PAIRS.filter(([format]) => isServed(format));
const codecOf = (format: FormatName) => CODECS[format] as unknown as ReferenceCodec<Head>;

/**
 * Queries [count, d] that have a direction in common, and another for every channel beyond the first quarter to be
 * small.
 */
function queriesOf(count: number, d: number, seed: number): Float32Array {
  const random = seeded(seed);
  const common = Float32Array.from({ length: d }, () => gaussian(random));
  return Float32Array.from(
    { length: count * d },
    (_, i) => 2 * common[i % d]! + gaussian(random) * (i % d < d / 4 ? 3 : 0.3),
  ).map((x) => fromHalf(toHalf(x)));
}
const steeringFor = (format: FormatName, queries: Float32Array, d: number): Steering =>
  steeringOf(queries, d, FORMATS[format].rotated)!;

describe('factors', () => {
  test('multiply to the metric, and steer a channel to the least error that what is before it leaves', () => {
    const d = 64;
    const queries = queriesOf(48, d, 1);
    const { feedback, weights } = steeringOf(queries, d, false)!;
    const factor = (r: number, c: number): number => (r === c ? 1 : c < r ? feedback[r * d + c]! : 0);
    let trace = 0;
    for (const x of queries) trace += x * x;
    const metric = (i: number, j: number): number => {
      let sum = 0;
      for (let at = 0; at < queries.length; at += d) sum += queries[at + i]! * queries[at + j]!;
      return (0.5 * sum * d) / trace + (i === j ? 1 : 0);
    };
    let worst = 0;
    for (let i = 0; i < d; i++) {
      for (let j = 0; j < d; j++) {
        let product = 0;
        for (let c = 0; c < d; c++) product += weights[c]! * factor(c, i) * factor(c, j);
        worst = Math.max(worst, Math.abs(product - metric(i, j)));
      }
    }
    expect(worst).toBeLessThan(1e-4);
    // The last channel can take back what all others got wrong: the derivative of eᵀWe in it vanishes.
    const random = seeded(2);
    const e = Float64Array.from({ length: d }, () => gaussian(random));
    e[d - 1] = -e.subarray(0, d - 1).reduce((sum, x, i) => sum + feedback[(d - 1) * d + i]! * x, 0);
    expect(Math.abs(e.reduce((sum, x, i) => sum + metric(d - 1, i) * x, 0))).toBeLessThan(1e-4);
  });

  test('queries that are all zero steer nothing', () => {
    expect(steeringOf(new Float32Array(128), 64, true)).toBeNull();
  });

  test('neither the number nor the size of the queries matters', () => {
    const queries = queriesOf(16, 64, 3);
    const twice = new Float32Array([...queries, ...queries]).map((x) => 4 * x);
    expect(steeringOf(twice, 64, false)).toEqual(steeringOf(queries, 64, false));
  });
});

describe.each(PAIRS)('%s', (format, plain) => {
  test.each(isServed(format) ? [64, 80, 128] : [])(
    'has the same bits on every instruction set as in the reference, d = %i',
    (d) => {
      const queries = queriesOf(48, d, 5);
      const { feedback, weights } = steeringFor(format, queries, d);
      const kinds = d === 64 ? Object.keys(AWKWARD) : ['gaussian', 'channel bias'];
      for (const [at, kind] of kinds.entries()) {
        const firstRow = at % 2 === 0 ? 4 : 0;
        const rows = awkwardRows(kind, d);
        const codec = codecOf(format);
        const head = codec.encode(rows, d, firstRow, 'k', { feedback, weights });
        const expected = packSide(format, d, codec.stored(head, 'k'));
        for (const [name, isa] of availableIsas(kernels)) {
          const packed = new Uint8Array(expected.length);
          kernels.encodeSides(
            isa,
            Int32Array.of(FORMATS[format].id),
            true,
            d,
            d,
            firstRow,
            rows,
            packed,
            feedback,
            weights,
          );
          for (const { name: field } of placesOf(format, d)) {
            const same = sameBits(fieldIn(format, d, packed, field), fieldIn(format, d, expected, field));
            expect(same, `${kind}, ${name}, ${field}`).toBe(true);
          }
        }
      }
    },
  );

  test('without feedback has the codes of the plain format, and values always', () => {
    const rows = gaussianRows(64, 7);
    const none = { feedback: new Float32Array(64 * 64), weights: new Float32Array(64).fill(1) };
    const own = codecOf(format).encode(rows, 64, 4, 'k', none) as Head & { codes: Uint8Array };
    const theirs = codecOf(plain).encode(rows, 64, 4, 'k') as Head & { codes: Uint8Array };
    expect(own.codes).toEqual(theirs.codes);
    const steering = steeringFor(format, queriesOf(48, 64, 8), 64);
    expect(codecOf(format).encode(rows, 64, 4, 'v', steering)).toEqual(codecOf(plain).encode(rows, 64, 4, 'v'));
    expect(codecOf(format).encode(rows, 64, 4, 'k')).toEqual(codecOf(plain).encode(rows, 64, 4, 'k'));
  });

  test('has less error of scores and more of keys than the plain format, for queries that it has not seen', () => {
    const d = 64;
    const seen = queriesOf(48, d, 9);
    const random = seeded(10);
    // Later queries: mixtures of those seen, and noise.
    const later = Array.from({ length: 64 }, () => {
      const [a, b] = [random, random].map((draw) => Math.floor(draw() * 48) * d);
      return Float32Array.from({ length: d }, (_, c) => seen[a! + c]! + seen[b! + c]! + 0.3 * gaussian(random));
    });
    const rows = gaussianRows(d, 11);
    const errorsOf = (decoded: Float32Array) => {
      const e = decoded.map((x, i) => x - rows[i]!);
      let scores = 0;
      for (const q of later) {
        for (let t = 0; t < PAGE_TOKENS; t++) {
          let sum = 0;
          for (let c = 0; c < d; c++) sum += q[c]! * e[t * d + c]!;
          scores += sum * sum;
        }
      }
      return { scores, keys: e.reduce((sum, x) => sum + x * x, 0) };
    };
    const [own, theirs] = [steeringFor(format, seen, d), null].map((steering) => {
      const codec = codecOf(format);
      return errorsOf(codec.decode(codec.encode(rows, d, 0, 'k', steering)));
    });
    expect(own!.scores).toBeLessThan(0.5 * theirs!.scores);
    // An unbiased scale, which rotq does without, errs more than that of least squares.
    if (plain.startsWith('kivi')) expect(own!.keys).toBeGreaterThan(theirs!.keys);
  });
});

describe.runIf(SERVED.length > 0)('a cache (needs a build with yardsticks)', () => {
  const pool = openPool(2 ** 26);
  afterAll(() => pool.close());
  const shape = { layers: 1, queryHeads: 6, kvHeads: 2, headDim: 64 };
  const { queryHeads, kvHeads, headDim } = shape;

  test.each(SERVED)(
    'steers %s by the queries that it keeps, and codes plainly where it keeps none',
    (format, plain) => {
      for (const observe of [true, false]) {
        const cache = openKvCache({ shape, pool, windowFormat: 'f16' });
        const random = seeded(12);
        const normal = (count: number) =>
          Float32Array.from({ length: count }, () => fromHalf(toHalf(gaussian(random))));
        let keys = new Float32Array(0);
        const slots: Float32Array[] = [];
        for (let page = 0; page < 3; page++) {
          const k = normal(PAGE_TOKENS * kvHeads * headDim);
          if (page === 1) keys = k;
          const q = normal(PAGE_TOKENS * queryHeads * headDim);
          cache.append(0, k, normal(k.length));
          cache.attend(0, q, new Float32Array(q.length), { observe });
          for (let slot = 0; slot < 16; slot++) slots[slot] = q.slice((8 * slot + 7) * queryHeads * headDim);
        }
        cache.transcode(0, 1, 'k', observe ? format : plain);
        const decoded = cache.decode(0, 1, 'k');
        const group = queryHeads / kvHeads;
        for (let head = 0; head < kvHeads; head++) {
          const rows = Float32Array.from(
            { length: PAGE_TOKENS * headDim },
            (_, i) => keys[Math.floor(i / headDim) * kvHeads * headDim + head * headDim + (i % headDim)]!,
          );
          const queries = new Float32Array(
            slots.flatMap((q) => [...q.subarray(head * group * headDim, (head + 1) * group * headDim)]),
          );
          const codec = codecOf(format);
          const steering = observe ? steeringFor(format, queries, headDim) : null;
          const expected = codec.decode(codec.encode(rows, headDim, 0, 'k', steering));
          const own = Float32Array.from(
            expected,
            (_, i) => decoded[Math.floor(i / headDim) * kvHeads * headDim + head * headDim + (i % headDim)]!,
          );
          expect(sameBits(own, expected), `head ${head}`).toBe(true);
        }
        cache.close();
      }
    },
  );

  test('tries a steered format as it would move', () => {
    const cache = openKvCache({ shape, pool });
    const random = seeded(13);
    const normal = (count: number) => Float32Array.from({ length: count }, () => gaussian(random));
    for (let page = 0; page < 3; page++) {
      const q = normal(PAGE_TOKENS * queryHeads * headDim);
      cache.append(0, normal(PAGE_TOKENS * kvHeads * headDim), normal(PAGE_TOKENS * kvHeads * headDim));
      cache.attend(0, q, new Float32Array(q.length));
    }
    const candidates = (['rotq2', 'rot2', 'squat2', 'kivi2'] as const).map((format) => ({
      side: 'k' as const,
      format,
    }));
    const [rotq2, rot2, squat2, kivi2] = cache.trial(0, 1, candidates);
    const alone = cache.trial(0, 1, [candidates[0]!])[0];
    expect(alone).toBe(rotq2);
    expect(rotq2!).toBeLessThan(rot2!);
    expect(squat2!).toBeLessThan(kivi2!);
    cache.close();
  });

  test.each(SERVED)('moves to %s in the background by the queries of when the move began', (format) => {
    const run = (inBackground: boolean): Float32Array => {
      const cache = openKvCache({ shape, pool });
      const random = seeded(14);
      const normal = (count: number) => Float32Array.from({ length: count }, () => gaussian(random));
      const ask = (): void => {
        const q = normal(PAGE_TOKENS * queryHeads * headDim);
        cache.attend(0, q, new Float32Array(q.length));
      };
      for (let page = 0; page < 3; page++) {
        cache.append(0, normal(PAGE_TOKENS * kvHeads * headDim), normal(PAGE_TOKENS * kvHeads * headDim));
        ask();
      }
      if (inBackground) cache.startMove(0, 1, 'k', format);
      else cache.transcode(0, 1, 'k', format);
      ask();
      expect(cache.finishMoves(true).length).toBe(inBackground ? 1 : 0);
      const decoded = cache.decode(0, 1, 'k');
      cache.close();
      return decoded;
    };
    expect(sameBits(run(true), run(false))).toBe(true);
  });
});
