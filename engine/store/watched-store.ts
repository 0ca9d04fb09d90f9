/**
 * A store with what became of its newest calls: whether the place takes what is put there and gives it back. What is
 * stored in the background fails no request, so it is told here.
 */
import { KvError, type KvErrorCode } from '../../native/index.ts';
import type { Found, Kind, Store } from './store.ts';

export const STORE_CALLS = ['put', 'first', 'remove', 'erase'] as const;
export type StoreCall = (typeof STORE_CALLS)[number];

/** What is told of a store. */
export interface StoreNews {
  readonly call: StoreCall;
  /** Why it was refused; null: it is taken again. */
  readonly code: KvErrorCode | null;
  /** Calls of its kind that failed since one was taken. */
  readonly failed: number;
}

export class WatchedStore implements Store {
  readonly #store: Store;
  readonly #onFailure: (call: StoreCall) => void;
  readonly #onNews: (news: StoreNews) => void;
  /** Why the newest call of a kind failed, and how many did before it. */
  readonly #troubles = new Map<StoreCall, { readonly code: KvErrorCode; readonly failed: number }>();

  /** onFailure: called for each call that fails; onNews: for the first of a kind, and for the next that does not. */
  constructor(store: Store, onFailure: (call: StoreCall) => void, onNews: (news: StoreNews) => void) {
    this.#store = store;
    this.#onFailure = onFailure;
    this.#onNews = onNews;
  }

  /** By kind of call, why the newest failed; none where all was taken. */
  get troubles(): Readonly<Partial<Record<StoreCall, KvErrorCode>>> {
    return Object.fromEntries([...this.#troubles].map(([call, { code }]) => [call, code]));
  }

  put(kind: Kind, key: string, bytes: Uint8Array, sessions?: readonly string[]): Promise<void> {
    return this.#watched('put', () => this.#store.put(kind, key, bytes, sessions));
  }

  first(kind: Kind, keys: readonly string[]): Promise<Found | null> {
    return this.#watched('first', () => this.#store.first(kind, keys));
  }

  remove(kind: Kind, key: string): Promise<void> {
    return this.#watched('remove', () => this.#store.remove(kind, key));
  }

  erase(kind: Kind, session: string): Promise<number> {
    return this.#watched('erase', () => this.#store.erase(kind, session));
  }

  close(): Promise<void> {
    return this.#store.close();
  }

  async #watched<T>(call: StoreCall, work: () => Promise<T>): Promise<T> {
    try {
      const done = await work();
      const before = this.#troubles.get(call);
      this.#troubles.delete(call);
      if (before !== undefined) this.#onNews({ call, code: null, failed: before.failed });
      return done;
    } catch (error) {
      const code = error instanceof KvError ? error.code : 'io';
      const failed = (this.#troubles.get(call)?.failed ?? 0) + 1;
      this.#troubles.set(call, { code, failed });
      this.#onFailure(call);
      if (failed === 1) this.#onNews({ call, code, failed });
      throw error;
    }
  }
}
