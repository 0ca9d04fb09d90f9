/**
 * What the envelopes of a log say of its sessions and segments. No keys are needed, so sessions that were erased are
 * told of too.
 */
import fs from 'node:fs';
import { join } from 'node:path';
import { KvError } from '../native/index.ts';
import { isEncrypted, mustEncrypt } from './encryption.ts';
import { parseEnvelope } from './entry.ts';
import type { LogFiles } from './files.ts';
import { LOCK_NAME, lockWriter } from './lock.ts';
import { segmentNumbers } from './segment.ts';
import { seriesDir, seriesOf } from './series.ts';
import { NO_SESSION } from './types.ts';
import { walkAll } from './walk.ts';

/** A session as its envelopes tell it. */
export interface LoggedSession {
  readonly session: string;
  /** What was recorded of it; what was done to it from outside is not counted. */
  entries: number;
  /** Entries that were written before bodies were encrypted: nobody can erase them without breaking the chain. */
  plain: number;
  /** Series that its writer wrote; −1: nothing was recorded of it. */
  series: number;
  /** Times of its first and its last entry. */
  firstMs: number;
  lastMs: number;
  isClosed: boolean;
  /** When it was erased; null: it was not. */
  erasedMs: number | null;
  /** When a hold began or ended last, and which of the two it was. */
  heldMs: number;
  isHeld: boolean;
}

export interface LoggedSegment {
  readonly series: number;
  readonly number: number;
  entries: number;
  /** Time of its last entry. */
  lastMs: number;
  /** Sessions that entries of it belong to, and those of them of which something was recorded here. */
  readonly sessions: Set<string>;
  readonly recorded: Set<string>;
}

export interface Survey {
  readonly sessions: ReadonlyMap<string, LoggedSession>;
  /** In order of series and number. */
  readonly segments: readonly LoggedSegment[];
  /** Series, and the seq behind the last entry of each. */
  readonly seen: ReadonlyMap<number, number>;
}

/** Reads every envelope. Throws 'not-found' without a log, 'bad-log'. */
export function surveyLog(files: LogFiles, dir: string): Survey {
  const sessions = new Map<string, LoggedSession>();
  const segments: LoggedSegment[] = [];
  const seen = new Map<number, number>();
  for (const { segment, seq, payload } of walkAll(files, dir)) {
    const envelope = parseEnvelope(payload);
    const { session, kind, timeMs } = envelope;
    const series = seriesOf(seq);
    seen.set(series, seq + 1);
    const number = segmentNumbers([segment])[0] as number;
    let place = segments.at(-1);
    if (place?.series !== series || place.number !== number) {
      place = { series, number, entries: 0, lastMs: 0, sessions: new Set(), recorded: new Set() };
      segments.push(place);
    }
    place.entries++;
    place.lastMs = timeMs;
    if (session === NO_SESSION) continue;
    place.sessions.add(session);
    const known = sessions.get(session) ?? newSession(session);
    sessions.set(session, known);
    if (mustEncrypt(session, kind)) {
      known.entries++;
      place.recorded.add(session);
      known.series = series;
      known.firstMs = Math.min(known.firstMs, timeMs);
      known.lastMs = Math.max(known.lastMs, timeMs);
      if (!isEncrypted(envelope)) known.plain++;
      if (kind === 'close') known.isClosed = true;
    } else if (kind === 'erase') known.erasedMs = timeMs;
    else if (timeMs >= known.heldMs) {
      known.heldMs = timeMs;
      known.isHeld = kind === 'hold';
    }
  }
  return { sessions, segments, seen };
}

const newSession = (session: string): LoggedSession => ({
  session,
  entries: 0,
  plain: 0,
  series: -1,
  firstMs: Number.POSITIVE_INFINITY,
  lastMs: 0,
  isClosed: false,
  erasedMs: null,
  heldMs: 0,
  isHeld: false,
});

/**
 * True if a session may get more entries: it was not closed, and the writer that it began under still holds its series.
 */
export function isRunning(
  dir: string,
  { isClosed, series, lastMs }: LoggedSession,
  heldSince: (series: number) => number = (number) => lockedSince(seriesDir(dir, number)),
): boolean {
  // A session that fell silent before this writer took the lock was of one that is gone.
  return !isClosed && series >= 0 && lastMs >= heldSince(series);
}

/** When the writer of a series took its lock, milliseconds since the epoch; Infinity: nobody holds it. */
export function lockedSince(folder: string): number {
  try {
    lockWriter(folder).release();
    return Number.POSITIVE_INFINITY;
  } catch (error) {
    if (!(error instanceof KvError) || error.code !== 'locked') throw error;
    const lock = fs.statSync(join(folder, LOCK_NAME), { throwIfNoEntry: false });
    return lock === undefined ? Number.POSITIVE_INFINITY : Math.floor(lock.mtimeMs);
  }
}
