/**
 * What goes first of all that is kept for whoever may come: pages of sessions that were closed, adapters that no
 * session has. It is what has been idle for long, is large, is fast to have again, and is not expected to be used.
 */

/** One thing that is kept. */
export interface KeptThing {
  /** By which of two that are worth the same one goes first. */
  readonly id: string;
  /** Since it was used. */
  readonly idleMs: number;
  readonly bytes: number;
  /** What it takes to have it again. */
  readonly restoreMs: number;
  /** Share of what begins that is expected to use it, 0 to 1. Left out: nothing is known. */
  readonly likelyUse?: number;
}

/** What takes no time to have again is not worth infinitely much. */
const RESTORE_MS_LEAST = 0.01;

/** What is gained by each ms that it would take to have it again, as often as nobody uses it. */
export const gainOf = ({ idleMs, bytes, restoreMs, likelyUse = 0 }: KeptThing): number =>
  ((1 - likelyUse) * idleMs * bytes) / Math.max(restoreMs, RESTORE_MS_LEAST);

/** The one that goes first; undefined: there is none. */
export function goesFirst<Thing extends KeptThing>(things: Iterable<Thing>): Thing | undefined {
  let first: Thing | undefined;
  for (const thing of things) {
    const more = first === undefined ? 1 : gainOf(thing) - gainOf(first);
    if (more > 0 || (more === 0 && thing.id < first!.id)) first = thing;
  }
  return first;
}
