/**
 * Is the log what was written? Every byte of every segment of every writer counts: magic, version, reserved bytes, ids,
 * CRCs, lengths, seqs without gaps, the hash chain through all segments, and the one canonical spelling of every entry.
 * Whatever else stands in the folder is named.
 */
import { createHash } from 'node:crypto';
import { availableParallelism } from 'node:os';
import { join } from 'node:path';
import { KIND_UNOPENED, KvError } from '../native/index.ts';
import { type Contradiction, SeriesCheckpoints } from './against.ts';
import { SenselessBody } from './body.ts';
import { NO_HASH } from './chain.ts';
import type { Checkpoint } from './checkpoint.ts';
import { type Envelope, isCanonical, parseEnvelope } from './entry.ts';
import { type LogFiles, nodeFiles } from './files.ts';
import { FORM_KINDS } from './forms.ts';
import { isKeyName, KEYS_NAME, keysDir, SessionKeys } from './keys.ts';
import { LOCK_NAME } from './lock.ts';
import { senseless } from './read.ts';
import { offsetIn, payloadIn, type Run, stateWithin } from './run.ts';
import { badLog } from './scan.ts';
import { segmentName } from './segment.ts';
import { listFolder, listSeries, REMOVALS_NAME, seriesDir, seriesName } from './series.ts';
import { Frontier } from './tree.ts';
import type { Entry, ForeignPart, RecoveredBody, SenselessEntry, SeriesReport, VerifyReport } from './types.ts';
import { checkLogId, type LogEnd, listSegments, logIdOf, walkRuns } from './walk.ts';

/**
 * True if every byte of the log in `dir` is what was written, and what else stands in that folder. Keys are not needed:
 * what they open is looked at too, and the rest counted. Never throws for damage: the report holds the first problem.
 * Throws 'not-found' when there is no log in `dir`, 'bad-file' for a key file that is none, 'io' when something cannot
 * be read. Entries cut off at the end, and a log written anew as a whole, are not visible from the log alone;
 * `verifyAgainst` compares it with checkpoints.
 */
export function verifyLog(dir: string): VerifyReport;
/** @internal */
export function verifyLog(dir: string, files: LogFiles, threads?: number): VerifyReport;
export function verifyLog(dir: string, files: LogFiles = nodeFiles, threads = threadsHere()): VerifyReport {
  return verifyAll(dir, files, null, threads);
}

/**
 * The same, and whether the log has everything that these checkpoints signed (`readCheckpoints`): every entry, in that
 * order, with nothing between them. Another log in its place, a missing end and entries written anew are problems.
 * Throws as `verifyLog` does.
 */
export function verifyAgainst(dir: string, checkpoints: readonly Checkpoint[]): VerifyReport;
/** @internal */
export function verifyAgainst(dir: string, checkpoints: readonly Checkpoint[], files: LogFiles): VerifyReport;
export function verifyAgainst(
  dir: string,
  checkpoints: readonly Checkpoint[],
  files: LogFiles = nodeFiles,
): VerifyReport {
  return verifyAll(dir, files, checkpoints, threadsHere());
}

/** More wait for the one that follows the chain. */
const THREADS_MAX = 8;
const threadsHere = (): number => Math.min(availableParallelism(), THREADS_MAX);

function verifyAll(
  dir: string,
  files: LogFiles,
  checkpoints: readonly Checkpoint[] | null,
  threads: number,
): VerifyReport {
  const foreign: ForeignPart[] = [];
  const keys = new SessionKeys(files, dir);
  const numbers = listSeries(files, dir);
  const anchors = numbers.map((number) => new SeriesCheckpoints(number, checkpoints ?? []));
  const nonsense: SenselessEntry[][] = numbers.map(() => []);
  const series = numbers.map((number, index) => {
    const [own, told] = [anchors[index] as SeriesCheckpoints, nonsense[index] as SenselessEntry[]];
    return verifySeries({ files, logDir: dir, series: number, keys, anchors: own, threads, senseless: told }, foreign);
  });
  keys.wipe();
  foreign.push(...foreignKeys(files, dir));
  const sum = (value: (one: SeriesReport) => number): number => series.reduce((total, one) => total + value(one), 0);
  const logId = series[0]?.logId ?? null;
  const entries = sum((one) => one.entries);
  const problem =
    strange(checkpoints ?? [], logId, numbers) ?? series.find((one) => one.problem !== null)?.problem ?? null;
  const heads = series.map(({ headHash }) => headHash);
  const report = {
    ok: problem === null,
    logId,
    segments: sum((one) => one.segments),
    entries,
    unopened: sum((one) => one.unopened),
    ...(keys.damaged.length === 0 ? {} : { damagedKeys: keys.damaged }),
    ...(nonsense.flat().length === 0 ? {} : { senseless: nonsense.flat() }),
    headHash: heads.length === 1 ? (heads[0] as string) : createHash('sha256').update(heads.join()).digest('hex'),
    problem,
    tornBytes: sum((one) => one.tornBytes),
    series,
    foreign,
  };
  if (checkpoints === null) return report;
  const count = (value: (one: SeriesCheckpoints) => number): number =>
    anchors.reduce((total, one) => total + value(one), 0);
  return {
    ...report,
    anchor: {
      checkpoints: checkpoints.length,
      removed: count((one) => one.removed),
      unanchoredEntries: count((one) => one.unanchoredEntries),
      latestMs: checkpoints.length === 0 ? null : checkpoints.reduce((most, one) => Math.max(most, one.timeMs), 0),
    },
  };
}

/** The first checkpoint of another log, or of a series that is not there. */
function strange(
  checkpoints: readonly Checkpoint[],
  logId: string | null,
  numbers: readonly number[],
): VerifyReport['problem'] {
  const one = checkpoints.find((checkpoint) => checkpoint.logId !== logId || !numbers.includes(checkpoint.series));
  if (one === undefined) return null;
  const what =
    one.logId === logId
      ? `series ${one.series} is missing, and ${one.size} entries of it were signed`
      : `this is ${logId === null ? 'no sound log' : `log ${logId}`}, and log ${one.logId} was signed`;
  return { segment: '', offset: 0, seq: null, what: `${what} (checkpoint ${one.place})` };
}

/** Where a part of the log stands, from the folder of the log. */
const placeOf = (series: number, name: string): string => (series === 0 ? name : `${seriesName(series)}/${name}`);

/** A series and what it is verified with. */
interface SeriesAsked {
  readonly files: LogFiles;
  readonly logDir: string;
  readonly series: number;
  readonly keys: SessionKeys;
  readonly anchors: SeriesCheckpoints;
  readonly threads: number;
  /** Takes in the entries of the series that make no sense. */
  readonly senseless: SenselessEntry[];
}

/** `foreign` takes in what is not of the series. */
function verifySeries(asked: SeriesAsked, foreign: ForeignPart[]): SeriesReport {
  const check = new SeriesCheck(asked);
  try {
    check.walk(foreign);
  } catch (error) {
    return check.report(problemOf(asked.series, error));
  }
  foreign.push(...check.strangers());
  return check.report(check.senseless);
}

/** What a walk that ended early found. Throws what is no damage. */
function problemOf(series: number, error: unknown): SeriesReport['problem'] {
  if (!(error instanceof KvError) || error.code !== 'bad-log') throw error;
  const { segment, offset, seq } = error.values;
  return {
    segment: placeOf(series, String(segment)),
    offset: Number(offset),
    seq: typeof seq === 'number' ? seq : null,
    what: series === 0 ? error.message : `${seriesName(series)}: ${error.message}`,
  };
}

/** How far the entries of a series are sound. */
class SeriesCheck {
  readonly #asked: SeriesAsked;
  readonly #dir: string;
  readonly #names: readonly string[];
  /** Names of what belongs to the series. */
  readonly #own: Set<string>;
  readonly #setAside: RecoveredBody[] = [];
  readonly #found = {
    logId: null as string | null,
    segments: 0,
    entries: 0,
    removedEntries: 0,
    unopened: 0,
    tornBytes: 0,
  };
  /** The first entry that makes no sense: a problem where there is no worse one. */
  senseless: SeriesReport['problem'] = null;
  #headHash: Uint8Array = NO_HASH;
  #tree: Frontier | null = null;

  constructor(asked: SeriesAsked) {
    this.#asked = asked;
    const { files, logDir, series } = asked;
    this.#dir = seriesDir(logDir, series);
    this.#names = listFolder(files, this.#dir);
    this.#own = new Set(series === 0 ? [LOCK_NAME, KEYS_NAME, REMOVALS_NAME] : [LOCK_NAME]);
  }

  /** Throws 'bad-log' at the first thing that is wrong. */
  walk(foreign: ForeignPart[]): void {
    const { files, logDir, series, anchors, threads } = this.#asked;
    const numbers = listSegments(files, this.#dir);
    this.#found.segments = numbers.length;
    for (const number of numbers) this.#own.add(segmentName(number));
    if (series > 0 && numbers.length === 0) return;
    const logId = series === 0 ? null : logIdOf(files, logDir);
    const most = (leaves: number): number => anchors.entriesToNext(leaves);
    const walk = walkRuns(files, this.#dir, { withTree: true, withKinds: true, threads, most });
    try {
      let step = walk.next();
      for (; step.done !== true; step = walk.next()) {
        if (series > 0) checkLogId(step.value, logId);
        this.#take(step.value);
      }
      this.#end(step.value, foreign);
    } finally {
      walk.return(undefined as never);
    }
  }

  #take(run: Run): void {
    const { series, keys, threads, anchors, senseless } = this.#asked;
    const found = this.#found;
    if (found.entries === 0) found.removedEntries = (run.tree as Frontier).leaves - run.count;
    const sound = checkEntries(run, keys, threads, found, this.#setAside, (error, entry) => {
      this.senseless ??= problemOf(series, error);
      senseless.push(entry);
    });
    if (sound.entries > 0) {
      found.entries += sound.entries;
      found.logId = run.logId;
      ({ hash: this.#headHash, tree: this.#tree } = sound.fault === null ? run : stateWithin(run, sound.entries));
      const contradiction = anchors.meet(this.#tree as Frontier, this.#headHash, sound.entries);
      refuseContradiction(run.segment, offsetIn(run, sound.entries - 1), contradiction);
    } else this.#tree = run.before.tree;
    if (sound.fault !== null) throw sound.fault;
  }

  #end(end: LogEnd, foreign: ForeignPart[]): void {
    const { series, anchors } = this.#asked;
    this.#found.logId = end.logId;
    this.#headHash = end.headHash;
    this.#tree = end.tree;
    this.#found.tornBytes = end.tornBytes;
    if (end.tornBytes > 0) foreign.push(tailOf(series, end));
    refuseContradiction(segmentName(end.segment), end.offset, anchors.end(this.#tree?.leaves ?? 0));
  }

  /** What else lies in the folder of a series that is sound. */
  strangers(): ForeignPart[] {
    const { files, series } = this.#asked;
    return this.#names.flatMap((name) => {
      if (this.#own.has(name) || (series === 0 && isSeriesName(name))) return [];
      const what = strangeness(files, this.#dir, name, this.#setAside);
      if (what === null) return [];
      return [{ file: placeOf(series, name), offset: 0, bytes: sizeOf(files, this.#dir, name), what }];
    });
  }

  report(problem: SeriesReport['problem']): SeriesReport {
    const rootHash = Buffer.from((this.#tree ?? new Frontier()).root()).toString('hex');
    const headHash = Buffer.from(this.#headHash).toString('hex');
    return { series: this.#asked.series, ...this.#found, headHash, rootHash, problem };
  }
}

/** Throws 'bad-log' where checkpoints signed something else. */
function refuseContradiction(segment: string, offset: number, found: Contradiction | null): void {
  if (found !== null) throw badLog(segment, offset, found.seq, found.what);
}

/** What lies in the folder of keys and is none. */
function foreignKeys(files: LogFiles, dir: string): ForeignPart[] {
  if (!listFolder(files, dir).includes(KEYS_NAME)) return [];
  const names = listFolder(files, keysDir(dir)).filter((name) => !isKeyName(name));
  return names.map((name) => {
    const bytes = sizeOf(files, keysDir(dir), name);
    return { file: `${KEYS_NAME}/${name}`, offset: 0, bytes, what: 'is not of the log' };
  });
}

const isSeriesName = (name: string): boolean => /^writer-\d{4}$/.test(name);

function tailOf(series: number, end: LogEnd): ForeignPart {
  return {
    file: placeOf(series, segmentName(end.tornSegment as number)),
    offset: end.tornSegment === end.segment ? end.offset : 0,
    bytes: end.tornBytes,
    what: 'stands behind the last whole entry: a crash leaves this, and so can anybody; the next writer sets it aside',
  };
}

/** Why a file is not of the log; null for a tail that an entry of the log says was set aside. */
function strangeness(files: LogFiles, dir: string, name: string, setAside: RecoveredBody[]): string | null {
  const [, segment] = /^(\d{8,15}\.wal)\.torn(?:-\d+)?$/.exec(name) ?? [];
  if (segment === undefined) return 'is not of the log';
  const bytes = sizeOf(files, dir, name);
  const told = setAside.findIndex((one) => one.segment === segment && one.droppedBytes === bytes);
  if (told < 0) return 'no entry says that this was set aside after a crash';
  setAside.splice(told, 1);
  return null;
}

/** null for what is no regular file. */
function sizeOf(files: LogFiles, dir: string, name: string): number | null {
  try {
    const fd = files.openSync(join(dir, name), 'r');
    try {
      return files.sizeSync(fd);
    } finally {
      files.closeSync(fd);
    }
  } catch {
    return null;
  }
}

/**
 * Looks at the entries of a run that the binary is not certain of, and tells of those that make no sense. → how many
 * are what was written, and what is wrong with the next one
 */
function checkEntries(
  run: Run,
  keys: SessionKeys,
  threads: number,
  report: { unopened: number },
  setAside: RecoveredBody[],
  tell: (error: KvError, entry: SenselessEntry) => void,
): { readonly entries: number; readonly fault: KvError | null } {
  keys.openRun(run, threads);
  for (let index = 0; index < run.count; index++) {
    if (run.kinds[index] === KIND_UNOPENED) report.unopened++;
    if (isSurelySound(run, index)) continue;
    try {
      const entry = openHere(run, index, keys, tell);
      if (entry?.kind === 'recovered') setAside.push((entry as Entry<'recovered'>).body);
      if (entry === null) report.unopened++;
    } catch (error) {
      // What the disk says of a file of keys says nothing about the log.
      if (!isBadLog(error)) throw error;
      return { entries: index, fault: error };
    }
  }
  return { entries: run.count, fault: null };
}

const RECOVERED = 1 + FORM_KINDS.indexOf('recovered');

/**
 * True if the binary has looked at all that `openHere` looks at. What an entry of kind recovered says is needed here.
 */
const isSurelySound = ({ kinds }: Run, index: number): boolean => kinds[index] !== 0 && kinds[index] !== RECOVERED;

/**
 * The entry with its body; null where that cannot be opened, undefined where it makes no sense, which is told. Throws
 * 'bad-log'.
 */
function openHere(
  run: Run,
  index: number,
  keys: SessionKeys,
  tell: (error: KvError, entry: SenselessEntry) => void,
): Entry | null | undefined {
  const seq = run.seq + index;
  const wrong = (what: string): KvError => badLog(run.segment, offsetIn(run, index), seq, what);
  const envelope = envelopeIn(payloadIn(run, index), seq, wrong);
  try {
    return keys.open(envelope);
  } catch (error) {
    if (!isBadLog(error)) throw error;
    if (!(error instanceof SenselessBody)) throw wrong(error.message);
    tell(wrong(error.message), senseless(envelope, error));
    return undefined;
  }
}

function envelopeIn(payload: Buffer, seq: number, wrong: (what: string) => KvError): Envelope {
  let envelope: Envelope;
  try {
    envelope = parseEnvelope(payload);
  } catch (error) {
    throw wrong((error as Error).message);
  }
  if (envelope.seq !== seq) throw wrong(`the entry says it is ${envelope.seq}`);
  if (!isCanonical(payload, envelope)) throw wrong('the entry is not spelled canonically');
  return envelope;
}

const isBadLog = (error: unknown): error is KvError => (error as { code?: unknown }).code === 'bad-log';
