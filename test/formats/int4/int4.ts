/**
 * int4: symmetric 4-bit codes with one f16 scale per token and head, and nothing else: no rotation, no mean. It stands
 * here to show that a format is a folder of one TypeScript file and one C++ file, and it defines no more than it must:
 * attention decodes its pages.
 *
 * s = f16(max|x| / 7); code = round half even(x / s), clamped to ±7, plus 8; x̂ = s·(code − 8). A row whose scale is
 * zero has codes 8.
 *
 * Bytes (one head): codes row by row, two a byte, the first in the low half; then 128 f16 scales: 4 + 16/d bits per
 * element. When not to use it: where rows have outliers, which stretch the scale of all others.
 */
import { CODED_HEAD_DIMS, defineFormat } from '../../../native/formats/descriptor.ts';
import { PAGE_TOKENS } from '../../../native/layout.ts';
import { bytesOf, type Head, type ReferenceCodec } from '../../../native/reference/codec.ts';
import { roundHalfEven } from '../../../native/reference/float32.ts';
import { fromHalf, toHalf } from '../../../native/reference/half.ts';

interface Int4Head extends Head {
  /** [128, d], 1..15. */
  readonly codes: Uint8Array;
  /** [128] f16 bits. */
  readonly scales: Uint16Array;
}

const int4: ReferenceCodec<Int4Head> = {
  format: 'int4',
  // The largest of a row of 64 is some 2.5 times its rms; a step of max/7 errs by its own size over √12.
  tolerance: { relative: 0.13, smallest: 1e-3, largest: 1e4 },
  encode(rows, headDim, firstRow = 0) {
    const codes = new Uint8Array(PAGE_TOKENS * headDim).fill(8);
    const scales = new Uint16Array(PAGE_TOKENS);
    for (let t = firstRow; t < PAGE_TOKENS; t++) {
      const row = rows.subarray(t * headDim, (t + 1) * headDim);
      const max = row.reduce((most, x) => Math.max(most, Math.abs(x)), 0);
      scales[t] = toHalf(Math.fround(max / 7));
      const scale = fromHalf(scales[t]!);
      if (scale === 0) continue;
      for (const [c, x] of row.entries()) {
        codes[t * headDim + c] = roundHalfEven(Math.min(7, Math.max(-7, Math.fround(x / scale)))) + 8;
      }
    }
    return { format: 'int4', headDim, firstRow, codes, scales };
  },
  decode: ({ headDim, codes, scales }) =>
    Float32Array.from(codes, (code, i) => Math.fround((code - 8) * fromHalf(scales[Math.floor(i / headDim)]!))),
  scores(query, head) {
    const rows = int4.decode(head);
    return Float64Array.from({ length: PAGE_TOKENS }, (_, t) =>
      query.reduce((sum, x, c) => sum + x * rows[t * head.headDim + c]!, 0),
    );
  },
  mix(weights, head) {
    const rows = int4.decode(head);
    return Float64Array.from({ length: head.headDim }, (_, c) =>
      weights.reduce((sum, weight, t) => sum + weight * rows[t * head.headDim + c]!, 0),
    );
  },
  stored: ({ codes, scales }) => ({
    codes: Uint8Array.from({ length: codes.length / 2 }, (_, i) => codes[2 * i]! | (codes[2 * i + 1]! << 4)),
    scales: bytesOf(scales),
  }),
};

export const formats = [
  defineFormat({
    name: 'int4',
    id: 60,
    rank: 25,
    tier: 'warm',
    codeBits: 4,
    from: 'better',
    window: false,
    nested: false,
    headDims: CODED_HEAD_DIMS,
    rope: 'post',
    rotated: false,
    parts: [{ fields: [{ name: 'codes', elementBits: 4 }] }, { fields: [{ name: 'scales', tokenBytes: 2 }] }],
    source: 'the plainest quantizer there is',
    layoutVersion: 1,
  }),
] as const;

export const codecs = { int4 } as const;
