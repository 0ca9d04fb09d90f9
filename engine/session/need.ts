/** What a call needs of the memory that sessions share: with all pages as low as they may go, and as they are now. */
import { openBytes, pageBytes, SIDES, sealedPages } from '../../native/index.ts';
import { bytesAt, sideBytes, surelyFreed } from '../cache/budget.ts';
import type { Governed } from '../cache/governed.ts';
import type { Kin } from '../cache/kin.ts';
import type { Lender } from '../cache/lender.ts';
import { copyBytes } from '../cache/own-pages.ts';
import { heldWindow, type Terms } from '../cache/terms.ts';
import type { Session } from './session.ts';

/** Bytes at a length, found under these terms. */
interface Found {
  readonly terms: Terms;
  readonly tokens: number;
  readonly bytes: number;
}

/** Of each cache, at the length that was asked for last: those that wait, and those at work, keep it for a while. */
const LOWEST = new WeakMap<Governed, Found>();
const UNTOUCHED = new WeakMap<Governed, Found>();

/** Bytes of a cache at a length, computed where they are not what was asked for last. */
function bytesOf(found: WeakMap<Governed, Found>, cache: Governed, tokens: number, compute: () => number): number {
  const { terms } = cache;
  const last = found.get(cache);
  if (last?.tokens === tokens && last.terms === terms) return last.bytes;
  const bytes = compute();
  found.set(cache, { terms, tokens, bytes });
  return bytes;
}

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
  const all = bytesOf(LOWEST, governed, tokens, () => bytesAt(shape, tokens, terms.lowest, heldWindow(terms)));
  const kept =
    latents === null ? 0 : latents.sealedBytes * shape.layers * (terms.budgetBytes === null ? sealedPages(tokens) : 1);
  const heldAgain = again !== null && counted.has(again.lender.kin) ? again.pages : 0;
  const shared = Math.max(heldAgain, kin.sharedWithin(counted)?.pages ?? 0);
  const sharedBytes = shared === 0 ? 0 : lowestBytes(governed, shared, tokens);
  return Math.min(Math.max(all + kept - sharedBytes, 0), room.ownBytes ?? Number.POSITIVE_INFINITY);
}

/** Bytes of so many pages from 0 on at a length, all as low as they may go. */
function lowestBytes({ terms, shape }: Governed, pages: number, tokens: number): number {
  const { slidingWindow } = terms.context;
  const sides = sideBytes(
    shape,
    terms.lowest.filter((pair) => pair !== null),
  );
  return terms.lowest.reduce((sum, pair, layer) => {
    if (pair === null) return sum;
    const there = Math.max(0, pages - surelyFreed(tokens, slidingWindow?.[layer] ?? null));
    return sum + there * (sides[pair.k] + sides[pair.v]);
  }, 0);
}

/**
 * Bytes by which a session grows until it has so many tokens if none of its pages goes lower, those included that come
 * back from where they are parked and that nobody else has; no more than its own budget leaves. What sliding windows
 * will leave behind is not taken off.
 */
export function growthOf({ governed }: Session, tokens: number, again: HeldAgain | null = null): number {
  const { shape, room, latents, kv, away, length } = governed;
  const { windowFormat, openFormat } = heldWindow(governed.terms);
  const pageSideBytes = pageBytes(windowFormat, shape.kvHeads, shape.headDim);
  const latentBytes = shape.layers * (latents?.sealedBytes ?? 0) * (sealedPages(tokens) - sealedPages(length));
  const bytesNow =
    openBytes(shape, length, openFormat) + sealedPages(length) * shape.layers * SIDES.length * pageSideBytes;
  const bytesThen = bytesOf(UNTOUCHED, governed, tokens, () => untouchedBytes(governed, tokens));
  const grownBytes = Math.max(0, bytesThen - bytesNow + latentBytes);
  const thereBytes = again === null ? 0 : copyBytes(governed, governed.terms.context, 0, again.pages);
  const backBytes = away === null ? 0 : away.kvBytes - thereBytes - away.heldBytes;
  const { ownBytes } = room;
  const leftBytes = ownBytes === null ? Number.POSITIVE_INFINITY : Math.max(0, ownBytes - kv.usedBytes);
  return Math.min(grownBytes + backBytes, leftBytes);
}

/** Bytes of a cache at a length whose pages are all as they are in the window, and that leaves none behind. */
function untouchedBytes({ terms, shape }: Governed, tokens: number): number {
  const window = { ...heldWindow(terms), slidingWindow: undefined };
  const { windowFormat } = window;
  const untouched = Array.from({ length: shape.layers }, () => ({ k: windowFormat, v: windowFormat }));
  return bytesAt(shape, tokens, untouched, window);
}
