/**
 * What goes first of all that is kept for whoever may come: pages of sessions that were closed, adapters that no
 * session has. It is what has been idle for long, is large and is fast to have again.
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
}

/** What takes no time to have again is not worth infinitely much. */
const RESTORE_MS_LEAST = 0.01;

/** What is gained by each ms that it would take to have it again. */
export const gainOf = ({ idleMs, bytes, restoreMs }: KeptThing): number =>
  (idleMs * bytes) / Math.max(restoreMs, RESTORE_MS_LEAST);

/** The one that goes first; undefined: there is none. */
export function goesFirst<Thing extends KeptThing>(things: Iterable<Thing>): Thing | undefined {
  let first: Thing | undefined;
  for (const thing of things) {
    const more = first === undefined ? 1 : gainOf(thing) - gainOf(first);
    if (more > 0 || (more === 0 && thing.id < first!.id)) first = thing;
  }
  return first;
}
