/** Comparing a log with checkpoints that were kept elsewhere: what was signed must still be there, entry for entry. */
import { plural } from '../native/index.ts';
import type { Checkpoint } from './checkpoint.ts';
import { entryId, firstSeqOf } from './series.ts';
import type { Frontier } from './tree.ts';

/** Checkpoints that a log was compared with. */
export interface AnchorReport {
  /** How many. */
  readonly checkpoints: number;
  /** Checkpoints of a time before the first entry that retention left: nothing can be compared with them. */
  readonly removed: number;
  /** Entries behind the last checkpoint of their series: a cut or a change there would not show. */
  readonly unanchoredEntries: number;
  /** Time of the latest checkpoint, milliseconds since the epoch; null: there is none. */
  readonly latestMs: number | null;
}

/** What is wrong with one checkpoint: the series, the first entry that is in doubt, and a sentence. */
export interface Contradiction {
  readonly series: number;
  readonly seq: number;
  readonly what: string;
}

const hex = (bytes: Uint8Array): string => Buffer.from(bytes).toString('hex');

/** The checkpoints of one series, met one after the other while the series is read. */
export class SeriesCheckpoints {
  readonly #series: number;
  /** By size. */
  readonly #open: Checkpoint[];
  /** Checkpoints of sizes that retention left nothing to compare with. */
  removed = 0;
  /** The size that was met last, and the entries since. */
  #sound = 0;
  unanchoredEntries = 0;

  constructor(series: number, checkpoints: readonly Checkpoint[]) {
    this.#series = series;
    this.#open = checkpoints.filter((one) => one.series === series).sort((a, b) => a.size - b.size);
  }

  /** Entries from here to the next checkpoint: none may be met in between. */
  entriesToNext(leaves: number): number {
    const next = this.#open.find(({ size }) => size > leaves);
    return next === undefined ? Number.POSITIVE_INFINITY : next.size - leaves;
  }

  /** The state after the next entries. → what contradicts it */
  meet(tree: Frontier, hash: Uint8Array, entries: number): Contradiction | null {
    this.unanchoredEntries += entries;
    for (let next = this.#open[0]; next !== undefined && next.size <= tree.leaves; next = this.#open[0]) {
      this.#open.shift();
      if (next.size === 0) continue;
      if (next.size < tree.leaves) {
        this.removed++;
        continue;
      }
      if (hex(tree.root()) !== next.rootHash || hex(hash) !== next.headHash)
        return this.#against(
          this.#sound,
          `the first ${tree.leaves} entries are not those that were signed: ${entryId(firstSeqOf(this.#series) + this.#sound)} or a later one was changed`,
          next,
        );
      this.#sound = next.size;
      this.unanchoredEntries = 0;
    }
    return null;
  }

  /** The series ends here. → the first checkpoint that says there was more */
  end(entries: number): Contradiction | null {
    const checkpoint = this.#open.find(({ size }) => size > entries);
    if (checkpoint === undefined) return null;
    return this.#against(
      entries,
      `the series has ${plural(entries, 'entry', 'entries')}, and ${checkpoint.size} were signed: its end is missing`,
      checkpoint,
    );
  }

  #against(leaf: number, what: string, { place }: Checkpoint): Contradiction {
    return { series: this.#series, seq: firstSeqOf(this.#series) + leaf, what: `${what} (checkpoint ${place})` };
  }
}
