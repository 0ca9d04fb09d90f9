/** What every bench is given to work with, and how it reports its results. */
import { KvError } from '../../native/index.ts';
import type { BenchRow } from './rows.ts';
import { type Pair, type Shape, shapeName } from './shapes.ts';
import type { StreamRecord } from './stream.ts';

export interface Settings {
  /** Null means that the bench chooses. */
  readonly shapes: readonly Shape[] | null;
  readonly formats: readonly Pair[] | null;
  readonly tokens: readonly number[] | null;
  readonly threads: readonly number[];
  readonly full: boolean;
  readonly peers: boolean;
  readonly rounds: number;
  readonly arenaBytes: number | undefined;
  readonly model: string;
  readonly steps: number;
  readonly kvBudget: string;
  readonly sessions: number;
  /** Entries of the log that audit asks. */
  readonly entries: number;
}

export interface Bench {
  readonly settings: Settings;
  readonly stream: StreamRecord;
  readonly isa: string;
  readonly root: string;
  readonly random: () => number;
  add(row: BenchRow): void;
  say(line: string): void;
}

type Measured = Pick<BenchRow, 'bench' | 'tokens' | 'threads' | 'format' | 'nsPerToken'> & Partial<BenchRow>;

/** A row of our own cache. Columns that are not given are null. */
export function rowOf({ isa }: Bench, shape: Shape, measured: Measured): BenchRow {
  return {
    shape: shapeName(shape),
    kvHeads: shape.kvHeads,
    groupSize: shape.queryHeads / shape.kvHeads,
    headDim: shape.headDim,
    isa,
    gbPerSecond: null,
    shareOfStream: null,
    ratioToF16: null,
    error: null,
    peer: null,
    peerRatio: null,
    ...measured,
  };
}

export function wholePages(tokens: readonly number[]): readonly number[] {
  for (const count of tokens) {
    if (!(count >= 128 && count % 128 === 0 && count <= 2 ** 20)) {
      throw new KvError('bad-argument', `${count} tokens are not whole pages`, {
        hint: 'multiples of 128 up to 1048576',
      });
    }
  }
  return tokens;
}

export const thousands = (n: number): string => n.toLocaleString('en-US');
