/**
 * fp8: E4M3, the 8-bit float of other engines (one sign, four bits of exponent with a bias of 7, three of mantissa, no
 * infinity, largest 448), with one f16 scale for each page and head.
 *
 *   s = max|x| / 448 over the page and head, rounded up to f16; code = E4M3(x / s), rounded half to even; x̂ = s·code
 *   (float32 arithmetic)
 * Rounding s up keeps every x / s within 448, so nothing saturates. A page of zeros has s = 0 and decodes to zeros, as
 * do sinks (rows before firstRow).
 *
 * The scale is the one thing on which engines differ. vLLM has one for each tensor of a layer, 1 unless a calibration
 * set it. With 1, what is beyond 448 saturates and what is below 2^-10 is lost; between the two the relative error is
 * the same for any power of two. A scale for each page and head has neither limit and costs 16/128d bits.
 *
 * Bytes (one head): a code per element, row by row, then the scale: 8 + 16/128d bits per element. Attention decodes a
 * page and multiplies floats: levels of E4M3 are no bytes that integers could be multiplied with. Source: FP8 Formats
 * for Deep Learning, Micikevicius et al. 2022 (arXiv 2209.05433); vLLM's kv_cache_dtype fp8_e4m3. When not to use it:
 * q8 has the bytes, an eighth of the error, and products of integers.
 */

import { defineYardstick } from '../../formats/descriptor.ts';
import { PAGE_TOKENS } from '../../layout.ts';
import { bytesOf, type Head, type ReferenceCodec } from '../../reference/codec.ts';
import { roundHalfEven } from '../../reference/float32.ts';
import { fromHalf, halfAbove } from '../../reference/half.ts';

const LARGEST = 448;
const LARGEST_HALF = 65504;

/** One head of a page as bits of E4M3, with its scale. */
export interface Fp8Head extends Head {
  /** [128, d], bits of E4M3. */
  readonly codes: Uint8Array;
  /** f16 bits. */
  readonly scale: number;
}

/** Bits of the nearest E4M3, halves to even, for |x| ≤ 448. */
export function toE4M3(x: number): number {
  const size = Math.abs(x);
  // Numbers below 2^-6 are multiples of 2^-9.
  const exponent = Math.max(-6, size === 0 ? -6 : Math.floor(Math.log2(size)));
  const eighths = roundHalfEven(size / 2 ** (exponent - 3));
  // eighths is at most 16, which carries into the exponent; subnormals have the exponent field 0.
  return (x < 0 ? 128 : 0) | (eighths + (exponent + 6) * 8);
}

/** The value of E4M3 bits, exact; 0x7f, which is no number and which nobody writes, as 480. */
export function fromE4M3(bits: number): number {
  const exponent = (bits >> 3) & 15;
  const size = exponent === 0 ? (bits & 7) * 2 ** -9 : (8 + (bits & 7)) * 2 ** (exponent - 10);
  return bits & 128 ? -size : size;
}

const fp8: ReferenceCodec<Fp8Head> = {
  format: 'fp8',
  // Half of the last of four binary places at most, 0.026 on average over a Gaussian.
  tolerance: { relative: 0.028, smallest: 1e-2, largest: 1e4 },
  encode(rows, headDim, firstRow = 0) {
    const inside = rows.subarray(firstRow * headDim);
    const max = inside.reduce((most, x) => Math.max(most, Math.abs(x)), 0);
    const scaleBits = halfAbove(Math.fround(Math.min(LARGEST_HALF, max) / LARGEST));
    const scale = fromHalf(scaleBits);
    const codes = Uint8Array.from(rows, (x, i) => {
      if (i < firstRow * headDim || scale === 0) return 0;
      return toE4M3(Math.max(-LARGEST, Math.min(LARGEST, Math.fround(x / scale))));
    });
    return { format: 'fp8', headDim, firstRow, codes, scale: scaleBits };
  },
  decode: ({ codes, scale }) => Float32Array.from(codes, (code) => Math.fround(fromE4M3(code) * fromHalf(scale))),
  scores: (query, { headDim, codes, scale }) =>
    Float64Array.from(
      { length: PAGE_TOKENS },
      (_, t) => query.reduce((sum, x, c) => sum + x * fromE4M3(codes[t * headDim + c]!), 0) * fromHalf(scale),
    ),
  mix: (weights, { headDim, codes, scale }) =>
    Float64Array.from(
      { length: headDim },
      (_, c) =>
        weights.reduce((sum, weight, t) => sum + weight * fromE4M3(codes[t * headDim + c]!), 0) * fromHalf(scale),
    ),
  stored: ({ codes, scale }) => ({ codes, scale: bytesOf(Uint16Array.of(scale)) }),
};

export const formats = [
  defineYardstick({
    name: 'fp8',
    id: 10,
    rank: 14,
    tier: 'warm',
    codeBits: 8,
    nested: false,
    rotated: false,
    parts: [{ fields: [{ name: 'codes', elementBits: 8 }] }, { fields: [{ name: 'scale', headBytes: 2 }] }],
    source: 'E4M3, Micikevicius et al. 2022, with one scale per page and head',
    layoutVersion: 1,
  }),
] as const;

export const codecs = { fp8 } as const;
