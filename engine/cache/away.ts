/** What is still asked of a cache while its pages are parked and its native cache is empty. */
import type { Fingerprint } from '../../memory/index.ts';
import type { CacheMemory, PageTable } from '../../native/index.ts';
import type { ReclaimStage } from '../../policy/index.ts';
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

/** What caches and sessions ask of the other sessions with which they share memory (SharedMemory, shared-memory.ts). */
export interface Neighbours {
  /**
   * Has bytes found on the rungs of the ladder (policy/reclaim.ts), from the first to the last of a stage, until so
   * many more are free.
   */
  reclaim(asking: Named, lackingBytes: number, stage: ReclaimStage): void;
  /** Bytes that those that wait would leave if they were parked, about, and nobody is at work by. */
  reclaimableBytes(asking: Named): number;
}
