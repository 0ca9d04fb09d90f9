/**
 * What a book shares with other machines: a vector index on a server beside the book's own. The log is the truth and
 * the local index has all that it tells, so a server that is away costs nothing but what others learned: it is asked
 * again later, and what it lacks is found by comparing counts over ranges of seqs and sent.
 */
import { KvError } from '../native/index.ts';
import type { Filter } from './filter.ts';
import type { Limits, Neighbour, VectorEntry, VectorIndex } from './vector.ts';

/** How a shared index is. */
export interface SharedStatus {
  /** Address of the server. */
  readonly url: string;
  /** Why it was away when it was last asked; null: it answered. */
  readonly trouble: string | null;
  /** Sessions of this log that it has not acknowledged; null: not compared yet. */
  readonly waiting: number | null;
}

/**
 * At a session's start and end, never while tokens are made: two seconds in all. A server that hangs costs this once,
 * then it is left alone for a while.
 */
const SEARCH_MS = 1000;
const SYNC_MS = 1000;
/**
 * A server that let its time pass is left alone for this many times as long as it took, so that it costs a hundredth of
 * anybody's time. Chosen.
 */
const REST_FACTOR = 100;
/**
 * Pause before a server that was away is asked again; doubles up to the largest, and is drawn from its half to its
 * whole. Chosen.
 */
const PAUSE_MS = 1000;
const PAUSE_MAX_MS = 60_000;
/** A range that differs is halved down to this many entries. */
const RANGE = 256;

export class SharedIndex<T extends object> {
  readonly #index: VectorIndex<T>;
  readonly #url: string;
  readonly #log: string;
  /** What others are told, and as what. */
  readonly #told: (entries: readonly VectorEntry<T>[]) => readonly VectorEntry<T>[];
  readonly #onChange: (status: SharedStatus) => void;
  #trouble: string | null = null;
  #failures = 0;
  /** Answers that it gave. */
  #answers = 0;
  #restUntilMs = 0;
  /**
   * True if anything of the log may be missing there: at first, and after the server was away, since it may have lost
   * what it had.
   */
  #isUnsure = true;
  /** Entries of that which were not compared yet; null: nothing was. */
  #uncompared: number | null = null;
  /** Entries that were added since and are not acknowledged. */
  #pending: VectorEntry<T>[] = [];
  #last: Promise<void> = Promise.resolve();

  constructor(
    index: VectorIndex<T>,
    url: string,
    log: string,
    told: (entries: readonly VectorEntry<T>[]) => readonly VectorEntry<T>[],
    onChange: (status: SharedStatus) => void,
  ) {
    this.#told = told;
    this.#index = index;
    this.#url = url;
    this.#log = log;
    this.#onChange = onChange;
  }

  get status(): SharedStatus {
    return {
      url: this.#url,
      trouble: this.#trouble,
      waiting: this.#isUnsure ? this.#uncompared : this.#pending.length,
    };
  }

  /** The nearest of other logs; none while the server is away. */
  async search(vector: readonly number[], k: number, filter: Filter): Promise<Neighbour<T>[]> {
    const foreign = { field: 'log', equals: this.#log } as const;
    const narrowed = { ...filter, mustNot: [...(filter.mustNot ?? []), foreign] };
    const find = (): Promise<Neighbour<T>[]> =>
      this.#index.search(vector, k, { filter: narrowed, deadlineMs: SEARCH_MS });
    return (await this.#attempt(find)) ?? [];
  }

  /** Something was added to the local index: it is to be sent. */
  add(entry: VectorEntry<T>): void {
    this.#pending.push(entry);
  }

  /**
   * The local index was made again: what the server has of this log is compared, and first forgotten if the log lost
   * sessions.
   */
  async restart(isCut: boolean): Promise<void> {
    this.#isUnsure = true;
    if (isCut)
      await this.#attempt(() =>
        this.#index.remove({ must: [{ field: 'log', equals: this.#log }] }, { deadlineMs: SYNC_MS }),
      );
  }

  /** Sends what the server lacks, as far as it gets within a second. Never throws for a server. */
  sync(local: VectorIndex<T>): Promise<void> {
    this.#last = this.#last.then(async () => {
      if (!this.#isUnsure && this.#pending.length === 0) return;
      await this.#attempt(() => this.#send(local, performance.now() + SYNC_MS));
    });
    return this.#last;
  }

  async close(): Promise<void> {
    await this.#index.close();
  }

  async #send(local: VectorIndex<T>, untilMs: number): Promise<void> {
    const limits = (): Limits => ({ deadlineMs: Math.max(0, untilMs - performance.now()) });
    if (this.#isUnsure) await this.#compare(local, limits);
    const sent = this.#pending.slice();
    await this.#tell(sent, limits());
    this.#pending.splice(0, sent.length);
  }

  async #compare(local: VectorIndex<T>, limits: () => Limits): Promise<void> {
    // What is added from here on is sent by itself.
    this.#pending = [];
    const mine = (await allOf(local)).sort((a, b) => a.id.seq - b.id.seq);
    this.#uncompared = mine.length;
    const ranges = [mine];
    // What is missing is sent before the next range is compared, so that every attempt gets further.
    for (let range = ranges.pop(); range !== undefined; range = ranges.pop()) {
      const there = await this.#countOf(range, limits());
      const half = range.length >> 1;
      if (there !== range.length && range.length > RANGE) {
        ranges.push(range.slice(half), range.slice(0, half));
        continue;
      }
      if (there !== range.length) await this.#tell(range, limits());
      this.#uncompared -= range.length;
    }
    this.#isUnsure = false;
  }

  async #tell(entries: readonly VectorEntry<T>[], limits: Limits): Promise<void> {
    await this.#index.add(this.#told(entries), limits);
    this.#answers++;
  }

  async #countOf(range: readonly VectorEntry<T>[], limits: Limits): Promise<number> {
    if (range.length === 0) return 0;
    const seqs = { field: 'seq', range: { min: range[0]!.id.seq, max: range.at(-1)!.id.seq } };
    const filter = { must: [{ field: 'log', equals: this.#log }, seqs] };
    const there = await this.#index.count({ filter, ...limits });
    this.#answers++;
    return there;
  }

  /** Asks the server unless it is left alone; what it does not do is remembered as its trouble. → null then */
  async #attempt<R>(work: () => Promise<R>): Promise<R | null> {
    if (performance.now() < this.#restUntilMs) return null;
    const before = this.#trouble;
    const { beganMs, answers } = { beganMs: performance.now(), answers: this.#answers };
    try {
      const result = await work();
      this.#trouble = null;
      this.#failures = 0;
      return result;
    } catch (error) {
      if (!(error instanceof KvError)) throw error;
      this.#trouble = error.message;
      this.#isUnsure = true;
      const pauseMs = Math.min(PAUSE_MAX_MS, PAUSE_MS * 2 ** this.#failures++);
      const now = performance.now();
      const isSilent = error.code === 'aborted' && this.#answers === answers;
      const restMs = isSilent ? Math.max(pauseMs, REST_FACTOR * (now - beganMs)) : pauseMs;
      this.#restUntilMs = now + restMs * (0.5 + Math.random() / 2);
      return null;
    } finally {
      if ((before === null) !== (this.#trouble === null)) this.#onChange(this.status);
    }
  }
}

/** Everything in an index, or what passes the filter. */
export async function allOf<T extends object>(index: VectorIndex<T>, filter: Filter = {}): Promise<VectorEntry<T>[]> {
  const all: VectorEntry<T>[] = [];
  for (let after: string | null = null; ; ) {
    const page = await index.list({ filter, after, limit: 4096 });
    all.push(...page.items);
    if (page.next === null) return all;
    after = page.next;
  }
}
