/**
 * What a log must hold, kept beside it in the plainest way: which entries were made, which of them acknowledged, and
 * which were found there before.
 */
import { KvError } from '../../native/index.ts';
import {
  type Entry,
  type FailureMode,
  type LogFiles,
  readLog,
  verifyLog,
  type WitnessLog,
} from '../../witness/index.ts';

/** The log does not hold what it promised. */
export class Violation extends Error {}
/**
 * Sectors of one commit reached the disk without those before them; all that was acknowledged can be read, and a person
 * decides.
 */
export class Refusal extends Error {}

const SERIES_ENTRIES = 2 ** 32;
const SESSIONS = ['a', 'b', 'c'];

export interface Made {
  readonly n: number;
  readonly session: string;
  readonly pad: string;
  /**
   * null: the log said that it is dropped; undefined: it was refused by an error, or the writer died in the middle of
   * it.
   */
  seq: number | null | undefined;
}

/** One writer from its opening to its end. */
export class WriterModel {
  readonly mode: FailureMode;
  readonly series: number;
  readonly firstSeq: number;
  acknowledgedSeq: number;
  readonly made: Made[] = [];
  /** Entries of the log itself, about its repair, that the disk had not taken when it opened. */
  readonly own: number;
  /** At most one entry is refused in the middle of being taken. */
  isRefused = false;

  constructor(log: WitnessLog, mode: FailureMode) {
    const { acknowledgedSeq } = log;
    this.own = log.missingOf('');
    this.series = Math.floor((acknowledgedSeq + 1) / SERIES_ENTRIES);
    this.firstSeq = acknowledgedSeq + 1;
    this.acknowledgedSeq = acknowledgedSeq;
    this.mode = mode;
  }

  /** → the message of a refusal */
  append(entry: Made, append: () => number | null): string | null {
    this.made.push(entry);
    const before = this.made.findLast((one) => typeof one.seq === 'number')?.seq ?? null;
    try {
      entry.seq = append();
    } catch (error) {
      if (!(error instanceof KvError) || error.code !== 'log-unwritable' || this.mode === 'drop') throw error;
      this.isRefused = true;
      return error.message;
    }
    if (this.isRefused) throw new Violation(`entry ${entry.n} is taken after one was refused`);
    if (entry.seq === null && this.mode !== 'drop') throw new Violation(`entry ${entry.n} is dropped in ${this.mode}`);
    if (entry.seq !== null && entry.seq <= (before ?? this.firstSeq - 1))
      throw new Violation(`entry ${entry.n} is ${entry.seq}, the one before it ${before}`);
    return null;
  }

  sawAcknowledged(seq: number): void {
    if (seq < this.acknowledgedSeq) throw new Violation(`${this.acknowledgedSeq} was acknowledged, now ${seq}`);
    this.acknowledgedSeq = seq;
  }
}

export class LogModel {
  entries = 0;
  dropped = 0;
  readonly #dir: string;
  readonly #made = new Map<number, Made>();
  /** By seq, as it was read: these were acknowledged. */
  readonly #sure = new Map<number, string>();
  /** True if sectors may be lost that stand before others of the same commit. */
  readonly #canScatter: boolean;
  #writers: WriterModel[] = [];
  #cannotCut = false;

  constructor(dir: string, canScatter: boolean) {
    this.#dir = dir;
    this.#canScatter = canScatter;
  }

  writer(log: WitnessLog, mode: FailureMode): WriterModel {
    const writer = new WriterModel(log, mode);
    this.#writers.push(writer);
    return writer;
  }

  /** An entry of this writer's sessions: a session has one writer. */
  next({ series }: WriterModel, random: () => number): Made {
    const made = {
      n: this.#made.size,
      session: `${SESSIONS[Math.floor(random() * SESSIONS.length)]!}${series}`,
      pad: 'x'.repeat(Math.floor(random() ** 3 * 1500)),
      seq: undefined,
    };
    this.#made.set(made.n, made);
    return made;
  }

  /** What can be read, and why no more can. */
  #read(files: LogFiles): { entries: Entry[]; refusal: KvError | null } {
    const entries: Entry[] = [];
    try {
      for (const entry of readLog(this.#dir, { files })) entries.push(entry);
      return { entries, refusal: null };
    } catch (error) {
      // Before the first header is whole there is no log.
      if (error instanceof KvError && error.code === 'not-found' && this.#sure.size === 0)
        return { entries, refusal: null };
      if (error instanceof KvError && error.code === 'bad-log' && this.#canScatter) return { entries, refusal: error };
      throw new Violation(`the log cannot be read: ${(error as Error).message}`, { cause: error });
    }
  }

  /** Throws a Violation unless the log holds what it must, and nothing else. */
  check(files: LogFiles): Entry[] {
    const { entries, refusal } = this.#read(files);
    const found = new Map<number, Entry>();
    const numbers = new Set<number>();
    const last = new Map<number, Entry>();
    for (const entry of entries) {
      const series = Math.floor(entry.seq / SERIES_ENTRIES);
      const before = last.get(series);
      if (entry.seq !== (before?.seq ?? series * SERIES_ENTRIES - 1) + 1)
        throw new Violation(`entry ${entry.seq} follows ${before?.seq}`);
      if (before !== undefined && entry.timeMs < before.timeMs) throw new Violation(`the time falls at ${entry.seq}`);
      last.set(series, entry);
      found.set(entry.seq, entry);
      const sure = this.#sure.get(entry.seq);
      if (sure !== undefined && sure !== JSON.stringify(entry))
        throw new Violation(`entry ${entry.seq} is another now`);
      if (entry.session === '') {
        if (entry.kind !== 'recovered' && entry.kind !== 'note') throw new Violation(`nobody wrote a ${entry.kind}`);
        continue;
      }
      const { n, pad } = entry.body as { n: number; pad: string };
      const made = this.#made.get(n);
      if (made === undefined || made.session !== entry.session || made.pad !== pad)
        throw new Violation(`entry ${entry.seq} was never made: ${JSON.stringify(entry).slice(0, 200)}`);
      if (made.seq !== undefined && made.seq !== entry.seq)
        throw new Violation(`entry ${n} was given ${made.seq} and is ${entry.seq} in the log`);
      if (numbers.has(n)) throw new Violation(`entry ${n} is in the log twice`);
      numbers.add(n);
    }
    for (const seq of this.#sure.keys()) if (!found.has(seq)) throw new Violation(`acknowledged entry ${seq} is lost`);
    for (const { acknowledgedSeq, firstSeq, made } of this.#writers) {
      for (const { seq } of made)
        if (typeof seq === 'number' && seq <= acknowledgedSeq && !found.has(seq))
          throw new Violation(`acknowledged entry ${seq} is lost, ${acknowledgedSeq} was told`);
      if (acknowledgedSeq >= firstSeq && !found.has(acknowledgedSeq))
        throw new Violation(`acknowledged entry ${acknowledgedSeq} is lost`);
      const series = Math.floor(firstSeq / SERIES_ENTRIES);
      for (const [seq, entry] of found)
        if (Math.floor(seq / SERIES_ENTRIES) === series && seq <= acknowledgedSeq)
          this.#sure.set(seq, JSON.stringify(entry));
    }
    if (refusal !== null) throw new Refusal(refusal.message);
    const { problem } = verifyOf(this.#dir, files, entries.length);
    if (problem !== null) throw new Violation(`verify says: ${problem}`);
    this.entries = entries.length;
    return entries;
  }

  sawFault(operation: string): void {
    if (operation === 'truncate' || operation === 'unlink') this.#cannotCut = true;
  }

  forgetFaults(): void {
    this.#cannotCut = false;
  }

  /** After a close: made = logged + dropped, and the log itself says what is missing where the disk let it. */
  checkClosed(writer: WriterModel, droppedCount: number, isHealthy: boolean, files: LogFiles): void {
    const entries = this.check(files);
    const isOwn = ({ seq }: Entry): boolean =>
      seq >= writer.firstSeq && Math.floor(seq / SERIES_ENTRIES) === writer.series;
    const own = entries.filter(isOwn).filter(({ session }) => session === '');
    const found = new Set(entries.filter(({ session }) => session !== '').map(({ body }) => (body as { n: number }).n));
    const logged =
      writer.made.filter(({ n }) => found.has(n)).length + own.filter(({ kind }) => kind === 'recovered').length;
    const made = writer.made.filter(({ seq }) => seq !== undefined).length + writer.own;
    const most = made + (writer.isRefused ? 1 : 0);
    const sum = logged + droppedCount;
    // A disk that refuses to cut leaves entries that are counted as dropped.
    if (sum < made || (sum > most && !this.#cannotCut))
      throw new Violation(`${made} entries were made, ${logged} logged and ${droppedCount} dropped`);
    const told = own.reduce((total, { body }) => total + ((body as { entries?: number }).entries ?? 0), 0);
    if (told > droppedCount || (isHealthy && writer.mode === 'drop' && told !== droppedCount))
      throw new Violation(`${droppedCount} entries were dropped, the log tells of ${told}`);
    this.dropped += droppedCount;
  }

  /** What is on the disk when a life is over; its writers are gone. */
  endLife(files: LogFiles): void {
    this.check(files);
    this.#writers = [];
  }
}

function verifyOf(dir: string, files: LogFiles, entries: number): { problem: string | null } {
  if (entries === 0) return { problem: null };
  const report = verifyLog(dir, files);
  if (report.problem !== null) return { problem: report.problem.what };
  return { problem: report.entries === entries ? null : `${report.entries} of ${entries} entries are sound` };
}
