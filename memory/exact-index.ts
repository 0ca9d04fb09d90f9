/** The vector index that looks at every vector. It is right by construction, serves as the reference of the other one, and lives in memory only. */
import { KvError } from '../native/index.ts';
import type { Neighbour, VectorIndex } from './types.ts';
import { checkDim, checkK, checkLabel, checkVector, nearestFirst, passes, squaredDistance } from './vector.ts';

class ExactIndex<T> implements VectorIndex<T> {
  readonly kind = 'exact';
  readonly dim: number;
  readonly #rows = new Map<number, { readonly vector: readonly number[]; readonly payload: T }>();
  #closed = false;

  constructor(dim: number) {
    checkDim(dim);
    this.dim = dim;
  }

  get count(): number {
    return this.#rows.size;
  }

  #live(): void {
    if (this.#closed) throw new KvError('closed', 'the vector index was closed');
  }

  async add(label: number, vector: readonly number[], payload: T): Promise<void> {
    this.#live();
    checkLabel(label);
    this.#rows.set(label, { vector: checkVector(vector, this.dim).map(Math.fround), payload });
  }

  async search(vector: readonly number[], k: number, filter?: (payload: T) => boolean): Promise<Neighbour<T>[]> {
    this.#live();
    checkK(k);
    const query = checkVector(vector, this.dim).map(Math.fround);
    const found: Neighbour<T>[] = [];
    for (const [label, row] of this.#rows) {
      if (filter !== undefined && !passes(filter, row.payload)) continue;
      found.push({ label, distance: squaredDistance(query, row.vector), payload: row.payload });
    }
    return found.sort(nearestFirst).slice(0, k);
  }

  *entries(): Generator<readonly [number, T]> {
    for (const [label, { payload }] of this.#rows) yield [label, payload];
  }

  async save(): Promise<void> {
    this.#live();
  }

  async clear(): Promise<void> {
    this.#live();
    this.#rows.clear();
  }

  async close(): Promise<void> {
    this.#closed = true;
    this.#rows.clear();
  }
}

/** An empty index of vectors of `dim` numbers. save() keeps nothing. */
export function createExactIndex<T>(dim: number): VectorIndex<T> {
  return new ExactIndex<T>(dim);
}
