/** Finds bytes in memory that sessions share, rung by rung of the ladder (policy/reclaim.ts). */
import type { PagePool } from '../../native/index.ts';
import { type ReclaimStage, type RungId, rungsOf, type WaitingPlace } from '../../policy/index.ts';
import type { Group } from '../cache/group.ts';
import type { Room } from '../cache/room.ts';
import type { Meter } from '../metrics/meter.ts';

/** Who needs bytes: a cache, or an adapter that is loaded. */
export interface Asker {
  readonly id: string;
  readonly room: Pick<Room, 'leftBytes'>;
}

/**
 * Frees so many bytes for a cache, or as many as its rung has: in the pool, of whoever has them, or in a group, of
 * those that are in it.
 */
export type Find = (asking: Asker, lackingBytes: number, group: Group | null) => void;

interface Parts {
  readonly pool: PagePool;
  readonly meter: Meter;
  readonly place: WaitingPlace;
  readonly finds: Readonly<Record<RungId, Find>>;
  /** Hears of each rung before it is asked; left out: nobody does. */
  readonly onRung?: ((rung: RungId, asking: Asker) => void) | undefined;
}

export class Reclaim {
  readonly #parts: Parts;
  #isAsking = false;

  constructor(parts: Parts) {
    this.#parts = parts;
  }

  /** A rung is being asked: whoever gives on it counts on none, and asks none. */
  get isAsking(): boolean {
    return this.#isAsking;
  }

  #freeBytes(group: Group | null): number {
    const { budgetBytes, usedBytes } = group ?? this.#parts.pool;
    return budgetBytes - usedBytes;
  }

  /**
   * From the first rung down to the last of a stage, until so many bytes more are free. What one finds may leave
   * something to those above it, as moves keep originals: they are asked again before the next one is. group: they are
   * to be free in it, null: in the pool.
   */
  climb(asking: Asker, lackingBytes: number, stage: ReclaimStage, group: Group | null = null): void {
    if (this.#isAsking) return;
    const { place, onRung } = this.#parts;
    const goalBytes = this.#freeBytes(group) + lackingBytes;
    const rungs = rungsOf(place, stage);
    for (let at = 0; at < rungs.length; ) {
      const stillBytes = goalBytes - this.#freeBytes(group);
      if (stillBytes <= 0) return;
      onRung?.(rungs[at]!, asking);
      at = this.take(rungs[at]!, asking, stillBytes, group) > 0 ? 0 : at + 1;
    }
  }

  /** Asks one rung. → bytes that it had */
  take(rung: RungId, asking: Asker, lackingBytes: number, group: Group | null = null): number {
    const { meter, finds } = this.#parts;
    const before = this.#freeBytes(group);
    this.#isAsking = true;
    try {
      meter.poolDeciding.during(() => finds[rung](asking, lackingBytes, group));
    } finally {
      this.#isAsking = false;
    }
    const foundBytes = Math.max(0, this.#freeBytes(group) - before);
    meter.foundBytes.add({ rung }, foundBytes);
    return foundBytes;
  }
}
