/**
 * The vector index that looks at every vector. It is right by construction, serves as the reference of the others, and
 * lives in memory only.
 */
import { KvError } from '../native/index.ts';
import type { Fields, Filter } from './filter.ts';
import { Rows } from './rows.ts';
import {
  checkEntries,
  checkK,
  checkShape,
  checkVector,
  Deadline,
  type Limits,
  type Listing,
  type Narrowed,
  Nearest,
  type Neighbour,
  squaredDistance,
  type VectorEntry,
  type VectorIndex,
} from './vector.ts';

class ExactIndex<T extends object> implements VectorIndex<T> {
  readonly kind = 'exact';
  readonly dim: number;
  readonly fields: Fields;
  #rows: Rows<T>;
  #vectors: number[][] = [];
  #closed = false;

  constructor(dim: number, fields: Fields) {
    checkShape(dim, fields);
    this.dim = dim;
    this.fields = fields;
    this.#rows = new Rows(fields);
  }

  #live(): void {
    if (this.#closed) throw new KvError('closed', 'the vector index was closed');
  }

  async add(entries: readonly VectorEntry<T>[], limits?: Limits): Promise<void> {
    this.#live();
    new Deadline(limits).check();
    for (const { id, vector, payload } of checkEntries(entries, this.dim))
      this.#vectors[this.#rows.put(id, payload)] = vector as number[];
  }

  async search(vector: readonly number[], k: number, options?: Narrowed): Promise<Neighbour<T>[]> {
    this.#live();
    checkK(k);
    const query = checkVector(vector, this.dim);
    const nearest = new Nearest<T>(k);
    this.#rows.visit(options, (row) => {
      const distance = squaredDistance(query, this.#vectors[row]!);
      nearest.offer(distance, () => ({ id: this.#rows.id(row), distance, payload: this.#rows.payload(row) }));
    });
    return nearest.sorted();
  }

  async list(options?: Parameters<VectorIndex<T>['list']>[0]): Promise<Listing<T>> {
    this.#live();
    return this.#rows.list(options, (row) => this.#vectors[row]!);
  }

  async count(options?: Narrowed): Promise<number> {
    this.#live();
    return this.#rows.count(options);
  }

  async remove(filter: Filter, limits?: Limits): Promise<void> {
    this.#live();
    const { rows, kept } = this.#rows.without(filter, limits);
    this.#rows = rows;
    this.#vectors = kept.map((row) => this.#vectors[row]!);
  }

  async save(): Promise<void> {
    this.#live();
  }

  async close(): Promise<void> {
    this.#closed = true;
    this.#rows = new Rows(this.fields);
    this.#vectors = [];
  }
}

/** An empty index of vectors of `dim` numbers, whose payloads have these fields to filter by. save() keeps nothing. */
export function createExactIndex<T extends object>(dim: number, fields: Fields = {}): VectorIndex<T> {
  return new ExactIndex<T>(dim, fields);
}
