/** What is still asked of a cache while its pages are parked and its native cache is empty. */
import type { Fingerprint } from '../../memory/index.ts';
import type { CacheMemory, PageTable } from '../../native/index.ts';
import type { IDLE_PLACES } from '../metrics/meter.ts';

/**
 * Where a session that waits is parked when the memory of its engine is short: coded in the same memory, or in a file.
 */
export type IdlePlace = (typeof IDLE_PLACES)[number];

/** Taken when the pages went. */
export interface Away {
  readonly place: IdlePlace;
  /** Bytes of what is parked. */
  readonly parkedBytes: number;
  /** The bytes of them that take memory. */
  readonly heldBytes: number;
  /** Bytes that the cache took, and takes when it is back. */
  readonly kvBytes: number;
  /** Pages from 0 on that it held together with others, and holds so again where they are there. */
  readonly heldPages: number;
  readonly memory: CacheMemory;
  readonly tables: readonly PageTable[];
  readonly fingerprint: Fingerprint;
}

/** A cache or a session, by what tells it from others. */
interface Named {
  readonly id: string;
}

/**
 * Whose pages go lower for a session: of those that the policy of the pool names, itself among them, or of all others.
 */
export type Pressed = 'named' | 'all';

/** What caches and sessions ask of the other sessions with which they share memory (SharedMemory, shared-memory.ts). */
export interface Neighbours {
  /** Has sessions that wait parked until so many bytes more are free, if there are enough of them. */
  makeRoom(asking: Named, lackingBytes: number): void;
  /** Bytes that this would free at most, about. */
  reclaimableBytes(asking: Named): number;
  /**
   * Has pages of sessions go lower until the pool has room for so many bytes, those first that the policy of the pool
   * names.
   */
  press(asking: Named, neededBytes: number, whom: Pressed): void;
  /** Has pages of sessions that wait go, to be read again, until so many bytes more are free. */
  letGo(asking: Named, lackingBytes: number): void;
}
