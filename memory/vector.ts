/**
 * What a vector index is, and what every one checks before anything reaches its core: the embedded one is C++ and
 * trusts its caller.
 */
import { KvError, show } from '../native/index.ts';
import { checkFields, type Fields, type Filter, type VectorId } from './filter.ts';

/** A vector with what is known about it. */
export interface VectorEntry<T> {
  readonly id: VectorId;
  readonly vector: readonly number[];
  readonly payload: T;
}

/** What a search found. */
export interface Neighbour<T> {
  /** Names it in every index and log. */
  readonly id: VectorId;
  /** Squared Euclidean distance; 0 is the same. */
  readonly distance: number;
  /** What is known about it. */
  readonly payload: T;
}

/** How long a caller waits. When the time is over, or the signal is aborted, the call throws 'aborted'. */
export interface Limits {
  /** Milliseconds from the call. Default: no limit for an embedded index, five seconds for a server. */
  readonly deadlineMs?: number;
  /** Ends the call early. */
  readonly signal?: AbortSignal;
}

/** Limits and a filter. */
export interface Narrowed extends Limits {
  /** Only what passes. Default: everything. */
  readonly filter?: Filter;
}

/** Part of a list. */
export interface Listing<T> {
  readonly items: readonly VectorEntry<T>[];
  /** Where the next one begins; null: there is none. */
  readonly next: string | null;
}

/**
 * The k nearest vectors, each with a payload. One interface for the embedded indexes and a server; one shared test
 * suite. Vectors are `dim` finite numbers, kept in f32. An entry that is added again replaces the one with its id.
 * Every call throws 'closed' after close(), 'aborted' when its limits are reached, and those of a server 'network' and
 * 'database'.
 */
export interface VectorIndex<T extends object> {
  readonly kind: string;
  readonly dim: number;
  /** Payload fields that a filter may name; `log` and `seq` of the id always are. */
  readonly fields: Fields;
  /** Adds all or, when one of them is not sound, none. */
  add(entries: readonly VectorEntry<T>[], limits?: Limits): Promise<void>;
  /** Nearest first. */
  search(vector: readonly number[], k: number, options?: Narrowed): Promise<Neighbour<T>[]>;
  /** Everything that passes, in listings of at most `limit` (default 256), in no order that means anything. */
  list(options?: Narrowed & { readonly after?: string | null; readonly limit?: number }): Promise<Listing<T>>;
  /** The number of those that pass. */
  count(options?: Narrowed): Promise<number>;
  /** Forgets what passes; `{}` is everything. */
  remove(filter: Filter, limits?: Limits): Promise<void>;
  /** Writes a local index to disk; a server has its own way. */
  save(): Promise<void>;
  close(): Promise<void>;
}

/** Squares of this, summed over any dim allowed, stay finite in float32. */
const COORDINATE_MAX = 1e15;
export const DIM_MAX = 4096;
/** Most results of one search, and most entries of a page. */
export const K_MAX = 10_000;
export const LISTING_DEFAULT = 256;

export function checkShape(dim: number, fields: Fields): void {
  if (!Number.isInteger(dim) || dim < 1 || dim > DIM_MAX) {
    throw new KvError('bad-argument', `dim must be a whole number from 1 to ${DIM_MAX}`, { values: { dim } });
  }
  checkFields(fields);
}

/** True if this can be the id of a vector. */
export const isVectorId = (id: Partial<VectorId> | undefined): id is VectorId =>
  typeof id?.log === 'string' && id.log.length <= 200 && Number.isSafeInteger(id.seq) && id.seq! >= 0;

/** → the entries with their vectors as plain arrays of f32 (the embedded index takes no typed arrays). */
export function checkEntries<T>(entries: readonly VectorEntry<T>[], dim: number): VectorEntry<T>[] {
  return entries.map(({ id, vector, payload }) => {
    if (!isVectorId(id))
      throw new KvError('bad-argument', 'a vector is named by a log of at most 200 characters and a whole number', {
        values: { id },
      });
    if (typeof payload !== 'object' || payload === null)
      throw new KvError('bad-argument', 'a payload is an object', { values: { type: typeof payload } });
    return { id, vector: checkVector(vector, dim), payload };
  });
}

/** → the same numbers, in f32, as a plain array. */
export function checkVector(vector: readonly number[], dim: number): number[] {
  if (!Array.isArray(vector) && !ArrayBuffer.isView(vector)) {
    throw new KvError('bad-argument', 'a vector must be an array of numbers', { values: { type: typeof vector } });
  }
  if (vector.length !== dim) {
    throw new KvError('bad-shape', `the vector has ${vector.length} numbers, the index ${dim}`, {
      values: { length: vector.length, dim },
    });
  }
  const plain = Array.from(vector);
  const wrong = plain.findIndex((x) => typeof x !== 'number' || !(Math.abs(x) <= COORDINATE_MAX));
  if (wrong >= 0) {
    throw new KvError('bad-value', `number ${wrong} of the vector is not finite or beyond ±${COORDINATE_MAX}`, {
      values: { position: wrong, value: show(plain[wrong]) },
    });
  }
  return plain.map(Math.fround);
}

/** For the k of a search and the limit of a page. */
export function checkK(k: number): void {
  if (!Number.isInteger(k) || k < 1 || k > K_MAX) {
    throw new KvError('bad-argument', `k must be a whole number from 1 to ${K_MAX}`, { values: { k } });
  }
}

/** The end of a call. */
export class Deadline {
  readonly #signal: AbortSignal | undefined;
  readonly #limitMs: number | undefined;
  readonly #startMs = performance.now();

  constructor({ deadlineMs, signal }: Limits = {}) {
    if (deadlineMs !== undefined && !(deadlineMs >= 0))
      throw new KvError('bad-argument', 'deadlineMs must be a number of milliseconds', { values: { deadlineMs } });
    this.#signal = signal;
    this.#limitMs = deadlineMs;
    this.check();
  }

  get leftMs(): number {
    return this.#limitMs === undefined ? Number.POSITIVE_INFINITY : this.#startMs + this.#limitMs - performance.now();
  }

  /** Throws 'aborted' when it is over. */
  check(): void {
    if (this.#signal?.aborted) throw new KvError('aborted', 'the caller aborted', { cause: this.#signal.reason });
    if (this.leftMs <= 0) throw this.missed();
  }

  missed(): KvError {
    return new KvError('aborted', `the vector index did not answer within ${Math.round(this.#limitMs!)} ms`, {
      values: { deadlineMs: this.#limitMs },
    });
  }
}

/** Squared Euclidean distance. */
export function squaredDistance(a: readonly number[], b: readonly number[]): number {
  let sum = 0;
  for (let i = 0; i < a.length; i++) {
    const difference = a[i]! - b[i]!;
    sum += difference * difference;
  }
  return sum;
}

/** Nearest first; equal distances by id, so that an answer does not depend on the order of insertion. */
export function nearestFirst(a: Neighbour<unknown>, b: Neighbour<unknown>): number {
  return a.distance - b.distance || a.id.seq - b.id.seq || (a.id.log < b.id.log ? -1 : a.id.log > b.id.log ? 1 : 0);
}

/** Keeps the k nearest of any number, sorting now and then. */
export class Nearest<T> {
  readonly #k: number;
  #found: Neighbour<T>[] = [];
  #worst = Number.POSITIVE_INFINITY;

  constructor(k: number) {
    this.#k = k;
  }

  /** Makes the neighbour only if it may be among the k. */
  offer(distance: number, neighbour: () => Neighbour<T>): void {
    if (distance > this.#worst) return;
    this.#found.push(neighbour());
    if (this.#found.length >= 2 * this.#k + 64) this.sorted();
  }

  sorted(): Neighbour<T>[] {
    this.#found = this.#found.sort(nearestFirst).slice(0, this.#k);
    if (this.#found.length === this.#k) this.#worst = this.#found[this.#k - 1]!.distance;
    return this.#found;
  }
}
