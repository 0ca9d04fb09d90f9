/**
 * Retention of a log that is being written: whenever a segment is complete, what a policy no longer keeps goes. What
 * goes is planned in a thread of its own, because that reads the whole log; the removal itself takes milliseconds.
 */
import { setTimeout as sleep } from 'node:timers/promises';
import { type KvError, startThread, ThreadClient } from '../../native/index.ts';
import {
  NO_SESSION,
  type RetentionPlan,
  type RetentionReport,
  retainPlanned,
  type WitnessLog,
} from '../../witness/index.ts';
import type { TellEvent } from '../events/event.ts';
import type { LogRetention } from '../options/types.ts';
import { ASK_MS, policyOf } from './retention-policy.ts';
import type { RetentionCalls } from './retention-thread.ts';

/** A size is kept by segments of a sixteenth of it, within these bounds: only whole ones go. */
const SHARE = 16;
const SEGMENT_BYTES_LEAST = 2 ** 16;
const SEGMENT_BYTES_MOST = 2 ** 24;
/** Where others are at it, or do not answer in time, it is tried again after so long, so often: no more may come. */
const [RETRY_MS, RETRIES_MOST] = [1000, 5];

/** Size at which segments are complete, so that a policy can be kept. */
export function segmentBytesOf(retention: LogRetention): number {
  const { maxBytes = Number.POSITIVE_INFINITY } = policyOf(retention, Date.now());
  return Math.min(SEGMENT_BYTES_MOST, Math.max(SEGMENT_BYTES_LEAST, Math.floor(maxBytes / SHARE)));
}

/** Tells what went, where something did. */
export function tellRetained({ series, sessions, bytesBefore, bytesAfter }: RetentionReport, tell: TellEvent): void {
  const sum = (of: (one: RetentionReport['series'][number]) => number): number =>
    series.reduce((total, one) => total + of(one), 0);
  const [segments, entries] = [sum((one) => one.segments), sum((one) => one.entries)];
  if (segments > 0) tell('log-retained', { segments, entries, sessions: sessions.length, bytesBefore, bytesAfter });
}

export class LogKeeper {
  readonly #dir: string;
  readonly #retention: LogRetention;
  readonly #tellEvent: TellEvent;
  #run: Promise<void> | null = null;
  /** A segment ended while the one before was being dealt with. */
  #isAgain = false;
  readonly #closing = new AbortController();
  /** The last thing that went wrong, so that the log has it once. */
  #trouble: string | null = null;

  constructor(dir: string, retention: LogRetention, tell: TellEvent) {
    this.#dir = dir;
    this.#retention = retention;
    this.#tellEvent = tell;
  }

  /** A segment of the log is complete. */
  segmentEnded(log: WitnessLog): void {
    this.#isAgain = true;
    if (this.#isClosed) return;
    this.#run ??= this.#keep(log).finally(() => {
      this.#run = null;
    });
  }

  /** Waits for what is under way. Before the log is closed. */
  async close(): Promise<void> {
    this.#closing.abort();
    await this.#run;
  }

  async #keep(log: WitnessLog): Promise<void> {
    // The writer is in the middle of an entry.
    await Promise.resolve();
    let retries = 0;
    while (this.#isAgain && !this.#isClosed) {
      this.#isAgain = false;
      if (await this.#isRetained(log)) retries = 0;
      else if (retries++ < RETRIES_MOST) {
        await sleep(RETRY_MS, null, { signal: this.#closing.signal, ref: false }).catch(() => null);
        this.#isAgain = true;
      }
    }
  }

  /** → false: others hold it, so that it may be whole a little later */
  async #isRetained(log: WitnessLog): Promise<boolean> {
    try {
      // What the entry that began the new segment says is on disk before the log is read.
      await log.flush();
      // Other writers of the folder may have had their last segment before this one, and what is oldest is theirs.
      const how = { open: log, askMs: ASK_MS };
      const report = await retainPlanned(this.#dir, () => this.#planned(), how);
      tellRetained(report, this.#tellEvent);
      this.#trouble = null;
      return report.busy.length === 0;
    } catch (error) {
      const { code = 'unknown' } = error as Partial<KvError>;
      this.#tell(log, code);
      return code !== 'locked';
    }
  }

  get #isClosed(): boolean {
    return this.#closing.signal.aborted;
  }

  async #planned(): Promise<RetentionPlan> {
    const worker = startThread(new URL('./retention-thread.ts', import.meta.url), null);
    const calls = new ThreadClient<RetentionCalls>(worker, {
      thread: 'the thread that plans retention',
      ended: () => new Error('its thread ended'),
    });
    try {
      return await calls.call('plan', { dir: this.#dir, policy: policyOf(this.#retention, Date.now()) });
    } finally {
      await worker.terminate();
    }
  }

  /** The log says once why nothing goes. A log that cannot be written says so to whoever writes. */
  #tell(log: WitnessLog, code: string): void {
    if (this.#trouble === code || this.#isClosed) return;
    this.#trouble = code;
    this.#tellEvent('retention-failed', { code });
    try {
      log.append(NO_SESSION, 'note', { what: 'retention', error: code });
    } catch {
      // The next entry of a session meets the same.
    }
  }
}
