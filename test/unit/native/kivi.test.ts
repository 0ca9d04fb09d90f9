// KIVI by its definition: half a step at most and idempotence (T1), nesting (T1), constant groups (T2), what permuting
// and scaling do to a group, error by width (T10), byte sizes (T21).
import { describe, expect, test } from 'vitest';
import { CODED_HEAD_DIMS, PAGE_TOKENS, pageBytes, SIDES, type Side } from '../../../native/format.ts';
import { CODECS, fromHalf } from '../../../native/reference/index.ts';
import { relativeError } from '../../native/dense.ts';
import { AWKWARD, awkwardRows, gaussianRows } from '../../native/rows.ts';

const D = 64;
const WIDTHS = [
  { format: 'kivi8', stride: 1, top: 255 },
  { format: 'kivi4', stride: 17, top: 15 },
  { format: 'kivi2', stride: 85, top: 3 },
] as const;

/** Scale on the 8-bit grid and low of the group of an element, at head size 64. */
function groupOf(head: { scales: Uint16Array; lows: Uint16Array }, side: Side, t: number, c: number) {
  const at = side === 'k' ? Math.floor(t / 32) * D + c : Math.floor(c / 32) * PAGE_TOKENS + t;
  return { scale: fromHalf(head.scales[at]!), low: fromHalf(head.lows[at]!) };
}

describe.each(Object.keys(AWKWARD))('%s', (name) => {
  const rows = awkwardRows(name, D);

  test.each(WIDTHS)('$format errs by half a step at most', ({ format, stride }) => {
    for (const side of SIDES) {
      const head = CODECS[format].encode(rows, D, 0, side);
      const worst = Array.from(CODECS[format].decode(head), (decoded, i) => {
        const { scale } = groupOf(head, side, Math.floor(i / D), i % D);
        // The sum of low and steps is rounded to float32.
        const bound = ((scale * stride) / 2) * (1 + 2 ** -10) + Math.abs(rows[i]!) * 2 ** -23;
        return Math.abs(decoded - rows[i]!) - bound;
      });
      expect(Math.max(...worst)).toBeLessThanOrEqual(0);
    }
  });

  test.each(WIDTHS)('codes of $format are those of quantization with their own step', ({ format, stride, top }) => {
    for (const side of SIDES) {
      const head = CODECS[format].encode(rows, D, 0, side);
      const differences = Array.from(head.codes, (code, i) => {
        const { scale, low } = groupOf(head, side, Math.floor(i / D), i % D);
        if (scale === 0) return code;
        return Math.abs(code - Math.min(top, Math.max(0, (rows[i]! - low) / (scale * stride))));
      });
      // Where the exact quotient lies half-way, float32 decides.
      expect(Math.max(...differences)).toBeLessThanOrEqual(0.5 + 1e-5);
    }
  });

  test('demotion gives the codes, scales and lows of direct encoding', () => {
    for (const side of SIDES) {
      const [eight, four, two] = WIDTHS.map(({ format }) => CODECS[format].encode(rows, D, 4, side));
      expect(CODECS.kivi8.demote!(eight!, 'kivi4')).toEqual(four);
      expect(CODECS.kivi8.demote!(eight!, 'kivi2')).toEqual(two);
      expect(CODECS.kivi4.demote!(four!, 'kivi2')).toEqual(two);
    }
  });
});

test.each(WIDTHS)('$format: encoding what was decoded gives the same codes', ({ format }) => {
  for (const name of ['gaussian', 'outlier channels', 'one large token']) {
    for (const side of SIDES) {
      const head = CODECS[format].encode(awkwardRows(name, D), D, 0, side);
      expect(CODECS[format].encode(CODECS[format].decode(head), D, 0, side).codes).toEqual(head.codes);
    }
  }
});

test.each(WIDTHS)('$format gives groups of one value back exactly, if f16 holds it', ({ format }) => {
  const channels = awkwardRows('constant channels', D);
  expect(CODECS[format].decode(CODECS[format].encode(channels, D, 0, 'k'))).toEqual(channels);
  const tokens = awkwardRows('constant rows', D);
  expect(CODECS[format].decode(CODECS[format].encode(tokens, D, 0, 'v'))).toEqual(tokens);
});

test('the order of tokens in a group of keys changes the order of codes and nothing else', () => {
  const rows = gaussianRows(D, 11);
  const turned = Float32Array.from(rows, (_, i) => rows[(Math.floor(i / D) ^ 31) * D + (i % D)]!);
  const [head, other] = [rows, turned].map((x) => CODECS.kivi4.encode(x, D, 0, 'k'));
  expect([other!.scales, other!.lows]).toEqual([head!.scales, head!.lows]);
  expect(other!.codes).toEqual(head!.codes.map((_, i) => head!.codes[(Math.floor(i / D) ^ 31) * D + (i % D)]!));
});

test('a channel times a power of two has its scale and low times that, and the same codes', () => {
  const rows = gaussianRows(D, 12);
  const head = CODECS.kivi4.encode(rows, D, 0, 'k');
  const other = CODECS.kivi4.encode(
    rows.map((x, i) => (i % D === 9 ? 8 * x : x)),
    D,
    0,
    'k',
  );
  expect(other.codes).toEqual(head.codes);
  for (const field of ['scales', 'lows'] as const) {
    const expected = Array.from(head[field], (bits, i) => fromHalf(bits) * (i % D === 9 ? 8 : 1));
    expect(Array.from(other[field], fromHalf)).toEqual(expected);
  }
});

test('fewer bits err more, and groups along channels suit keys whose channels differ', () => {
  for (const name of ['gaussian', 'outlier channels']) {
    const rows = awkwardRows(name, D);
    const errors = SIDES.map((side) =>
      WIDTHS.map(({ format }) => relativeError(CODECS[format].decode(CODECS[format].encode(rows, D, 0, side)), rows)),
    );
    for (const [eight, four, two] of errors) {
      expect(eight!).toBeLessThan(four!);
      expect(four!).toBeLessThan(two!);
    }
  }
  // What a scale for each channel keeps: the error of the channels that are not outliers.
  const rows = awkwardRows('outlier channels', D);
  const error = (side: Side): number => {
    const decoded = CODECS.kivi4.decode(CODECS.kivi4.encode(rows, D, 0, side));
    const ordinary = (x: Float32Array) => x.filter((_, i) => (i % D) % 31 !== 3);
    return relativeError(ordinary(decoded), ordinary(rows));
  };
  expect(error('k')).toBeLessThan(error('v') / 4);
});

test.each(CODED_HEAD_DIMS)('page bytes at d = %i are those of b + 1 bits, padded', (d) => {
  const padded = (bytes: number): number => Math.ceil(bytes / 64) * 64;
  for (const [format, bits] of [
    ['kivi8', 8],
    ['kivi4', 4],
    ['kivi2', 2],
  ] as const) {
    for (const n of [1, 2, 3, 8]) {
      expect(pageBytes(format, n, d)).toBe(
        padded((n * d * PAGE_TOKENS * bits) / 8) + padded((n * d * PAGE_TOKENS * 4) / 32),
      );
    }
  }
});
