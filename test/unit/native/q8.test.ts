// q8: error bound and idempotence (T1), degenerate rows (T2), byte sizes (T21), folded dots = decoded dots (T16).
import { describe, expect, test } from 'vitest';
import { CODED_HEAD_DIMS, PAGE_TOKENS, pageBytes } from '../../../native/format.ts';
import { CODECS, fromHalf } from '../../../native/reference/index.ts';
import { AWKWARD, awkwardRows, gaussianRows } from '../../native/rows.ts';

const { q8 } = CODECS;

describe.each(Object.keys(AWKWARD))('q8 on %s', (name) => {
  const rows = awkwardRows(name, 64);
  const head = q8.encode(rows, 64);
  const decoded = q8.decode(head);

  test('error is at most half a step', () => {
    for (const [i, x] of rows.entries()) {
      const scale = fromHalf(head.rowScales[Math.floor(i / 64)]!);
      // Half a step, and what rounding the scale to f16 may cut off the largest codes: 127 · 2^-11 steps,
      // or 127 half-steps of the subnormal grid.
      const bound = scale * (0.5 + 127 * 2 ** -11) + 127 * 2 ** -25;
      expect(Math.abs(x - decoded[i]!)).toBeLessThanOrEqual(bound * (1 + 2 ** -10));
    }
  });

  test('encoding what was decoded gives the same codes, wherever the scale is a normal f16', () => {
    const again = q8.encode(decoded, 64);
    for (let t = 0; t < PAGE_TOKENS; t++) {
      const scale = fromHalf(head.rowScales[t]!);
      if (scale !== 0 && scale < 2 ** -14) continue; // rounded to few bits: the largest code may be below 127
      expect(again.codes.subarray(t * 64, (t + 1) * 64)).toEqual(head.codes.subarray(t * 64, (t + 1) * 64));
    }
  });

  test('a zero row has scale 0 and decodes to exact zeros', () => {
    for (let t = 0; t < PAGE_TOKENS; t++) {
      if (rows.subarray(t * 64, (t + 1) * 64).some((x) => x !== 0)) continue;
      expect(head.rowScales[t]).toBe(0);
      for (let c = 0; c < 64; c++) expect(decoded[t * 64 + c]).toBe(0);
    }
  });
});

test('a constant row decodes within the rounding of its f16 scale', () => {
  const rows = awkwardRows('constant rows', 64);
  const decoded = q8.decode(q8.encode(rows, 64));
  // max/127 is rounded to 11 bits and multiplied by 127 again.
  for (const [i, x] of rows.entries()) expect(Math.abs(decoded[i]! - x)).toBeLessThanOrEqual(Math.abs(x) * 2 ** -11);
});

test('sinks stay out: rows before firstRow have scale 0', () => {
  const head = q8.encode(gaussianRows(64, 5), 64, 4);
  expect([...head.rowScales.subarray(0, 5)].map((bits) => bits === 0)).toEqual([true, true, true, true, false]);
});

test('folded scores and mix equal those of decoded rows', () => {
  const head = q8.encode(gaussianRows(64, 6), 64);
  const decoded = q8.decode(head);
  const query = gaussianRows(64, 7).subarray(0, 64);
  const weights = gaussianRows(1, 8).map(Math.abs);
  const scores = q8.scores(query, head);
  const mix = q8.mix(weights, head);
  for (let t = 0; t < PAGE_TOKENS; t++) {
    const direct = query.reduce((sum, q, c) => sum + q * decoded[t * 64 + c]!, 0);
    expect(Math.abs(scores[t]! - direct)).toBeLessThan(1e-5);
  }
  for (let c = 0; c < 64; c++) {
    const direct = weights.reduce((sum, w, t) => sum + w * decoded[t * 64 + c]!, 0);
    expect(Math.abs(mix[c]! - direct)).toBeLessThan(1e-4);
  }
});

test.each(CODED_HEAD_DIMS)('page bytes at d = %i are codes and scales, padded', (d) => {
  const head = q8.encode(gaussianRows(d, 9), d);
  for (const n of [1, 2, 3, 8]) {
    const bytes = n * (head.codes.byteLength + head.rowScales.byteLength);
    expect(pageBytes('q8', n, d)).toBe(Math.ceil(bytes / 64) * 64);
  }
});
