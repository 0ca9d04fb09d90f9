// int3 and fp8 by their definitions: half a step at most (T1), constant rows (T2), what an 8-bit float can be, byte
// sizes (T21).
import { describe, expect, test } from 'vitest';
import { CODED_HEAD_DIMS, PAGE_TOKENS, pageBytes } from '../../../native/format.ts';
import { CODECS, fromHalf } from '../../../native/reference/index.ts';
import { fromE4M3, toE4M3 } from '../../../native/yardsticks/fp8/fp8.ts';
import { relativeError } from '../../native/dense.ts';
import { AWKWARD, awkwardRows, gaussianRows } from '../../native/rows.ts';

const D = 64;
const { int3, fp8, q8, rot3 } = CODECS;
const errorOf = (codec: typeof int3 | typeof fp8 | typeof q8, rows: Float32Array): number =>
  relativeError(codec.decode(codec.encode(rows, D) as never), rows);
const padded = (bytes: number): number => Math.ceil(bytes / 64) * 64;

describe('int3', () => {
  test.each(Object.keys(AWKWARD))('errs by half a step at most: %s', (name) => {
    const rows = awkwardRows(name, D);
    const head = int3.encode(rows, D);
    const worst = Array.from(int3.decode(head), (decoded, i) => {
      const scale = fromHalf(head.scales[Math.floor(i / D)]!);
      return Math.abs(decoded - rows[i]!) - (scale / 2) * (1 + 2 ** -10) - Math.abs(rows[i]!) * 2 ** -23;
    });
    expect(Math.max(...worst)).toBeLessThanOrEqual(0);
  });

  test('gives rows of one value back exactly, if f16 holds it', () => {
    const rows = awkwardRows('constant rows', D);
    expect(int3.decode(int3.encode(rows, D))).toEqual(rows);
  });

  test('codes what it decoded the same again, and errs more than rot3 at as many bits', () => {
    const rows = gaussianRows(D, 21);
    const head = int3.encode(rows, D);
    expect(int3.encode(int3.decode(head), D).codes).toEqual(head.codes);
    expect(errorOf(int3, rows)).toBeGreaterThan(errorOf(rot3, rows));
  });

  test.each(CODED_HEAD_DIMS)('page bytes at d = %i are codes, scales and lows, padded', (d) => {
    for (const n of [1, 3]) {
      expect(pageBytes('int3', n, d)).toBe(
        padded((n * PAGE_TOKENS * d) / 4) + padded((n * PAGE_TOKENS * d) / 8) + padded(n * PAGE_TOKENS * 4),
      );
    }
  });
});

describe('fp8', () => {
  test('every number of E4M3 is its own code, and halves go to even codes', () => {
    const codes = Array.from({ length: 127 }, (_, code) => code);
    expect(codes.map((code) => toE4M3(fromE4M3(code)))).toEqual(codes);
    expect(codes.slice(1).map((code) => toE4M3(-fromE4M3(code)))).toEqual(codes.slice(1).map((code) => code | 128));
    expect(fromE4M3(126)).toBe(448);
    expect(fromE4M3(1)).toBe(2 ** -9);
    const halves = codes.slice(0, -1).map((code) => toE4M3((fromE4M3(code) + fromE4M3(code + 1)) / 2));
    expect(halves).toEqual(codes.slice(0, -1).map((code) => code + (code % 2)));
  });

  test.each(Object.keys(AWKWARD))('errs by a sixteenth at most, or by half of the finest step: %s', (name) => {
    const rows = awkwardRows(name, D);
    const head = fp8.encode(rows, D);
    const scale = fromHalf(head.scale);
    const worst = Array.from(
      fp8.decode(head),
      (decoded, i) => Math.abs(decoded - rows[i]!) - Math.max(Math.abs(rows[i]!) / 16, scale * 2 ** -10) * (1 + 1e-6),
    );
    expect(Math.max(...worst)).toBeLessThanOrEqual(0);
  });

  test('q8 errs by less than a third of it at as many bits', () => {
    const rows = gaussianRows(D, 22);
    expect(errorOf(q8, rows)).toBeLessThan(errorOf(fp8, rows) / 3);
  });

  test.each(CODED_HEAD_DIMS)('page bytes at d = %i are codes and a scale, padded', (d) => {
    for (const n of [1, 3]) expect(pageBytes('fp8', n, d)).toBe(n * PAGE_TOKENS * d + 64);
  });
});
