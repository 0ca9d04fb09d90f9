/**
 * How far two runs over the same tokens differ. Instead of logits, which are as many floats per token as the vocabulary
 * has words, both runs keep the last row of the residual stream, which is m floats. The logits of both are computed
 * here in blocks.
 */
import { KvError } from '../../native/index.ts';
import type { DenseBackend } from '../transformer/types.ts';
import type { Divergence } from './types.ts';

const BLOCK_ROWS = 32;
/** In `targets`, means that the token after this row is not known. */
export const NO_TARGET = -1;

/**
 * Sums over the tokens of all windows, from which the means are computed. `targets` counts the tokens whose successor
 * is known.
 */
export const emptySums = () => ({
  tokens: 0,
  targets: 0,
  sameTop: 0,
  lossNats: 0,
  lossExactNats: 0,
  klds: [] as number[],
});
export type DivergenceSums = ReturnType<typeof emptySums>;

/**
 * Adds up, over the rows of two runs [rows, m], the divergence KL(exact ‖ ours) in nats, how often both have the same
 * top token, and the loss of the true next token, which `targets` [rows] holds where it is known.
 */
export async function addDivergence(
  sums: DivergenceSums,
  dense: DenseBackend,
  exact: Float32Array,
  ours: Float32Array,
  targets: Int32Array,
  width: number,
): Promise<void> {
  if (exact.length !== ours.length || exact.length !== targets.length * width) {
    throw new KvError('bad-shape', 'runs of different lengths cannot be compared', {
      values: { exact: exact.length, ours: ours.length, rows: targets.length, width },
    });
  }
  for (let row = 0; row < targets.length; row += BLOCK_ROWS) {
    const rows = Math.min(BLOCK_ROWS, targets.length - row);
    const logitsExact = (await dense.logits(exact.slice(row * width, (row + rows) * width), rows)).slice();
    const logitsOurs = await dense.logits(ours.slice(row * width, (row + rows) * width), rows);
    const vocab = logitsExact.length / rows;
    for (let r = 0; r < rows; r++) {
      addRow(
        sums,
        logitsExact.subarray(r * vocab, (r + 1) * vocab),
        logitsOurs.subarray(r * vocab, (r + 1) * vocab),
        targets[row + r]!,
      );
    }
  }
}

function addRow(sums: DivergenceSums, exact: Float32Array, ours: Float32Array, target: number): void {
  const p = logSumExp(exact);
  const q = logSumExp(ours);
  sums.tokens++;
  sums.klds.push(divergenceOf(exact, p.logSum, ours, q.logSum));
  if (p.top === q.top) sums.sameTop++;
  if (target !== NO_TARGET) {
    sums.targets++;
    sums.lossExactNats += p.logSum - exact[target]!;
    sums.lossNats += q.logSum - ours[target]!;
  }
}

/**
 * KL(exact ‖ ours) in nats of one row of logits each, [vocab], with the logarithms of their sums of exponentials; never
 * below 0.
 */
export function divergenceOf(exact: Float32Array, exactLogSum: number, ours: Float32Array, logSum: number): number {
  let kld = 0;
  for (let i = 0; i < exact.length; i++) {
    const logP = exact[i]! - exactLogSum;
    // A term below e^-30 is too small to change the sum.
    if (logP > -30) kld += Math.exp(logP) * (logP - (ours[i]! - logSum));
  }
  return Math.max(0, kld);
}

/** Logits this far below the largest of both rows are so unlikely that they change nothing: e^-20 is 2e-9. */
const UNLIKELY = -20;

/** Steps of the exponent in which powers of e are known. */
const STEPS = 64;
const POWERS = Float64Array.from({ length: 1 - UNLIKELY * STEPS }, (_, step) => Math.exp(-step / STEPS));

/**
 * e^x of UNLIKELY ≤ x ≤ 0, as exact as Math.exp but for the last bit, in a third of its time: the power of the step
 * above x, and six terms of a series, behind which (1/64)^7 / 7! is left, half a bit.
 */
function power(x: number): number {
  const step = (-x * STEPS) | 0;
  const r = x + step / STEPS;
  return POWERS[step]! * (1 + r * (1 + r * (1 / 2 + r * (1 / 6 + r * (1 / 24 + r * (1 / 120 + r * (1 / 720)))))));
}

/** The same of two rows alone, in one pass: for many rows, of which nothing else is asked. */
export function divergenceBetween(exact: Float32Array, ours: Float32Array): number {
  const [p, q] = [largest(exact), largest(ours)];
  let sumP = 0;
  let sumQ = 0;
  let moved = 0;
  for (let i = 0; i < exact.length; i++) {
    const a = exact[i]! - p;
    const b = ours[i]! - q;
    if (a < UNLIKELY && b < UNLIKELY) continue;
    const weight = Math.exp(a);
    sumP += weight;
    sumQ += Math.exp(b);
    moved += weight * (a - b);
  }
  return Math.max(0, moved / sumP - Math.log(sumP) + Math.log(sumQ));
}

/**
 * The same of one row beside many: what of it is the same for all. `weights`: exp(row − its largest), [vocab], with
 * those that are unlikely as 0.
 */
export interface Exact {
  readonly row: Float32Array;
  readonly largest: number;
  readonly weights: Float64Array;
  readonly sum: number;
}

export function exactOf(row: Float32Array): Exact {
  const most = largest(row);
  const weights = new Float64Array(row.length);
  let sum = 0;
  for (let i = 0; i < row.length; i++) {
    const below = row[i]! - most;
    if (below < UNLIKELY) continue;
    weights[i] = power(below);
    sum += weights[i]!;
  }
  return { row, largest: most, weights, sum };
}

/** KL(exact ‖ ours) in nats, never below 0. */
export function divergenceFrom({ row, largest: p, weights, sum }: Exact, ours: Float32Array): number {
  const q = largest(ours);
  let sumQ = 0;
  let moved = 0;
  for (let i = 0; i < row.length; i++) {
    const weight = weights[i]!;
    const b = ours[i]! - q;
    if (b >= UNLIKELY) sumQ += power(b);
    if (weight > 0) moved += weight * (row[i]! - p - b);
  }
  return Math.max(0, moved / sum - Math.log(sum) + Math.log(sumQ));
}

function largest(row: Float32Array): number {
  let max = row[0]!;
  for (let i = 1; i < row.length; i++) if (row[i]! > max) max = row[i]!;
  return max;
}

/** ln Σ exp of a row of logits, and the index of the largest. */
export function logSumExp(row: Float32Array): { logSum: number; top: number } {
  let top = 0;
  for (let i = 1; i < row.length; i++) if (row[i]! > row[top]!) top = i;
  const max = row[top]!;
  let sum = 0;
  for (let i = 0; i < row.length; i++) sum += Math.exp(row[i]! - max);
  return { logSum: max + Math.log(sum), top };
}

export function toDivergence(sums: DivergenceSums): Divergence {
  const sorted = [...sums.klds].sort((a, b) => a - b);
  const n = Math.max(1, sums.tokens);
  return {
    tokens: sums.tokens,
    meanKld: sums.klds.reduce((a, b) => a + b, 0) / n,
    kld99: sorted[Math.min(sorted.length - 1, Math.floor(0.99 * sorted.length))] ?? 0,
    sameTop: sums.sameTop / n,
    perplexity: Math.exp(sums.lossNats / Math.max(1, sums.targets)),
    perplexityExact: Math.exp(sums.lossExactNats / Math.max(1, sums.targets)),
  };
}
