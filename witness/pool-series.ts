/**
 * The series of a pool: each time that a session asked the others for bytes, that some were parked for it, or that an
 * adapter went from memory, as a note of a session of the pool's own, which has nothing else. Every such note says all
 * that it was decided on, so any of them may go without the others.
 */
import type { NoteBody } from './entries/log-notes.ts';
import type { PoolAsking } from './entries/pool-asking.ts';
import type { PoolParking } from './entries/pool-parking.ts';
import { newId } from './id.ts';
import type { Entry } from './types.ts';

const PREFIX = 'pool-';

/** Names the series of one pool, as ids name sessions. */
export const newPoolId = (): string => `${PREFIX}${newId()}`;

/** True if it is the id of a pool and of no session. */
export const isPool = (id: string): boolean => id.startsWith(PREFIX);

/** What an entry says of an asking of a pool; null: it is about something else. */
export const askingIn = ({ kind, body }: Pick<Entry, 'kind' | 'body'>): PoolAsking | null =>
  kind === 'note' ? ((body as NoteBody).pool ?? null) : null;

/** True of an adapter that went from memory, which is no choice of a policy with a name. */
export const tellsGone = ({ kind, body }: Pick<Entry, 'kind' | 'body'>): boolean =>
  kind === 'note' && (body as NoteBody).adapterGone !== undefined;

/** The same of sessions that were parked for another one. */
export const parkingIn = ({ kind, body }: Pick<Entry, 'kind' | 'body'>): PoolParking | null =>
  kind === 'note' ? ((body as NoteBody).parking ?? null) : null;
