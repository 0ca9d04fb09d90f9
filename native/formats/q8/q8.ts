/**
 * q8: symmetric int8, one f16 scale per token and head.
 *
 * s = f16(max|x| / 127); code = round half even(x / s), clamped to ±127 (float32 arithmetic); x̂ = s·code.
 * A row whose scale rounds to zero (max|x| below 2^-25·127) gets codes 0 and decodes to exact zeros.
 *
 * Bytes: codes in the i8 tile (one byte per element), then 128 f16 scales per head: 8 + 16/d bits per element. Pages in
 * the window are stored in this format. It is not ggml's q8_0, whose groups have 32 elements. When not to use it: where
 * bytes matter more than a divergence of 1e-5. Rows with an rms below 3e-5 lose relative accuracy, because their f16
 * scale is subnormal and has few digits: the error is 2.3% at 1e-5, and at 1e-6 nothing is left. (f16 itself is off by
 * 0.2% at 1e-5 and by 1.7% at 1e-6.)
 */
import { PAGE_TOKENS } from '../../layout.ts';
import { bytesOf, type EncodedHead, type ReferenceCodec, toTile } from '../../reference/codec.ts';
import { roundHalfEven } from '../../reference/float32.ts';
import { fromHalf, toHalf } from '../../reference/half.ts';
import { CODED_HEAD_DIMS, defineFormat } from '../descriptor.ts';

const clamp = (code: number): number => Math.min(127, Math.max(-127, code));

const q8: ReferenceCodec<EncodedHead> = {
  format: 'q8',
  // The largest value of a row is about 3.5 times its rms, and a step of max/127 has an rms error of step/√12. For
  // `smallest` see above.
  tolerance: { relative: 0.012, smallest: 1e-4, largest: 1e5 },

  encode(rows, headDim, firstRow = 0) {
    const codes = new Uint8Array(PAGE_TOKENS * headDim).fill(128);
    const rowScales = new Uint16Array(PAGE_TOKENS);
    for (let t = firstRow; t < PAGE_TOKENS; t++) {
      const row = rows.subarray(t * headDim, (t + 1) * headDim);
      const max = row.reduce((most, x) => Math.max(most, Math.abs(x)), 0);
      rowScales[t] = toHalf(Math.fround(max / 127));
      const scale = fromHalf(rowScales[t]!);
      if (scale === 0) continue;
      for (const [c, x] of row.entries()) {
        codes[t * headDim + c] = roundHalfEven(clamp(Math.fround(x / scale))) + 128;
      }
    }
    return { format: 'q8', headDim, firstRow, codes, rowScales, means: new Int8Array(0), meanScale: 0, reference: 0 };
  },

  decode({ headDim, codes, rowScales }: EncodedHead) {
    return Float32Array.from(codes, (code, i) =>
      Math.fround((code - 128) * fromHalf(rowScales[Math.floor(i / headDim)]!)),
    );
  },

  scores(query, { headDim, codes, rowScales }) {
    return Float64Array.from(rowScales, (bits, t) => {
      let sum = 0;
      for (let c = 0; c < headDim; c++) sum += query[c]! * (codes[t * headDim + c]! - 128);
      return fromHalf(bits) * sum;
    });
  },

  mix(weights, { headDim, codes, rowScales }) {
    const out = new Float64Array(headDim);
    for (let t = 0; t < PAGE_TOKENS; t++) {
      const weight = weights[t]! * fromHalf(rowScales[t]!);
      for (let c = 0; c < headDim; c++) out[c]! += weight * (codes[t * headDim + c]! - 128);
    }
    return out;
  },

  stored: ({ headDim, codes, rowScales }, side) => ({
    codes: toTile(side, headDim, codes).map((code) => code - 128),
    rowScales: bytesOf(rowScales),
  }),
};

export const formats = [
  defineFormat({
    name: 'q8',
    id: 1,
    rank: 10,
    tier: 'exact',
    codeBits: 8,
    from: ['f16'],
    rungs: { k: 0, v: 0 },
    window: true,
    nested: false,
    headDims: CODED_HEAD_DIMS,
    rope: 'post',
    rotated: false,
    parts: [{ fields: [{ name: 'codes', elementBits: 8 }] }, { fields: [{ name: 'rowScales', tokenBytes: 2 }] }],
    source: 'symmetric int8, one f16 scale per token and head',
    layoutVersion: 1,
  }),
] as const;

export const codecs = { q8 } as const;
