/** Reading a log front to back, also while somebody writes it: what is not whole yet at the very end is not there yet. */
import { KvError } from '../native/index.ts';
import { parsePayload } from './entry.ts';
import { type LogFiles, nodeFiles } from './files.ts';
import { findId } from './id.ts';
import { badLog } from './scan.ts';
import { segmentNumbers } from './segment.ts';
import { type Entry, type EntryKind, NO_SESSION } from './types.ts';
import { walkLog } from './walk.ts';

export interface ReadOptions {
  /** First seq wanted, default 0. Segments before it are not read. */
  readonly fromSeq?: number;
  readonly session?: string;
  readonly kinds?: readonly EntryKind[];
  readonly files?: LogFiles;
}

/**
 * Entries in order of seq, read as they are asked for. A torn tail ends the walk.
 * Throws 'not-found' when there is no log in `dir`, 'bad-log' where it is damaged.
 */
export function* readLog(dir: string, options: ReadOptions = {}): Generator<Entry, void, undefined> {
  const { session, kinds, fromSeq = 0, files = nodeFiles } = options;
  for (const { segment, offset, seq, payload } of walkLog(files, dir, fromSeq)) {
    if (seq < fromSeq) continue;
    const entry = parsePayload(payload);
    if (entry.seq !== seq) throw badLog(segment, offset, seq, `the entry says it is ${entry.seq}`);
    if (session !== undefined && entry.session !== session) continue;
    if (kinds === undefined || kinds.includes(entry.kind)) yield entry;
  }
}

/** The session that a person means by its id, the beginning or the end of it. Throws 'not-found', 'bad-argument' with the candidates, and what `readLog` throws. */
export function findSession(dir: string, typed: string, files: LogFiles = nodeFiles): string {
  function* sessions(): Generator<string> {
    for (const { session } of readLog(dir, { files })) if (session !== NO_SESSION) yield session;
  }
  return findId(sessions(), typed, 'session');
}

/** The one entry with this seq. Throws 'not-found', and what `readLog` throws. */
export function readEntry(dir: string, seq: number, files: LogFiles = nodeFiles): Entry {
  if (!Number.isSafeInteger(seq) || seq < 0) {
    throw new KvError('bad-argument', `'${seq}' is not the id of an entry`, {
      values: { seq },
      hint: 'ids are the seq numbers that `audit list` shows',
    });
  }
  for (const entry of readLog(dir, { fromSeq: seq, files })) return entry;
  throw new KvError('not-found', `the log has no entry ${seq}`, {
    values: { seq },
    hint: 'see `audit list` for the ids there are',
  });
}

/** Does this folder hold a witness log, sound or not? False for what is no folder. */
export function isLogDir(dir: string, files: LogFiles = nodeFiles): boolean {
  try {
    return segmentNumbers(files.listSync(dir)).length > 0;
  } catch {
    return false;
  }
}
