/** What a note says to people of bytes that a session gave up because those with which it shares memory needed room. */
import { bytesText, printable, show } from '../native/index.ts';
import { entryId } from './series.ts';

/** Body of such a note. */
interface GaveUpNote {
  readonly gaveUpBytes?: unknown;
  readonly gaveUpFor?: unknown;
  readonly gaveUpBy?: unknown;
  readonly gaveUpIn?: unknown;
}

/** null: the note is about something else. */
export function gaveUpText({ gaveUpBytes, gaveUpFor, gaveUpBy, gaveUpIn }: GaveUpNote): string | null {
  if (typeof gaveUpBytes !== 'number') return null;
  const whom = printable(show(gaveUpFor));
  const where = typeof gaveUpIn === 'number' ? ` (entry ${entryId(gaveUpIn)})` : '';
  return `Gave up ${bytesText(gaveUpBytes)} for session ${whom}, because memory was short: its turn by '${printable(show(gaveUpBy))}'${where}.`;
}
