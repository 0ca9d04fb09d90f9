/**
 * Who may remove segments of a log, and when. Removing them and keeping a session from it (a legal hold, an erasure)
 * exclude each other by a lock of their own, so that nobody acts on what was true a moment ago. Only the writer of a
 * series says in it that segments went. Where it runs, whoever holds the lock asks it by a file without content:
 *
 *     removals/SERIES-FIRSTSEGMENT-UNTILMS.request      asked; whoever asked takes it back when the time is over
 *     removals/SERIES-FIRSTSEGMENT-UNTILMS.claimed      the writer does it; it removes the file when it is done
 *
 * A name appears, changes and goes in one step, so whoever is killed leaves one of the two, and the next to hold the
 * lock takes back what was asked and waits for what was claimed by a writer that lives.
 */
import fs from 'node:fs';
import { join } from 'node:path';
import { KvError } from '../native/index.ts';
import { nodeFiles } from './files.ts';
import { lockWriter, type WriterLock } from './lock.ts';
import { REMOVALS_NAME, seriesDir } from './series.ts';
import type { WitnessLog } from './types.ts';
import { listSegments } from './walk.ts';

/** How often somebody looks whether another one is done. */
const LOOK_MS = 20;
/** How often a writer looks whether it was asked. */
const ASKED_MS = 200;
/** Others plan, ask and erase within seconds. */
const WAIT_MS = 60_000;

const NAME = /^(\d+)-(\d+)-(\d+)\.(request|claimed)$/;

interface Asked {
  readonly path: string;
  readonly series: number;
  readonly firstSegment: number;
  readonly untilMs: number;
  readonly isClaimed: boolean;
}

const removalsDir = (dir: string): string => join(dir, REMOVALS_NAME);
const pause = (): Promise<void> => new Promise((resolve) => setTimeout(resolve, LOOK_MS));

function listAsked(dir: string): Asked[] {
  let names: string[];
  try {
    names = fs.readdirSync(removalsDir(dir));
  } catch (error) {
    if (['ENOENT', 'ENOTDIR'].includes((error as NodeJS.ErrnoException).code ?? '')) return [];
    throw error;
  }
  return names.flatMap((name) => {
    const [, series, firstSegment, untilMs, state] = NAME.exec(name) ?? [];
    if (state === undefined) return [];
    return [
      {
        path: join(removalsDir(dir), name),
        series: Number(series),
        firstSegment: Number(firstSegment),
        untilMs: Number(untilMs),
        isClaimed: state === 'claimed',
      },
    ];
  });
}

/**
 * Does something while nobody else removes segments, erases a session or begins or ends a hold. Throws 'locked' when
 * others do not come to an end, 'io', and what the work throws.
 */
export async function aloneAmongRemovals<T>(dir: string, work: () => Promise<T> | T): Promise<T> {
  fs.mkdirSync(removalsDir(dir), { recursive: true });
  const untilMs = Date.now() + WAIT_MS;
  const lock = await lockRemovals(dir, untilMs);
  try {
    await takeBack(dir, untilMs);
    return await work();
  } finally {
    lock.release();
  }
}

async function lockRemovals(dir: string, untilMs: number): Promise<WriterLock> {
  for (;;) {
    try {
      return lockWriter(removalsDir(dir));
    } catch (error) {
      if (!(error instanceof KvError) || error.code !== 'locked') throw error;
      if (Date.now() > untilMs)
        throw new KvError(
          'locked',
          `sessions of the log in ${dir} are being held, erased or removed by another process`,
          {
            values: { dir, ...error.values },
            hint: 'wait for it, or end it, and try again',
          },
        );
    }
    await pause();
  }
}

/** What a killed process asked for must not be done any more; what a writer has begun is waited for. */
async function takeBack(dir: string, untilMs: number): Promise<void> {
  for (const { path, isClaimed } of listAsked(dir)) if (!isClaimed) fs.rmSync(path, { force: true });
  for (;;) {
    const claimed = listAsked(dir).filter(({ isClaimed }) => isClaimed);
    if (claimed.length === 0) return;
    for (const { path, series } of claimed) if (!isWritten(dir, series)) fs.rmSync(path, { force: true });
    if (Date.now() > untilMs)
      throw new KvError('locked', `a writer of the log in ${dir} does not come to an end with removing segments`, {
        values: { dir, series: claimed[0]!.series },
        hint: 'its disk may be full or away; try again when it writes',
      });
    await pause();
  }
}

function isWritten(dir: string, series: number): boolean {
  try {
    lockWriter(seriesDir(dir, series)).release();
    return false;
  } catch (error) {
    if (error instanceof KvError && error.code === 'locked') return true;
    throw error;
  }
}

/**
 * Asks the writer of a series to remove its segments before `firstSegment`, and waits. Only for whoever is alone among
 * removals. → true: they are gone. false: it did not answer in this time, or refused; it will not do it later either.
 */
export async function askWriter(dir: string, series: number, firstSegment: number, waitMs: number): Promise<boolean> {
  const untilMs = Date.now() + waitMs;
  const path = join(removalsDir(dir), `${series}-${firstSegment}-${untilMs}.request`);
  fs.closeSync(fs.openSync(path, 'wx'));
  while (fs.existsSync(path)) {
    if (Date.now() > untilMs || !isWritten(dir, series)) break;
    await pause();
  }
  await takeBack(dir, untilMs + WAIT_MS);
  const [first = 0] = listSegments(nodeFiles, seriesDir(dir, series));
  return first >= firstSegment;
}

/** A writer that runs for long answers those who ask it to remove its oldest segments. */
export class RemovalAnswers {
  readonly #log: WitnessLog;
  readonly #timer: NodeJS.Timeout;
  #run: Promise<void> | null = null;

  constructor(log: WitnessLog) {
    this.#log = log;
    // The writer before this one may have been killed while it did what it was asked.
    for (const { path, isClaimed } of this.#asked()) if (isClaimed) fs.rmSync(path, { force: true });
    this.#timer = setInterval(() => this.#look(), ASKED_MS).unref();
  }

  /** Waits for what is under way. Before the log is closed. */
  async close(): Promise<void> {
    clearInterval(this.#timer);
    await this.#run;
  }

  #asked(): Asked[] {
    return listAsked(this.#log.dir).filter(({ series }) => series === this.#log.series);
  }

  #look(): void {
    const asked = this.#run === null ? this.#asked().find(({ isClaimed }) => !isClaimed) : undefined;
    if (asked === undefined) return;
    this.#run = this.#answer(asked).finally(() => {
      this.#run = null;
    });
  }

  /** Whoever asked sees by the segments that are left whether it was done. */
  async #answer({ path, firstSegment, untilMs }: Asked): Promise<void> {
    const claimed = path.replace(/request$/, 'claimed');
    try {
      fs.renameSync(path, claimed);
    } catch {
      // It was taken back at this moment.
      return;
    }
    try {
      if (Date.now() <= untilMs) await this.#log.removeSegments(firstSegment);
    } catch {
      // What the disk refuses, the next entry of a session meets too.
    } finally {
      fs.rmSync(claimed, { force: true });
    }
  }
}
