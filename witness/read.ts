/**
 * Reads a log from front to back, also while somebody writes it. An entry at the very end that is not whole yet does
 * not count yet.
 */
import { given, KvError, opensBodies } from '../native/index.ts';
import { SenselessBody } from './body.ts';
import { canonicalText } from './canonical.ts';
import { ENCRYPTED_HEAD, SEALED_HEAD } from './encryption.ts';
import { type Envelope, parseEnvelope } from './entry.ts';
import { type LogFiles, nodeFiles } from './files.ts';
import { findId } from './id.ts';
import { SessionKeys, type Unopened, unopenedError } from './keys.ts';
import { offsetIn, payloadIn, type Run } from './run.ts';
import { badLog } from './scan.ts';
import { segmentNumbers } from './segment.ts';
import { checkSeq, entryId, firstSeqOf, listSeries, seriesDir, seriesOf } from './series.ts';
import { type Entry, type EntryKind, NO_SESSION, type SenselessEntry } from './types.ts';
import { checkLogId, listSegments, logIdOf, type RawEntry, walkAll, walkRuns, walkSeries } from './walk.ts';

export interface ReadOptions {
  /**
   * Where reading begins: the seq of the first entry wanted, for any number of series (of several seqs in one series
   * the highest counts). Series that are not named are read from their start. Segments before it are not read.
   */
  readonly from?: readonly number[];
  readonly session?: string;
  readonly kinds?: readonly EntryKind[];
  /**
   * Told of every entry that is passed over because it cannot be opened. Where a session was named, that is an error
   * instead.
   */
  readonly onUnopened?: (session: string, why: Unopened, timeMs: number) => void;
  /**
   * Told of every entry that is passed over because it makes no sense. Where a session was named and nobody is told,
   * that is an error instead.
   */
  readonly onSenseless?: (entry: SenselessEntry) => void;
  readonly files?: LogFiles;
}

/**
 * Entries of all writers in order of time, those of one writer in order of seq, read as they are asked for. A torn tail
 * ends a series. Throws 'not-found' when there is no log in `dir`, 'bad-log' where it is damaged, 'sealed' for a
 * session that was named and cannot be opened.
 */
export function* readLog(dir: string, options: ReadOptions = {}): Generator<Entry, void, undefined> {
  const { session, kinds, from = [], onUnopened, onSenseless, files = nodeFiles } = options;
  const told = { session, kinds, onUnopened, onSenseless, files };
  const keys = new SessionKeys(files, dir);
  const all = listSeries(files, dir).map((series) => {
    const starts = from.filter((seq) => seriesOf(seq) === series);
    const first = Math.max(firstSeqOf(series), ...starts);
    const walk = readSeries(dir, series, given<SeriesPart>({ from: first, ...told }), keys);
    return { walk, next: walk.next() };
  });
  try {
    for (let open = all.filter(isOpen); open.length > 0; open = open.filter(isOpen)) {
      // There are few series, so looking at each costs less than keeping them in order. Of equal times the lowest
      // series comes first.
      const first = open.reduce((a, b) => ((b.next.value as Entry).timeMs < (a.next.value as Entry).timeMs ? b : a));
      yield first.next.value as Entry;
      first.next = first.walk.next();
    }
  } finally {
    for (const { walk } of all) walk.return();
  }
}

const isOpen = ({ next }: { readonly next: IteratorResult<Entry, void> }): boolean => next.done !== true;

/** Which part of one series is read. */
export interface SeriesPart extends Pick<ReadOptions, 'session' | 'kinds' | 'onUnopened' | 'onSenseless' | 'files'> {
  /** First seq. Default: the first of the series. */
  readonly from?: number;
  /** The seq before which reading ends. Default: none. */
  readonly to?: number;
  /** Several sessions in place of one. */
  readonly sessions?: readonly string[];
}

/**
 * Entries of one series in order of seq. Those that name another session or kind in their envelope are passed over
 * unparsed, which saves half of the time, and the binary opens encrypted ones many at a time. Throws 'not-found' when
 * there is no log in `dir`, 'bad-log' where it is damaged, 'sealed' for a session that was named and cannot be opened.
 */
export function* readSeries(
  dir: string,
  series: number,
  part: SeriesPart,
  keys: SessionKeys = new SessionKeys(part.files ?? nodeFiles, dir),
): Generator<Entry, void, undefined> {
  const { from = firstSeqOf(series), to = Number.POSITIVE_INFINITY, kinds, onUnopened, onSenseless } = part;
  const { files = nodeFiles, session, sessions = session === undefined ? undefined : [session] } = part;
  const folder = seriesDir(dir, series);
  const logId = logIdOf(files, dir);
  const isOther = isOtherThan(sessions, kinds);
  const reader = new BodyReader(keys);
  if (series > 0 && listSegments(files, folder).length === 0) return;
  try {
    for (const run of walkRuns(files, folder, { fromSeq: from })) {
      checkLogId(run, logId);
      reader.open(run, (index) => run.seq + index < from || run.seq + index >= to || isOther(payloadIn(run, index)));
      for (let index = 0; index < run.count; index++) {
        if (run.kinds[index] === KIND_PASSED_OVER) continue;
        const sound = reader.sound(run, index);
        const envelope = sound ?? envelopeIn(run, index);
        if (sessions !== undefined && !sessions.includes(envelope.session)) continue;
        if (kinds !== undefined && !kinds.includes(envelope.kind)) continue;
        const entry =
          sound ?? openOrTell(keys, envelope, onSenseless ?? (sessions === undefined ? () => {} : undefined));
        if (entry === SENSELESS) continue;
        if (entry !== null) {
          yield entry;
          continue;
        }
        const why = keys.unopened(envelope.session) as Unopened;
        if (sessions !== undefined) throw unopenedError(envelope.session, why);
        onUnopened?.(envelope.session, why, envelope.timeMs);
      }
      if (run.seq + run.count >= to) return;
    }
  } finally {
    keys.wipe();
  }
}

/** In the place of an entry that makes no sense. */
const SENSELESS = Symbol('an entry that makes no sense');

/** The entry; null: it cannot be opened. One that makes no sense is told, or thrown where nobody is: 'bad-log'. */
function openOrTell(
  keys: SessionKeys,
  envelope: Envelope,
  tell: ReadOptions['onSenseless'],
): Entry | typeof SENSELESS | null {
  try {
    return keys.open(envelope);
  } catch (error) {
    if (!(error instanceof SenselessBody) || tell === undefined) throw error;
    tell(senseless(envelope, error));
    return SENSELESS;
  }
}

/** How readers tell of an entry that makes no sense. */
export const senseless = ({ seq, timeMs, session, kind }: Envelope, { message }: SenselessBody): SenselessEntry => ({
  ...{ seq, timeMs, session, kind },
  what: message,
});

/** In the place of the kind of an entry that nobody wants. */
const KIND_PASSED_OVER = 254;
/** What encrypted bodies begin with. */
const ENCRYPTED_HEADS = [ENCRYPTED_HEAD, SEALED_HEAD].map((head) => Buffer.from(head));

/** Entries of runs as the binary opened them. */
class BodyReader {
  readonly #keys: SessionKeys;
  #bodies = { room: Buffer.alloc(0), texts: new Uint32Array(0) };
  #hasOpened = false;

  constructor(keys: SessionKeys) {
    this.#keys = keys;
  }

  /** Opens what is encrypted in a run, but for what is passed over. */
  open(run: Run, isPassedOver: (index: number) => boolean): void {
    const { bytes, count, kinds } = run;
    for (let index = 0; index < count; index++) if (isPassedOver(index)) kinds[index] = KIND_PASSED_OVER;
    this.#hasOpened = opensBodies() && ENCRYPTED_HEADS.some((head) => bytes.includes(head));
    if (!this.#hasOpened) return;
    const { room, texts } = this.#bodies;
    if (room.length < bytes.length || texts.length < 2 * count)
      this.#bodies = { room: Buffer.allocUnsafeSlow(bytes.length), texts: new Uint32Array(2 * count) };
    else texts.fill(0, 0, 2 * count);
    this.#keys.openRun(run, 1, this.#bodies);
  }

  /** The entry, where the binary opened it and is certain of it; null: somebody has to look. */
  sound(run: Run, index: number): Entry | null {
    if (!this.#hasOpened) return null;
    const { room, texts } = this.#bodies;
    const [at, bytes] = [texts[2 * index] as number, texts[2 * index + 1] as number];
    const head = bytes === 0 ? null : headOf(payloadIn(run, index));
    if (head === null) return null;
    return {
      seq: run.seq + index,
      timeMs: Number(head[1]),
      session: JSON.parse(head[2] as string) as string,
      kind: head[3] as EntryKind,
      body: JSON.parse(room.toString('utf8', at, at + bytes)) as Entry['body'],
    };
  }
}

const envelopeIn = (run: Run, index: number): Envelope => {
  const { segment } = run;
  return envelopeOf({ segment, offset: offsetIn(run, index), seq: run.seq + index, payload: payloadIn(run, index) });
};

/** What stands before the body as a writer spells it; bytes that are spelled otherwise are parsed whole. */
const ENVELOPE = /^\{"seq":\d+,"timeMs":(\d+),"session":("(?:[^"\\]|\\.)*"),"kind":"([a-z]+)","body":/;
/** Bytes that hold it with the longest session that engines give. */
const ENVELOPE_BYTES = 256;

const headOf = (payload: Uint8Array): RegExpExecArray | null =>
  ENVELOPE.exec(
    Buffer.from(payload.buffer, payload.byteOffset, Math.min(payload.length, ENVELOPE_BYTES)).toString('latin1'),
  );

/** Says of the bytes of an entry whether they certainly name another session or another kind. */
function isOtherThan(
  sessions: readonly string[] | undefined,
  kinds: readonly EntryKind[] | undefined,
): (payload: Uint8Array) => boolean {
  if (sessions === undefined && kinds === undefined) return () => false;
  const spelled = sessions?.map((session) => Buffer.from(canonicalText(session)).toString('latin1'));
  return (payload) => {
    const head = headOf(payload);
    if (head === null) return false;
    return (
      spelled?.includes(head[2] as string) === false || (kinds !== undefined && !kinds.includes(head[3] as EntryKind))
    );
  };
}

/**
 * Time of the first entry of a series from this seq on; null: there is none. No key is needed. Throws what `readLog`
 * throws.
 */
export function timeAt(dir: string, seq: number, files: LogFiles = nodeFiles): number | null {
  for (const raw of walkSeries(files, dir, seriesOf(seq), seq)) if (raw.seq >= seq) return envelopeOf(raw).timeMs;
  return null;
}

function envelopeOf({
  segment,
  offset,
  seq,
  payload,
}: Pick<RawEntry, 'segment' | 'offset' | 'seq' | 'payload'>): Envelope {
  const envelope = parseEnvelope(payload);
  if (envelope.seq !== seq) throw badLog(segment, offset, seq, `the entry says it is ${envelope.seq}`);
  return envelope;
}

/**
 * Every entry, one series after the other, without what its body says: for that no keys are needed. Throws what
 * `readLog` throws.
 */
export function* readEnvelopes(dir: string, files: LogFiles = nodeFiles): Generator<Envelope, void, undefined> {
  for (const raw of walkAll(files, dir)) yield envelopeOf(raw);
}

/**
 * The session that a person means by its id, the beginning or the end of it. Throws 'not-found', 'bad-argument' with
 * the candidates, and what `readLog` throws.
 */
export function findSession(dir: string, typed: string, files: LogFiles = nodeFiles): string {
  function* sessions(): Generator<string> {
    const seen = new Set<string>();
    for (const raw of walkAll(files, dir)) {
      const spelled = headOf(raw.payload)?.[2];
      if (spelled !== undefined && seen.has(spelled)) continue;
      if (spelled !== undefined) seen.add(spelled);
      const { session } = envelopeOf(raw);
      if (session !== NO_SESSION) yield session;
    }
  }
  return findId(sessions(), typed, 'session');
}

/**
 * The envelope of the one entry with this seq, also where nobody can open its body, which is left out then. Throws
 * 'not-found', 'bad-argument', and what `readLog` throws.
 */
export function readEnvelope(
  dir: string,
  seq: number,
  files: LogFiles = nodeFiles,
): Omit<Entry, 'body'> & { readonly why: Unopened | null } {
  const { timeMs, session, kind } = envelopeOf(rawAt(dir, seq, files));
  return { seq, timeMs, session, kind, why: new SessionKeys(files, dir).unopened(session) };
}

function openHere(keys: SessionKeys, raw: RawEntry): Entry {
  const envelope = envelopeOf(raw);
  const entry = openOrTell(keys, envelope, ({ seq, what }) => {
    throw badLog(raw.segment, raw.offset, seq, what);
  }) as Entry | null;
  if (entry === null) throw unopenedError(envelope.session, keys.unopened(envelope.session) as Unopened);
  return entry;
}

/** The one entry with this seq. Throws 'not-found', 'sealed', and what `readLog` throws. */
export function readEntry(dir: string, seq: number, files: LogFiles = nodeFiles): Entry {
  return openHere(new SessionKeys(files, dir), rawAt(dir, seq, files));
}

function rawAt(dir: string, seq: number, files: LogFiles): RawEntry {
  checkSeq(seq);
  const series = seriesOf(seq);
  const logId = logIdOf(files, dir);
  if (listSeries(files, dir).includes(series))
    // Retention may have removed it, then a later one comes first.
    for (const raw of walkSeries(files, dir, series, seq)) {
      checkLogId(raw, logId);
      if (raw.seq > seq) break;
      // The bytes are the walk's until it goes on, and it ends here.
      if (raw.seq === seq) return { ...raw, payload: Uint8Array.from(raw.payload) };
    }
  throw new KvError('not-found', `the log has no entry ${entryId(seq)}`, {
    values: { seq },
    hint: 'see `audit list` for the ids there are',
  });
}

/**
 * Hash of a series' chain after the entry with this seq, in hex: what a checkpoint kept elsewhere must equal. null:
 * there is no such entry. Throws what `readLog` throws.
 */
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

/** True if this folder holds a witness log, sound or not. False for anything that is not a folder. */
export function isLogDir(dir: string, files: LogFiles = nodeFiles): boolean {
  try {
    return segmentNumbers(files.listSync(dir)).length > 0;
  } catch {
    return false;
  }
}
