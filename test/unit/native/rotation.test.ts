// The rotation is orthonormal and its own transpose with signs (T6), for every coded head size; Paley's matrices are
// what they claim.

import { describe, expect, test } from 'vitest';
import { CODED_HEAD_DIMS } from '../../../native/format.ts';
import { paley, rotate, rotationSigns } from '../../../native/reference/index.ts';
import { gaussian } from '../../native/rows.ts';
import { seeded } from '../../random.ts';

const SEED = 20_240_601;
const dot = (a: Float32Array, b: Float32Array): number => a.reduce((sum, value, i) => sum + value * b[i]!, 0);

describe.each([11, 19])('Paley matrix of order %i + 1', (q) => {
  test('entries are ±1, it is symmetric, and rows are orthogonal', () => {
    const h = paley(q);
    for (const [i, row] of h.entries()) {
      for (const [j, other] of h.entries()) {
        expect(Math.abs(row[j]!)).toBe(1);
        expect(row[j]).toBe(other[i]);
        expect(row.reduce((sum, value, c) => sum + value * other[c]!, 0)).toBe(i === j ? q + 1 : 0);
      }
    }
  });
});

describe.each(CODED_HEAD_DIMS)(`rotation of %i channels (seed ${SEED})`, (d) => {
  const random = seeded(SEED);
  const row = (): Float32Array => Float32Array.from({ length: d }, () => gaussian(random));
  // d additions and one product, each within 2^-24: relative 1e-5 holds with room to spare.
  const tolerance = 1e-5;

  test('keeps lengths and scores, and its inverse undoes it', () => {
    for (let trial = 0; trial < 50; trial++) {
      const q = row();
      const k = row();
      const rotatedQ = q.slice();
      const rotatedK = k.slice();
      rotate(rotatedQ);
      rotate(rotatedK);
      expect(Math.abs(dot(rotatedQ, rotatedQ) / dot(q, q) - 1)).toBeLessThan(tolerance);
      expect(Math.abs(dot(rotatedQ, rotatedK) - dot(q, k))).toBeLessThan(tolerance * Math.sqrt(dot(q, q) * dot(k, k)));
      rotate(rotatedQ, true);
      for (const [i, value] of rotatedQ.entries()) expect(Math.abs(value - q[i]!)).toBeLessThan(tolerance * 5);
    }
  });

  test('every column has entries ±1/√d: a unit vector is spread evenly', () => {
    for (const at of [0, 1, d >> 1, d - 1]) {
      const unit = new Float32Array(d);
      unit[at] = 1;
      rotate(unit);
      for (const value of unit) expect(Math.abs(value)).toBe(Math.fround(1 / Math.sqrt(d)));
    }
  });

  test('column 0 is constant up to its sign: H is Sylvester or Paley, D the signs', () => {
    const unit = new Float32Array(d);
    unit[0] = rotationSigns(d)[0]!;
    rotate(unit);
    expect(new Set(unit).size).toBe(1);
    expect(unit[0]).toBeGreaterThan(0);
  });
});

test('the signs are those of splitmix64 with seed 1, bit 63', () => {
  // First draws of the published generator with seed 1: 910a2dec89025cc1, beeb8da1658eec67, f893a2eefb32555e,
  // 71c18690ee42c90b
  expect([...rotationSigns(64).subarray(0, 4)]).toEqual([-1, -1, -1, 1]);
  expect([...rotationSigns(256).subarray(0, 64)]).toEqual([...rotationSigns(64)]);
});
