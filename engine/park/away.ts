/** What is still asked of a cache while its pages are parked and its native cache is empty. */
import type { Fingerprint } from '../../memory/index.ts';
import type { CacheMemory, PageTable } from '../../native/index.ts';
import type { Governed } from '../governed.ts';
import { fingerprintOf } from '../print.ts';
import type { IDLE_PLACES } from '../serve/meter.ts';

/** Where a session that waits is parked when the memory of its engine is short: coded in the same memory, or in a file. */
export type IdlePlace = (typeof IDLE_PLACES)[number];

/** Taken when the pages went. */
export interface Away {
  readonly place: IdlePlace;
  /** Bytes of what is parked. */
  readonly parkedBytes: number;
  /** Those of them that take memory. */
  readonly heldBytes: number;
  /** Bytes that the cache took, and takes when it is back. */
  readonly kvBytes: number;
  readonly memory: CacheMemory;
  readonly tables: readonly PageTable[];
  readonly fingerprint: Fingerprint;
}

/** Of a cache whose pages are still there. */
export function awayOf(cache: Governed, place: IdlePlace, parkedBytes: number): Away {
  return {
    place,
    parkedBytes,
    heldBytes: place === 'memory' ? parkedBytes : 0,
    kvBytes: cache.usedBytes,
    memory: cache.kv.memory(),
    tables: Array.from({ length: cache.shape.layers }, (_, layer) => cache.kv.table(layer)),
    fingerprint: fingerprintOf(cache),
  };
}
