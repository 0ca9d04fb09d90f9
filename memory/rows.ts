/** What the embedded indexes keep beside their vectors: numbered rows of ids and payloads. */
import { type Fields, type Filter, matcher, type VectorId } from './filter.ts';
import { checkK, Deadline, LISTING_DEFAULT, type Limits, type Listing, type Narrowed } from './vector.ts';

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

  /** A filter as a question about a row. Throws 'bad-argument'. */
  asks(filter: Filter): (row: number) => boolean {
    const passes = matcher(filter, this.#fields);
    return (row) => passes(this.#ids[row]!, this.#payloads[row]!);
  }

  /** Visits the rows that pass, in order, until a visit returns false. Throws 'bad-argument', 'aborted'. */
  visit({ filter, ...limits }: Narrowed = {}, visit: (row: number) => unknown, from = 0): void {
    const deadline = new Deadline(limits);
    const passes = filter === undefined ? null : this.asks(filter);
    for (let row = from; row < this.size; row++) {
      if (row % ROWS_PER_LOOK === 0) deadline.check();
      if ((passes === null || passes(row)) && visit(row) === false) return;
    }
  }

  count(options?: Narrowed): number {
    let count = 0;
    this.visit(options, () => {
      count++;
    });
    return count;
  }

  /** One page; a row's number is where a page begins. */
  list(
    { after = null, limit = LISTING_DEFAULT, ...options }: Narrowed & { after?: string | null; limit?: number } = {},
    vector: (row: number) => readonly number[],
  ): Listing<T> {
    checkK(limit);
    const items: Listing<T>['items'][number][] = [];
    let next: string | null = null;
    const take = (row: number): boolean => {
      if (items.length < limit) items.push({ id: this.id(row), vector: vector(row), payload: this.payload(row) });
      else next = String(row);
      return next === null;
    };
    this.visit(options, take, Number(after ?? 0));
    return { items, next };
  }

  /** The rows that do not pass, and their old numbers in order. */
  without(filter: Filter, limits?: Limits): { rows: Rows<T>; kept: number[] } {
    const gone = new Set<number>();
    this.visit({ filter, ...limits }, (row) => {
      gone.add(row);
    });
    const rows = new Rows<T>(this.#fields);
    const kept: number[] = [];
    for (let row = 0; row < this.size; row++) {
      if (gone.has(row)) continue;
      rows.put(this.id(row), this.payload(row));
      kept.push(row);
    }
    return { rows, kept };
  }
}
