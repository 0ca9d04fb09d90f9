/**
 * Steering: codes of keys chosen so that what they get wrong lies across the queries, where no score shows it.
 *
 * The queries q of one KV head, those of all its query heads that the layer keeps, give a metric in which an error e of
 * a key is as large as eᵀWe, by its own square and by the squares of the errors of scores that it makes:
 *   W = I + ½C·d / tr C,   C = Σ qqᵀ                                                      (so the number and the size
 *   of the queries do not matter)
 *   W = NᵀΔN, N unit lower triangular, so that eᵀWe = Σ_c δ_c·(e_c + Σ_{i<c} N_ci·e_i)²
 * Channels are coded one after the other. Channel c is coded as if it were x_c − Σ_{i<c} N_ci·e_i, which takes back
 * what earlier channels got wrong as far as the rest of the key can. Where N is the identity, codes are those of the
 * plain format.
 *
 * Source: SQuat, Wang et al. 2025 (arXiv 2503.24358), which is GPTQ's error feedback with the queries' metric. Not
 * theirs: blocks of one channel, all directions instead of the first r (with the trace normalized there is no
 * difference, docs/lab/formats.md), and queries of the last 128 tokens.
 */
import { rotate } from './rotation.ts';

/** What an error of scores counts beside an error of keys: ¼ to 2 differ little (docs/lab/formats.md). */
const QUERY_SHARE = 0.5;

export interface Steering {
  /** N, [d, d]; only what is below the diagonal counts. */
  readonly feedback: Float32Array;
  /** δ, [d]. */
  readonly weights: Float32Array;
}

/**
 * The steering by queries [rows, d], for codes of the rows themselves or of rotated ones. Null where no query is other
 * than zero.
 */
export function steeringOf(queries: Float32Array, headDim: number, isTurned: boolean): Steering | null {
  const d = headDim;
  const w = new Float64Array(d * d);
  for (let at = 0; at < queries.length; at += d) {
    const q = queries.slice(at, at + d);
    if (isTurned) rotate(q);
    for (let i = 0; i < d; i++) for (let j = 0; j <= i; j++) w[i * d + j]! += q[i]! * q[j]!;
  }
  let trace = 0;
  for (let i = 0; i < d; i++) trace += w[i * d + i]!;
  if (!(trace > 0)) return null;
  const share = (QUERY_SHARE * d) / trace;
  for (let i = 0; i < d; i++) for (let j = 0; j <= i; j++) w[i * d + j] = w[i * d + j]! * share + (i === j ? 1 : 0);
  const feedback = new Float32Array(d * d);
  const weights = new Float32Array(d);
  // From the last channel to the first: row c of N is that of what is left of W, over its diagonal.
  for (let c = d - 1; c >= 0; c--) {
    const diagonal = w[c * d + c]!;
    weights[c] = diagonal;
    for (let i = 0; i < c; i++) {
      const back = w[c * d + i]! / diagonal;
      feedback[c * d + i] = back;
      for (let j = 0; j <= i; j++) w[i * d + j]! -= back * w[c * d + j]!;
    }
  }
  return { feedback, weights };
}

/**
 * x − Σ_{i<c} N_ci·values[i], in float32 and in the order of channels: what channel c is coded as, if these are the
 * errors of the others.
 */
export const lessShares = (x: number, c: number, values: Float32Array, feedback: Float32Array): number =>
  addShares(x, c, values, feedback, -1);

/** x + Σ_{i<c} N_ci·values[i], likewise. */
export const plusShares = (x: number, c: number, values: Float32Array, feedback: Float32Array): number =>
  addShares(x, c, values, feedback, 1);

function addShares(x: number, c: number, values: Float32Array, feedback: Float32Array, sign: 1 | -1): number {
  let sum = x;
  for (let i = 0; i < c; i++)
    sum = Math.fround(sum + sign * Math.fround(feedback[c * values.length + i]! * values[i]!));
  return sum;
}

/**
 * The steering by queries [rows, d], for codes that weigh channels: `weights` is the mean square in each. Null where no
 * query is other than zero.
 */
export function channelPowers(queries: Float32Array, headDim: number): Steering | null {
  const rows = queries.length / headDim;
  const sums = new Float64Array(headDim);
  for (const [i, q] of queries.entries()) sums[i % headDim]! += q * q;
  const weights = Float32Array.from(sums, (sum) => sum / rows);
  return weights.some((one) => one > 0) ? { feedback: new Float32Array(), weights } : null;
}
