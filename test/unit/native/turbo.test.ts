// TurboQuant by its definition: the codebooks (T5), the error of random unit vectors (T7), bytes (T21), and that the
// rot family's unbiased scale is worth more to scores than what is published (T9).

import { describe, expect, test } from 'vitest';
import { CODED_HEAD_DIMS, FORMATS, PAGE_TOKENS, pageBytes } from '../../../native/format.ts';
import { CODECS, fromHalf, type ReferenceCodec } from '../../../native/reference/index.ts';
import { SPHERE } from '../../../native/reference/tables.gen.ts';
import { must } from '../../must.ts';
import { AWKWARD, awkwardRows, gaussian } from '../../native/rows.ts';
import { seeded } from '../../random.ts';

const TURBO = ['turbo4', 'turbo3', 'turbo2'] as const;
const PAGE = PAGE_TOKENS;

/** [128, d] random unit vectors. */
function unitRows(d: number, seed: number): Float32Array {
  const random = seeded(seed);
  const rows = Float32Array.from({ length: PAGE * d }, () => gaussian(random));
  for (let t = 0; t < PAGE; t++) {
    const row = rows.subarray(t * d, (t + 1) * d);
    const norm = Math.hypot(...row);
    for (let c = 0; c < d; c++) row[c]! /= norm;
  }
  return rows;
}

const dot = (a: ArrayLike<number>, b: ArrayLike<number>): number => {
  let sum = 0;
  for (let i = 0; i < a.length; i++) sum += a[i]! * b[i]!;
  return sum;
};

/**
 * Numbers published for this law in d = 64 and 128 dimensions: d times the mean squared error, and the positive levels
 * times √d.
 */
const LAW: Readonly<Record<number, readonly { readonly mse: number; readonly levels: readonly number[] }[]>> = {
  64: [
    { mse: 0.35839, levels: [0.80101] },
    { mse: 0.11453, levels: [0.45212, 1.49997] },
    { mse: 0.03339, levels: [0.24375, 0.75066, 1.32934, 2.11131] },
    { mse: 0.00913, levels: [0.12735, 0.38472, 0.65049, 0.93189, 1.2394, 1.59085, 2.02331, 2.64637] },
  ],
  128: [
    { mse: 0.36089, levels: [0.79944] },
    { mse: 0.116, levels: [0.45245, 1.50519] },
    { mse: 0.03397, levels: [0.24442, 0.75333, 1.3366, 2.13147] },
    { mse: 0.00932, levels: [0.12787, 0.38638, 0.65362, 0.9371, 1.24777, 1.60434, 2.04593, 2.68886] },
  ],
};

describe.each([1, 2, 3, 4])('codebooks of %i bits', (bits) => {
  test.each(CODED_HEAD_DIMS)('d = %i: ascending, symmetric, midpoints, levels fit in bytes', (d) => {
    const { divisor, levels, bounds } = SPHERE[bits - 1]![d]!;
    expect(levels).toHaveLength(2 ** bits);
    expect(bounds).toHaveLength(2 ** bits - 1);
    for (const [i, level] of levels.entries()) {
      expect(Number.isInteger(level) && Math.abs(level) <= 127).toBe(true);
      expect(level).toBe(-levels[levels.length - 1 - i]!);
      if (i === 0) continue;
      expect(level).toBeGreaterThan(levels[i - 1]!);
      // Both neighbours are rounded by half a unit at most.
      expect(Math.abs(bounds[i - 1]! - (levels[i - 1]! + level) / 2 / divisor)).toBeLessThan(0.5 / divisor);
    }
  });

  test.each([64, 128])('d = %i: the levels and the error of the table', (d) => {
    const { divisor, levels, bounds } = SPHERE[bits - 1]![d]!;
    const law = LAW[d]![bits - 1]!;
    const half = levels.slice(levels.length / 2);
    for (const [i, level] of half.entries())
      expect(Math.abs(level / divisor - law.levels[i]!)).toBeLessThan(0.51 / divisor);
    // Σ over cells of ∫ (x − level)² dF, by Simpson's rule on t = x/√d.
    const edges = [-1, ...bounds.map((bound) => bound / Math.sqrt(d)), 1];
    const density = (t: number): number => (1 - t * t) ** ((d - 3) / 2);
    const steps = 4000;
    let [mass, error] = [0, 0];
    for (const [i, level] of levels.entries()) {
      const h = (edges[i + 1]! - edges[i]!) / steps;
      for (let j = 0; j <= steps; j++) {
        const t = edges[i]! + j * h;
        const weight = (h / 3) * (j === 0 || j === steps ? 1 : j % 2 === 1 ? 4 : 2) * density(t);
        mass += weight;
        error += weight * (t * Math.sqrt(d) - level / divisor) ** 2;
      }
    }
    // Integer levels add less than half a per cent.
    expect(error / mass).toBeGreaterThan(law.mse * 0.999);
    expect(error / mass).toBeLessThan(law.mse * 1.005);
  });
});

describe.each(TURBO)('%s', (format) => {
  const codec = CODECS[format] as ReferenceCodec<ReturnType<(typeof CODECS)['turbo4']['encode']>>;
  const bits = FORMATS[format].codeBits;

  test.each([
    [64, 10_000],
    [128, 2_000],
  ])('the error of random unit vectors is that of the codebook within 2%%, at d = %i (%i of them)', (d, count) => {
    let error = 0;
    const pages = Math.ceil(count / PAGE);
    for (let page = 0; page < pages; page++) {
      const rows = unitRows(d, 100 + page);
      const decoded = codec.decode(codec.encode(rows, d));
      for (let i = 0; i < rows.length; i++) error += (decoded[i]! - rows[i]!) ** 2;
    }
    const mean = error / (pages * PAGE);
    expect(Math.abs(mean / LAW[d]![bits - 1]!.mse - 1)).toBeLessThan(0.02);
    // Panter and Dite's value at high rates is a bound.
    expect(mean).toBeLessThan(((Math.sqrt(3) * Math.PI) / 2) * 4 ** -bits);
  });

  test('scales are norms over √d; decoded rows are shorter than the rows, by the error', () => {
    const rows = unitRows(64, 7);
    const head = codec.encode(rows, 64);
    const decoded = codec.decode(head);
    let along = 0;
    for (let t = 0; t < PAGE; t++) {
      expect(Math.abs(fromHalf(head.scales[t]!) * 8 - 1)).toBeLessThan(2 ** -10);
      along += dot(decoded.subarray(t * 64, t * 64 + 64), rows.subarray(t * 64, t * 64 + 64)) / PAGE;
    }
    // E⟨û,u⟩ = E‖û‖² = 1 − MSE for an optimal codebook.
    expect(Math.abs(along - (1 - LAW[64]![bits - 1]!.mse))).toBeLessThan(0.01);
  });

  test.each(Object.keys(AWKWARD))('%s: everything decodes to finite numbers, zero rows to zeros', (name) => {
    const rows = awkwardRows(name, 64);
    const decoded = codec.decode(codec.encode(rows, 64));
    for (let t = 0; t < PAGE; t++) {
      const isZero = rows.subarray(t * 64, t * 64 + 64).every((x) => x === 0);
      const row = decoded.subarray(t * 64, t * 64 + 64);
      must(
        row.every((x) => (isZero ? x === 0 : Number.isFinite(x))),
        () => `token ${t} is decoded to ${row.join(', ')}`,
      );
    }
  });

  test.each(CODED_HEAD_DIMS)('a page takes b + 16/d bits per element and head at d = %i', (d) => {
    const exact = (PAGE * d * bits) / 8 + 2 * PAGE;
    expect(pageBytes(format, 3, d) - 3 * exact).toBeLessThan(3 * 64);
    expect(pageBytes(format, 3, d)).toBeGreaterThanOrEqual(3 * exact);
  });
});

test.each([
  ['turbo4', 'rot4'],
  ['turbo3', 'rot3'],
  ['turbo2', 'rot2'],
] as const)('scores of queries near the keys: an unbiased scale (%s, %s) errs less', (published, ours) => {
  const d = 64;
  const random = seeded(11);
  // Rows without a common part, so that the mean of rot has nothing to take; a query has the inner product 1/2 with its
  // key.
  const error = { [published]: 0, [ours]: 0 };
  let bias = 0;
  for (let page = 0; page < 20; page++) {
    const rows = unitRows(d, 500 + page);
    const decoded = [published, ours].map((format) => {
      const codec = CODECS[format] as ReferenceCodec;
      return [format, codec.decode(codec.encode(rows, d))] as const;
    });
    for (let t = 0; t < PAGE; t++) {
      const key = rows.subarray(t * d, (t + 1) * d);
      const other = Float64Array.from({ length: d }, () => gaussian(random));
      const along = dot(other, key);
      for (let c = 0; c < d; c++) other[c]! -= along * key[c]!;
      const norm = Math.hypot(...other);
      const query = other.map((x, c) => key[c]! / 2 + (Math.sqrt(3) / 2) * (x / norm));
      for (const [format, rowsOf] of decoded) {
        const wrong = dot(query, rowsOf.subarray(t * d, (t + 1) * d)) - 0.5;
        error[format]! += wrong * wrong;
        if (format === published) bias += wrong / (20 * PAGE);
      }
    }
  }
  expect(error[ours]).toBeLessThan(error[published]!);
  expect(bias).toBeLessThan(0);
});
