/** What a bench writes down, and what no honest row can say. */
import { z } from 'zod';
import { FORMATS, PAGE_TOKENS, pageBytes, parsePair } from '../../native/index.ts';

export const benchRow = z
  .strictObject({
    bench: z.enum(['attention', 'prefill', 'demote', 'trial', 'remat', 'step']),
    /** Query heads/KV headsxhead size. */
    shape: z.string().regex(/^\d+\/\d+x\d+$/),
    kvHeads: z.int().positive(),
    groupSize: z.int().positive(),
    headDim: z.int().positive(),
    /** attention, prefill, step: tokens of history. demote, trial: tokens of one page. */
    tokens: z.int().nonnegative(),
    threads: z.int().positive(),
    isa: z.string(),
    /** K:V pair; demote and trial: `from>to`; a peer's own name for its cache type. */
    format: z.string(),
    /**
     * attention: per token of history and KV head, K and V, all query heads of the group. prefill: the same, per query.
     * demote: per token and KV head of one side; `attend` there is as in attention. remat: per token and KV head, K and V together. trial: per token and KV head, all
     * candidates of both sides. step: one whole step per token produced.
     */
    nsPerToken: z.number().positive(),
    /** Bytes of the cache's pages that were read, by that time; null where reading them is not the work. */
    gbPerSecond: z.number().positive().nullable(),
    /** The same as a share of the read stream of the same rounds. */
    shareOfStream: z.number().positive().nullable(),
    /** How many times faster than our own f16 in the same rounds. */
    ratioToF16: z.number().positive().nullable(),
    /** Relative L2 against float64 over the decoded values. */
    error: z.number().nonnegative().nullable(),
    /** Whose time this is; null: ours. */
    peer: z.string().nullable(),
    /** A peer's time over ours with rot4:rot4, the same shape, tokens and threads. */
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
    /** Per number of threads: typical and fastest pass of the run. */
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

/** Largest relative error of attention over the decoded values. */
export const ERROR_MAX = 1e-3;
/** Room for the noise of a clock. */
const SLACK = 1.03;

export interface Violation {
  readonly rule: 'stream' | 'bytes' | 'share' | 'error' | 'shape';
  readonly row: BenchRow;
  readonly what: string;
}

/** Bytes of one token's K and V of one KV head in a pair of formats, as the pages hold them. */
export function bytesPerToken(format: string, kvHeads: number, headDim: number): number {
  const { k, v } = parsePair(format);
  return (pageBytes(k, kvHeads, headDim) + pageBytes(v, kvHeads, headDim)) / PAGE_TOKENS / kvHeads;
}

const isOurs = (format: string): boolean => format.split(':').every((name) => Object.hasOwn(FORMATS, name));

/**
 * Rules that hold whatever is measured: nothing beats the stream, nothing gains more than the bytes it saves, what is fast is right.
 * A row that breaks one shows a fault of the bench (a warm arena, an idle baseline) or of the kernel, not a success.
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
