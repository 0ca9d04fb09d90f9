/** What a note says to people of bytes that a session gave up because those with which it shares memory needed room. */
import { bytesText, printable, show } from '../native/index.ts';
import { rungText } from '../policy/index.ts';
import { askerText } from './id.ts';
import { entryId } from './series.ts';

/** Body of such a note. */
interface GaveUpNote {
  readonly gaveUpBytes?: unknown;
  readonly gaveUpFor?: unknown;
  readonly gaveUpBy?: unknown;
  readonly gaveUpIn?: unknown;
  readonly rung?: unknown;
}

/** null: the note is about something else. */
export function gaveUpText({ gaveUpBytes, gaveUpFor, gaveUpBy, gaveUpIn, rung }: GaveUpNote): string | null {
  if (typeof gaveUpBytes !== 'number') return null;
  const whom = printable(typeof gaveUpFor === 'string' ? askerText(gaveUpFor) : show(gaveUpFor));
  const where = typeof gaveUpIn === 'number' ? ` (entry ${entryId(gaveUpIn)})` : '';
  const turn = gaveUpBy === undefined ? '' : `: its turn by '${printable(show(gaveUpBy))}'`;
  return `Gave up ${bytesText(gaveUpBytes)} for ${whom}, because memory was short${turn}${where}${onRung(rung)}.`;
}

/** The rung of the ladder on which bytes were found, for the end of a sentence; '' where the log does not say it. */
export function onRung(rung: unknown): string {
  if (typeof rung !== 'string') return '';
  const means = rungText(rung);
  return `, on rung '${printable(rung)}' of the ladder${means === null ? '' : ` (${means})`}`;
}
