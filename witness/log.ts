/**
 * The writer. `append` only copies into memory and gives the seq; a commit takes everything that waits, writes it at
 * once and syncs it, beside the caller. Nothing counts as acknowledged before its sync came back. A failed sync means
 * that the kernel may have forgotten the bytes, so a batch is written again in full before it is synced again.
 */
import { randomBytes } from 'node:crypto';
import { join } from 'node:path';
import { assert, KvError } from '../native/index.ts';
import { Batch } from './batch.ts';
import { entryHash, NO_HASH } from './chain.ts';
import { PAYLOAD_BYTES_MAX, payloadText } from './entry.ts';
import { type LogFiles, nodeFiles } from './files.ts';
import { lockWriter, type WriterLock } from './lock.ts';
import { type Recovered, recoverLog, syncFolder, writeWhole } from './recover.ts';
import {
  encodeHeader,
  LOG_ID_BYTES,
  SEGMENT_HEADER_BYTES,
  type SegmentHeader,
  segmentHash,
  segmentName,
} from './segment.ts';
import type { EntryBodies, EntryKind, FailureMode, WitnessLog, WitnessOptions } from './types.ts';

const SEGMENT_BYTES_MAX = 16 * 1024 * 1024;
const BUFFER_BYTES_MAX = 8 * 1024 * 1024;
const COMMIT_INTERVAL_MS = 50;
const BLOCK_MS_MAX = 30_000;
const RETRY_MS = 20;
const RETRY_MS_MAX = 1000;
/** Session field of entries about the log itself. */
export const NO_SESSION = '';

/**
 * Opens the log in `dir` for writing, creating it when missing; repairs a torn tail and records that it did.
 * Throws 'locked' (another writer), 'bad-log' (damaged: nothing is appended to a log that does not verify at its end),
 * 'bad-argument', 'io'.
 */
export async function openWitnessLog(options: WitnessOptions): Promise<WitnessLog> {
  const settings = checkOptions(options);
  const { files, dir } = settings;
  try {
    files.mkdirSync(dir);
  } catch (cause) {
    throw refusedBy(cause, `the log folder ${dir} cannot be made`);
  }
  const lock = lockWriter(dir);
  try {
    const recovered = recoverLog(files, dir);
    const writer = new LogWriter(
      settings,
      lock,
      recovered.end === null ? createLog(files, dir) : continueLog(recovered),
    );
    if (recovered.droppedBytes > 0) {
      writer.append(NO_SESSION, 'recovered', { droppedBytes: recovered.droppedBytes, segment: recovered.segment });
      try {
        await writer.flush();
      } catch (error) {
        await writer.close();
        throw error;
      }
    }
    return writer;
  } catch (error) {
    lock.release();
    throw error instanceof KvError ? error : refusedBy(error, `the log in ${dir} cannot be opened`);
  }
}

interface Settings {
  readonly dir: string;
  readonly mode: FailureMode;
  readonly clock: () => number;
  readonly segmentBytesMax: number;
  readonly commitIntervalMs: number;
  readonly bufferBytesMax: number;
  readonly blockMsMax: number;
  readonly retryMs: number;
  readonly files: LogFiles;
}

function checkOptions(options: WitnessOptions): Settings {
  const settings: Settings = {
    dir: options.dir,
    mode: options.mode ?? 'block',
    clock: options.clock ?? Date.now,
    segmentBytesMax: options.segmentBytesMax ?? SEGMENT_BYTES_MAX,
    commitIntervalMs: options.commitIntervalMs ?? COMMIT_INTERVAL_MS,
    bufferBytesMax: options.bufferBytesMax ?? BUFFER_BYTES_MAX,
    blockMsMax: options.blockMsMax ?? BLOCK_MS_MAX,
    retryMs: options.retryMs ?? RETRY_MS,
    files: options.files ?? nodeFiles,
  };
  if (typeof settings.dir !== 'string' || settings.dir === '')
    throw new KvError('bad-argument', 'the log needs a folder', { values: { dir: settings.dir } });
  if (!['block', 'halt', 'drop'].includes(settings.mode)) {
    throw new KvError('bad-argument', `'${settings.mode}' is not a failure mode`, {
      values: { mode: settings.mode },
      hint: 'use block, halt or drop',
    });
  }
  for (const name of ['segmentBytesMax', 'commitIntervalMs', 'bufferBytesMax', 'blockMsMax', 'retryMs'] as const) {
    const value = settings[name];
    if (!Number.isFinite(value) || value < 0)
      throw new KvError('bad-argument', `${name} must be a number of 0 or more`, { values: { [name]: value } });
  }
  return settings;
}

/** Where the next entry goes. */
interface Tip {
  readonly id: string;
  readonly segment: number;
  readonly offset: number;
  readonly nextSeq: number;
  readonly headHash: Uint8Array;
  /** All segments together. */
  readonly bytes: number;
}

function createLog(files: LogFiles, dir: string): Tip {
  const header: SegmentHeader = {
    logId: randomBytes(LOG_ID_BYTES).toString('hex'),
    number: 0,
    firstSeq: 0,
    previousHash: NO_HASH,
  };
  const bytes = encodeHeader(header);
  const path = join(dir, segmentName(0));
  const fd = files.openSync(path, 'wx');
  try {
    writeWhole(files, fd, bytes, 0);
    files.fsyncSync(fd);
  } finally {
    files.closeSync(fd);
  }
  syncFolder(files, dir);
  return {
    id: header.logId,
    segment: 0,
    offset: bytes.length,
    nextSeq: 0,
    headHash: segmentHash(header),
    bytes: bytes.length,
  };
}

function continueLog({ end, bytes }: Recovered): Tip {
  assert(end !== null && end.logId !== null, 'a recovered log has an id');
  return {
    id: end.logId,
    segment: end.segment,
    offset: end.offset,
    nextSeq: end.nextSeq,
    headHash: end.headHash,
    bytes,
  };
}

interface Waiter {
  readonly seq: number;
  resolve(acknowledgedSeq: number): void;
  reject(error: unknown): void;
}

class LogWriter implements WitnessLog {
  readonly id: string;
  readonly dir: string;
  readonly #settings: Settings;
  readonly #lock: WriterLock;

  #nextSeq: number;
  #headHash: Uint8Array;
  #acknowledgedSeq: number;
  #bytes: number;
  #droppedCount = 0;

  /** Sealed batches in order; the first may be on its way to the disk. */
  readonly #queue: Batch[] = [];
  /** Takes what is appended now. */
  #open: Batch;
  readonly #fds = new Map<number, number>();
  readonly #waiters: Waiter[] = [];
  #timer: NodeJS.Timeout | null = null;
  #run: Promise<void> | null = null;
  /** Ends a pause between two tries early. */
  #wake: (() => void) | null = null;

  /** Modes block and halt: set once, for good. */
  #failure: KvError | null = null;
  #failureTold = false;
  /** Mode drop: what the disk says at the moment, and what was lost since it began to. */
  #trouble: Trouble | null = null;
  #closing: Promise<void> | null = null;

  constructor(settings: Settings, lock: WriterLock, tip: Tip) {
    this.id = tip.id;
    this.dir = settings.dir;
    this.#settings = settings;
    this.#lock = lock;
    this.#nextSeq = tip.nextSeq;
    this.#headHash = tip.headHash;
    this.#acknowledgedSeq = tip.nextSeq - 1;
    this.#bytes = tip.bytes;
    this.#open = new Batch(tip.segment, tip.offset, false);
  }

  get acknowledgedSeq(): number {
    return this.#acknowledgedSeq;
  }

  get droppedCount(): number {
    return this.#droppedCount;
  }

  get bytes(): number {
    return this.#bytes;
  }

  append<K extends EntryKind>(session: string, kind: K, body: EntryBodies[K]): number | null {
    if (this.#closing !== null) throw new KvError('closed', 'the log was closed');
    this.#throwFailure();
    const timeMs = this.#settings.clock();
    const payload = payloadText(this.#nextSeq, timeMs, session, kind, body);
    if (payload.length * 3 > PAYLOAD_BYTES_MAX && Buffer.byteLength(payload) > PAYLOAD_BYTES_MAX) {
      throw new KvError(
        'bad-argument',
        `an entry of ${payload.length} characters is over the ${PAYLOAD_BYTES_MAX} bytes that one may have`,
        {
          values: { kind, session, length: payload.length, bytesMax: PAYLOAD_BYTES_MAX },
        },
      );
    }
    if (this.#trouble !== null) {
      this.#trouble.count(session, timeMs);
      this.#droppedCount++;
      return null;
    }
    const seq = this.#add(payload);
    if (this.#waitingBytes() > this.#settings.bufferBytesMax) this.#commitNow();
    else this.#schedule();
    return seq;
  }

  flush(): Promise<number> {
    if (this.#closing !== null) return Promise.reject(new KvError('closed', 'the log was closed'));
    return this.#flush();
  }

  close(): Promise<void> {
    this.#closing ??= this.#close();
    return this.#closing;
  }

  #add(payload: string): number {
    const seq = this.#nextSeq;
    if (this.#open.end >= this.#settings.segmentBytesMax && (this.#open.position > 0 || this.#open.entries > 0))
      this.#rotate();
    const lengthBefore = this.#open.length;
    this.#headHash = this.#open.add(seq, payload, (bytes) => entryHash(this.#headHash, seq, bytes));
    this.#bytes += this.#open.length - lengthBefore;
    this.#nextSeq = seq + 1;
    return seq;
  }

  /** The next entry begins a new segment; its header carries the head of this one. */
  #rotate(): void {
    const header: SegmentHeader = {
      logId: this.id,
      number: this.#open.segment + 1,
      firstSeq: this.#nextSeq,
      previousHash: this.#headHash,
    };
    this.#seal();
    this.#open = new Batch(header.number, 0, true);
    this.#open.addHeader(encodeHeader(header));
    this.#bytes += this.#open.length;
    this.#headHash = segmentHash(header);
  }

  #seal(): void {
    if (this.#open.length === 0) return;
    this.#queue.push(this.#open);
    this.#open = new Batch(this.#open.segment, this.#open.end, false);
  }

  #waitingBytes(): number {
    return this.#queue.reduce((sum, batch) => sum + batch.length, this.#open.length);
  }

  #schedule(): void {
    if (this.#timer !== null || this.#run !== null || this.#failure !== null) return;
    this.#timer = setTimeout(() => {
      this.#timer = null;
      this.#start();
    }, this.#settings.commitIntervalMs);
  }

  #start(): void {
    if (this.#timer !== null) clearTimeout(this.#timer);
    this.#timer = null;
    this.#run ??= this.#commitAll().finally(() => {
      this.#run = null;
      const waits = this.#queue.length > 0 || this.#open.length > 0;
      const gaveUp = this.#failure !== null || (this.#closing !== null && this.#trouble !== null);
      if (!waits || gaveUp) return;
      if (this.#waiters.length > 0 || this.#queue.length > 0) this.#start();
      else this.#schedule();
    });
  }

  /** Commits what waits now, one batch after the other. Never throws: failures go to the waiters and the next append. */
  async #commitAll(): Promise<void> {
    this.#seal();
    let pauseMs = this.#settings.retryMs;
    let failedMs = 0;
    for (let batch = this.#queue[0]; batch !== undefined && this.#failure === null; batch = this.#queue[0]) {
      try {
        await this.#write(batch);
        if (batch.done) continue;
        this.#acknowledge(batch);
        pauseMs = this.#settings.retryMs;
        failedMs = 0;
      } catch (error) {
        if (batch.done) continue;
        if (!this.#goesOn(error, failedMs)) return;
        if (this.#closing !== null && this.#settings.mode === 'drop') return;
        await this.#pause(pauseMs);
        failedMs += Math.max(1, pauseMs);
        pauseMs = Math.min(RETRY_MS_MAX, Math.max(1, pauseMs * 2));
      }
    }
    this.#closeFinished();
  }

  /** Decides by the mode what a refusal of the disk means. → try again? */
  #goesOn(error: unknown, failedMs: number): boolean {
    const { mode, blockMsMax } = this.#settings;
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

  #pause(ms: number): Promise<void> {
    return new Promise((resolve) => {
      const timer = setTimeout(() => this.#wake?.(), ms);
      this.#wake = () => {
        clearTimeout(timer);
        this.#wake = null;
        resolve();
      };
    });
  }

  #acknowledge(batch: Batch): void {
    assert(this.#queue[0] === batch, `batch of segment ${batch.segment} at ${batch.position} finished out of turn`);
    batch.done = true;
    this.#queue.shift();
    if (batch.lastSeq > this.#acknowledgedSeq) this.#acknowledgedSeq = batch.lastSeq;
    while (this.#waiters[0] !== undefined && this.#waiters[0].seq <= this.#acknowledgedSeq)
      this.#waiters.shift()?.resolve(this.#acknowledgedSeq);
    if (this.#trouble !== null && this.#queue.length === 0) {
      const note = this.#trouble.note(this.#settings.clock());
      this.#trouble = null;
      if (note !== null) {
        this.#add(payloadText(this.#nextSeq, this.#settings.clock(), NO_SESSION, 'note', note));
        this.#open.ownEntries++;
        this.#seal();
      }
    }
  }

  /** A new segment's header is on disk, and its name too, before the first entry is written: only a header alone can be torn. */
  async #write(batch: Batch): Promise<void> {
    const fd = this.#fd(batch);
    if (batch.isFirst) {
      await this.#writePart(batch, fd, 0, SEGMENT_HEADER_BYTES);
      // Once per segment, about every 20,000 entries: not worth a second way of syncing.
      if (!batch.done) syncFolder(this.#settings.files, this.dir);
    }
    await this.#writePart(batch, fd, batch.isFirst ? SEGMENT_HEADER_BYTES : 0, batch.length);
  }

  async #writePart(batch: Batch, fd: number, from: number, to: number): Promise<void> {
    const { files } = this.#settings;
    for (let done = from; done < to && !batch.done; ) {
      done += await new Promise<number>((resolve, reject) => {
        files.write(fd, batch.bytes, done, to - done, batch.position + done, (error, written) => {
          if (error !== null) reject(error);
          else if (written <= 0) reject(Object.assign(new Error('the disk took no bytes'), { code: 'ENOSPC' }));
          else resolve(written);
        });
      });
    }
    if (batch.done) return;
    await new Promise<void>((resolve, reject) =>
      files.fdatasync(fd, (error) => (error === null || error === undefined ? resolve() : reject(error))),
    );
  }

  #writeSync(batch: Batch): void {
    const { files } = this.#settings;
    const fd = this.#fd(batch);
    if (batch.isFirst) {
      writeWhole(files, fd, batch.bytes.subarray(0, SEGMENT_HEADER_BYTES), 0);
      files.fdatasyncSync(fd);
      syncFolder(files, this.dir);
    }
    const from = batch.isFirst ? SEGMENT_HEADER_BYTES : 0;
    writeWhole(files, fd, batch.bytes.subarray(from), batch.position + from);
    files.fdatasyncSync(fd);
  }

  /**
   * Too much waits: writes it here and now, the batch that is on its way included (the same bytes to the same place do
   * no harm twice), so that no later batch is on disk before an earlier one.
   */
  #commitNow(): void {
    const { retryMs } = this.#settings;
    this.#seal();
    let pauseMs = retryMs;
    let failedMs = 0;
    for (let batch = this.#queue[0]; batch !== undefined; batch = this.#queue[0]) {
      try {
        this.#writeSync(batch);
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
    if (this.#queue.length > 0) this.#start();
    else if (this.#run === null) this.#closeFinished();
  }

  /** File of a batch; made when the batch begins a segment, kept until the segment is behind us. */
  #fd(batch: Batch): number {
    let fd = this.#fds.get(batch.segment);
    if (fd === undefined) {
      fd = this.#settings.files.openSync(join(this.dir, segmentName(batch.segment)), batch.isFirst ? 'wx+' : 'r+');
      this.#fds.set(batch.segment, fd);
    }
    return fd;
  }

  /** Closes files of segments that nothing waits for any more. Called when no write is on its way. */
  #closeFinished(): void {
    const oldest = this.#queue[0]?.segment ?? this.#open.segment;
    for (const [segment, fd] of this.#fds) {
      if (segment >= oldest) continue;
      this.#fds.delete(segment);
      this.#settings.files.closeSync(fd);
    }
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
      else this.#wake?.();
    });
  }

  async #close(): Promise<void> {
    const told = this.#failureTold;
    // The turn that callers who never flush have not had, and the last try in mode drop.
    try {
      if (this.#failure === null) await this.#flush();
    } catch {
      // Kept in #failure and thrown below unless somebody was told already.
    }
    this.#wake?.();
    while (this.#run !== null) await this.#run;
    if (this.#timer !== null) clearTimeout(this.#timer);
    this.#giveUpRest();
    for (const fd of this.#fds.values()) this.#settings.files.closeSync(fd);
    this.#fds.clear();
    this.#lock.release();
    if (this.#failure !== null && !told) this.#throwFailure();
  }

  /** What was never acknowledged is cut off again, so that the file holds what was promised and no more. */
  #giveUpRest(): void {
    this.#seal();
    const [first] = this.#queue;
    if (first === undefined) return;
    for (const batch of this.#queue) this.#droppedCount += batch.entries - batch.ownEntries;
    const { files } = this.#settings;
    for (const batch of this.#queue) {
      const fd = this.#fds.get(batch.segment);
      try {
        if (batch.isFirst && fd !== undefined) files.unlinkSync(join(this.dir, segmentName(batch.segment)));
        else if (batch === first && fd !== undefined) files.ftruncateSync(fd, batch.position);
      } catch {
        // The disk refuses this too: the next start recovers the tail or finds whole entries, both are honest.
      }
    }
    this.#queue.length = 0;
  }
}

/** A stretch of time in which the disk refused and entries were dropped (mode drop). */
class Trouble {
  readonly #error: string;
  readonly #sessions = new Map<string, number>();
  #entries = 0;
  #fromMs: number | null = null;

  constructor(error: unknown) {
    this.#error = String((error as NodeJS.ErrnoException).code ?? (error as Error).message);
  }

  count(session: string, timeMs: number): void {
    this.#entries++;
    this.#fromMs ??= timeMs;
    this.#sessions.set(session, (this.#sessions.get(session) ?? 0) + 1);
  }

  /** The body of the 'note' entry that says what is missing; null when nothing is. */
  note(timeMs: number): EntryBodies['note'] | null {
    if (this.#entries === 0) return null;
    return {
      note: 'dropped',
      entries: this.#entries,
      sessions: Object.fromEntries(this.#sessions),
      fromMs: this.#fromMs,
      toMs: timeMs,
      error: this.#error,
    };
  }
}

function refusedBy(cause: unknown, what: string): KvError {
  const { code, message } = cause as NodeJS.ErrnoException;
  return new KvError('io', `${what}: ${message}`, {
    values: { code },
    hint: 'check the path, its permissions and the free space',
    cause,
  });
}
