/**
 * Erasing a session from the log: its key is destroyed, and an entry says so. The entries stay where they are, since
 * every later hash builds on them, but nobody can read what they say. Every step can be taken again, so an erasure that
 * was broken off is finished by beginning it anew.
 */
import { KvError } from '../native/index.ts';
import { type LogFiles, nodeFiles } from './files.ts';
import { destroyKey, markErased } from './keys.ts';
import { openWitnessLog } from './log.ts';
import { findSession } from './read.ts';
import { aloneAmongRemovals } from './removals.ts';
import { isRunning, type LoggedSession, surveyLog } from './survey.ts';

/** The session that a person means. Throws what `findSession` throws. */
function sessionIn(dir: string, typed: string, files: LogFiles): LoggedSession {
  const session = findSession(dir, typed, files);
  return surveyLog(files, dir).sessions.get(session) as LoggedSession;
}

/**
 * The session that is to be erased, or was. `typed`: its id, or the beginning or the end of it. Throws 'not-found',
 * 'bad-argument' for an ambiguous one, 'held', 'busy' while it runs, 'unsupported' for one that was written before
 * bodies were encrypted.
 */
export function findErasable(dir: string, typed: string, files: LogFiles = nodeFiles): LoggedSession {
  const found = sessionIn(dir, typed, files);
  const { session, entries, plain, isHeld } = found;
  if (isHeld)
    throw new KvError('held', `session ${session} is held`, {
      values: { session },
      hint: 'end the hold first: palimpsest audit hold --release',
    });
  if (isRunning(dir, found))
    throw new KvError('busy', `session ${session} is still running`, {
      values: { session },
      hint: 'close it, then erase it',
    });
  if (plain > 0)
    throw new KvError('unsupported', `session ${session} was written before bodies were encrypted`, {
      values: { session, entries, plain },
      hint: 'it goes when retention removes its segments: palimpsest audit retain',
    });
  return found;
}

/** Makes the bodies of the session unreadable for ever. */
export function destroySession(dir: string, session: string, files: LogFiles = nodeFiles): void {
  markErased(files, dir, session);
  destroyKey(files, dir, session);
}

/** The same while nobody begins a hold. Throws what `findErasable` throws when that became true since it was asked. */
export const destroyUnlessHeld = (dir: string, session: string): Promise<void> =>
  aloneAmongRemovals(dir, () => {
    findErasable(dir, session);
    destroySession(dir, session);
  });

/**
 * Writes that a session was erased, or that a hold on it begins or ends. `by`: the command. Throws what opening and
 * writing a log throw.
 */
export async function recordDone(
  dir: string,
  session: string,
  kind: 'erase' | 'hold' | 'release',
  by: string,
): Promise<void> {
  // None of these bodies is encrypted, so no master key is needed.
  const log = await openWitnessLog({ dir });
  try {
    log.append(session, kind, { by });
    await log.flush();
  } finally {
    await log.close();
  }
}

/**
 * Begins or ends a legal hold, which neither erasing nor retention passes over. → whether anything changed. Throws
 * 'not-found', 'bad-argument', 'sealed' for one that was erased.
 */
export async function holdSession(
  dir: string,
  typed: string,
  { release = false, by }: { readonly release?: boolean; readonly by: string },
): Promise<{ readonly session: string; readonly changed: boolean }> {
  const { session } = sessionIn(dir, typed, nodeFiles);
  return aloneAmongRemovals(dir, () => holdAlone(dir, session, release, by));
}

/** Nobody removes or erases the session meanwhile, but somebody may have done it since it was looked for. */
async function holdAlone(
  dir: string,
  id: string,
  release: boolean,
  by: string,
): Promise<{ readonly session: string; readonly changed: boolean }> {
  const { session, isHeld, erasedMs } = sessionIn(dir, id, nodeFiles);
  if (erasedMs !== null)
    throw new KvError('sealed', `session ${session} was erased; there is nothing to hold`, { values: { session } });
  if (isHeld !== release) return { session, changed: false };
  await recordDone(dir, session, release ? 'release' : 'hold', by);
  return { session, changed: true };
}
