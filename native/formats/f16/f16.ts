/**
 * f16: plain IEEE 754 binary16, the format of the open page and of a window that must stay exact.
 *
 * Bytes: little-endian, keys [channels][tokens], values [tokens][channels], so that scores and mixing are the same
 * product. 16 bits per element. When not to use it: wherever q8 will do, which takes half the bytes at a divergence of
 * 1e-5.
 */
import { PAGE_TOKENS } from '../../layout.ts';
import { bytesOf, type Head, type ReferenceCodec } from '../../reference/codec.ts';
import { fromHalf, toHalf } from '../../reference/half.ts';
import { defineFormat } from '../descriptor.ts';

export interface HalfHead extends Head {
  /** [128, d] bits. The rows before firstRow are kept like any other. */
  readonly halves: Uint16Array;
}

const f16: ReferenceCodec<HalfHead> = {
  format: 'f16',
  // Half a unit in the last of eleven binary places; numbers below 2^-14 are subnormal and have fewer places.
  tolerance: { relative: 2 ** -11, smallest: 1e-2, largest: 1e4 },
  encode: (rows, headDim, firstRow = 0) => ({
    format: 'f16',
    headDim,
    firstRow,
    halves: Uint16Array.from(rows, (x) => toHalf(x)),
  }),
  decode: ({ halves }) => Float32Array.from(halves, (bits) => fromHalf(bits)),
  scores: (query, { headDim, halves }) =>
    Float64Array.from({ length: PAGE_TOKENS }, (_, t) =>
      query.reduce((sum, x, c) => sum + x * fromHalf(halves[t * headDim + c]!), 0),
    ),
  mix: (weights, { headDim, halves }) =>
    Float64Array.from({ length: headDim }, (_, c) =>
      weights.reduce((sum, weight, t) => sum + weight * fromHalf(halves[t * headDim + c]!), 0),
    ),
  stored({ headDim, halves }, side) {
    const turned = Uint16Array.from(
      halves,
      (_, i) => halves[(i % PAGE_TOKENS) * headDim + Math.floor(i / PAGE_TOKENS)]!,
    );
    return { halves: bytesOf(side === 'k' ? turned : halves) };
  },
};

export const formats = [
  defineFormat({
    name: 'f16',
    id: 0,
    rank: 0,
    tier: 'exact',
    codeBits: 16,
    from: ['q8'],
    window: true,
    nested: false,
    headDims: 'any',
    rope: 'post',
    rotated: false,
    parts: [{ fields: [{ name: 'halves', elementBits: 16 }] }],
    source: 'IEEE 754 binary16',
    layoutVersion: 1,
  }),
] as const;

export const codecs = { f16 } as const;
