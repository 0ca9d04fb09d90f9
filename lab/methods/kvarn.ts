/**
 * kvarnB: KVarN (Müller et al., arXiv 2606.03458) with B bits. A head of a page is rotated by a Hadamard matrix and
 * then divided by a scale for each channel and one for each token, so that all channels and all tokens deviate alike;
 * what is left has steps of one size from the least to the largest, a channel of keys or a token of values at a time.
 *
 * The scales come from 16 rounds, in each of which the deviations of channels or tokens are divided out, first those
 * that share no range in the grid, then the others. Deviations are held within 0.001 and 1,000, scales at e^−0.3 or
 * more, and of all rounds the one counts in which the deviations are most alike: where largest over least, of channels
 * and of tokens together, is least. One of the two scales is part of the step of the grid; the other, low and step are
 * in f16: b + 16·2/128 + 16/d bits for keys, b + 16·2/d + 16/128 for values. Published sinks are a whole page of 128
 * tokens, here they are those of all caches.
 */
import { PAGE_TOKENS, type Side } from 'palimpsest/lab';
import { hadamard } from './hadamard.ts';
import { headwise } from './headwise.ts';
import type { PageMethod } from './paged.ts';
import { inHalf } from './rot-head.ts';
import { quantizeUniform } from './xquant.ts';

export type KvarnBits = 2 | 3 | 4;

const ROUNDS = 16;
const LEAST_DEVIATION = 1e-3;
const LARGEST_DEVIATION = 1e3;
const LEAST_LOG = -0.3;
const LARGEST_LOG = 10;

/** The bits of both sides that a cache names; null for any other cache. */
export function kvarnOf(cache: string): Readonly<Record<Side, KvarnBits>> | null {
  const [, k, v] = /^kvarn([2-4])(?::kvarn([2-4]))?$/.exec(cache) ?? [];
  return k === undefined ? null : { k: Number(k) as KvarnBits, v: Number(v ?? k) as KvarnBits };
}

export const kvarnCaches = (): string[] => ['kvarn4', 'kvarn4:kvarn2', 'kvarn3', 'kvarn2'];

export interface Balance {
  /** What rows [rows, d] are divided by. */
  readonly tokens: Float64Array;
  readonly channels: Float64Array;
}

/** Deviations along one axis of rows [rows, d] that are divided by scales; with n − 1, as published. */
function deviations(
  rows: Float32Array,
  d: number,
  { tokens, channels }: Balance,
  axis: 'token' | 'channel',
): Float64Array {
  const count = rows.length / d;
  const each = axis === 'token' ? count : d;
  const [sums, squares] = [new Float64Array(each), new Float64Array(each)];
  for (let t = 0; t < count; t++)
    for (let c = 0; c < d; c++) {
      const x = rows[t * d + c]! / tokens[t]! / channels[c]!;
      const at = axis === 'token' ? t : c;
      sums[at]! += x;
      squares[at]! += x * x;
    }
  const of = rows.length / each;
  return sums.map((sum, at) => Math.sqrt(Math.max(0, squares[at]! - (sum * sum) / of) / (of - 1)));
}

const spread = (x: Float64Array): number => Math.max(...x) / Math.max(1e-8, Math.min(...x));

/** How unlike deviations are: 2 where all are alike. */
export const imbalance = (rows: Float32Array, d: number, balance: Balance): number =>
  spread(deviations(rows, d, balance, 'token')) + spread(deviations(rows, d, balance, 'channel'));

/**
 * The scales of tokens and channels of rows [rows, d]. `first`: whose deviations are divided out first in every round.
 */
export function balanced(rows: Float32Array, d: number, first: 'token' | 'channel'): Balance {
  const logs = { token: new Float64Array(rows.length / d), channel: new Float64Array(d) };
  const scales = (): Balance => ({ tokens: logs.token.map(Math.exp), channels: logs.channel.map(Math.exp) });
  const divide = (axis: 'token' | 'channel'): void => {
    const found = deviations(rows, d, scales(), axis);
    for (const [at, one] of found.entries()) {
      const log = logs[axis][at]! + Math.log(Math.min(LARGEST_DEVIATION, Math.max(LEAST_DEVIATION, one)));
      logs[axis][at] = Math.min(LARGEST_LOG, Math.max(LEAST_LOG, log));
    }
  };
  let best = scales();
  let least = imbalance(rows, d, best);
  for (let round = 0; round < ROUNDS; round++) {
    divide(first);
    divide(first === 'token' ? 'channel' : 'token');
    const now = scales();
    const left = imbalance(rows, d, now);
    if (left <= least) [best, least] = [now, left];
  }
  return best;
}

/** Bytes of a head of a page. */
export const kvarnHeadBytes = (headDim: number, bits: KvarnBits, side: Side): number =>
  (PAGE_TOKENS * headDim * bits) / 8 + (side === 'k' ? 4 * headDim + 2 * PAGE_TOKENS : 4 * PAGE_TOKENS + 2 * headDim);

/** Codes and decodes rows [128, d] from firstRow on, in place. */
export function codeKvarn(rows: Float32Array, bits: KvarnBits, side: Side, firstRow: number): void {
  const d = rows.length / PAGE_TOKENS;
  const own = rows.subarray(firstRow * d);
  hadamard(own, d);
  const { tokens, channels } = balanced(own, d, side === 'k' ? 'token' : 'channel');
  // One scale goes into low and step of its range, so that only the other is rounded by itself.
  const kept =
    side === 'k'
      ? { tokens: inHalf(Float32Array.from(tokens)), channels }
      : { tokens, channels: inHalf(Float32Array.from(channels)) };
  const scaleAt = (i: number): number => kept.tokens[Math.floor(i / d)]! * kept.channels[i % d]!;
  for (let i = 0; i < own.length; i++) own[i]! /= scaleAt(i);
  quantizeUniform(own, d, bits, side === 'k' ? 'channel' : 'token', 0, d);
  for (let i = 0; i < own.length; i++) own[i]! *= scaleAt(i);
  hadamard(own, d);
}

export const kvarnPages =
  (bits: Readonly<Record<Side, KvarnBits>>): PageMethod =>
  ({ model: { config } }, rope) =>
    headwise(config, rope, {
      code: (rows, { side, firstRow }) => {
        codeKvarn(rows, bits[side], side, firstRow);
        return kvarnHeadBytes(config.headDim, bits[side], side);
      },
    });
