/** What a call needs of the memory that sessions share: with all pages as low as they may go, and as they are now. */
import { openBytes, SIDES, sealedPages } from '../../native/index.ts';
import { bytesAt, sideBytes, surelyFreed } from '../cache/budget.ts';
import type { Kin } from '../cache/kin.ts';
import type { Lender } from '../cache/lender.ts';
import { copyBytes } from '../cache/own-pages.ts';
import { heldWindow } from '../cache/terms.ts';
import type { Session } from './session.ts';

/** Pages from 0 on that a session which is parked holds together with another one when it is back. */
export interface HeldAgain {
  readonly lender: Lender;
  readonly pages: number;
}

/**
 * Bytes of a session at so many tokens, all pages as low as need for bytes brings them; without the pages that it
 * shares with one of those that are `counted`, or will when it is back.
 */
export function needOf(
  { governed }: Session,
  tokens: number,
  counted: ReadonlySet<Kin>,
  again: HeldAgain | null = null,
): number {
  const { terms, shape, room, latents, kin } = governed;
  const { slidingWindow } = terms.context;
  const all = bytesAt(shape, tokens, terms.lowest, heldWindow(governed.terms));
  const kept =
    latents === null ? 0 : latents.sealedBytes * shape.layers * (terms.budgetBytes === null ? sealedPages(tokens) : 1);
  const heldAgain = again !== null && counted.has(again.lender.kin) ? again.pages : 0;
  const shared = Math.max(heldAgain, kin.sharedWithin(counted)?.pages ?? 0);
  const sides = sideBytes(
    shape,
    terms.lowest.filter((pair) => pair !== null),
  );
  const sharedBytes = terms.lowest.reduce((sum, pair, layer) => {
    if (pair === null) return sum;
    const { k, v } = pair;
    const there = Math.max(0, shared - surelyFreed(tokens, slidingWindow?.[layer] ?? null));
    return sum + there * (sides[k] + sides[v]);
  }, 0);
  return Math.min(Math.max(all + kept - sharedBytes, 0), room.ownBytes ?? Number.POSITIVE_INFINITY);
}

/**
 * Bytes by which a session grows until it has so many tokens if none of its pages goes lower, those included that come
 * back from where they are parked and that nobody else has; no more than its own budget leaves. What sliding windows
 * will leave behind is not taken off.
 */
export function growthOf({ governed }: Session, tokens: number, again: HeldAgain | null = null): number {
  const { shape, room, latents, kv, away, length } = governed;
  const window = { ...heldWindow(governed.terms), slidingWindow: undefined };
  const { windowFormat, openFormat } = window;
  const untouched = Array.from({ length: shape.layers }, () => ({ k: windowFormat, v: windowFormat }));
  const pageBytes = shape.layers * SIDES.length * sideBytes(shape, untouched)[windowFormat];
  const latentBytes = shape.layers * (latents?.sealedBytes ?? 0) * (sealedPages(tokens) - sealedPages(length));
  const bytesNow = openBytes(shape, length, openFormat) + sealedPages(length) * pageBytes;
  const grownBytes = Math.max(0, bytesAt(shape, tokens, untouched, window) - bytesNow + latentBytes);
  const thereBytes = again === null ? 0 : copyBytes(governed, governed.terms.context, 0, again.pages);
  const backBytes = away === null ? 0 : away.kvBytes - thereBytes - away.heldBytes;
  const { ownBytes } = room;
  const leftBytes = ownBytes === null ? Number.POSITIVE_INFINITY : Math.max(0, ownBytes - kv.usedBytes);
  return Math.min(grownBytes + backBytes, leftBytes);
}
