// nuq by its definition: levels, which elements are kept apart and how exactly (T12), error by width (T10), byte sizes
// (T21).

import { expect, test } from 'vitest';
import { CODED_HEAD_DIMS, PAGE_TOKENS, pageBytes, SIDES } from '../../../native/format.ts';
import { CODECS, fromHalf } from '../../../native/reference/index.ts';
import { NUQ_LEVELS } from '../../../native/yardsticks/nuq/nuq.ts';
import { relativeError } from '../../native/dense.ts';
import { AWKWARD, awkwardRows, gaussianRows } from '../../native/rows.ts';
import { seeded } from '../../random.ts';

const D = 64;
const NAMES = ['nuq4', 'nuq3', 'nuq2'] as const;

test.each(NAMES)('%s: levels ascend within ±127, nearly the same on both sides of 0', (name) => {
  const levels: readonly number[] = NUQ_LEVELS[name];
  expect(levels).toHaveLength(2 ** Number(name.at(-1)));
  for (const [i, level] of levels.entries()) {
    expect(Number.isInteger(level) && Math.abs(level) <= 127).toBe(true);
    if (i > 0) expect(level).toBeGreaterThan(levels[i - 1]!);
  }
  expect(Math.abs(levels[0]! + levels.at(-1)!)).toBeLessThan(10);
});

test.each(Object.keys(AWKWARD))('outliers are exact but for the rounding to f16 of what codes lack: %s', (name) => {
  const rows = awkwardRows(name, D);
  for (const format of NAMES) {
    for (const side of SIDES) {
      const head = CODECS[format].encode(rows, D, 4, side);
      expect(head.outliers).toHaveLength(80);
      const places = head.outliers.map(({ token, channel }) => token * D + channel);
      expect(new Set(places).size).toBe(80);
      const decoded = CODECS[format].decode(head);
      const worst = head.outliers.map(({ token, channel, half }) => {
        expect(token).toBeGreaterThanOrEqual(4);
        const i = token * D + channel;
        const lack = Math.abs(fromHalf(half));
        if (lack === 65504) return 0; // the most that f16 holds
        return Math.abs(decoded[i]! - rows[i]!) - lack * 2 ** -11 - 2 ** -25 - Math.abs(rows[i]!) * 2 ** -22;
      });
      expect(Math.max(...worst)).toBeLessThanOrEqual(0);
    }
  }
});

test('the largest elements of a vector are kept apart, whatever the size of the others', () => {
  const random = seeded(31);
  for (const side of SIDES) {
    const rows = gaussianRows(D, 32).map((x, i) => x * 10 ** (((side === 'k' ? i % D : Math.floor(i / D)) % 5) - 2));
    const spikes = Array.from({ length: 80 }, (_, n) => ((n + 1) * 101 * D + Math.floor(random() * D)) % rows.length);
    for (const i of new Set(spikes))
      rows[i]! =
        20 * rows[i]! + 20 * Math.sign(rows[i]!) * 10 ** (((side === 'k' ? i % D : Math.floor(i / D)) % 5) - 2);
    const head = CODECS.nuq3.encode(rows, D, 0, side);
    const kept = new Set(head.outliers.map(({ token, channel }) => token * D + channel));
    expect(spikes.filter((i) => !kept.has(i))).toEqual([]);
  }
});

test('fewer bits err more; outliers keep their neighbours exact where groups without them do not', () => {
  for (const side of SIDES) {
    const rows = gaussianRows(D, 33);
    const errors = NAMES.map((name) => relativeError(CODECS[name].decode(CODECS[name].encode(rows, D, 0, side)), rows));
    expect(errors[0]!).toBeLessThan(errors[1]!);
    expect(errors[1]!).toBeLessThan(errors[2]!);
    const spiked = rows.map((x, i) => (i % 149 === 7 ? 30 : x));
    const error = (name: 'nuq4' | 'kivi4'): number => {
      const decoded = CODECS[name].decode(CODECS[name].encode(spiked, D, 0, side) as never);
      const ordinary = (x: Float32Array) => x.filter((_, i) => i % 149 !== 7);
      return relativeError(ordinary(decoded), ordinary(spiked));
    };
    expect(error('nuq4')).toBeLessThan(error('kivi4') / 2);
  }
});

test.each(CODED_HEAD_DIMS)('page bytes at d = %i are codes, scales and outliers, padded', (d) => {
  const padded = (bytes: number): number => Math.ceil(bytes / 64) * 64;
  for (const [name, parts] of [
    ['nuq4', [4]],
    ['nuq3', [2, 1]],
    ['nuq2', [2]],
  ] as const) {
    for (const n of [1, 3]) {
      const codes = parts.reduce((sum, bits) => sum + padded((n * PAGE_TOKENS * d * bits) / 8), 0);
      expect(pageBytes(name, n, d)).toBe(codes + padded(n * d * 9));
    }
  }
});
