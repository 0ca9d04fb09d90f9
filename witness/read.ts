/** Reads a log from front to back, also while somebody writes it. An entry at the very end that is not whole yet does not count yet. */
import { KvError } from '../native/index.ts';
import { type Envelope, parseEnvelope } from './entry.ts';
import { type LogFiles, nodeFiles } from './files.ts';
import { findId } from './id.ts';
import { SessionKeys, type Unopened, unopenedError } from './keys.ts';
import { badLog } from './scan.ts';
import { segmentNumbers } from './segment.ts';
import { entryId, firstSeqOf, listSeries, seriesOf } from './series.ts';
import { type Entry, type EntryKind, NO_SESSION } from './types.ts';
import { checkLogId, logIdOf, type RawEntry, walkAll, walkSeries } from './walk.ts';

export interface ReadOptions {
  /**
   * Where reading begins: the seq of the first entry wanted, for any number of series (of several seqs in one series the highest counts).
   * Series that are not named are read from their start. Segments before it are not read.
   */
  readonly from?: readonly number[];
  readonly session?: string;
  readonly kinds?: readonly EntryKind[];
  /** Told of every entry that is passed over because it cannot be opened. Where a session was named, that is an error instead. */
  readonly onUnopened?: (session: string, why: Unopened) => void;
  readonly files?: LogFiles;
}

/**
 * Entries of all writers in order of time, those of one writer in order of seq, read as they are asked for. A torn tail ends a series.
 * Throws 'not-found' when there is no log in `dir`, 'bad-log' where it is damaged, 'sealed' for a session that was named and cannot be opened.
 */
export function* readLog(dir: string, options: ReadOptions = {}): Generator<Entry, void, undefined> {
  const { session, kinds, from = [], onUnopened = () => {}, files = nodeFiles } = options;
  const logId = logIdOf(files, dir);
  const keys = new SessionKeys(files, dir);
  const wanted: Reading = (envelope) => {
    if (session !== undefined && envelope.session !== session) return null;
    if (kinds !== undefined && !kinds.includes(envelope.kind)) return null;
    const entry = keys.open(envelope);
    if (entry !== null) return entry;
    const why = keys.unopened(envelope.session) as Unopened;
    if (session !== undefined) throw unopenedError(session, why);
    onUnopened(envelope.session, why);
    return null;
  };
  const all = listSeries(files, dir).map((series) => {
    const starts = from.filter((seq) => seriesOf(seq) === series);
    const walk = readSeries(files, dir, series, Math.max(firstSeqOf(series), ...starts), logId, wanted);
    return { walk, next: walk.next() };
  });
  try {
    for (let open = all.filter(isOpen); open.length > 0; open = open.filter(isOpen)) {
      // There are few series, so looking at each costs less than keeping them in order. Of equal times the lowest series comes first.
      const first = open.reduce((a, b) => ((b.next.value as Entry).timeMs < (a.next.value as Entry).timeMs ? b : a));
      yield first.next.value as Entry;
      first.next = first.walk.next();
    }
  } finally {
    for (const { walk } of all) walk.return();
  }
}

const isOpen = ({ next }: { readonly next: IteratorResult<Entry, void> }): boolean => next.done !== true;

/** What a reader makes of an entry; null: it is none that was asked for. */
type Reading = (envelope: Envelope) => Entry | null;

function* readSeries(
  files: LogFiles,
  logDir: string,
  series: number,
  fromSeq: number,
  logId: string | null,
  wanted: Reading,
): Generator<Entry, void, undefined> {
  for (const raw of walkSeries(files, logDir, series, fromSeq)) {
    checkLogId(raw, logId);
    if (raw.seq < fromSeq) continue;
    const envelope = envelopeOf(raw);
    const entry = wanted(envelope);
    if (entry !== null) yield entry;
  }
}

function envelopeOf({ segment, offset, seq, payload }: RawEntry): Envelope {
  const envelope = parseEnvelope(payload);
  if (envelope.seq !== seq) throw badLog(segment, offset, seq, `the entry says it is ${envelope.seq}`);
  return envelope;
}

/** Every entry, one series after the other, without what its body says: for that no keys are needed. Throws what `readLog` throws. */
export function* readEnvelopes(dir: string, files: LogFiles = nodeFiles): Generator<Envelope, void, undefined> {
  for (const raw of walkAll(files, dir)) yield envelopeOf(raw);
}

/** The session that a person means by its id, the beginning or the end of it. Throws 'not-found', 'bad-argument' with the candidates, and what `readLog` throws. */
export function findSession(dir: string, typed: string, files: LogFiles = nodeFiles): string {
  function* sessions(): Generator<string> {
    for (const { session } of readEnvelopes(dir, files)) if (session !== NO_SESSION) yield session;
  }
  return findId(sessions(), typed, 'session');
}

function openHere(keys: SessionKeys, raw: RawEntry): Entry {
  const envelope = envelopeOf(raw);
  const entry = keys.open(envelope);
  if (entry === null) throw unopenedError(envelope.session, keys.unopened(envelope.session) as Unopened);
  return entry;
}

/** The one entry with this seq. Throws 'not-found', 'sealed', and what `readLog` throws. */
export function readEntry(dir: string, seq: number, files: LogFiles = nodeFiles): Entry {
  if (!Number.isSafeInteger(seq) || seq < 0) {
    throw new KvError('bad-argument', `'${seq}' is not the id of an entry`, {
      values: { seq },
      hint: 'ids are the seq numbers that `audit list` shows',
    });
  }
  const series = seriesOf(seq);
  const logId = logIdOf(files, dir);
  if (listSeries(files, dir).includes(series))
    // Retention may have removed it, then a later one comes first.
    for (const raw of walkSeries(files, dir, series, seq)) {
      checkLogId(raw, logId);
      if (raw.seq > seq) break;
      if (raw.seq === seq) return openHere(new SessionKeys(files, dir), raw);
    }
  throw new KvError('not-found', `the log has no entry ${entryId(seq)}`, {
    values: { seq },
    hint: 'see `audit list` for the ids there are',
  });
}

/** Hash of a series' chain after the entry with this seq, in hex: what a checkpoint kept elsewhere must equal. null: there is no such entry. Throws what `readLog` throws. */
export function hashAt(dir: string, seq: number, files: LogFiles = nodeFiles): string | null {
  const logId = logIdOf(files, dir);
  if (!listSeries(files, dir).includes(seriesOf(seq))) return null;
  for (const raw of walkSeries(files, dir, seriesOf(seq), seq)) {
    checkLogId(raw, logId);
    if (raw.seq === seq) return Buffer.from(raw.hash).toString('hex');
  }
  return null;
}

/** Id of the log in `dir`; null while its first header is not complete. Throws 'not-found', 'bad-log'. */
export const readLogId = (dir: string, files: LogFiles = nodeFiles): string | null => logIdOf(files, dir);

/** Whether this folder holds a witness log, sound or not. False for anything that is not a folder. */
export function isLogDir(dir: string, files: LogFiles = nodeFiles): boolean {
  try {
    return segmentNumbers(files.listSync(dir)).length > 0;
  } catch {
    return false;
  }
}
