/**
 * What attention may leave out, as a share, and how often it did: of how many pages × KV heads of a layer, and of how
 * many of them.
 */
import { fail, show } from './arguments.ts';
import { type CacheHandle, check } from './load.ts';

/** Throws 'bad-argument' for a share outside 0..1. */
export function setSkipShare(handle: CacheHandle, share: number): void {
  if (!(typeof share === 'number' && share >= 0 && share <= 1))
    fail('share must be a number from 0 to 1', { share: show(share) });
  check(handle.setSkipShare(share), 'set what attention may leave out', { share });
}

export function skipped(handle: CacheHandle, layer: number): { met: number; skipped: number } {
  const found = new Float64Array(2);
  check(handle.skipped(layer, found), 'read the cache', { layer });
  return { met: found[0]!, skipped: found[1]! };
}
