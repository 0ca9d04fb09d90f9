// Trellis codes by their definition: what a code reaches, nesting and demotion, zero rows, sinks, the unbiased scale
// (T9), error on a Gaussian beside rot, byte sizes (T21).

import { describe, expect, test } from 'vitest';
import { CODED_HEAD_DIMS, pageBytes, SIDES, type Side } from '../../../native/format.ts';
import {
  demoteTrellis,
  levelsOfCodes,
  SEQUENCE_BITS,
  type TrellisHead,
  TrellisSearch,
} from '../../../native/formats/trellis/trellis.ts';
import { CODECS, type ReferenceCodec, rotScale } from '../../../native/reference/index.ts';
import { TRELLIS_DIVISOR } from '../../../native/reference/tables.gen.ts';
import { must } from '../../must.ts';
import { relativeError } from '../../native/dense.ts';
import { AWKWARD, awkwardRows, gaussianRows } from '../../native/rows.ts';
import {
  type Bits,
  codecOf,
  codesOf,
  D,
  DEMOTIONS,
  k,
  LEVEL_ONE,
  LEVELS,
  origin,
  PAGE,
  PARTS,
  places,
  rotOf,
  sequencesOf,
  WIDTHS,
  windowsOf,
} from '../../native/trellis.ts';
import { seeded } from '../../random.ts';

describe.each(WIDTHS)('codes of %i bits', (bits) => {
  const random = seeded(bits + 20);
  const codes = new Uint8Array(PAGE * D).map(() => Math.floor(random() * 2 ** bits));
  const head = codecOf(bits).encode(new Float32Array(PAGE * D), D);
  const levelsBy = (side: Side, own: Uint8Array): Int8Array => levelsOfCodes({ ...head, side, codes: own });

  test('stand in sequences of every 64th element in tile order, which begin in window 0; levels of both are added', () => {
    for (const side of SIDES) {
      const levels = levelsBy(side, codes);
      for (const own of sequencesOf(side)) {
        const sums = own.map(() => 0);
        let shift: number = bits;
        for (const sequence of PARTS[bits]) {
          const width = SEQUENCE_BITS[sequence];
          shift -= width;
          const part = own.map((place) => (codes[place]! >> shift) & (2 ** width - 1));
          for (const [step, window] of windowsOf(sequence, part).entries()) sums[step]! += LEVELS[sequence][window]!;
        }
        expect(shift).toBe(0);
        expect(own.map((place) => levels[place]!)).toEqual(sums);
      }
    }
  });

  test('make no other levels than their own and those that have them in the same 6 bits', () => {
    for (const side of SIDES) {
      const levels = levelsBy(side, codes);
      const at = places(side);
      let farthest = 0;
      for (let tried = 0; tried < 40; tried++) {
        const changed = Math.floor(random() * at.length);
        const bit = Math.floor(random() * bits);
        const other = codes.slice();
        other[at[changed]!]! ^= 1 << bit;
        const now = levelsBy(side, other);
        // The high two bits are a sequence of two; the others are one of what remains.
        const width = bits === 1 || (bits === 3 && bit === 0) ? 1 : 2;
        const isLow = bits > 2 && bit < bits - 2;
        const reached = (isLow ? 4 : 6) / width;
        for (const [i, place] of at.entries()) {
          if (now[place] === levels[place]) continue;
          const isReached = (i - changed) % 64 === 0 && i >= changed && i < changed + 64 * reached;
          if (!isReached) expect.fail(`${side}: code ${changed} changed level ${i}`);
          farthest = Math.max(farthest, (i - changed) / 64);
        }
      }
      // And they do reach that far.
      expect(farthest).toBe({ 4: 2, 3: 3, 2: 2, 1: 5 }[bits]);
    }
  });
});

describe('nesting', () => {
  const rows = gaussianRows(D, 31).map((x, i) => x + (i % 8 === 1 ? 3 : 0) + (i >> 6 === 40 ? 30 * (i % 2) : 0));
  rows.fill(0, 70 * D, 71 * D);
  const FIRST = 4;
  const pages = Object.fromEntries(
    SIDES.map((side) => [side, WIDTHS.map((bits) => codecOf(bits).encode(rows, D, FIRST, side))]),
  ) as unknown as Readonly<Record<Side, readonly TrellisHead[]>>;
  const pageOf = (side: Side, bits: Bits): TrellisHead => pages[side][WIDTHS.indexOf(bits)]!;
  const lowered = DEMOTIONS.flatMap(([from, to]) =>
    SIDES.map((side) => [from, to, side, demoteTrellis(pageOf(side, from), `trellis${to}`)] as const),
  );

  test('trellis4, trellis3 and trellis2 of the same rows have the same high plane', () => {
    for (const side of SIDES) {
      const planes = ([4, 3, 2] as const).map((bits) => codecOf(bits).stored(pageOf(side, bits), side));
      const names = Object.keys(planes[0]!).filter((name) => planes.every((stored) => stored[name]!.length > 0));
      const plane = names.find((name) => planes[2]![name]!.length === (PAGE * D) / 4)!;
      for (const stored of planes) expect(Buffer.from(stored[plane]!).equals(planes[2]![plane]!)).toBe(true);
      const [four, three, two] = ([4, 3, 2] as const).map((bits) => pageOf(side, bits).codes);
      expect(four!.map((code) => code >> 2)).toEqual(two);
      expect(three!.map((code) => code >> 1)).toEqual(two);
    }
  });

  test('demotion keeps mean, origins and reference; to trellis2 it gives the codes of encoding', () => {
    for (const [from, to, side, lower] of lowered) {
      const before = pageOf(side, from);
      expect({ ...before, format: `trellis${to}`, codes: lower.codes, rowScales: lower.rowScales }).toEqual(lower);
      if (to === 2) expect(lower.codes, `${from} on ${side}`).toEqual(pageOf(side, 2).codes);
      expect(codecOf(from).demote!(before, `trellis${to}`)).toEqual(lower);
    }
  });

  test('demotion to trellis3 and trellis1 finds the codes that err least from the levels there were', () => {
    for (const [from, to, side, { codes }] of lowered) {
      if (to === 2) continue;
      const before = pageOf(side, from);
      const high = { ...before, format: 'trellis2', codes: before.codes.map((code) => code >> (from - 2)) } as const;
      const fine = levelsOfCodes(before);
      const kept = to === 3 ? levelsOfCodes(high) : new Int8Array(fine.length);
      const sequence = to === 3 ? 'low1' : 'single';
      const searcher = new TrellisSearch(sequence);
      for (const own of sequencesOf(side)) {
        const targets = Int16Array.from(own, (place) => LEVEL_ONE * (fine[place]! - kept[place]!));
        const found = codesOf(sequence, searcher.windows(targets));
        expect(own.map((place) => codes[place]!)).toEqual(
          own.map((place, step) => (to === 3 ? high.codes[place]! << 1 : 0) | found[step]!),
        );
      }
    }
  });

  test('the scale of demoted rows is t·<u,u>/<u,u′>, so that along what was stored they are unbiased', () => {
    for (const [from, to, side, lower] of lowered) {
      const before = pageOf(side, from);
      const fine = levelsOfCodes(before);
      const coarse = levelsOfCodes(lower);
      for (let t = 0; t < PAGE; t++) {
        if (k(before, t) === -128) {
          expect(k(lower, t)).toBe(-128);
          continue;
        }
        let [square, cross] = [0, 0];
        for (let i = t * D; i < (t + 1) * D; i++) {
          square += fine[i]! ** 2;
          cross += fine[i]! * coarse[i]!;
        }
        // Both are 2^(k/16), rounded to the nearest.
        const exact = k(before, t) + 16 * Math.log2(square / cross);
        expect(Math.abs(k(lower, t) - exact), `${from} to ${to}, ${side}, row ${t}`).toBeLessThan(0.5 + 1e-4);
      }
    }
  });

  // On one page: 1.18 to 1.21, 1.00, 1.02, 1.00, 1.08 and 1.26 to 1.29.
  test.each([
    [4, 3, 1.25],
    [4, 2, 1.02],
    [4, 1, 1.05],
    [3, 2, 1.02],
    [3, 1, 1.1],
    [2, 1, 1.33],
  ] as const)(
    'pages demoted from %i to %i bits err at most %f of what those do that are encoded from their rows',
    (from, to, factor) => {
      const normal = gaussianRows(D, 33);
      for (const side of SIDES) {
        const errorOf = (head: TrellisHead): number => relativeError(codecOf(to).decode(head), normal) ** 2;
        const direct = errorOf(codecOf(to).encode(normal, D, 0, side));
        const demoted = errorOf(demoteTrellis(codecOf(from).encode(normal, D, 0, side), `trellis${to}`));
        expect(demoted / direct, side).toBeLessThan(factor);
        expect(demoted / direct, side).toBeGreaterThan(0.98);
      }
    },
  );

  test('no format is demoted to itself or to more bits', () => {
    for (const from of WIDTHS)
      for (const to of WIDTHS)
        if (to >= from) expect(() => demoteTrellis(pageOf('v', from), `trellis${to}`)).toThrow(/cannot be demoted/);
  });
});

// In two widths each, in turns.
describe.each(Object.keys(AWKWARD).map((name, at) => [name, WIDTHS.filter((bits) => (bits + at) % 2 === 0)] as const))(
  'trellis on %s',
  (name, widths) => {
    test('everything decodes to finite numbers; zero rows decode to what they are coded from exactly', () => {
      const rows = awkwardRows(name, 64);
      for (const bits of widths) {
        const head = codecOf(bits).encode(rows, 64);
        const decoded = codecOf(bits).decode(head);
        const rot = CODECS[`rot${bits}`].encode(rows, 64);
        expect([head.means, head.fromZero, head.meanScale, head.reference]).toEqual([
          rot.means,
          rot.fromZero,
          rot.meanScale,
          rot.reference,
        ]);
        for (let t = 0; t < PAGE; t++) {
          // The same rows are zero as in rot.
          expect(k(head, t) === -128).toBe((rot.rowScales[t]! << 16) >> 16 === -128);
          for (let c = 0; c < 64; c++) {
            const value = decoded[t * 64 + c]!;
            if (!Number.isFinite(value)) expect.fail(`${bits} bits: row ${t} has ${value}`);
            const isOrigin = k(head, t) !== -128 || Object.is(value + 0, origin(head, t, c));
            must(isOrigin, () => `${bits} bits: row ${t} has ${value}, not what it is coded from`);
          }
        }
      }
    });
  },
);

test('an all-zero page decodes to +0', () => {
  for (const bits of WIDTHS) {
    const head = codecOf(bits).encode(new Float32Array(PAGE * 80), 80);
    expect(new Set(head.rowScales)).toEqual(new Set([0xff80]));
    for (const value of codecOf(bits).decode(head)) if (!Object.is(value, 0)) expect.fail(`${bits} bits: ${value}`);
  }
});

test('sinks stay out of mean and codes: their content changes nothing', () => {
  const rows = gaussianRows(64, 11);
  const other = rows.slice();
  other.fill(60_000, 0, 4 * 64);
  for (const bits of WIDTHS) {
    for (const side of SIDES) {
      const head = codecOf(bits).encode(rows, 64, 4, side);
      expect(codecOf(bits).encode(other, 64, 4, side)).toEqual(head);
      expect([0, 1, 2, 3].map((t) => k(head, t))).toEqual([-128, -128, -128, -128]);
      const sinks = codecOf(bits)
        .decode(head)
        .subarray(0, 4 * 64);
      expect(sinks.every((x) => x === 0)).toBe(true);
    }
  }
});

test('rows near zero are coded from zero, and err as little as others for their size', () => {
  const rows = awkwardRows('rows near zero', 64);
  for (const bits of WIDTHS) {
    const head = codecOf(bits).encode(rows, 64);
    const decoded = codecOf(bits).decode(head);
    const errors = { near: 0, far: 0 };
    const powers = { near: 0, far: 0 };
    for (let t = 0; t < PAGE; t++) {
      expect(head.fromZero[t]).toBe(t % 11 === 5 ? 1 : 0);
      const kind = head.fromZero[t] ? 'near' : 'far';
      for (let c = 0; c < 64; c++) {
        errors[kind] += (decoded[t * 64 + c]! - rows[t * 64 + c]!) ** 2;
        powers[kind] += (rows[t * 64 + c]! - origin(head, t, c)) ** 2;
      }
    }
    // Twelve rows of 64: a few per cent of chance.
    expect(errors.near / powers.near / (errors.far / powers.far)).toBeLessThan(1.25);
  }
});

test('rows of any magnitude decode to the bits of ordinary ones, times the magnitude', () => {
  const rows = gaussianRows(64, 51).map((x, i) => x + (i % 8 === 1 ? 3 : 0));
  for (const bits of WIDTHS) {
    const decoded = codecOf(bits).decode(codecOf(bits).encode(rows, 64));
    for (const power of [-20, 17]) {
      const scaled = rows.map((x) => x * 2 ** power);
      const head = codecOf(bits).encode(scaled, 64);
      expect(Math.sign(head.reference)).toBe(Math.sign(power));
      expect(
        codecOf(bits)
          .decode(head)
          .map((x) => x * 2 ** -power),
        `${bits} bits, 2^${power}`,
      ).toEqual(decoded);
    }
  }
});

describe('unbiased scale', () => {
  test('along a row, <x̂,x> = <x,x> up to the rounding of the scale (T9)', () => {
    // Page without a mean: rows t and t + 64 are opposite. The scale is rounded to 2^(1/32) at most, a factor of
    // 1.0219.
    const half = gaussianRows(64, 21).subarray(0, 64 * 64);
    const rows = new Float32Array(PAGE * 64);
    rows.set(half);
    rows.set(
      half.map((x) => -x),
      64 * 64,
    );
    for (const bits of WIDTHS) {
      for (const side of SIDES) {
        const decoded = codecOf(bits).decode(codecOf(bits).encode(rows, 64, 0, side));
        for (let t = 0; t < PAGE; t++) {
          const row = rows.subarray(t * 64, (t + 1) * 64);
          const power = row.reduce((sum, x) => sum + x * x, 0);
          const along = row.reduce((sum, x, c) => sum + x * decoded[t * 64 + c]!, 0);
          expect(along / power).toBeGreaterThan(2 ** (-1 / 32) - 1e-5);
          expect(along / power).toBeLessThan(2 ** (1 / 32) + 1e-5);
        }
      }
    }
  });

  test('is that of rot: 2^(k/16) over the levels, so that a decoded row has the length that its scale says', () => {
    const rows = gaussianRows(64, 22);
    for (const bits of WIDTHS) {
      const head = codecOf(bits).encode(rows, 64);
      const decoded = codecOf(bits).decode(head);
      const levels = levelsOfCodes(head);
      for (let t = 0; t < PAGE; t++) {
        let [length, expected] = [0, 0];
        for (let c = 0; c < 64; c++) {
          length += (decoded[t * 64 + c]! - origin(head, t, c)) ** 2;
          expected += (levels[t * 64 + c]! / TRELLIS_DIVISOR) ** 2;
        }
        // float32 rotations, and differences from a mean of the same size
        expect(Math.abs(Math.sqrt(length / expected) / rotScale(k(head, t)) - 1)).toBeLessThan(1e-5);
      }
    }
  });
});

// On three pages the ratios are 0.92 to 0.94, 0.80, 0.71 and 0.78 to 0.79: those of the errors before the scale.
test.each([
  [4, 0.96],
  [3, 0.82],
  [2, 0.73],
  [1, 0.81],
] as const)('of %i bits, pages of Gaussian rows err at most %f of what they err in rot', (bits, most) => {
  const errorOf = (codec: ReferenceCodec<TrellisHead>, rows: Float32Array, side: Side): number =>
    relativeError(codec.decode(codec.encode(rows, 64, 0, side)), rows) ** 2;
  for (const side of SIDES) {
    let [ours, theirs] = [0, 0];
    for (const seed of [100, 101, 102]) {
      const rows = gaussianRows(64, seed);
      ours += errorOf(codecOf(bits), rows, side);
      theirs += errorOf(rotOf(bits), rows, side);
    }
    expect(ours / theirs, side).toBeLessThan(most);
  }
});

describe.each(CODED_HEAD_DIMS)('bytes at d = %i', (d) => {
  test('are those of rot, which are planes, scales, means and bits of rows, padded (T21)', () => {
    for (const bits of WIDTHS) {
      for (const n of [1, 3, 8]) {
        const codes = (n * PAGE * d * bits) / 8;
        const metadata = n * (PAGE + d + PAGE / 8 + 3);
        expect(pageBytes(`trellis${bits}`, n, d)).toBe(Math.ceil(codes / 64) * 64 + Math.ceil(metadata / 64) * 64);
        expect(pageBytes(`trellis${bits}`, n, d)).toBe(pageBytes(`rot${bits}`, n, d));
      }
    }
  });
});
