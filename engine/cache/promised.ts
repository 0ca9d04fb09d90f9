/**
 * Bytes that were promised to steps under way and are not taken yet. Room for all layers of a step is found before its
 * first one, and nobody else may count on it until the last layer has what it needs.
 */
import type { PagePool } from '../../native/index.ts';
import type { Group } from './group.ts';
import type { Kin } from './kin.ts';

interface Share {
  readonly kin: Kin;
  bytes: number;
}

/** What is promised in a pool, to whom of its caches. */
const shares = new WeakMap<PagePool, Set<Share>>();

/** What is promised to all caches of a pool together. */
export function promisedBytes(pool: PagePool): number {
  let bytes = 0;
  for (const share of shares.get(pool) ?? []) bytes += share.bytes;
  return bytes;
}

/** What is promised to one cache. */
export class Promised {
  readonly #share: Share;
  readonly #all: Set<Share>;

  constructor(pool: PagePool, kin: Kin) {
    this.#share = { kin, bytes: 0 };
    this.#all = shares.get(pool) ?? new Set();
    shares.set(pool, this.#all);
  }

  /** What is left of it. */
  get bytes(): number {
    return this.#share.bytes;
  }

  /** A step that was found so much room begins. */
  make(bytes: number): void {
    this.#share.bytes = bytes;
    this.#all.add(this.#share);
  }

  /** The step took so much of it. */
  took(bytes: number): void {
    this.#share.bytes = Math.max(0, this.#share.bytes - bytes);
  }

  /** The step has ended. */
  end(): void {
    this.#share.bytes = 0;
    this.#all.delete(this.#share);
  }

  /** What is promised to others of the pool. */
  get othersBytes(): number {
    return this.#sum(() => true);
  }

  /** The same of those that share the budget of this one. */
  get relativesBytes(): number {
    return this.#sum((kin) => kin.has(this.#share.kin));
  }

  /** The same of those of a group. */
  groupBytes(group: Group): number {
    return this.#sum((kin) => group.hasKin(kin));
  }

  #sum(counts: (kin: Kin) => boolean): number {
    let bytes = 0;
    for (const share of this.#all) if (share !== this.#share && counts(share.kin)) bytes += share.bytes;
    return bytes;
  }
}
