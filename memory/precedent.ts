/** A session that was found, as whoever decides by it is told, and as the log says by what was decided. */
import type { Precedent } from '../policy/index.ts';
import type { FormatShares, SessionRecord } from './session-record.ts';
import type { Neighbour } from './vector.ts';

/** Which session it is, and how near. ownLog: of whoever is told. */
export const toldOf = ({ id: { log, seq }, distance, payload }: Neighbour<SessionRecord>, ownLog: string) => ({
  session: payload.session,
  distance: Math.round(distance * 1e6) / 1e6,
  seq,
  ...(log === ownLog ? {} : { log }),
});

/** The same, with what it used and what came of it. */
export function precedentOf(near: Neighbour<SessionRecord>, ownLog: string): Precedent {
  const { reason, adapters, effectiveBits, formats } = near.payload;
  const [k, v] = formats === null ? [null, null] : [mostOf(formats.k), mostOf(formats.v)];
  return {
    ...toldOf(near, ownLog),
    ...{ reason, adapters: adapters ?? [], bits: effectiveBits },
    formats: k === null || v === null ? null : `${k}:${v}`,
  };
}

/** The format of most pages; of equals the one whose name comes first. */
function mostOf(shares: FormatShares): string | null {
  const [most] = Object.entries(shares).sort(([a, one], [b, two]) => two - one || (a < b ? -1 : 1));
  return most?.[0] ?? null;
}
