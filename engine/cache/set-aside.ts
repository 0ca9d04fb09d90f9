/**
 * Bytes of a pool's budget that are no pages in it: what is parked in memory, adapters. The pool has that much less, so
 * that all together never take more than the budget.
 */
import type { PagePool } from '../../native/index.ts';

class SetAside {
  readonly #pool: PagePool;
  readonly #budgetBytes: number;
  readonly #bytes = new Map<object, number>();

  constructor(pool: PagePool) {
    this.#pool = pool;
    this.#budgetBytes = pool.budgetBytes;
  }

  set(whose: object, bytes: number): void {
    const before = this.#bytes.get(whose) ?? 0;
    this.#bytes.set(whose, bytes);
    let all = 0;
    for (const one of this.#bytes.values()) all += one;
    try {
      this.#pool.setBudget(this.#budgetBytes - all);
    } catch (error) {
      this.#bytes.set(whose, before);
      throw error;
    }
  }
}

const ofPool = new WeakMap<PagePool, SetAside>();

/** So many bytes are set aside for `whose` from now on, in place of before. Throws where pages have them. */
export function setAside(pool: PagePool, whose: object, bytes: number): void {
  const aside = ofPool.get(pool) ?? new SetAside(pool);
  ofPool.set(pool, aside);
  aside.set(whose, bytes);
}
