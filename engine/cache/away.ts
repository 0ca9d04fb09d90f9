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
  readonly memory: CacheMemory;
  readonly tables: readonly PageTable[];
  readonly fingerprint: Fingerprint;
}

/** A cache or a session, by what tells it from others. */
interface Named {
  readonly id: string;
}

/** What caches and sessions ask of the idle sessions with which they share memory (IdleSessions, idle.ts). */
export interface Neighbours {
  readonly place: IdlePlace;
  /** Has sessions that wait free so many bytes more, if they can. */
  makeRoom(asking: Named, lackingBytes: number): void;
  /** Bytes that this would free at most, about. */
  reclaimableBytes(asking: Named): number;
  /**
   * Puts the pages of a session back if they are parked, or leaves its cache empty where they are of no use. Throws
   * 'budget-exceeded', 'io'.
   */
  wake(session: Named): void;
}
