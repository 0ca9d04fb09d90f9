/**
 * The room of a cache: how many bytes it and its kin may take, by their own budget and by what others leave of a shared
 * pool. All are without the bytes of kept originals and what promoted pages take more, unless a name says otherwise.
 */
import type { KvCache, PagePool } from '../../native/index.ts';
import type { ReclaimStage } from '../../policy/index.ts';
import type { Neighbours } from './away.ts';
import type { Canaries } from './canaries.ts';
import type { Group } from './group.ts';
import type { Kin } from './kin.ts';
import type { Promised } from './promised.ts';
import type { Promoted } from './promoted.ts';

interface RoomParts {
  /** The cache, as others know it. */
  readonly asking: Parameters<Neighbours['reclaim']>[0];
  readonly kv: KvCache;
  readonly kin: Kin;
  /** Of this cache. */
  readonly canaries: Canaries;
  /** Pages that are better than policies know; null where none can be. */
  readonly promoted: Promoted | null;
  /** The pool, where other caches share it. */
  readonly sharedPool: PagePool | undefined;
  /** What bounds it and others of that pool together; null: nothing does. */
  readonly group: Group | null;
  /** The other sessions of that pool. */
  readonly neighbours: Neighbours | undefined;
  /** What the step under way was promised. */
  readonly promised: Promised;
  readonly budgetBytes: number | null;
  readonly spareBytes: number;
  /** Bytes of the budget that stay free for promotions. */
  readonly reserveBytes: number;
}

export class Room {
  readonly #parts: RoomParts;
  #budgetBytes: number | null;
  #reserveBytes: number;

  constructor(parts: RoomParts) {
    this.#parts = parts;
    this.#budgetBytes = parts.budgetBytes;
    this.#reserveBytes = parts.reserveBytes;
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
    return this.#parts.kv.usedBytes - this.canaryBytes - this.promotedBytes;
  }

  /** The own budget, at most what others leave of a shared pool, what parking idle ones would free included. */
  get budgetBytes(): number | null {
    const { asking, kv, sharedPool, neighbours, promised } = this.#parts;
    if (this.#budgetBytes === null) return null;
    const own = this.#budgetBytes - this.canaryBytes - this.#setAside - promised.relativesBytes;
    if (sharedPool === undefined) return own;
    const left = this.usedBytes + Math.min(kv.roomBytes, this.poolRoomBytes!);
    return left >= own ? own : Math.min(own, left + (neighbours?.reclaimableBytes(asking) ?? 0));
  }

  /** Bytes that the shared pool and its group leave now, and have promised to nobody; null: the pool is its own. */
  get poolRoomBytes(): number | null {
    const { sharedPool, group } = this.#parts;
    if (sharedPool === undefined) return null;
    const poolBytes = this.leftBytes(null);
    return group === null ? poolBytes : Math.min(poolBytes, this.leftBytes(group));
  }

  /** The same of the pool alone, or of its group. */
  leftBytes(group: Group | null): number {
    const { sharedPool, promised } = this.#parts;
    if (group !== null) return group.budgetBytes - group.usedBytes - promised.groupBytes(group);
    if (sharedPool === undefined) return Number.POSITIVE_INFINITY;
    return sharedPool.budgetBytes - sharedPool.usedBytes - promised.othersBytes;
  }

  /** True if its group leaves less than the pool does. */
  get isBoundByGroup(): boolean {
    const { group } = this.#parts;
    return group !== null && this.leftBytes(group) < this.leftBytes(null);
  }

  /** True if the pool has so much that was promised to nobody. */
  leaves(bytes: number): boolean {
    return (this.poolRoomBytes ?? Number.POSITIVE_INFINITY) >= bytes;
  }

  /** Bytes that a fork takes for open pages of its own: those of this cache. */
  get forkBytes(): number {
    return this.#parts.kv.memory().openBytes;
  }

  /**
   * Has room found for `dueBytes`, and for a move beside them, in the pool: of those that wait, then of those that the
   * policy of the pool names, this one among them, then of all others. → whether there is room now
   */
  find(dueBytes: number, stage: ReclaimStage): boolean {
    const { asking, neighbours } = this.#parts;
    const lackingBytes = this.#lackingBytes(dueBytes);
    if (lackingBytes <= 0) return true;
    neighbours?.reclaim(asking, lackingBytes, stage);
    return this.#lackingBytes(dueBytes) <= 0;
  }

  /** What the pool lacks for `dueBytes` and a move beside them, as far as the own budget allows so much. */
  #lackingBytes(dueBytes: number): number {
    const { kv, spareBytes } = this.#parts;
    const { poolRoomBytes } = this;
    const ownBytes = this.#budgetBytes === null ? Number.POSITIVE_INFINITY : this.#budgetBytes - kv.usedBytes;
    return poolRoomBytes === null ? 0 : Math.min(dueBytes + spareBytes, ownBytes) - poolRoomBytes;
  }

  /** The own budget gave way: it is now what is needed. */
  gaveWay(neededBytes: number): void {
    this.#budgetBytes = neededBytes + this.canaryBytes + this.#setAside;
    this.#parts.kv.setBudget(this.#budgetBytes);
  }

  /** Bytes of the originals that this cache and its kin keep. */
  get canaryBytes(): number {
    return this.#parts.kin.canaryBytes;
  }

  /** What promoted pages take more than policies know. */
  get promotedBytes(): number {
    return this.#parts.promoted?.bytes ?? 0;
  }

  /** Bytes of the budget that stay free for promotions. */
  get reserveBytes(): number {
    return this.#reserveBytes;
  }

  /** There is no other room left: from now on nothing stays free for promotions. */
  spendReserve(): void {
    this.#reserveBytes = 0;
  }

  /** Bytes that promotions may take: of a budget what stays free for them, and a move has room beside them. */
  get promotableBytes(): number {
    const { kv } = this.#parts;
    const left = Math.min(kv.roomBytes, this.poolRoomBytes ?? kv.roomBytes) - this.spareBytes;
    return Math.max(0, this.#budgetBytes === null ? left : Math.min(left, this.#reserveBytes));
  }

  /** Bytes that nothing takes now, beside those of a move. */
  get freeBytes(): number {
    const { kv } = this.#parts;
    const left = Math.min(kv.roomBytes, this.poolRoomBytes ?? kv.roomBytes);
    const { budgetBytes } = this;
    const own = budgetBytes === null ? left : Math.min(left, budgetBytes - this.usedBytes);
    return Math.max(0, own - this.spareBytes);
  }

  /** What policies do without for promotions, made or to be made. */
  get #setAside(): number {
    return Math.max(this.promotedBytes, this.#reserveBytes);
  }

  /** Bytes that originals may take: none in forks, which share those of their origin. */
  get canaryBytesMax(): number {
    const { kv, kin, canaries, sharedPool } = this.#parts;
    if (!kin.keepsCanaries) return 0;
    // Of a budget that it shares with everybody it has no more than what it takes.
    const isShared = sharedPool !== undefined && (this.#budgetBytes ?? 0) >= sharedPool.budgetBytes;
    return canaries.allowanceBytes(isShared ? kv.usedBytes : (this.#budgetBytes ?? kv.usedBytes));
  }
}
