// TurboQuant's variant for inner products (T8): scores are unbiased but for what a Hadamard matrix leaves, and without
// the sketch they are not; their variance is that of a sketch with orthogonal rows; and an unbiased scale at equal bits
// errs less (T9).

import { expect, test } from 'vitest';
import { PAGE_TOKENS } from '../../../native/format.ts';
import { CODECS, type ReferenceCodec } from '../../../native/reference/index.ts';
import { gaussian } from '../../native/rows.ts';
import { seeded } from '../../random.ts';

const D = 64;
const PAGES = 40;

const dot = (a: ArrayLike<number>, b: ArrayLike<number>): number => {
  let sum = 0;
  for (let i = 0; i < a.length; i++) sum += a[i]! * b[i]!;
  return sum;
};

function unit(random: () => number): Float32Array {
  const row = Float32Array.from({ length: D }, () => gaussian(random));
  const norm = Math.hypot(...row);
  return row.map((x) => x / norm);
}

/** Random unit keys, and for each a unit query with the inner product 1/2. Errors of scores in every format. */
function scoreErrors(formats: readonly (keyof typeof CODECS)[]): Readonly<Record<string, number[]>> {
  const random = seeded(3);
  const errors: Record<string, number[]> = Object.fromEntries(formats.map((format) => [format, []]));
  for (let page = 0; page < PAGES; page++) {
    const keys = new Float32Array(PAGE_TOKENS * D);
    const queries = Array.from({ length: PAGE_TOKENS }, (_, t) => {
      const key = unit(random);
      keys.set(key, t * D);
      const other = unit(random);
      const along = dot(other, key);
      const across = other.map((x, c) => x - along * key[c]!);
      const norm = Math.hypot(...across);
      return across.map((x, c) => key[c]! / 2 + (Math.sqrt(3) / 2) * (x / norm));
    });
    for (const format of formats) {
      const codec = CODECS[format] as unknown as ReferenceCodec;
      const rows = codec.decode(codec.encode(keys, D));
      for (let t = 0; t < PAGE_TOKENS; t++) {
        errors[format]!.push(
          dot(queries[t]!, rows.subarray(t * D, (t + 1) * D)) - dot(queries[t]!, keys.subarray(t * D, (t + 1) * D)),
        );
      }
    }
  }
  return errors;
}

const mean = (x: readonly number[]): number => x.reduce((sum, value) => sum + value, 0) / x.length;
const deviation = (x: readonly number[]): number => Math.sqrt(mean(x.map((value) => value * value)) - mean(x) ** 2);

// Root mean square errors of such scores times √d, simulated when this was designed: of a sketch with orthogonal rows,
// and of an unbiased scale. The scale of rot has steps of a sixteenth of an octave: ln 2/16/√12 of a score of 1/2,
// times √d = 8, is 0.05 more.
test.each([
  ['turbo2-prod', 'turbo2', 'rot2', 0.43, 0.315],
  ['turbo3-prod', 'turbo3', 'rot3', 0.249, 0.16],
  ['turbo4-prod', 'turbo4', 'rot4', 0.136, 0.082],
] as const)('%s: next to no bias, where %s has one; errs more than %s', (prod, plain, ours, expected, unbiased) => {
  const errors = scoreErrors([prod, plain, ours]);
  const count = PAGES * PAGE_TOKENS;
  const bias = mean(errors[prod]!);
  // A sketch by a Hadamard matrix is not uniform over all rotations: what is left over is not Gaussian, and 0.2% of the
  // inner product remains (measured).
  expect(Math.abs(bias)).toBeLessThan((4 * deviation(errors[prod]!)) / Math.sqrt(count) + 0.003 * 0.5);
  expect(mean(errors[plain]!)).toBeLessThan((-4 * deviation(errors[plain]!)) / Math.sqrt(count));
  expect(Math.abs((deviation(errors[prod]!) * Math.sqrt(D)) / expected - 1)).toBeLessThan(0.1);
  expect(Math.abs((deviation(errors[ours]!) * Math.sqrt(D)) / Math.hypot(unbiased, 0.05) - 1)).toBeLessThan(0.1);
  expect(deviation(errors[ours]!)).toBeLessThan(deviation(errors[prod]!));
});

test('the sketch counts: without it a score is that of one bit less', () => {
  const random = seeded(9);
  const rows = Float32Array.from({ length: PAGE_TOKENS * D }, () => gaussian(random));
  const codec = CODECS['turbo3-prod'];
  const head = codec.encode(rows, D);
  const without = { ...head, norms: new Uint16Array(PAGE_TOKENS) };
  const query = unit(random);
  const plain = CODECS.turbo2.scores(query, CODECS.turbo2.encode(rows, D));
  const cut = codec.scores(query, without);
  const full = codec.scores(query, head);
  for (let t = 0; t < PAGE_TOKENS; t++) {
    expect(cut[t]).toBeCloseTo(plain[t]!, 6);
    expect(Math.abs(full[t]! - cut[t]!)).toBeGreaterThan(0);
  }
});
