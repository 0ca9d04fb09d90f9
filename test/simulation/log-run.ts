/**
 * One seed of the log: writers live one after the other on one simulated disk, in a random mode with random settings.
 * The disk fails, fills up and is slow, the clock jumps, and a writer is killed or loses its power at any call. After
 * each life the log must say what was made: every acknowledged entry is there, others may be, nothing else is, and
 * after a close made = logged + dropped.
 */

import { mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { KvError } from '../../native/index.ts';
import { type LogFiles, openWitnessLog, type WitnessLog, type WitnessOptions } from '../../witness/index.ts';
import { mulberry32 } from '../random.ts';
import { type Answer, isLooking, type Operation, type Process, SimulatedDisk } from './log-disk.ts';
import { LogModel, Refusal, Violation, type WriterModel } from './log-model.ts';
import { SimulatedTime, turn } from './log-time.ts';

export interface Simulation {
  readonly seed: number;
  /** Breaks the disk's promises on purpose, to see that it is found. */
  readonly wrap?: (files: LogFiles) => LogFiles;
  /** Told every call and every event. */
  readonly trace?: (line: string) => void;
  /** The first life ends at exactly this call, however it dies; default: by chance. */
  readonly crashAt?: number;
  /**
   * Sectors of one commit may reach the disk without those before them. Such a log may be refused, but all that was
   * acknowledged can be read.
   */
  readonly canScatter?: boolean;
}

export interface Outcome {
  readonly lives: number;
  readonly kills: number;
  readonly powerCuts: number;
  readonly calls: number;
  readonly entries: number;
  readonly dropped: number;
  /** Calls that the first life made. */
  readonly firstCalls: number;
  /** Logs that were refused because of scattered sectors. */
  readonly refused: number;
}

type Random = () => number;
const below = (random: Random, count: number): number => Math.floor(random() * count);
const pick = <T>(random: Random, list: readonly T[]): T => list[below(random, list.length)]!;

const DISK_ERRORS: ReadonlySet<string> = new Set(['io', 'log-unwritable']);
/** More events than any life has: a promise that nothing settles is found instead of waited for. */
const EVENTS_MAX = 20_000;

/** Throws a Violation that names the seed, for whatever goes wrong. */
export async function simulateLog(simulation: Simulation): Promise<Outcome> {
  const run = new Run(simulation);
  try {
    return await run.all();
  } catch (cause) {
    const { seed, crashAt } = simulation;
    const what = cause instanceof Violation ? cause.message : String((cause as Error).stack);
    throw new Violation(`seed ${seed}${crashAt === undefined ? '' : `, crash at call ${crashAt}`}: ${what}`, { cause });
  } finally {
    run.end();
  }
}

class Run {
  readonly #simulation: Simulation;
  readonly #random: Random;
  readonly #time = new SimulatedTime();
  readonly #disk: SimulatedDisk;
  readonly #model: LogModel;
  readonly #root = mkdtempSync(join(tmpdir(), 'palimpsest-sim-'));
  readonly #dir = join(this.#root, 'state', 'log');
  readonly #restore: () => void;
  readonly #counts = { lives: 0, kills: 0, powerCuts: 0, firstCalls: 0, refused: 0 };
  /** The process of this life. */
  #process: Process;
  #writers: { readonly log: WitnessLog; readonly model: WriterModel }[] = [];
  #hasFaults = false;

  constructor(simulation: Simulation) {
    this.#simulation = simulation;
    this.#random = mulberry32(simulation.seed);
    this.#restore = this.#time.install();
    this.#disk = new SimulatedDisk({ root: this.#root, random: this.#random, time: this.#time });
    this.#disk.canScatter = simulation.canScatter ?? false;
    this.#model = new LogModel(this.#dir, this.#disk.canScatter);
    this.#process = this.#disk.process();
  }

  end(): void {
    this.#restore();
    rmSync(this.#root, { recursive: true, force: true });
  }

  #trace(line: string): void {
    this.#simulation.trace?.(`${this.#time.nowMs.toFixed(1).padStart(9)} ms  ${line}`);
  }

  get #files(): LogFiles {
    return this.#simulation.wrap?.(this.#process) ?? this.#process;
  }

  async all(): Promise<Outcome> {
    try {
      for (let lives = 1 + below(this.#random, 4); this.#counts.lives < lives; ) await this.#live();
      // At last a life without faults: it opens, takes entries and ends well.
      this.#heal();
      await this.#open({ mode: 'halt' });
      await this.#work(3);
      await this.#close();
    } catch (error) {
      if (!(error instanceof Refusal)) throw error;
      this.#counts.refused++;
    }
    const { entries, dropped } = this.#model;
    return { ...this.#counts, calls: this.#disk.count, entries, dropped };
  }

  async #live(): Promise<void> {
    const random = this.#random;
    const crash = random() < 0.75 ? (random() < 0.5 ? 'kill' : 'power') : null;
    this.#plan();
    const isExact = this.#simulation.crashAt !== undefined && this.#counts.lives === 0;
    // Half of them just before a sync, when there is most to lose.
    const isAtSync = !isExact && random() < 0.5;
    let left = isExact ? this.#simulation.crashAt! : below(random, isAtSync ? 12 : pick(random, [20, 60, 200]));
    this.#disk.onCall = (operation) => {
      this.#trace(`${operation} (call ${this.#disk.count})`);
      if ((crash === null && !isExact) || (isAtSync && operation !== 'sync') || isLooking(operation)) return;
      if (left-- > 0) return;
      // What was acknowledged up to here, in the middle of whatever the writer does.
      for (const { log, model } of this.#writers) model.acknowledgedSeq = log.acknowledgedSeq;
      this.#process.isDead = true;
    };
    this.#counts.lives++;
    const mode = pick(random, ['block', 'halt', 'drop'] as const);
    const isOpen = await this.#open({
      mode,
      segmentBytesMax: pick(random, [600, 1500, 4000, 60_000]),
      bufferBytesMax: pick(random, [300, 2500, 20_000, 1 << 20]),
      commitIntervalMs: pick(random, [0, 1, 50]),
      blockMsMax: pick(random, [0, 40, 30_000]),
      retryMs: pick(random, [0, 1, 20]),
      encrypt: random() < 0.3,
    });
    if (isOpen) await this.#work(1 + below(random, pick(random, [10, 40, 150])));
    if (isOpen && !this.#process.isDead) await this.#close();
    if (this.#counts.lives === 1) this.#counts.firstCalls = this.#disk.count;
    if (this.#process.isDead) this.#die(crash ?? pick(random, ['kill', 'power']));
    else this.#leave();
  }

  /** Faults of this life: some kinds are switched off wholly, the others come in stretches, as disks have them. */
  #plan(): void {
    const random = this.#random;
    const { time } = this.#disk;
    const kinds = (
      ['open', 'write', 'sync', 'sync-folder', 'truncate', 'unlink', 'rename', 'read', 'list'] as const
    ).filter(() => random() < 0.4);
    const rate = pick(random, [0, 0, 0.02, 0.2]);
    const shortRate = pick(random, [0, 0, 0.3]);
    const slow = pick(random, [0, 1, 100]);
    this.#disk.latencyMs = () => random() * slow;
    this.#disk.capacityBytes = random() < 0.2 ? this.#disk.usedBytes + below(random, 4000) : Number.POSITIVE_INFINITY;
    this.#hasFaults = this.#disk.capacityBytes < Number.POSITIVE_INFINITY;
    let untilCount = 0;
    let answer: Answer = 'ok';
    this.#disk.plan = (operation, count) => {
      if (random() < 0.02) this.#jumpClock();
      if (operation === 'write' && random() < shortRate) return 100 + below(random, 300);
      if (count >= untilCount) {
        answer = 'ok';
        if (random() >= rate) return 'ok';
        untilCount = count + 1 + below(random, 12);
        answer = random() < 0.5 ? 'ENOSPC' : 'EIO';
      }
      if (!(kinds as readonly Operation[]).includes(operation)) return 'ok';
      this.#trace(`${operation} is refused: ${answer}`);
      this.#hasFaults = true;
      this.#model.sawFault(operation);
      return answer;
    };
    if (random() < 0.3) time.offsetMs += below(random, 1e6) - 5e5;
  }

  #jumpClock(): void {
    this.#time.offsetMs += pick(this.#random, [-3_600_000, -1, 1000, 86_400_000, -86_400_000 * 365]);
  }

  /** No faults and room for everything. */
  #heal(): void {
    this.#disk.plan = () => 'ok';
    this.#disk.capacityBytes = Number.POSITIVE_INFINITY;
    this.#disk.latencyMs = () => 0;
    this.#disk.onCall = (operation) => this.#trace(operation);
    this.#hasFaults = false;
  }

  /**
   * Runs what is to come until the promise is settled or its process dead. → its value; null: dead, or refused by the
   * disk
   */
  async #settled<T>(promise: Promise<T>, what: string): Promise<T | null> {
    let state: 'waits' | 'done' | 'failed' = 'waits';
    let value: T | undefined;
    let error: unknown;
    promise.then(
      (given) => {
        state = 'done';
        value = given;
      },
      (reason) => {
        state = 'failed';
        error = reason;
      },
    );
    for (let events = 0; ; events++) {
      await turn();
      if (this.#process.isDead) return null;
      if ((state as string) === 'done') return value as T;
      if ((state as string) === 'failed') {
        this.#expectRefusal(error, what);
        return null;
      }
      if (events > EVENTS_MAX || !this.#time.step()) throw new Violation(`${what} never comes back`);
    }
  }

  #expectRefusal(error: unknown, what: string): void {
    const isTyped = error instanceof KvError && DISK_ERRORS.has(error.code);
    if (!isTyped || !this.#hasFaults)
      throw new Violation(`${what} failed: ${String((error as Error)?.stack ?? error)}`);
    this.#trace(`${what} is refused: ${(error as Error).message}`);
  }

  /** → false: the process died or the disk refused */
  async #open(options: Partial<WitnessOptions>): Promise<boolean> {
    this.#writers = [];
    const more = this.#random() < 0.15 && !this.#disk.canScatter ? 2 : 1;
    for (let count = 0; count < more; count++) {
      const log = await this.#settled(
        openWitnessLog({ dir: this.#dir, files: this.#files, clock: this.#time.clock, ...options }),
        'opening',
      );
      if (log === null) {
        // A second writer that is refused leaves the first to close.
        if (!this.#process.isDead && this.#writers.length > 0) return true;
        return false;
      }
      const model = this.#model.writer(log, options.mode!);
      this.#writers.push({ log, model });
      this.#trace(`opened series ${model.series} with ${log.acknowledgedSeq} in mode ${options.mode}`);
    }
    this.#look();
    return true;
  }

  /** Reads the log as anybody can at any time. */
  #look(): void {
    for (const { log, model } of this.#writers) model.sawAcknowledged(log.acknowledgedSeq);
    this.#asReader((files) => this.#model.check(files));
  }

  /** A reader of the simulation itself has a disk that works, and its calls do not count. */
  #asReader(read: (files: LogFiles) => unknown): void {
    const { plan, onCall, count } = this.#disk;
    Object.assign(this.#disk, { plan: () => 'ok', onCall: () => {} });
    read(this.#disk.process());
    Object.assign(this.#disk, { plan, onCall, count });
  }

  async #work(steps: number): Promise<void> {
    const random = this.#random;
    for (let step = 0; step < steps && !this.#process.isDead; step++) {
      const { log, model } = pick(random, this.#writers);
      const choice = random();
      if (choice < 0.6) {
        for (let count = choice < 0.05 ? 1 + below(random, 30) : 1; count > 0; count--) {
          const entry = this.#model.next(model, random);
          const refused = model.append(entry, () => log.append(entry.session, 'note', { n: entry.n, pad: entry.pad }));
          this.#trace(`append ${entry.n}: ${refused ?? entry.seq ?? 'dropped'}`);
        }
      } else if (choice < 0.7) await this.#settled(log.flush(), 'flush');
      else if (choice < 0.75) void log.flush().catch(() => undefined);
      else if (choice < 0.95) {
        await turn();
        if (!this.#process.isDead) this.#time.step();
      } else if (choice < 0.98) this.#time.nowMs += random() * 200;
      else this.#look();
      if (this.#disk.capacityBytes < Number.POSITIVE_INFINITY && random() < 0.05)
        this.#disk.capacityBytes =
          random() < 0.5 ? Number.POSITIVE_INFINITY : this.#disk.usedBytes + below(random, 2000);
      if (!this.#process.isDead) model.sawAcknowledged(log.acknowledgedSeq);
    }
  }

  async #close(): Promise<void> {
    for (const { log, model } of this.#writers) {
      this.#model.forgetFaults();
      const isHealthy = this.#random() < 0.5;
      if (isHealthy) {
        this.#disk.capacityBytes = Number.POSITIVE_INFINITY;
        this.#disk.plan = () => 'ok';
      }
      await this.#settled(log.close(), 'close');
      if (this.#process.isDead) return;
      this.#trace(`closed with ${log.acknowledgedSeq}, ${log.droppedCount} dropped`);
      this.#asReader((files) => this.#model.checkClosed(model, log.droppedCount, isHealthy, files));
    }
  }

  /** The end of a life: what is on the disk afterwards is checked before anybody repairs it. */
  #die(how: 'kill' | 'power'): void {
    this.#trace(how === 'kill' ? 'killed' : 'the power fails');
    this.#counts[how === 'kill' ? 'kills' : 'powerCuts']++;
    if (how === 'power') this.#disk.cutPower();
    this.#time.forget();
    this.#leave();
  }

  #leave(): void {
    if (this.#disk.misuse.length > 0) throw new Violation(this.#disk.misuse.join('; '));
    this.#asReader((files) => this.#model.endLife(files));
    // Locks are of the real process, which lives on.
    rmSync(join(this.#root, 'state'), { recursive: true, force: true });
    this.#writers = [];
    this.#process = this.#disk.process();
  }
}
