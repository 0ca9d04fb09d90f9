/** What the embedded indexes keep beside their vectors: numbered rows of ids and payloads. */
import { checkFilter, type Fields, type Filter, passes, type VectorId } from './filter.ts';
import { checkK, Deadline, type Narrowed, PAGE_DEFAULT, type Page } from './vector.ts';

/** Rows between two looks at the clock: a few tenths of a millisecond. */
const ROWS_PER_LOOK = 1024;

export class Rows<T extends object> {
  readonly #fields: Fields;
  readonly #ids: VectorId[] = [];
  readonly #payloads: T[] = [];
  /** By log and seq, because a text made of both would take several times the memory. */
  readonly #byLog = new Map<string, Map<number, number>>();

  constructor(fields: Fields) {
    this.#fields = fields;
  }

  get size(): number {
    return this.#ids.length;
  }

  id(row: number): VectorId {
    return this.#ids[row]!;
  }

  payload(row: number): T {
    return this.#payloads[row]!;
  }

  /** → the row of the id, a new one or the one that it had. */
  put(id: VectorId, payload: T): number {
    let seqs = this.#byLog.get(id.log);
    if (seqs === undefined) this.#byLog.set(id.log, (seqs = new Map()));
    const row = seqs.get(id.seq) ?? this.size;
    seqs.set(id.seq, row);
    this.#ids[row] = id;
    this.#payloads[row] = payload;
    return row;
  }

  /** Throws 'bad-argument'. */
  check(filter: Filter): void {
    checkFilter(filter, this.#fields);
  }

  passes(row: number, filter: Filter): boolean {
    return passes(filter, this.id(row), this.payload(row));
  }

  /** Rows that pass, in order. */
  *passing({ filter = {}, ...limits }: Narrowed = {}, from = 0): Generator<number, void, undefined> {
    const deadline = new Deadline(limits);
    this.check(filter);
    for (let row = from; row < this.size; row++) {
      if (row % ROWS_PER_LOOK === 0) deadline.check();
      if (this.passes(row, filter)) yield row;
    }
  }

  count(options?: Narrowed): number {
    let count = 0;
    for (const _ of this.passing(options)) count++;
    return count;
  }

  /** One page; a row's number is where a page begins. */
  list(
    { after = null, limit = PAGE_DEFAULT, ...options }: Narrowed & { after?: string | null; limit?: number } = {},
    vector: (row: number) => readonly number[],
  ): Page<T> {
    checkK(limit);
    const items: Page<T>['items'][number][] = [];
    for (const row of this.passing(options, Number(after ?? 0))) {
      if (items.length === limit) return { items, next: String(row) };
      items.push({ id: this.id(row), vector: vector(row), payload: this.payload(row) });
    }
    return { items, next: null };
  }
}
