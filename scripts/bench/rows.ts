/** The rows that benches record, and the rules that every correct row obeys. */
import { z } from 'zod';
import { FORMATS, PAGE_TOKENS, pageBytes, parsePair } from '../../native/index.ts';

export const benchRow = z
  .strictObject({
    bench: z.enum(['attention', 'prefill', 'demote', 'trial', 'remat', 'park', 'step']),
    /** Query heads, KV heads and head size, as in 9/3x64. */
    shape: z.string().regex(/^\d+\/\d+x\d+$/),
    kvHeads: z.int().positive(),
    groupSize: z.int().positive(),
    headDim: z.int().positive(),
    /** The tokens of the history. For demote and trial, the tokens of a page. */
    tokens: z.int().nonnegative(),
    threads: z.int().positive(),
    isa: z.string(),
    /**
     * A pair of formats, K:V. For demote and trial, a move `from>to`. For park, what is done. For a peer, its own name
     * of the cache type.
     */
    format: z.string(),
    /**
     * For step, the time of a step. For the other benches, time per token and KV head: attention counts all query heads
     * of the group over K and V, prefill the same for one query, demote one side (except in its row `attend`, which is
     * as in attention), remat K and V together, and trial all candidates of both sides. For park, the time per token of
     * the session.
     */
    nsPerToken: z.number().positive(),
    /** How many bytes of the cache's pages were read in that time; null if reading them is not the work. */
    gbPerSecond: z.number().positive().nullable(),
    /** The same as a share of the read stream's speed in the same rounds. */
    shareOfStream: z.number().positive().nullable(),
    /** How many times faster it is than our f16 in the same rounds. */
    ratioToF16: z.number().positive().nullable(),
    /** The relative L2 error, compared with float64 from the decoded values. */
    error: z.number().nonnegative().nullable(),
    /** The peer that was measured, or null for ourselves. */
    peer: z.string().nullable(),
    /** The peer's time divided by ours with rot4:rot4 and the same shape, tokens and threads. */
    peerRatio: z.number().positive().nullable(),
  })
  .readonly();
export type BenchRow = z.infer<typeof benchRow>;

export const benchFile = z
  .strictObject({
    machine: z.strictObject({
      cpu: z.string(),
      cores: z.int().positive(),
      isa: z.string(),
      compiler: z.string(),
      node: z.string(),
      commit: z.string(),
    }),
    /** The typical and the fastest pass of the run for each number of threads. */
    stream: z.array(
      z.strictObject({
        threads: z.int().positive(),
        gbPerSecond: z.number().positive(),
        bestGbPerSecond: z.number().positive(),
      }),
    ),
    rows: z.array(benchRow),
  })
  .readonly();
export type BenchFile = z.infer<typeof benchFile>;

/** The largest relative error that attention may have. */
export const ERROR_MAX = 1e-3;
/** An allowance for inexact timing. */
const SLACK = 1.03;

export interface Violation {
  readonly rule: 'stream' | 'bytes' | 'share' | 'error' | 'shape';
  readonly row: BenchRow;
  readonly what: string;
}

/** The bytes that K and V of one token and KV head take in pages of a pair of formats. */
export function bytesPerToken(format: string, kvHeads: number, headDim: number): number {
  const { k, v } = parsePair(format);
  return (pageBytes(k, kvHeads, headDim) + pageBytes(v, kvHeads, headDim)) / PAGE_TOKENS / kvHeads;
}

const isOurs = (format: string): boolean => format.split(':').every((name) => Object.hasOwn(FORMATS, name));

/**
 * Checks rules that hold whatever is measured: nothing is faster than the read stream, nothing gains more speed than it
 * saves bytes, and results are correct. A row that breaks one is not a success but shows a mistake, in the bench (for
 * example an arena that was in the caches) or in the kernel.
 */
export function violations({ rows, stream }: Pick<BenchFile, 'rows' | 'stream'>): Violation[] {
  const found: Violation[] = [];
  for (const row of rows) {
    const say = (rule: Violation['rule'], what: string): number => found.push({ rule, row, what });
    const [queryHeads, kvHeads, headDim] = row.shape.split(/[/x]/).map(Number);
    if (queryHeads !== row.kvHeads * row.groupSize || kvHeads !== row.kvHeads || headDim !== row.headDim)
      say('shape', `${row.shape} is not ${row.kvHeads} KV heads of ${row.headDim} in groups of ${row.groupSize}`);
    const ceiling = stream.find(({ threads }) => threads === row.threads)?.bestGbPerSecond;
    if (row.gbPerSecond !== null) {
      if (ceiling === undefined) say('stream', `no stream was measured with ${row.threads} threads`);
      else if (row.gbPerSecond > ceiling * SLACK)
        say('stream', `reads ${row.gbPerSecond.toFixed(1)} GB/s where memory gives ${ceiling.toFixed(1)}`);
    }
    if ((row.gbPerSecond === null) !== (row.shareOfStream === null))
      say('share', 'has bytes without a share of the stream');
    if (row.bench === 'attention' && row.peer === null && row.ratioToF16 !== null && isOurs(row.format)) {
      const bound =
        bytesPerToken('f16', row.kvHeads, row.headDim) / bytesPerToken(row.format, row.kvHeads, row.headDim);
      if (row.ratioToF16 > bound * SLACK)
        say(
          'bytes',
          `is ${row.ratioToF16.toFixed(2)} times as fast as f16, with ${bound.toFixed(2)} times fewer bytes`,
        );
    }
    if (row.peer === null && row.error !== null && !(row.error <= ERROR_MAX))
      say('error', `errs by ${row.error.toExponential(1)}, allowed is ${ERROR_MAX}`);
  }
  return found;
}
