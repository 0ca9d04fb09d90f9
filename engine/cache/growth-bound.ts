/** What bounds the growth of a cache, for policy/growth.ts. */
import { firstToken } from '../../native/index.ts';
import type { GrowthSeen } from '../../policy/index.ts';
import { bytesAt, memoryBytes } from './budget.ts';
import type { Governed } from './governed.ts';
import { heldWindow } from './terms.ts';

/** What holds the bytes of a cache: its own budget, as long as that did not give way, or else only memory. */
export function boundOf(cache: Governed): Pick<GrowthSeen, 'least' | 'limitBytes'> {
  const { room, terms, shape, pool, group, length, gaveWay } = cache;
  const { ownBytes } = room;
  if (ownBytes === null || gaveWay === 'bytes') {
    const limitBytes = Math.min(pool.budgetBytes, memoryBytes(), group?.budgetBytes ?? Number.POSITIVE_INFINITY);
    return { least: null, limitBytes };
  }
  const leastAt = (tokens: number): number => bytesAt(shape, tokens, terms.lowest, heldWindow(terms));
  const pageTokens = firstToken(1);
  const [bytes, later] = [leastAt(length), leastAt(length + pageTokens)];
  return { least: { bytes, bytesPerToken: (later - bytes) / pageTokens }, limitBytes: ownBytes - room.spareBytes };
}
