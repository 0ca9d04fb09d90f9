/** A byte budget that any number of caches of a thread share. */
import { refuseBelow } from './account.ts';
import { closed, fail, integer, show } from './arguments.ts';
import { check, loadBinary, type PoolHandle } from './load.ts';
import type { PagePool } from './types.ts';

export class NativePool implements PagePool {
  #handle: PoolHandle | undefined;
  readonly #numbers = new Float64Array(6);

  constructor(handle: PoolHandle) {
    this.#handle = handle;
  }

  /** The binary's pool. Throws if the pool is closed or does not come from openPool(). */
  static handleOf(pool: unknown): PoolHandle {
    if (typeof pool !== 'object' || pool === null || !(#handle in pool)) {
      fail('pool must come from openPool()', { pool: show(pool) });
    }
    return pool.#handle ?? closed('pool');
  }

  #read(index: number): number {
    const handle = this.#handle ?? closed('pool');
    check(handle.numbers(this.#numbers, index === 5), 'read the pool');
    return this.#numbers[index]!;
  }

  get budgetBytes(): number {
    return this.#read(0);
  }
  get usedBytes(): number {
    return this.#read(1);
  }
  get peakBytes(): number {
    return this.#read(2);
  }
  get reservedBytes(): number {
    return this.#read(3);
  }
  get reservedPeakBytes(): number {
    return this.#read(4);
  }
  auditBytes(): number {
    return this.#read(5);
  }

  setBudget(bytes: number): void {
    const handle = this.#handle ?? closed('pool');
    integer(bytes, 'budget', 0, Number.MAX_SAFE_INTEGER);
    refuseBelow(this.usedBytes, bytes);
    check(handle.setBudget(bytes), 'change the budget', { budgetBytes: bytes });
  }

  close(): void {
    const handle = this.#handle;
    this.#handle = undefined;
    handle?.close();
  }
}

/**
 * The most memory that a process holds for so many counted bytes, not counting working memory.
 * test/simulation/memory.test.ts checks it.
 */
export const heldBytesMost = (countedBytes: number): number => Math.round(1.08 * countedBytes) + 8 * 2 ** 20;

/**
 * Opens a pool: a byte budget for any number of caches of this thread. Caches that are open when it is closed keep
 * their memory until they are closed themselves. Throws 'bad-argument' unless budgetBytes is a whole number.
 */
export function openPool(budgetBytes: number): PagePool {
  integer(budgetBytes, 'budgetBytes', 0, Number.MAX_SAFE_INTEGER);
  const { Pool } = loadBinary();
  const handle = new Pool();
  check(handle.open(budgetBytes), 'open a pool', { budgetBytes });
  return new NativePool(handle);
}
