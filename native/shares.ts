/** What attention may leave out, as shares, and how often it did: of how many pages × KV heads of a layer, and of how many of them. */
import { fail, show } from './arguments.ts';
import { type CacheHandle, check } from './load.ts';

/** Throws 'bad-argument' for a share outside 0..1. */
export function set(handle: CacheHandle, name: 'setSkipShare' | 'setPlaneShare', share: number): void {
  if (!(typeof share === 'number' && share >= 0 && share <= 1))
    fail('share must be a number from 0 to 1', { share: show(share) });
  check(handle[name](share), 'set what attention may leave out', { share });
}

export function skipped(handle: CacheHandle, layer: number): { met: number; skipped: number } {
  const [met, skipped] = counts(handle, 'skipped', layer);
  return { met, skipped };
}

export function planes(handle: CacheHandle, layer: number): { met: number; single: number } {
  const [met, single] = counts(handle, 'planes', layer);
  return { met, single };
}

function counts(handle: CacheHandle, name: 'skipped' | 'planes', layer: number): readonly [number, number] {
  const found = new Float64Array(2);
  check(handle[name](layer, found), 'read the cache', { layer });
  return [found[0]!, found[1]!];
}
