/**
 * nsn2: NSNQuant (Son et al., arXiv 2505.18231) with 2 bits. Rows of a page are divided by their norms, the mean of
 * each channel is taken off, what is left is divided by its norms again and rotated, so that every row is like one of
 * standard normals, whatever the model, and one codebook for vectors of four channels serves all. Both norms of a row
 * and the mean are kept in f16: 2 + 32/d + 16/128 bits. Keys have their rotary embedding, as pages hold them.
 */
import { PAGE_TOKENS } from 'palimpsest/lab';
import { hadamard } from './hadamard.ts';
import { headwise } from './headwise.ts';
import type { PageMethod } from './paged.ts';
import { inHalf } from './rot-head.ts';
import { fitWords, gaussians, quantizeWords, VECTOR } from './words.ts';

/** Words for four channels: 2 bits each. */
const WORDS = 256;
const FITTED_VECTORS = 16_384;
const ROUNDS = 20;

let fitted: Float32Array | null = null;
/** The codebook of four independent standard normals, [256, 4]. */
export const normalWords = (): Float32Array =>
  (fitted ??= fitWords(gaussians(FITTED_VECTORS * VECTOR, 1), { count: WORDS, rounds: ROUNDS, seed: 2 }));

/** Bytes of a head of a page. */
export const nsnHeadBytes = (headDim: number): number =>
  (PAGE_TOKENS * headDim * Math.log2(WORDS)) / VECTOR / 8 + PAGE_TOKENS * 2 * 2 + headDim * 2;

/** Codes and decodes rows [128, d] in place. */
export function codeNsn(rows: Float32Array, firstRow: number): void {
  const d = rows.length / PAGE_TOKENS;
  const count = PAGE_TOKENS - firstRow;
  const own = rows.subarray(firstRow * d);
  const outer = normalize(own, d);
  const sums = new Float64Array(d);
  for (let i = 0; i < own.length; i++) sums[i % d]! += own[i]!;
  const mean = inHalf(Float32Array.from(sums, (sum) => sum / count));
  for (let i = 0; i < own.length; i++) own[i]! -= mean[i % d]!;
  const inner = normalize(own, d);
  hadamard(own, d);
  quantizeWords(own, normalWords());
  hadamard(own, d);
  for (let i = 0; i < own.length; i++) {
    const row = Math.floor(i / d);
    own[i] = outer[row]! * (mean[i % d]! + inner[row]! * own[i]!);
  }
}

/** Divides each row by its root mean square, in place. → these, in f16 */
function normalize(rows: Float32Array, d: number): Float32Array {
  const scales = Float32Array.from({ length: rows.length / d }, (_, row) =>
    Math.sqrt(rows.subarray(row * d, (row + 1) * d).reduce((sum, one) => sum + one * one, 0) / d),
  );
  for (let i = 0; i < rows.length; i++) {
    const scale = scales[Math.floor(i / d)]!;
    rows[i] = scale === 0 ? 0 : rows[i]! / scale;
  }
  return inHalf(scales);
}

export const nsnPages: PageMethod = ({ model: { config } }, rope) =>
  headwise(config, rope, {
    code: (rows, { firstRow }) => {
      codeNsn(rows, firstRow);
      return nsnHeadBytes(config.headDim);
    },
  });
