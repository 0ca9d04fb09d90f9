// Keys in bands of channels: the same bits on every instruction set as in the reference whatever weighs the channels,
// the allowed errors, rows apart, what a cache makes of the queries that it keeps, and what it is for: less error of
// scores than codes of equal width have.

import { afterAll, describe, expect, test } from 'vitest';
import { FORMATS, PAGE_TOKENS } from '../../../native/format.ts';
import { openKvCache, openPool } from '../../../native/index.ts';
import { CODECS, fromHalf, type Head, type ReferenceCodec, toHalf } from '../../../native/reference/index.ts';
import { channelPowers } from '../../../native/reference/steering.ts';
import { relativeError, sameBits } from '../../native/dense.ts';
import { availableIsas, loadKernels } from '../../native/kernels-binding.ts';
import { AWKWARD, awkwardRows, gaussian, gaussianRows } from '../../native/rows.ts';
import { fieldIn, packSide, placesOf } from '../../native/sides.ts';
import { seeded } from '../../random.ts';

const kernels = loadKernels();
const codecOf = (format: keyof typeof CODECS) => CODECS[format] as unknown as ReferenceCodec<Head>;

/** Queries [count, d] of which a channel in four is ten times as large as the others. */
function queriesOf(count: number, d: number, seed: number): Float32Array {
  const random = seeded(seed);
  return Float32Array.from({ length: count * d }, (_, i) => gaussian(random) * (i % 4 === 1 ? 3 : 0.3));
}

/** Rows [128, d] around a mean, in which channels differ in spread and `lone` rows are small and lie off the mean. */
function keysOf(d: number, seed: number, lone: readonly number[] = []): Float32Array {
  const random = seeded(seed);
  return Float32Array.from({ length: PAGE_TOKENS * d }, (_, i) => {
    const [t, c] = [Math.floor(i / d), i % d];
    const own = gaussian(random) * 2 ** ((c % 5) - 2);
    return lone.includes(t) ? own / 8 : own + (c % 3) * 4;
  });
}

/** The sum over rows and queries of the squared error of a score. */
function scoreError(queries: Float32Array, rows: Float32Array, decoded: Float32Array, d: number): number {
  let total = 0;
  for (let q = 0; q < queries.length; q += d) {
    for (let t = 0; t < rows.length; t += d) {
      let sum = 0;
      for (let c = 0; c < d; c++) sum += queries[q + c]! * (decoded[t + c]! - rows[t + c]!);
      total += sum * sum;
    }
  }
  return total;
}

describe.each([
  ['band3', 'rot3', 0.22],
  ['band2', 'rot2', 0.48],
] as const)('%s', (format, equal, relative) => {
  const codec = codecOf(format);

  test.each([64, 80, 96, 128, 256])('has the same bits on every instruction set as in the reference, d = %i', (d) => {
    const kinds = d === 64 ? Object.keys(AWKWARD) : ['gaussian', 'channel bias', 'some zero rows'];
    for (const [at, kind] of kinds.entries()) {
      const firstRow = at % 2 === 0 ? 4 : 0;
      const rows = awkwardRows(kind, d);
      const steering = at % 3 === 2 ? null : channelPowers(queriesOf(16, d, at), d);
      const expected = packSide(format, d, codec.stored(codec.encode(rows, d, firstRow, 'k', steering), 'k'));
      for (const [name, isa] of availableIsas(kernels)) {
        const packed = new Uint8Array(expected.length);
        const own = steering === null ? [] : [new Float32Array(d * d), steering.weights];
        kernels.encodeSides(isa, Int32Array.of(FORMATS[format].id), true, d, d, firstRow, rows, packed, ...own);
        for (const { name: field } of placesOf(format, d)) {
          const same = sameBits(fieldIn(format, d, packed, field), fieldIn(format, d, expected, field));
          expect(same, `${kind}, ${name}, ${field}`).toBe(true);
        }
      }
    }
  });

  test('errs on a Gaussian as much as it says, not less than nine tenths of it', () => {
    const rows = gaussianRows(64, 1);
    const error = relativeError(codec.decode(codec.encode(rows, 64)), rows);
    expect(error).toBeLessThan(relative);
    expect(error).toBeGreaterThan(0.9 * relative);
  });

  test('weighs no values', () => {
    const [rows, steering] = [gaussianRows(64, 2), channelPowers(queriesOf(16, 64, 3), 64)];
    expect(codec.encode(rows, 64, 4, 'v', steering)).toEqual(codec.encode(rows, 64, 4, 'v'));
    expect(codec.encode(rows, 64, 4, 'k', steering)).not.toEqual(codec.encode(rows, 64, 4, 'k'));
  });

  test('has under half of the squared error of scores that codes of equal width have, for queries that it has not seen', () => {
    const d = 64;
    const rows = keysOf(d, 4);
    const later = queriesOf(64, d, 6);
    const own = codec.decode(codec.encode(rows, d, 0, 'k', channelPowers(queriesOf(48, d, 5), d)));
    const theirs = codecOf(equal).decode(codecOf(equal).encode(rows, d, 0, 'k'));
    expect(scoreError(later, rows, own, d)).toBeLessThan(0.5 * scoreError(later, rows, theirs, d));
  });

  test('keeps the two rows that lie farthest off the mean in 8 bits, and no sink', () => {
    const d = 64;
    const rows = keysOf(d, 7, [2, 30, 90]);
    const head = codec.encode(rows, d, 4, 'k') as Head & { apart: Uint8Array };
    expect([...head.apart].sort((a, b) => a - b)).toEqual([30, 90]);
    const decoded = codec.decode(head);
    for (const t of [30, 90]) {
      const [row, own] = [rows, decoded].map((all) => all.subarray(t * d, (t + 1) * d));
      const step = Math.max(...row!.map(Math.abs)) / 127;
      for (let c = 0; c < d; c++) expect(Math.abs(own![c]! - row![c]!)).toBeLessThan(0.51 * step);
    }
    const none = codec.encode(keysOf(d, 8), d, 0, 'k') as Head & { apart: Uint8Array };
    expect([...none.apart]).toEqual([255, 255]);
  });
});

describe('a cache', () => {
  const pool = openPool(2 ** 26);
  afterAll(() => pool.close());
  const shape = { layers: 1, queryHeads: 6, kvHeads: 2, headDim: 64 };
  const { queryHeads, kvHeads, headDim } = shape;
  const half = (x: Float32Array): Float32Array => x.map((one) => fromHalf(toHalf(one)));

  test.each(['band3', 'band2'] as const)(
    'weighs channels of %s by the queries that it keeps, and alike where it keeps none',
    (format) => {
      for (const observe of [true, false]) {
        const cache = openKvCache({ shape, pool, windowFormat: 'f16' });
        const slots: Float32Array[] = [];
        const pages = [1, 2, 3].map((seed) => half(keysOf(kvHeads * headDim, seed, [11])));
        for (const [page, k] of pages.entries()) {
          const q = half(queriesOf(PAGE_TOKENS, queryHeads * headDim, 10 + page));
          cache.append(0, k, half(gaussianRows(kvHeads * headDim, page)));
          cache.attend(0, q, new Float32Array(q.length), { observe });
          for (let slot = 0; slot < 16; slot++) slots[slot] = q.slice((8 * slot + 7) * queryHeads * headDim);
        }
        cache.transcode(0, 1, 'k', format);
        const decoded = cache.decode(0, 1, 'k');
        const group = (queryHeads / kvHeads) * headDim;
        for (let head = 0; head < kvHeads; head++) {
          const ofHead = (_: number, i: number) =>
            Math.floor(i / headDim) * kvHeads * headDim + head * headDim + (i % headDim);
          const places = Int32Array.from({ length: PAGE_TOKENS * headDim }, ofHead);
          const seen = slots.flatMap((q) => [...q.subarray(head * group, (head + 1) * group)]);
          const codec = codecOf(format);
          const steering = observe ? channelPowers(Float32Array.from(seen), headDim) : null;
          const rows = Float32Array.from(places, (at) => pages[1]![at]!);
          const expected = codec.decode(codec.encode(rows, headDim, 0, 'k', steering));
          const own = Float32Array.from(places, (at) => decoded[at]!);
          expect(sameBits(own, expected), `head ${head}, observed ${observe}`).toBe(true);
        }
        cache.close();
      }
    },
  );
});
