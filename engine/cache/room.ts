/**
 * The room of a cache: how many bytes it and its kin may take, by their own budget and by what others leave of a shared
 * pool. All are without the bytes of kept originals, unless a name says otherwise.
 */
import type { KvCache, PagePool } from '../../native/index.ts';
import type { Neighbours } from './away.ts';
import type { Canaries } from './canaries.ts';
import type { Kin } from './kin.ts';

interface RoomParts {
  /** The cache, as others know it. */
  readonly asking: Parameters<Neighbours['makeRoom']>[0];
  readonly kv: KvCache;
  readonly kin: Kin;
  /** Of this cache. */
  readonly canaries: Canaries;
  /** The pool, where other caches share it. */
  readonly sharedPool: PagePool | undefined;
  /** Sessions of that pool that wait. */
  readonly idle: Neighbours | undefined;
  readonly budgetBytes: number | null;
  readonly spareBytes: number;
}

export class Room {
  readonly #parts: RoomParts;
  #budgetBytes: number | null;

  constructor(parts: RoomParts) {
    this.#parts = parts;
    this.#budgetBytes = parts.budgetBytes;
  }

  /** The own budget, kept originals included: as planned, until it gave way to the divergence budget. */
  get ownBytes(): number | null {
    return this.#budgetBytes;
  }

  /** Bytes of the budget that stay free: the source page of a move lives until the new one is complete. */
  get spareBytes(): number {
    return this.#parts.spareBytes;
  }

  get usedBytes(): number {
    return this.#parts.kv.usedBytes - this.canaryBytes;
  }

  /** The own budget, at most what others leave of a shared pool, what idle ones would give up included. */
  get budgetBytes(): number | null {
    const { asking, kv, sharedPool, idle } = this.#parts;
    const own = this.#budgetBytes === null ? null : this.#budgetBytes - this.canaryBytes;
    if (own === null || sharedPool === undefined) return own;
    const left = this.usedBytes + kv.roomBytes;
    return left >= own ? own : Math.min(own, left + (idle?.reclaimableBytes(asking) ?? 0));
  }

  /** Bytes that the shared pool leaves now; null: the pool is its own. */
  get poolRoomBytes(): number | null {
    const { sharedPool } = this.#parts;
    return sharedPool === undefined ? null : sharedPool.budgetBytes - sharedPool.usedBytes;
  }

  /**
   * Has idle sessions of the pool make room for `dueBytes`, and for a move beside them, as far as the own budget allows
   * so much.
   */
  ask(dueBytes: number): void {
    const { asking, kv, idle, spareBytes } = this.#parts;
    const { poolRoomBytes } = this;
    const ownBytes = this.#budgetBytes === null ? Number.POSITIVE_INFINITY : this.#budgetBytes - kv.usedBytes;
    const neededBytes = Math.min(dueBytes + spareBytes, ownBytes);
    if (poolRoomBytes !== null && neededBytes > poolRoomBytes) idle?.makeRoom(asking, neededBytes - poolRoomBytes);
  }

  /** The own budget gave way: it is now what is needed. */
  gaveWay(neededBytes: number): void {
    this.#budgetBytes = neededBytes + this.canaryBytes;
    this.#parts.kv.setBudget(this.#budgetBytes);
  }

  /** Bytes of the originals that this cache and its kin keep. */
  get canaryBytes(): number {
    return this.#parts.kin.canaryBytes;
  }

  /** Bytes that originals may take: none in forks, which share those of their origin. */
  get canaryBytesMax(): number {
    const { kv, kin, canaries } = this.#parts;
    if (!kin.keepsCanaries) return 0;
    return canaries.allowanceBytes(this.#budgetBytes ?? kv.usedBytes);
  }
}
