/** What a note says to people of an adapter that nobody had and that went from memory. */
import { brief, bytesText, printable } from '../native/index.ts';
import type { NoteBody } from './entries/log-notes.ts';
import { askerText } from './id.ts';

export function goneText(gone: NonNullable<NoteBody['adapterGone']>): string {
  const { digest, bytes, idleMs, restoreMs, likelyUse, lackingBytes, session } = gone;
  const whom = session === undefined ? '' : ` for ${printable(askerText(session))}`;
  const likely =
    likelyUse === undefined ? '' : ` and ${brief(100 * likelyUse)}% of the sessions that ask were expected to use it`;
  return `Adapter ${printable(digest).slice(0, 12)} went from memory, where ${bytesText(lackingBytes)} were lacking${whom}: nobody had it for ${brief(idleMs / 1000)} s, it took ${bytesText(bytes)}, reading it had taken ${brief(restoreMs)} ms${likely}.`;
}
