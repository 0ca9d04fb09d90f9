/**
 * int3: asymmetric uniform codes of 3 bits, one scale and one low for each token and head. Whether rotation and
 * Gaussian levels are worth their trouble is seen beside it.
 *
 *   low = the least of the row, rounded down to f16; s = (most − low) / 7, rounded up to f16
 *   code = round half even((x − low) / s), clamped to 0..7, 0 where s is 0; x̂ = low + s·code (float32 arithmetic; a
 *   zero is never −0)
 * The error is at most half a step. A row of one value decodes to it, if f16 holds it.
 *
 * Attention multiplies the levels 2·code − 7 by integers: x̂ = (low + 3.5·s) + (s/2)·level, so a score is one product
 * and one sum of the query, and mixed values gain the same amount in every channel.
 *
 * Bytes (one head): the two high bits of the codes, 128·d/4, and the low bit, 128·d/8, as in rot3; then 128 scales and
 * 128 lows, f16: 3 + 32/d bits per element. When not to use it: wherever rot3 will do, which takes fewer bytes and errs
 * less.
 */

import { defineYardstick } from '../../formats/descriptor.ts';
import { PAGE_TOKENS } from '../../layout.ts';
import { bytesOf, type Head, type ReferenceCodec, toTile } from '../../reference/codec.ts';
import { roundHalfEven } from '../../reference/float32.ts';
import { fromHalf, halfAbove, halfBelow } from '../../reference/half.ts';
import { packPlanes } from '../../reference/planes.ts';

const LARGEST_HALF = 65504;

/** One head of a page as codes, with the scale and the low of every row. */
export interface Int3Head extends Head {
  /** [128, d], 0..7 */
  readonly codes: Uint8Array;
  /** [128] f16 bits. */
  readonly scales: Uint16Array;
  readonly lows: Uint16Array;
}

const int3: ReferenceCodec<Int3Head> = {
  format: 'int3',
  // A Gaussian in groups of 64 errs by 0.037 of its square (algorithms.md).
  tolerance: { relative: 0.2, smallest: 1e-4, largest: 1e4 },
  encode(rows, headDim, firstRow = 0) {
    const codes = new Uint8Array(PAGE_TOKENS * headDim);
    const scales = new Uint16Array(PAGE_TOKENS);
    const lows = new Uint16Array(PAGE_TOKENS);
    for (let t = firstRow; t < PAGE_TOKENS; t++) {
      // Rows that another format gave back may be a little beyond the range of f16.
      const row = rows
        .subarray(t * headDim, (t + 1) * headDim)
        .map((x) => Math.max(-LARGEST_HALF, Math.min(LARGEST_HALF, x)));
      lows[t] = halfBelow(row.reduce((least, x) => Math.min(least, x), LARGEST_HALF) + 0);
      const low = fromHalf(lows[t]!);
      const most = row.reduce((top, x) => Math.max(top, x), -LARGEST_HALF);
      scales[t] = halfAbove(Math.fround(Math.fround(most - low + 0) / 7));
      const scale = fromHalf(scales[t]!);
      if (scale === 0) continue;
      for (const [c, x] of row.entries()) {
        const steps = Math.fround(Math.fround(x - low) / scale);
        codes[t * headDim + c] = roundHalfEven(Math.min(7, Math.max(0, steps)));
      }
    }
    return { format: 'int3', headDim, firstRow, codes, scales, lows };
  },
  decode: ({ headDim, codes, scales, lows }) =>
    Float32Array.from(codes, (code, i) => {
      const t = Math.floor(i / headDim);
      return Math.fround(Math.fround(code * fromHalf(scales[t]!)) + fromHalf(lows[t]!));
    }),
  scores(query, { headDim, codes, scales, lows }) {
    const total = query.reduce((sum, x) => sum + x, 0);
    return Float64Array.from({ length: PAGE_TOKENS }, (_, t) => {
      const sum = query.reduce((sofar, x, c) => sofar + x * codes[t * headDim + c]!, 0);
      return fromHalf(scales[t]!) * sum + fromHalf(lows[t]!) * total;
    });
  },
  mix(weights, { headDim, codes, scales, lows }) {
    const lift = weights.reduce((sum, weight, t) => sum + weight * fromHalf(lows[t]!), 0);
    return Float64Array.from({ length: headDim }, (_, c) =>
      weights.reduce((sum, weight, t) => sum + weight * fromHalf(scales[t]!) * codes[t * headDim + c]!, lift),
    );
  },
  stored({ headDim, codes, scales, lows }, side) {
    const { hi, lo } = packPlanes(toTile(side, headDim, codes), 2, 1);
    return { high: hi, low: lo, scales: bytesOf(scales), lows: bytesOf(lows) };
  },
};

export const formats = [
  defineYardstick({
    name: 'int3',
    id: 9,
    rank: 32,
    tier: 'archive',
    codeBits: 3,
    nested: false,
    rotated: false,
    parts: [
      { fields: [{ name: 'high', elementBits: 2 }] },
      { fields: [{ name: 'low', elementBits: 1 }] },
      {
        fields: [
          { name: 'scales', tokenBytes: 2 },
          { name: 'lows', tokenBytes: 2 },
        ],
      },
    ],
    source: 'the plain asymmetric quantizer (algorithms.md, "Asymmetric uniform group quantizer"), one group a row',
    layoutVersion: 1,
  }),
] as const;

export const codecs = { int3 } as const;
