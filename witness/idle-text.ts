/**
 * What notes about a session that waited say to people: that it was parked because memory was short, that it could not
 * be, and how it came back.
 */
import { bytesText, plural, printable, show } from '../native/index.ts';
import { askerText } from './id.ts';

/** Body of such a note: `idle` says what happened. */
interface IdleNote {
  readonly idle?: unknown;
  readonly place?: unknown;
  readonly cause?: unknown;
  readonly asking?: unknown;
  readonly lackingBytes?: unknown;
  readonly idleMs?: unknown;
  readonly bytesBefore?: unknown;
  readonly bytesAfter?: unknown;
  readonly parkedBytes?: unknown;
  readonly why?: unknown;
  /** Tokens of pages that it holds together with others. */
  readonly heldTokens?: unknown;
  readonly rung?: unknown;
  readonly ahead?: unknown;
  readonly parkedBy?: unknown;
}

/** null: the note is about something else. */
export function idleText(note: IdleNote): string | null {
  const { idle, place, idleMs, bytesBefore, bytesAfter, parkedBytes, why, heldTokens } = note;
  if (idle === 'parked') {
    const seconds = typeof idleMs === 'number' ? ` for ${(idleMs / 1000).toFixed(1)} s` : '';
    const file = place === 'disk' ? ` and a file of ${bytes(parkedBytes)}` : '';
    if (place === 'reread')
      return `Waited${seconds} and let its pages go, because ${causeText(note)}: ${bytes(bytesBefore)} are free, and its tokens are read again.`;
    return `Waited${seconds} and was parked ${place === 'disk' ? 'on disk' : 'in memory'}, because ${causeText(note)}: ${bytes(bytesBefore)} became ${bytes(bytesAfter)}${file}.`;
  }
  if (idle === 'kept') return `Was to be parked, because ${causeText(note)}, and was not: ${printable(show(why))}.`;
  if (idle !== 'woken') return null;
  const held = typeof heldTokens === 'number' ? `, ${plural(heldTokens, 'token')} in pages that others hold too` : '';
  if (note.ahead === true) return `Read back while its call waited to begin: ${bytes(bytesAfter)}${held}.`;
  return why === undefined
    ? `Used again: what was parked came back to ${bytes(bytesAfter)}${held}.`
    : `Used again: what was parked could not be used, and its tokens are read again: ${printable(show(why))}.`;
}

function causeText({ cause, asking, lackingBytes, rung, parkedBy }: IdleNote): string {
  const chosen = typeof parkedBy === 'string' ? `, chosen by '${printable(parkedBy)}'` : '';
  const who = printable(typeof asking === 'string' ? askerText(asking) : show(asking));
  return cause === 'low-memory'
    ? `${who} was told that memory is short`
    : `${who} lacked ${bytes(lackingBytes)}${typeof rung === 'string' ? ` (rung '${printable(rung)}'${chosen})` : ''}`;
}

const bytes = (value: unknown): string => (typeof value === 'number' ? bytesText(value) : '?');
