// The rot family by its definition: tables (T5), planes (T3), nesting, zero rows, unbiased scale (T9), error on a
// Gaussian, folded dots (T16), byte sizes (T21).

import { describe, expect, test } from 'vitest';
import { CODED_HEAD_DIMS, FORMATS, PAGE_TOKENS, pageBytes, SIDES } from '../../../native/format.ts';
import {
  CODECS,
  demote,
  meanUnit,
  planes,
  type RotHead,
  type RotName,
  rotScale,
  scaleCode,
  tileOffset,
} from '../../../native/reference/index.ts';
import { ROT_BOUNDS, ROT_LEVELS, SCALE_BOUNDS, SCALE_VALUES } from '../../../native/reference/tables.gen.ts';
import { must } from '../../must.ts';
import { bits, expectSame } from '../../native/bits.ts';
import { gaussianError, gaussianLevels } from '../../native/gaussian.ts';
import { AWKWARD, awkwardRows, gaussian, gaussianRows } from '../../native/rows.ts';
import { seeded } from '../../random.ts';

const ROT = Object.keys(ROT_LEVELS) as readonly RotName[];
const k = (head: RotHead, t: number): number => (head.rowScales[t]! << 16) >> 16;
/** What an element is coded from. */
const origin = (head: RotHead, t: number, c: number): number =>
  head.fromZero[t] ? 0 : Math.fround(head.means[c]! * meanUnit(head));

describe('tables', () => {
  test('encoding bounds are the midpoints of the Lloyd-Max levels of N(0,1)', () => {
    const levels = gaussianLevels(4);
    for (const [i, bound] of ROT_BOUNDS.entries()) {
      expect(Math.abs(bound - (levels[i]! + levels[i + 1]!) / 2)).toBeLessThan(1e-5); // levels are kept to five decimals
      expect(bound).toBe(-ROT_BOUNDS[14 - i]! + 0);
    }
    const { mse, cross, power } = gaussianError(levels, ROT_BOUNDS);
    expect(mse).toBeCloseTo(0.0095, 4);
    expect(cross).toBeCloseTo(power, 4);
  });

  // Mean squared error of the nested cells with integer levels and the scale that the format gives them. The levels of
  // rot3 and rot2 are the centroids of merged 4-bit cells: 0.1203 and 0.03485 against 0.1175 and 0.03455 direct.
  test.each([
    ['rot4', 0.0095],
    ['rot3', 0.03485],
    ['rot2', 0.1203],
    // The level is that of an unbiased scale, √(π/2), and not the centroid: π/2 − 1.
    ['rot1', 0.5708],
  ] as const)('decode levels of %s: symmetric, ascending, MSE %f', (name, mse) => {
    const { divisor, levels } = ROT_LEVELS[name];
    const step = 16 / levels.length;
    const bounds = ROT_BOUNDS.filter((_, i) => (i + 1) % step === 0);
    const u = levels.map((level) => level / divisor);
    expect(Math.abs(gaussianError(u, bounds).mse / mse - 1)).toBeLessThan(0.005);
    for (const [i, level] of levels.entries()) {
      expect(level).toBe(-levels[levels.length - 1 - i]!);
      if (i > 0) expect(level).toBeGreaterThan(levels[i - 1]!);
      expect(Math.abs(level)).toBeLessThanOrEqual(127);
    }
  });

  test('scales are 2^(k/16), their boundaries half-way in the exponent', () => {
    for (let at = -127; at <= 127; at++) expect(rotScale(at)).toBe(Math.fround(2 ** (at / 16)));
    for (const [i, bound] of SCALE_BOUNDS.entries()) {
      expect(bound).toBe(Math.fround(2 ** ((i - 126.5) / 16)));
      expect(scaleCode(bound)).toBe(i - 127);
      // The kernels look up one octave of the table and shift it.
      if (i >= 16) expect(bound).toBe(2 * SCALE_BOUNDS[i - 16]!);
      expect(scaleCode(bound * (1 + 2 ** -20))).toBe(i - 126);
    }
    for (const [i, value] of SCALE_VALUES.entries()) expect(scaleCode(value)).toBe(i - 127);
    expect(rotScale(-128)).toBe(0);
    expect(scaleCode(0)).toBe(-127);
    expect(scaleCode(1e30)).toBe(127);
  });
});

describe.each(Object.keys(AWKWARD))('rot on %s', (name) => {
  const rows = awkwardRows(name, 64);
  const heads = Object.fromEntries(ROT.map((format) => [format, CODECS[format].encode(rows, 64)])) as Record<
    RotName,
    RotHead
  >;

  test('codes nest: c3 = c4 >> 1, c2 = c4 >> 2, c1 = c4 >> 3, by encoding and by demotion', () => {
    for (const [to, bits] of [
      ['rot3', 1],
      ['rot2', 2],
      ['rot1', 3],
    ] as const) {
      const narrowed = heads.rot4.codes.map((code) => code >> bits);
      expectSame(heads[to].codes, narrowed);
      expectSame(demote(heads.rot4, to).codes, narrowed);
      expect(heads[to].means).toEqual(heads.rot4.means);
      expect(heads[to].reference).toBe(heads.rot4.reference);
      expect(demote(heads.rot4, to).reference).toBe(heads.rot4.reference);
    }
    expectSame(demote(demote(heads.rot4, 'rot3'), 'rot2').codes, heads.rot2.codes);
    expectSame(demote(demote(heads.rot4, 'rot3'), 'rot1').codes, heads.rot1.codes);
  });

  test('everything decodes to finite numbers; zero rows decode to what they are coded from exactly', () => {
    for (const format of ROT) {
      const head = heads[format];
      const decoded = CODECS[format].decode(head);
      for (let t = 0; t < PAGE_TOKENS; t++) {
        for (let c = 0; c < 64; c++) {
          const value = decoded[t * 64 + c]!;
          const isWhole = k(head, t) === -128 ? Object.is(value + 0, origin(head, t, c)) : Number.isFinite(value);
          must(isWhole, () => `${format}: token ${t}, channel ${c} is ${value}`);
        }
      }
    }
  });
});

test('an all-zero page decodes to +0, and demotion keeps its zero rows', () => {
  for (const format of ROT) {
    const head = CODECS[format].encode(new Float32Array(PAGE_TOKENS * 80), 80);
    expect(new Set(head.rowScales)).toEqual(new Set([0xff80]));
    expect(CODECS[format].decode(head).every((value) => Object.is(value, 0))).toBe(true);
  }
  const head = demote(CODECS.rot4.encode(awkwardRows('some zero rows', 64), 64), 'rot2');
  expect(head.rowScales).toHaveLength(PAGE_TOKENS);
});

test('sinks stay out of mean and codes: their content changes nothing', () => {
  const rows = gaussianRows(64, 11);
  const other = rows.slice();
  other.fill(60_000, 0, 4 * 64);
  for (const format of ROT) {
    const head = CODECS[format].encode(rows, 64, 4);
    expect(CODECS[format].encode(other, 64, 4)).toEqual(head);
    expect(head.codes.subarray(0, 4 * 64).every((code) => code === 0)).toBe(true);
    expect([0, 1, 2, 3].map((t) => k(head, t))).toEqual([-128, -128, -128, -128]);
    expect(
      CODECS[format]
        .decode(head)
        .subarray(0, 4 * 64)
        .every((x) => x === 0),
    ).toBe(true);
  }
});

describe('reference', () => {
  const rows = gaussianRows(64, 51).map((x, i) => x + (i % 8 === 1 ? 3 : 0));
  const ordinary = Object.fromEntries(ROT.map((format) => [format, CODECS[format].encode(rows, 64)]));

  test('rows of any magnitude decode to the bits of ordinary ones, times the magnitude', () => {
    for (const format of ROT) {
      expect(ordinary[format]!.reference).toBe(0);
      const decoded = CODECS[format].decode(ordinary[format]!);
      for (const power of [-60, -20, -10, -8, -6, 5, 8, 10, 17]) {
        const head = CODECS[format].encode(
          rows.map((x) => x * 2 ** power),
          64,
        );
        if (power < -6 || power > 5) expect(Math.sign(head.reference)).toBe(Math.sign(power));
        const again = CODECS[format].decode(head).map((x) => x * 2 ** -power);
        expectSame(bits(again), bits(decoded), `${format}, 2^${power}`);
      }
    }
  });

  // Rows t and t + 64 are opposite: there is no mean, and every row is coded by itself.
  const opposite = (sizes: Readonly<Record<number, number>>): Float32Array =>
    Float32Array.from({ length: PAGE_TOKENS * 64 }, (_, i) => {
      const t = Math.floor(i / 64);
      return rows[i % (64 * 64)]! * (sizes[t % 64] ?? 1) * (t < 64 ? 1 : -1);
    });
  const without = (x: Float32Array, row: number): Float32Array =>
    x.map((value, i) => (Math.floor(i / 64) % 64 === row ? 0 : value));

  test.each([
    ['a small row', 2 ** -10, -3],
    ['a row smaller than a scale can be', 2 ** -30, -3],
    ['a large row', 2 ** 12, 6],
  ])('%s moves the reference and leaves what other rows decode to', (_, size, reference) => {
    for (const format of ROT) {
      const plain = CODECS[format].encode(opposite({ 7: 0 }), 64);
      const head = CODECS[format].encode(opposite({ 7: size }), 64);
      expect([plain.reference, head.reference]).toEqual([0, reference]);
      const decoded = CODECS[format].decode(head);
      expectSame(bits(without(decoded, 7)), bits(CODECS[format].decode(plain)), format);
      // The row itself comes back where a scale reaches so far, and otherwise is as small as a scale can be.
      expect(k(head, 7) === -127).toBe(size === 2 ** -30);
    }
  });
});

describe('error on a Gaussian', () => {
  // Relative squared error of the rows without what they are coded from, at d = 64, stored scale included.
  const SEED = 3;
  const expected = { rot4: 0.0091, rot3: 0.0345, rot2: 0.1324, rot1: 0.57 };
  const pages = Array.from({ length: 12 }, (_, i) => gaussianRows(64, SEED + i));

  const error = (heads: RotHead[], format: RotName): number => {
    let lost = 0;
    let power = 0;
    for (const [i, rows] of pages.entries()) {
      const head = heads[i]!;
      const decoded = CODECS[format].decode(head);
      for (const [at, x] of rows.entries()) {
        lost += (decoded[at]! - x) ** 2;
        power += (x - origin(head, Math.floor(at / 64), at % 64)) ** 2;
      }
    }
    return lost / power;
  };

  test.each(ROT)(`%s lands within 3%% of its table value (seed ${SEED})`, (format) => {
    const measured = error(
      pages.map((rows) => CODECS[format].encode(rows, 64)),
      format,
    );
    expect(Math.abs(measured / expected[format] - 1)).toBeLessThan(0.03);
  });

  // Such a row has a fiftieth of the others' size: coded from the mean of the page it would err as they do.
  test.each(ROT)('%s codes rows near zero from zero, and leaves them out of the mean', (format) => {
    const rows = awkwardRows('rows near zero', 64);
    const head = CODECS[format].encode(rows, 64);
    const decoded = CODECS[format].decode(head);
    for (let t = 0; t < PAGE_TOKENS; t++) {
      expect(head.fromZero[t]).toBe(t % 11 === 5 ? 1 : 0);
      let [lost, power] = [0, 0];
      for (let i = t * 64; i < (t + 1) * 64; i++) {
        lost += (decoded[i]! - rows[i]!) ** 2;
        power += rows[i]! ** 2;
      }
      if (head.fromZero[t]) expect(lost / power).toBeLessThan(2 * expected[format]);
    }
    for (let c = 0; c < 64; c++)
      expect(Math.abs(head.means[c]! * meanUnit(head) - 8 * ((c % 3) - 1))).toBeLessThan(0.5);
  });

  test('demotion costs no more than 3% over direct encoding', () => {
    for (const format of ['rot3', 'rot2', 'rot1'] as const) {
      const measured = error(
        pages.map((rows) => demote(CODECS.rot4.encode(rows, 64), format)),
        format,
      );
      expect(measured).toBeLessThan(expected[format] * 1.03);
    }
  });
});

describe('unbiased scale', () => {
  test('along a row, <x̂,x> = <x,x> up to the rounding of the scale', () => {
    // Page without a mean: rows t and t + 64 are opposite. t is rounded to 2^(1/32) at most, a factor of 1.0219.
    for (const format of ROT) {
      const half = gaussianRows(64, 21).subarray(0, 64 * 64);
      const rows = new Float32Array(PAGE_TOKENS * 64);
      rows.set(half);
      rows.set(
        half.map((x) => -x),
        64 * 64,
      );
      const decoded = CODECS[format].decode(CODECS[format].encode(rows, 64));
      for (let t = 0; t < PAGE_TOKENS; t++) {
        const row = rows.subarray(t * 64, (t + 1) * 64);
        const power = row.reduce((sum, x) => sum + x * x, 0);
        const along = row.reduce((sum, x, c) => sum + x * decoded[t * 64 + c]!, 0);
        const share = along / power;
        const isNear = share > 2 ** (-1 / 32) - 1e-5 && share < 2 ** (1 / 32) + 1e-5;
        must(isNear, () => `${format}: token ${t} comes back ${share} times as long`);
      }
    }
  });

  test('averaged over many rows, the projection on the row is unbiased (4 standard errors)', () => {
    const seed = 31;
    const random = seeded(seed);
    for (const format of ROT) {
      const ratios: number[] = [];
      for (let page = 0; page < 20; page++) {
        const rows = Float32Array.from({ length: PAGE_TOKENS * 64 }, () => gaussian(random) * 3);
        const head = CODECS[format].encode(rows, 64);
        const decoded = CODECS[format].decode(head);
        const scale = meanUnit(head);
        for (let t = 0; t < PAGE_TOKENS; t++) {
          let along = 0;
          let power = 0;
          for (let c = 0; c < 64; c++) {
            const mean = head.means[c]! * scale;
            const x = rows[t * 64 + c]! - mean;
            along += x * (decoded[t * 64 + c]! - mean);
            power += x * x;
          }
          ratios.push(along / power);
        }
      }
      const mean = ratios.reduce((sum, x) => sum + x, 0) / ratios.length;
      const deviation = Math.sqrt(ratios.reduce((sum, x) => sum + (x - mean) ** 2, 0) / ratios.length);
      // Rounding in the exponent is symmetric in log t, so the mean ratio is 1 + (ln 2 / 16)² / 24.
      const shift = (Math.LN2 / 16) ** 2 / 24;
      expect(Math.abs(mean - 1 - shift), `${format}, seed ${seed}`).toBeLessThan(
        (4 * deviation) / Math.sqrt(ratios.length),
      );
    }
  });
});

describe.each(CODED_HEAD_DIMS)('layout at d = %i', (d) => {
  test('planes hold every code at the bit that their description names', () => {
    const rows = gaussianRows(d, 41);
    for (const format of ROT) {
      const head = CODECS[format].encode(rows, d);
      const [highBits, lowBits] = FORMATS[format].parts.flatMap(({ fields }) =>
        fields.map((one) => one.elementBits ?? 0),
      );
      for (const side of SIDES) {
        const { hi, lo } = planes(head, side);
        for (let t = 0; t < PAGE_TOKENS; t++) {
          for (let c = 0; c < d; c++) {
            const at = tileOffset(side, d, t, c);
            const row = Math.floor(at / 64);
            const lane = at % 64;
            const high = highBits === 2 ? (hi[(row >> 2) * 64 + lane]! >> (2 * (row & 3))) & 3 : 0;
            const low =
              lowBits === 2
                ? (lo[(row >> 2) * 64 + lane]! >> (2 * (row & 3))) & 3
                : lowBits === 1
                  ? (lo[(row >> 3) * 64 + lane]! >> (row & 7)) & 1
                  : 0;
            if (((high << lowBits!) | low) !== head.codes[t * d + c]) {
              expect.fail(`${format} ${side} token ${t} channel ${c}`);
            }
          }
        }
      }
    }
  });

  test('demotion leaves the hi plane as it is', () => {
    const head = CODECS.rot4.encode(gaussianRows(d, 42), d);
    for (const side of SIDES) {
      const { hi } = planes(head, side);
      for (const to of ['rot3', 'rot2'] as const) expect(planes(demote(head, to), side).hi).toEqual(hi);
    }
  });

  test('the tile is a permutation of the page', () => {
    for (const side of SIDES) {
      const seen = new Set<number>();
      for (let t = 0; t < PAGE_TOKENS; t++) for (let c = 0; c < d; c++) seen.add(tileOffset(side, d, t, c));
      expect(seen.size).toBe(PAGE_TOKENS * d);
      expect(Math.max(...seen)).toBe(PAGE_TOKENS * d - 1);
    }
  });

  test('page bytes are planes, scales, means and bits of rows, padded', () => {
    for (const format of ROT) {
      const head = CODECS[format].encode(gaussianRows(d, 43), d);
      const { hi, lo } = planes(head, 'k');
      for (const n of [1, 3, 8]) {
        const codes = n * (hi.byteLength + lo.byteLength);
        const metadata = n * (head.rowScales.length + head.means.byteLength + PAGE_TOKENS / 8 + 3);
        expect(pageBytes(format, n, d)).toBe(Math.ceil(codes / 64) * 64 + Math.ceil(metadata / 64) * 64);
      }
    }
  });

  test('folded scores and mix equal those of decoded rows', () => {
    const rows = gaussianRows(d, 44).map((x, i) => x + (i % d === 3 ? 5 : 0));
    const query = gaussianRows(d, 45).subarray(0, d);
    const weights = gaussianRows(1, 46).map(Math.abs);
    for (const format of ROT) {
      const head = CODECS[format].encode(rows, d, 4);
      const decoded = CODECS[format].decode(head);
      const scores = CODECS[format].scores(query, head);
      const mix = CODECS[format].mix(weights, head);
      // float32 rotations of values up to 10, summed over d or 128 terms
      const bound = 1e-5 * 10 * Math.sqrt(d);
      for (let t = 4; t < PAGE_TOKENS; t++) {
        const direct = query.reduce((sum, q, c) => sum + q * decoded[t * d + c]!, 0);
        must(Math.abs(scores[t]! - direct) < bound, () => `${format}: score ${t} is ${scores[t]}, not ${direct}`);
      }
      for (let c = 0; c < d; c++) {
        const direct = weights.reduce((sum, w, t) => sum + w * decoded[t * d + c]!, 0);
        must(Math.abs(mix[c]! - direct) < bound * 3, () => `${format}: value ${c} is ${mix[c]}, not ${direct}`);
      }
    }
  });
});
