// Trellis codes by their definition: levels and their error (T5), the search against all sequences there are, what a code reaches, zero rows, sinks, the
// unbiased scale (T9), error on a Gaussian beside rot, byte sizes (T21).
import { describe, expect, test } from 'vitest';
import { CODED_HEAD_DIMS, PAGE_TOKENS, pageBytes, SIDES, type Side } from '../../../native/format.ts';
import {
  levelsOf,
  levelsOfCodes,
  nextWindow,
  type TrellisBits,
  type TrellisHead,
  TrellisSearch,
} from '../../../native/formats/trellis.ts';
import { CODECS, meanUnit, type ReferenceCodec, rotScale, tileOffset } from '../../../native/reference/index.ts';
import { TRELLIS, TRELLIS_DIVISOR } from '../../../native/reference/tables.gen.ts';
import { relativeError } from '../../native/dense.ts';
import { AWKWARD, awkwardRows, gaussian, gaussianRows, seeded } from '../../native/rows.ts';

const WIDTHS = [4, 3, 2, 1] as const;
const PAGE = PAGE_TOKENS;
const LEVELS = Object.fromEntries(WIDTHS.map((bits) => [bits, levelsOf(bits, ...TRELLIS[bits])])) as Readonly<
  Record<TrellisBits, Int8Array>
>;
const codecOf = (bits: TrellisBits): ReferenceCodec<TrellisHead> => CODECS[`trellis${bits}`];
const k = (head: TrellisHead, t: number): number => (head.rowScales[t]! << 16) >> 16;
/** What an element is coded from. */
const origin = (head: TrellisHead, t: number, c: number): number =>
  head.fromZero[t] ? 0 : Math.fround(head.means[c]! * meanUnit(head));

/** A target of the search: 1/4096 is one, within four. */
const targetOf = (x: number): number => Math.round(4096 * Math.min(4, Math.max(-4, x)));
const normalTargets = (steps: number, random: () => number, spread = 1): Int16Array =>
  Int16Array.from({ length: steps }, () => targetOf(spread * gaussian(random)));

/** The windows of a sequence of codes. */
function windowsOf(codes: readonly number[], bits: TrellisBits): number[] {
  let window = 0;
  return codes.map((code) => (window = nextWindow(window, code, bits)));
}

/** What the search must make least, as the head of trellis.ts says it. */
const costOf = (windows: Iterable<number>, targets: Int16Array, bits: TrellisBits): number => {
  let [sum, step] = [0, 0];
  for (const window of windows) sum += Math.round((targets[step++]! - 128 * LEVELS[bits][window]!) ** 2 / 2 ** 15);
  return sum;
};

describe.each([
  [4, 0.0062, 0.0095],
  [3, 0.022, 0.03454],
  [2, 0.083, 0.1175],
  [1, 0.3, 0.3634],
] as const)('tables of %i bits', (bits, expected, single) => {
  test('levels are whole numbers over 32, and the distance of a target from any fits in 16 bits with its sign', () => {
    expect(TRELLIS_DIVISOR).toBe(32);
    expect(LEVELS[bits]).toHaveLength(256);
    for (const level of LEVELS[bits]) expect(Math.abs(level) * 128).toBeLessThanOrEqual(16256);
    // No sum has wrapped in its byte.
    for (const a of TRELLIS[bits][0])
      for (const b of TRELLIS[bits][1]) expect(Math.abs(a + b)).toBeLessThanOrEqual(127);
  });

  test('on a Gaussian they err what is said of them, less than single codes and more than any code must (T5)', () => {
    const seed = 5;
    const random = seeded(seed);
    const searcher = new TrellisSearch(bits);
    let error = 0;
    const [sequences, steps] = [300, 128];
    for (let sequence = 0; sequence < sequences; sequence++) {
      const x = Float64Array.from({ length: steps }, () => gaussian(random));
      for (const [step, window] of searcher.windows(Int16Array.from(x, targetOf)).entries())
        error += (x[step]! - LEVELS[bits][window]! / TRELLIS_DIVISOR) ** 2 / (sequences * steps);
    }
    // What is said has two digits, and so many rows err the same within a per cent.
    expect(Math.abs(error / expected - 1), `seed ${seed}`).toBeLessThan(0.03);
    expect(error).toBeLessThan(single);
    expect(error).toBeGreaterThan(4 ** -bits);
  });
});

describe('the search', () => {
  // Eight steps of one bit reach the step in which the least cost is taken off.
  test.each([
    [4, 3],
    [3, 4],
    [2, 6],
    [1, 10],
  ] as const)('finds the least sum of all sequences, at %i bits in %i steps', (bits, steps) => {
    const all = Array.from({ length: 2 ** (bits * steps) }, (_, number) =>
      windowsOf(
        Array.from({ length: steps }, (_, step) => (number >> (bits * step)) & (2 ** bits - 1)),
        bits,
      ),
    );
    const random = seeded(bits);
    const searcher = new TrellisSearch(bits);
    for (let tried = 0; tried < 40; tried++) {
      // Some of them run into the bounds of targets.
      const targets = normalTargets(steps, random, tried % 4 === 3 ? 3 : 1);
      const found = [...searcher.windows(targets)];
      expect(
        windowsOf(
          found.map((window) => window >> (8 - bits)),
          bits,
        ),
      ).toEqual(found);
      const least = all.reduce(
        (sum, windows) => Math.min(sum, costOf(windows, targets, bits)),
        Number.POSITIVE_INFINITY,
      );
      expect(costOf(found, targets, bits)).toBe(least);
    }
  });

  test('takes no sequence that one other code would better, in sequences of every length', () => {
    const random = seeded(9);
    for (const bits of WIDTHS) {
      const searcher = new TrellisSearch(bits);
      for (const steps of [1, 7, 8, 9, 16, 17, 128, 512]) {
        const targets = normalTargets(steps, random);
        const found = searcher.windows(targets);
        const least = costOf(found, targets, bits);
        const codes = Array.from(found, (window) => window >> (8 - bits));
        for (let tried = 0; tried < 30; tried++) {
          const other = codes.with(Math.floor(random() * steps), Math.floor(random() * 2 ** bits));
          expect(costOf(windowsOf(other, bits), targets, bits), `${bits} bits`).toBeGreaterThanOrEqual(least);
        }
      }
    }
  });
});

describe.each(WIDTHS)('codes of %i bits', (bits) => {
  const d = 64;
  const random = seeded(bits + 20);
  const codes = new Uint8Array(PAGE * d).map(() => Math.floor(random() * 2 ** bits));
  const head = codecOf(bits).encode(new Float32Array(PAGE * d), d);
  const levelsBy = (side: Side, own: Uint8Array): Int8Array => levelsOfCodes({ ...head, side, codes: own });
  /** Index in rows by the index in tile order. */
  const places = (side: Side): number[] => {
    const found: number[] = [];
    for (let t = 0; t < PAGE; t++) for (let c = 0; c < d; c++) found[tileOffset(side, d, t, c)] = t * d + c;
    return found;
  };

  test('stand in sequences of every 64th element in tile order, which begin in window 0', () => {
    for (const side of SIDES) {
      const levels = levelsBy(side, codes);
      const at = places(side);
      for (let sequence = 0; sequence < 64; sequence++) {
        const own = at.filter((_, i) => i % 64 === sequence);
        const windows = windowsOf(
          own.map((place) => codes[place]!),
          bits,
        );
        expect(own.map((place) => levels[place]!)).toEqual(windows.map((window) => LEVELS[bits][window]!));
      }
    }
  });

  test('make no other levels than their own and those that have them in the same 8 bits', () => {
    for (const side of SIDES) {
      const levels = levelsBy(side, codes);
      const at = places(side);
      for (let tried = 0; tried < 20; tried++) {
        const changed = Math.floor(random() * at.length);
        const other = codes.slice();
        other[at[changed]!]! ^= 1 << Math.floor(random() * bits);
        const now = levelsBy(side, other);
        const reached = Math.ceil(8 / bits);
        for (const [i, place] of at.entries()) {
          const isReached = (i - changed) % 64 === 0 && i >= changed && i < changed + 64 * reached;
          if (!isReached && now[place] !== levels[place]) expect.fail(`${side}: code ${changed} changed level ${i}`);
        }
      }
    }
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
            if (k(head, t) === -128) expect(value + 0).toBe(origin(head, t, c));
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
    // Page without a mean: rows t and t + 64 are opposite. The scale is rounded to 2^(1/32) at most, a factor of 1.0219.
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

// On eight pages the ratios are 0.683, 0.632, 0.678 and 0.764: those of the errors before the scale, and a bit of its own.
test.each([
  [4, 0.7],
  [3, 0.65],
  [2, 0.7],
  [1, 0.78],
] as const)('of %i bits, pages of Gaussian rows err at most %f of what they err in rot', (bits, most) => {
  const errorOf = (codec: ReferenceCodec<TrellisHead>, rows: Float32Array, side: Side): number =>
    relativeError(codec.decode(codec.encode(rows, 64, 0, side)), rows) ** 2;
  for (const side of SIDES) {
    let [ours, theirs] = [0, 0];
    for (const seed of [100, 101, 102]) {
      const rows = gaussianRows(64, seed);
      ours += errorOf(codecOf(bits), rows, side);
      theirs += errorOf(CODECS[`rot${bits}`] as unknown as ReferenceCodec<TrellisHead>, rows, side);
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
