/**
 * kivi8, kivi4, kivi2: asymmetric uniform codes in groups of 32, keys per channel and values per token, nested by
 * integers.
 *
 * A group is 32 tokens of one channel (keys, after RoPE) or 32 channels of one token (values; at d = 80 the second
 * group has 48). Of its numbers,
 *   low     the least, rounded down to f16
 *   scale   s = (most − low) / 255, rounded up to f16
 *   code    c₈ = round half even((x − low) / s), clamped to 0..255; 0 where s is 0
 *   narrow  c₄ = round(c₈ / 17), c₂ = round(c₄ / 5), which are the codes of direct quantization, because 255 = 17·15
 *   and 15 = 5·3 have no ties
 *   decode  x̂ = low + s·c₈ = low + 17·s·c₄ = low + 85·s·c₂
 * (float32 arithmetic; a zero is never −0). low and s are the same at every width, so a demotion keeps them and works
 * on codes alone; the error is at most half a step. A group of one value has s = 0 and decodes to low, which is that
 * value if f16 holds it. Sinks (rows before firstRow) stay out of every group. Groups begin at multiples of 32 in a
 * page, so they do not depend on how rows arrived.
 *
 * Scores: the scales of 32 tokens are folded into the query and the lows into an offset, four times a page; values: the
 * scales of a group of channels are folded into the probabilities, and the lows are added times the mass. Both are
 * products of integers.
 *
 * Bytes (one head): codes in rows of 64 levels, in the order of the i8 tile of one group after the other; 64 bytes hold
 * one row of c₈, two of c₄ (the first in the low bits) or four of c₂. Then the scales and the lows, f16: keys [4][d],
 * values [groups][128]. At 16 bits each for 32 elements that is b + 1 bits per element (at d = 80, where values have
 * two groups, a fifth of their room is unused and zero).
 *
 * Source: KIVI, Liu et al. 2024 (arXiv 2402.02750), groups of 32. Not theirs: pages leave the window as a whole, sinks
 * are kept apart and exact, a page may be demoted, and low and scale are rounded outwards. When not to use it: beside
 * the rot family, which loses less at fewer bits (docs/lab/formats.md), unless keys have outlier channels; at 2 bits
 * for models whose query heads share KV heads, as its authors say.
 */
import { assert } from '../../error.ts';
import { PAGE_TOKENS, type Side } from '../../layout.ts';
import { bytesOf, type Head } from '../../reference/codec.ts';
import { roundHalfEven } from '../../reference/float32.ts';
import { fromHalf, halfAbove, halfBelow } from '../../reference/half.ts';
import { packPlanes } from '../../reference/planes.ts';
import { type Allocation, defineForOutlierKeys, defineYardstick, type Tier } from '../descriptor.ts';

/** Elements that share a scale. */
const GROUP = 32;
const LARGEST_HALF = 65504;
export const KIVI_BITS = { kivi8: 8, kivi4: 4, kivi2: 2 } as const;
/** The formats of the family. */
export type KiviName = keyof typeof KIVI_BITS;
/** Steps of the 8-bit grid in one of each width. */
const STRIDE: Readonly<Record<KiviName, number>> = { kivi8: 1, kivi4: 17, kivi2: 85 };

/** One head of a page as codes of one width, with the scale and the low of every group. */
export interface KiviHead extends Head {
  readonly format: KiviName;
  readonly side: Side;
  /** [128, d] */
  readonly codes: Uint8Array;
  /** f16 bits, as stored: keys [4][d], values [groups][128], and zeros to 4·d. */
  readonly scales: Uint16Array;
  readonly lows: Uint16Array;
}

/** Groups of channels of one token. */
const channelGroups = (headDim: number): number => Math.floor(headDim / GROUP);
const groupOfChannel = (headDim: number, c: number): number =>
  Math.min(Math.floor(c / GROUP), channelGroups(headDim) - 1);

/** Where scale and low of an element are stored. */
const groupAt = (side: Side, headDim: number, t: number, c: number): number =>
  side === 'k' ? Math.floor(t / GROUP) * headDim + c : groupOfChannel(headDim, c) * PAGE_TOKENS + t;

/** Place of an element among the levels: the i8 tile of each group of 32 outputs, one after the other. */
function levelAt(side: Side, headDim: number, t: number, c: number): number {
  const [contraction, output] = side === 'k' ? [c, t] : [t, c];
  const [steps, outputs] = side === 'k' ? [headDim, PAGE_TOKENS] : [PAGE_TOKENS, headDim];
  const group = Math.min(Math.floor(output / GROUP), Math.floor(outputs / GROUP) - 1);
  const first = group * GROUP;
  const width = group === Math.floor(outputs / GROUP) - 1 ? outputs - first : GROUP;
  return first * steps + Math.floor(contraction / 4) * width * 4 + (output - first) * 4 + (contraction % 4);
}

function isKivi(format: string): asserts format is KiviName {
  assert(format in KIVI_BITS, `${format} is not of the kivi family`);
}

/** c₈ at a width. */
function narrow(code: number, format: KiviName): number {
  if (format === 'kivi8') return code;
  const four = Math.floor((code + 8) / 17);
  return format === 'kivi4' ? four : Math.floor((four + 2) / 5);
}

/** Least and largest number of every group, [groupAt]; NaN where a group has none. */
function ranges(rows: Float32Array, headDim: number, firstRow: number, side: Side) {
  const least = new Float32Array(4 * headDim).fill(Number.NaN);
  const most = least.slice();
  for (let t = firstRow; t < PAGE_TOKENS; t++) {
    for (let c = 0; c < headDim; c++) {
      const at = groupAt(side, headDim, t, c);
      // Rows that another format gave back may be a little beyond the range of f16.
      const x = Math.max(-LARGEST_HALF, Math.min(LARGEST_HALF, rows[t * headDim + c]!));
      if (!(x >= least[at]!)) least[at] = x;
      if (!(x <= most[at]!)) most[at] = x;
    }
  }
  return { least, most };
}

export function encode(format: KiviName, rows: Float32Array, headDim: number, firstRow: number, side: Side): KiviHead {
  const { least, most } = ranges(rows, headDim, firstRow, side);
  const lows = Uint16Array.from(least, (x) => (Number.isNaN(x) ? 0 : halfBelow(x + 0)));
  const scales = Uint16Array.from(most, (x, at) =>
    Number.isNaN(x) ? 0 : halfAbove(Math.fround(Math.fround(x - fromHalf(lows[at]!) + 0) / 255)),
  );
  const codes = Uint8Array.from(rows, (x, i) => {
    const [t, c] = [Math.floor(i / headDim), i % headDim];
    const at = groupAt(side, headDim, t, c);
    const scale = fromHalf(scales[at]!);
    if (t < firstRow || scale === 0) return 0;
    const steps = Math.fround(Math.fround(x - fromHalf(lows[at]!)) / scale);
    return narrow(roundHalfEven(Math.min(255, Math.max(0, steps))), format);
  });
  return { format, headDim, firstRow, side, codes, scales, lows };
}

/** Scale and low of the group of an element at this width. */
function gridAt({ format, side, headDim, scales, lows }: KiviHead, t: number, c: number) {
  const at = groupAt(side, headDim, t, c);
  return { step: fromHalf(scales[at]!) * STRIDE[format], low: fromHalf(lows[at]!) };
}

export function decode(head: KiviHead): Float32Array {
  const { headDim, firstRow, codes } = head;
  return Float32Array.from(codes, (code, i) => {
    const [t, c] = [Math.floor(i / headDim), i % headDim];
    if (t < firstRow) return 0;
    const { step, low } = gridAt(head, t, c);
    return Math.fround(Math.fround(code * step) + low);
  });
}

/** q·k̂: codes times the query with the scales folded in, and the query times the lows. */
function scores(query: Float32Array, head: KiviHead): Float64Array {
  const { headDim, firstRow, codes } = head;
  return Float64Array.from({ length: PAGE_TOKENS }, (_, t) => {
    if (t < firstRow) return 0;
    let [sum, offset] = [0, 0];
    for (const [c, x] of query.entries()) {
      const { step, low } = gridAt(head, t, c);
      sum += x * step * codes[t * headDim + c]!;
      offset += x * low;
    }
    return sum + offset;
  });
}

function mix(weights: Float32Array, head: KiviHead): Float64Array {
  const { headDim, firstRow, codes } = head;
  return Float64Array.from({ length: headDim }, (_, c) => {
    let [sum, offset] = [0, 0];
    for (let t = firstRow; t < PAGE_TOKENS; t++) {
      const { step, low } = gridAt(head, t, c);
      sum += weights[t]! * step * codes[t * headDim + c]!;
      offset += weights[t]! * low;
    }
    return sum + offset;
  });
}

/** Codes [128, d] as stored. */
function packed({ format, headDim, codes }: KiviHead, side: Side): Uint8Array {
  const ordered = new Uint8Array(codes.length);
  for (const [i, code] of codes.entries()) ordered[levelAt(side, headDim, Math.floor(i / headDim), i % headDim)] = code;
  return packPlanes(ordered, KIVI_BITS[format], 0).hi;
}

/**
 * `relative` is the root of the mean squared error of a Gaussian in groups of 32: 2.1e-5, 0.0061 and 0.154
 * (algorithms.md), rounded up.
 */
export const codec = (format: KiviName, relative: number) => ({
  format,
  tolerance: { relative, smallest: 1e-4, largest: 1e4 },
  encode: (rows: Float32Array, headDim: number, firstRow = 0, side: Side = 'k') =>
    encode(format, rows, headDim, firstRow, side),
  decode,
  scores,
  mix,
  demote(head: KiviHead, to: string): KiviHead {
    isKivi(to);
    const wide = head.codes.map((code) => code * STRIDE[head.format]);
    return { ...head, format: to, codes: wide.map((code) => narrow(code, to)) };
  },
  stored: (head: KiviHead, side: Side) => ({
    codes: packed(head, side),
    scales: bytesOf(head.scales),
    lows: bytesOf(head.lows),
  }),
});

/** `kept`: whether a demotion keeps what does not depend on the width. */
export const kiviParts = (name: KiviName, kept: boolean): readonly Allocation[] => [
  { fields: [{ name: 'codes', elementBits: KIVI_BITS[name] }] },
  {
    fields: [
      { name: 'scales', channelBytes: 8, kept },
      { name: 'lows', channelBytes: 8, kept },
    ],
  },
];

const described = <const N extends KiviName>(name: N, id: number, rank: number, tier: Tier) =>
  ({
    name,
    id,
    rank,
    tier,
    codeBits: KIVI_BITS[name],
    nested: true,
    rotated: false,
    parts: kiviParts(name, true),
    source: 'KIVI, Liu et al. 2024, in groups of 32; docs/lab/formats.md',
    layoutVersion: 1,
  }) as const;

export const formats = [
  defineYardstick(described('kivi8', 6, 12, 'warm')),
  defineForOutlierKeys(described('kivi4', 7, 18, 'warm')),
  defineForOutlierKeys({ ...described('kivi2', 8, 37, 'archive'), outlierGauge: 'per channel' }),
] as const;

export const codecs = {
  kivi8: codec('kivi8', 0.005),
  kivi4: codec('kivi4', 0.08),
  kivi2: codec('kivi2', 0.4),
} as const;
