/**
 * The writer. `append` only copies into memory and gives the seq; a commit takes everything that waits, writes it at
 * once and syncs it, beside the caller. Nothing counts as acknowledged before its sync came back. A failed sync means
 * that the kernel may have forgotten the bytes, so a batch is written again in full before it is synced again.
 */
import { KvError, type SpellPlan } from '../native/index.ts';
import type { Anchor } from './anchor.ts';
import { Batch, type ChainEnd } from './batch.ts';
import { BatchFiles } from './batch-files.ts';
import { BatchQueue } from './batch-queue.ts';
import { checkWritten } from './body.ts';
import { type Body, type Encryption, mustEncrypt, payloadParts } from './encryption.ts';
import { payloadText } from './entry.ts';
import type { LogFiles } from './files.ts';
import type { SessionKeys } from './keys.ts';
import type { WriterLock } from './lock.ts';
import { packBody } from './pack.ts';
import { Pause } from './pause.ts';
import { DECISION_BYTES_MAX, fillDecision } from './plan.ts';
import { planRemoval, removeFiles } from './remove.ts';
import { FORMAT_VERSION, type SegmentHeader } from './segment.ts';
import { firstSeqOf } from './series.ts';
import { spellBody } from './spell.ts';
import { codeOf, Trouble } from './trouble.ts';
import {
  type DecisionBody,
  type EntryBodies,
  type EntryKind,
  type FailureMode,
  type LogNews,
  NO_SESSION,
  type RetentionBody,
  type WitnessLog,
} from './types.ts';

const RETRY_MS_MAX = 1000;
/** A batch of this size is written without waiting for the interval: larger ones are written hardly faster. */
const COMMIT_BYTES = 1 << 20;

/** `WitnessOptions` with every default filled in. */
export interface Settings {
  readonly dir: string;
  readonly mode: FailureMode;
  readonly clock: () => number;
  readonly segmentBytesMax: number;
  readonly segmentMsMax: number;
  readonly onSegment: () => void;
  readonly onNews: (news: LogNews) => void;
  readonly keyId: string;
  readonly commitIntervalMs: number;
  readonly bufferBytesMax: number;
  readonly blockMsMax: number;
  readonly retryMs: number;
  readonly files: LogFiles;
  /** null: checkpoints are not anchored while the log is written. */
  readonly anchor: Anchor | null;
  /** null: nothing is encrypted. */
  readonly keys: SessionKeys | null;
}

type AnyBody = EntryBodies[EntryKind];

/** Where the next entry goes. */
export interface Tip extends ChainEnd {
  readonly id: string;
  readonly series: number;
  readonly segment: number;
  readonly offset: number;
  /** When the segment began; null: it is of an earlier format, and the next entry begins a new one. */
  readonly beganMs: number | null;
  /** seq of its first entry. */
  readonly segmentFirstSeq: number;
  /** Number of the first segment of the series. */
  readonly firstSegment: number;
  /** All segments together. */
  readonly bytes: number;
  /** Time of the latest entry, 0 before the first. */
  readonly lastMs: number;
}

export class LogWriter implements WitnessLog {
  readonly id: string;
  readonly dir: string;
  readonly series: number;
  readonly #settings: Settings;
  readonly #folder: string;
  readonly #lock: WriterLock;

  #nextSeq: number;
  /** When the segment began that is being filled. */
  #beganMs: number | null;
  #segmentFirstSeq: number;
  #firstSegment: number;
  #acknowledgedSeq: number;
  #bytes: number;
  /** Entries that will never be in the log, by session. */
  readonly #dropped = new Map<string, number>();
  #lastMs: number;

  readonly #queue: BatchQueue;
  readonly #disk: BatchFiles;
  readonly #waiters: { readonly seq: number; resolve(seq: number): void; reject(error: unknown): void }[] = [];
  #timer: NodeJS.Timeout | null = null;
  /** True if the timer does not wait for the interval. */
  #isSoon = false;
  #run: Promise<void> | null = null;
  /** Ends a pause between two tries early. */
  readonly #pause = new Pause();

  /** Modes block and halt: set once, for good. */
  #failure: KvError | null = null;
  #failureTold = false;
  /** True from the first refusal of the disk to the next batch that it takes. */
  #isRefused = false;
  /** Mode drop: what the disk says at the moment, and what was lost since it began to. */
  #trouble: Trouble | null = null;
  #closing: Promise<void> | null = null;

  /** `folder`: where the segments of this writer lie, in the folder of the log or below it. */
  constructor(settings: Settings, folder: string, lock: WriterLock, tip: Tip) {
    this.id = tip.id;
    this.dir = settings.dir;
    this.#folder = folder;
    this.#lastMs = tip.lastMs;
    this.#settings = settings;
    this.#disk = new BatchFiles(settings.files, folder, settings.keys);
    this.#lock = lock;
    this.#nextSeq = tip.nextSeq;
    this.#beganMs = tip.beganMs;
    this.#segmentFirstSeq = tip.segmentFirstSeq;
    this.#firstSegment = tip.firstSegment;
    this.series = tip.series;
    this.#acknowledgedSeq = tip.nextSeq - 1;
    this.#bytes = tip.bytes;
    this.#queue = new BatchQueue(new Batch(tip.segment, tip.offset, tip));
    settings.anchor?.begin(tip.id, tip.series, tip.tree.leaves);
  }

  get acknowledgedSeq(): number {
    return this.#acknowledgedSeq;
  }

  get unanchoredEntries(): number | null {
    const { anchor } = this.#settings;
    return anchor && this.#nextSeq - firstSeqOf(this.series) - anchor.leaves;
  }

  get droppedCount(): number {
    return [...this.#dropped.values()].reduce((sum, count) => sum + count, 0);
  }

  /** Rules stand before the writer. */
  leftOutOf(): number {
    return 0;
  }

  missingOf(session: string): number {
    const waiting = this.#trouble === null ? [] : this.#queue.all();
    const unsure = waiting.reduce((sum, batch) => sum + (batch.sessions.get(session) ?? 0), 0);
    return (this.#dropped.get(session) ?? 0) + unsure;
  }

  #lose(session: string, timeMs: number): null {
    this.#trouble?.count(session, timeMs);
    this.#drop(session, 1);
    return null;
  }

  #drop(session: string, count: number): void {
    this.#dropped.set(session, (this.#dropped.get(session) ?? 0) + count);
  }

  get bytes(): number {
    return this.#bytes;
  }

  append<K extends EntryKind>(session: string, kind: K, body: EntryBodies[K]): number | null {
    if (this.#closing !== null) throw new KvError('closed', 'the log was closed');
    this.#throwFailure();
    checkWritten(kind, body);
    const timeMs = this.#now();
    // Before anything is spelled: while the disk refuses, an entry costs its caller no more than being counted.
    if (this.#trouble !== null) return this.#lose(session, timeMs);
    const isPacked = this.#settings.keys !== null && mustEncrypt(session, kind);
    const spelled = (isPacked ? packBody(body) : this.#planned(session, kind, body, timeMs)) ?? spellBody(kind, body);
    let encryption: Encryption | null = null;
    try {
      encryption = this.#settings.keys?.encryption(this.#nextSeq, session, kind) ?? null;
    } catch (error) {
      if (error instanceof KvError) throw error;
      return this.#refuseUnencrypted(session, timeMs, error);
    }
    const seq = this.#add(session, kind, body, spelled, encryption);
    const { sessions } = this.#queue.open;
    sessions.set(session, (sessions.get(session) ?? 0) + 1);
    if (this.#queue.bytes > this.#settings.bufferBytesMax) this.#commitNow();
    else this.#schedule();
    return seq;
  }

  /**
   * The disk did not give the key of the session, and nothing is written unencrypted: as if it had refused the entry
   * itself.
   */
  #refuseUnencrypted(session: string, timeMs: number, error: unknown): null {
    if (!this.#goesOn(error, Number.POSITIVE_INFINITY)) this.#throwFailure();
    this.#lose(session, timeMs);
    if (this.#queue.isEmpty) this.#tellTrouble();
    this.#schedule();
    return null;
  }

  flush(): Promise<number> {
    if (this.#closing !== null) return Promise.reject(new KvError('closed', 'the log was closed'));
    return this.#flush();
  }

  close(): Promise<void> {
    this.#closing ??= this.#close();
    return this.#closing;
  }

  /** Times of one writer never fall, also when the clock is set back: a reader may rely on their order. */
  #now(): number {
    const nowMs = this.#settings.clock();
    if (nowMs > this.#lastMs) this.#lastMs = nowMs;
    return this.#lastMs;
  }

  /** The binary spells a decision in the end, from numbers. */
  #planned(session: string, kind: EntryKind, body: AnyBody, timeMs: number): SpellPlan | null {
    return kind === 'decision' ? fillDecision(this.#nextSeq, timeMs, session, body as DecisionBody) : null;
  }

  /** `spelled`: the body as text or packed, or the plan of a decision that was filled in. */
  #add(
    session: string,
    kind: EntryKind,
    body: AnyBody,
    spelled: Body | SpellPlan,
    encryption: Encryption | null,
  ): number {
    const seq = this.#nextSeq;
    const place = { seq, session, kind };
    const payload = (text: Body) => payloadParts(place, this.#lastMs, text, encryption !== null);
    const isBody = typeof spelled === 'string' || spelled instanceof Uint8Array;
    const [plan, parts] = isBody ? [null, payload(spelled)] : [spelled, null];
    if (this.#isFull()) this.#rotate();
    const { open } = this.#queue;
    const lengthBefore = open.length;
    if (plan === null || !open.addPlanned(seq, plan, DECISION_BYTES_MAX, this.#lastMs)) {
      const { head, body: whole } = parts ?? payload(spellBody(kind, body));
      open.addParts(seq, head, whole, encryption, this.#lastMs);
    }
    this.#bytes += open.length - lengthBefore;
    this.#nextSeq = seq + 1;
    return seq;
  }

  /**
   * True if the next entry begins a new segment. One without an entry is never followed by another of the same format.
   */
  #isFull(): boolean {
    if (this.#beganMs === null) return true;
    const { segmentBytesMax, segmentMsMax } = this.#settings;
    const isOld = this.#queue.open.end >= segmentBytesMax || this.#lastMs - this.#beganMs >= segmentMsMax;
    return isOld && this.#nextSeq > this.#segmentFirstSeq;
  }

  /** The next entry begins a new segment; its header carries chain and tree of what stands before it. */
  #rotate(): void {
    const header = this.#queue.beginSegment((number, end) => this.#header(number, end));
    this.#beganMs = header.beganMs;
    this.#segmentFirstSeq = header.firstSeq;
    this.#bytes += this.#queue.open.length;
    this.#settings.onSegment();
  }

  #header(number: number, { nextSeq, headHash, tree }: ChainEnd): SegmentHeader {
    return {
      version: FORMAT_VERSION,
      logId: this.id,
      number,
      firstSeq: nextSeq,
      previousHash: headHash,
      beganMs: this.#lastMs,
      keyId: this.#settings.keyId,
      firstSegment: this.#firstSegment,
      leaves: tree.leaves,
      peaks: tree.peaks,
    };
  }

  #schedule(): void {
    if (this.#run !== null || this.#failure !== null) return;
    // Much waits: it goes as soon as the caller lets go, so that the disk writes while the next entries come.
    const isMuch = this.#queue.open.length >= COMMIT_BYTES;
    if (this.#timer !== null && (!isMuch || this.#isSoon)) return;
    if (this.#timer !== null) clearTimeout(this.#timer);
    this.#isSoon = isMuch;
    this.#timer = setTimeout(
      () => {
        this.#timer = null;
        this.#start();
      },
      isMuch ? 0 : this.#settings.commitIntervalMs,
    );
  }

  #start(): void {
    if (this.#timer !== null) clearTimeout(this.#timer);
    this.#timer = null;
    this.#run ??= this.#commitAll().finally(() => {
      this.#run = null;
      const waits = !this.#queue.isEmpty;
      const gaveUp = this.#failure !== null || (this.#closing !== null && this.#trouble !== null);
      if (!waits || gaveUp) return;
      if (this.#waiters.length > 0 || this.#queue.first !== undefined) this.#start();
      else this.#schedule();
    });
  }

  /**
   * Commits what waits now, one batch after the other. Never throws: failures go to the waiters and the next append.
   */
  async #commitAll(): Promise<void> {
    this.#queue.finish();
    let pauseMs = this.#settings.retryMs;
    let failedMs = 0;
    for (let batch = this.#queue.first; batch !== undefined && this.#failure === null; batch = this.#queue.first) {
      try {
        await this.#disk.write(batch);
        if (batch.done) continue;
        this.#acknowledge(batch);
        this.#queue.reuse(batch);
        pauseMs = this.#settings.retryMs;
        failedMs = 0;
      } catch (error) {
        if (batch.done) continue;
        if (!this.#goesOn(error, failedMs)) return;
        if (this.#closing !== null && this.#settings.mode === 'drop') return;
        await this.#pause.wait(pauseMs);
        failedMs += Math.max(1, pauseMs);
        pauseMs = Math.min(RETRY_MS_MAX, Math.max(1, pauseMs * 2));
      }
    }
    this.#disk.closeBefore(this.#queue.oldestSegment);
  }

  /** Decides by the mode what a refusal of the disk means. → try again? */
  #goesOn(error: unknown, failedMs: number): boolean {
    const { mode, blockMsMax, onNews } = this.#settings;
    if (!this.#isRefused) onNews({ what: 'refused', code: codeOf(error) });
    this.#isRefused = true;
    if (mode === 'drop') {
      this.#trouble ??= new Trouble(error);
      for (const waiter of this.#waiters.splice(0)) waiter.resolve(this.#acknowledgedSeq);
      return true;
    }
    if (mode === 'block' && failedMs < blockMsMax) return true;
    this.#failure = new KvError(
      'log-unwritable',
      `the witness log in ${this.dir} cannot be written: ${(error as Error).message}`,
      {
        values: {
          dir: this.dir,
          mode,
          acknowledgedSeq: this.#acknowledgedSeq,
          lostEntries: this.#nextSeq - 1 - this.#acknowledgedSeq,
          failedMs,
        },
        hint: 'free space or repair the disk, then start again; mode drop goes on without a full record',
        cause: error,
      },
    );
    for (const waiter of this.#waiters.splice(0)) {
      this.#failureTold = true;
      waiter.reject(this.#failure);
    }
    return false;
  }

  #acknowledge(batch: Batch): void {
    this.#queue.take(batch);
    batch.done = true;
    this.#acknowledgedSeq = Math.max(this.#acknowledgedSeq, batch.lastSeq);
    this.#settings.anchor?.advance(batch.finish(), batch.lastMs);
    while (this.#waiters[0] !== undefined && this.#waiters[0].seq <= this.#acknowledgedSeq)
      this.#waiters.shift()?.resolve(this.#acknowledgedSeq);
    if (this.#isRefused) this.#settings.onNews({ what: 'written-again', lostEntries: this.droppedCount });
    this.#isRefused = false;
    if (this.#queue.first === undefined) this.#tellTrouble();
  }

  /** The disk takes entries again: a note says what is missing. */
  #tellTrouble(): void {
    const trouble = this.#trouble;
    const note = trouble?.note(this.#now()) ?? null;
    this.#trouble = null;
    if (note === null) return;
    this.#add(NO_SESSION, 'note', note, spellBody('note', note), null);
    this.#queue.open.tells = trouble;
    this.#queue.finish();
  }

  /**
   * Too much waits: writes it here and now, the batch that is on its way included (the same bytes to the same place do
   * no harm twice), so that no later batch is on disk before an earlier one.
   */
  #commitNow(): void {
    const { retryMs } = this.#settings;
    this.#queue.finish();
    let pauseMs = retryMs;
    let failedMs = 0;
    for (let batch = this.#queue.first; batch !== undefined; batch = this.#queue.first) {
      try {
        this.#disk.writeSync(batch);
        this.#acknowledge(batch);
        pauseMs = retryMs;
        failedMs = 0;
      } catch (error) {
        if (!this.#goesOn(error, failedMs)) this.#throwFailure();
        if (this.#settings.mode === 'drop') break;
        Atomics.wait(new Int32Array(new SharedArrayBuffer(4)), 0, 0, pauseMs);
        failedMs += Math.max(1, pauseMs);
        pauseMs = Math.min(RETRY_MS_MAX, Math.max(1, pauseMs * 2));
      }
    }
    if (this.#queue.first !== undefined) this.#start();
    else if (this.#run === null) this.#disk.closeBefore(this.#queue.oldestSegment);
  }

  #throwFailure(): void {
    if (this.#failure === null) return;
    this.#failureTold = true;
    throw this.#failure;
  }

  async #flush(): Promise<number> {
    this.#throwFailure();
    const seq = this.#nextSeq - 1;
    if (seq <= this.#acknowledgedSeq) return this.#acknowledgedSeq;
    return new Promise<number>((resolve, reject) => {
      this.#waiters.push({ seq, resolve, reject });
      if (this.#trouble === null) this.#start();
      else this.#pause.end();
    });
  }

  async removeSegments(firstSegment: number): Promise<RetentionBody | null> {
    const { files } = this.#settings;
    await this.flush();
    const removal = planRemoval(files, this.#folder, firstSegment, this.#queue.open.segment);
    if (removal === null) return null;
    const { body, numbers } = removal;
    const seq = this.append(NO_SESSION, 'retention', body);
    if (seq === null || (await this.flush()) < seq) return null;
    this.#firstSegment = firstSegment;
    removeFiles(files, this.#folder, numbers);
    this.#bytes -= body.bytes;
    return body;
  }

  async #close(): Promise<void> {
    const told = this.#failureTold;
    // The turn that callers who never flush have not had, and the last try in mode drop.
    try {
      if (this.#failure === null) await this.#flush();
    } catch {
      // Kept in #failure and thrown below unless somebody was told already.
    }
    this.#pause.end();
    while (this.#run !== null) await this.#run;
    if (this.#timer !== null) clearTimeout(this.#timer);
    await this.#settings.anchor?.close();
    this.#giveUpRest();
    this.#disk.closeBefore(Number.POSITIVE_INFINITY);
    this.#lock.release();
    if (this.#failure !== null && !told) this.#throwFailure();
  }

  /** What was never acknowledged is cut off again, so that the file holds what was promised and no more. */
  #giveUpRest(): void {
    this.#queue.finish();
    const batches = this.#queue.takeAll();
    const [first] = batches;
    if (first === undefined) return;
    for (const batch of batches) {
      for (const [session, count] of batch.sessions) {
        this.#drop(session, count);
        for (let n = 0; n < count; n++) this.#trouble?.count(session, this.#lastMs);
      }
      if (batch.tells !== null) this.#trouble?.add(batch.tells);
    }
    const made = batches.filter((batch) => this.#disk.has(batch.segment) && (batch.isFirst || batch === first));
    // From the end: a segment goes before the entries that it builds on.
    if (made.reverse().every((batch) => this.#disk.undo(batch))) this.#noteAtEnd(first);
  }

  /**
   * What was cut off makes room for the one entry that says what is missing. Where the file may not grow by even that,
   * a new segment may still be possible; where that is refused too, only `droppedCount` tells.
   */
  #noteAtEnd(given: Batch): void {
    const note = this.#trouble?.note(this.#now());
    if (note === null || note === undefined) return;
    const { nextSeq } = given.before;
    const payload = payloadText(nextSeq, this.#lastMs, NO_SESSION, 'note', spellBody('note', note));
    const next = given.isFirst ? given.segment : given.segment + 1;
    for (const segment of given.isFirst ? [next] : [given.segment, next]) {
      const isFirst = segment === next;
      const header = isFirst ? this.#header(segment, given.before) : null;
      const batch = new Batch(segment, isFirst ? 0 : given.position, given.before, header);
      batch.add(nextSeq, payload, this.#lastMs);
      batch.finish();
      try {
        if (isFirst) this.#disk.close(segment);
        this.#disk.writeSync(batch);
        return;
      } catch {
        if (!this.#disk.undo(batch)) return;
      }
    }
  }
}
