/**
 * Times several subjects side by side. Every round makes one pass of each subject and one of the read stream. With one
 * thread, a pass is timed by the processor time of the process: on an idle machine that equals the clock, and on a busy
 * one it leaves out the time of other programs. With several threads, the clock is used.
 */
import { setFlagsFromString } from 'node:v8';
import { runInNewContext } from 'node:vm';
import type { StreamRecord } from './stream.ts';

export interface Subject {
  /** Runs before each pass and is not timed. */
  prepare?(): void;
  /**
   * Makes one pass. It must not find what it reads in the processor's caches, so it either reads a whole arena or goes
   * on where the last pass ended. A subject that runs in another process returns the seconds that it took.
   */
  run(): void | Promise<void> | Promise<number>;
  /** Runs after each pass and is not timed. */
  finish?(): void;
}

/**
 * The current time in seconds: of the clock if there are several threads, otherwise the processor time of this process.
 */
export function now(threads: number): number {
  if (threads > 1) return performance.now() / 1000;
  const { user, system } = process.cpuUsage();
  return (user + system) / 1e6;
}

/** What a piece of work takes: of the processor, with all threads of the process, and by the clock. */
export interface Took {
  readonly cpuSeconds: number;
  readonly seconds: number;
}

export async function took(work: () => Promise<void>): Promise<Took> {
  const [cpu, clock] = [now(1), performance.now()];
  await work();
  return { cpuSeconds: now(1) - cpu, seconds: (performance.now() - clock) / 1000 };
}

/** Returns a function that collects garbage, so that no pass is slowed down by the garbage of earlier ones. */
export function collector(): () => void {
  setFlagsFromString('--expose-gc');
  return runInNewContext('gc') as () => void;
}

export interface Timing {
  /** The seconds of one pass of each subject, in the order given. */
  readonly seconds: readonly number[];
  readonly streamGbPerSecond: number;
}

/**
 * Waits until the threads that sweep memory after a collection have ended, because their processor time would be
 * counted.
 */
const idle = (): Promise<void> => new Promise((resolve) => setTimeout(resolve, 10));

const sorted = (values: readonly number[]): number[] => [...values].sort((a, b) => a - b);

export function median(values: readonly number[]): number {
  const list = sorted(values);
  const middle = list.length / 2;
  return list.length % 2 === 1 ? list[Math.floor(middle)]! : (list[middle - 1]! + list[middle]!) / 2;
}

/**
 * The median of the faster half of the passes. Other programs on the machine can only make a pass slower, so the slower
 * half says more about them than about the subject. The fastest pass alone would depend on luck.
 */
export function typical(values: readonly number[]): number {
  return median(sorted(values).slice(0, Math.ceil(values.length / 2)));
}

/** The least value that 95% of them do not exceed. */
export function p95(values: readonly number[]): number {
  return sorted(values)[Math.ceil(0.95 * values.length) - 1]!;
}

/**
 * What the passes of each subject say, where every subject times itself in a process of its own. Rounds alternate who
 * begins; the first, in which code is compiled and memory touched, does not count.
 */
export async function alternate<T>(subjects: readonly { run(): Promise<T> }[], rounds: number): Promise<T[][]> {
  const said: T[][] = subjects.map(() => []);
  for (let round = 0; round <= rounds; round++) {
    for (let i = 0; i < subjects.length; i++) {
      const index = (i + round) % subjects.length;
      const pass = await subjects[index]!.run();
      if (round > 0) said[index]!.push(pass);
    }
  }
  return said;
}

/**
 * Runs the rounds. Each begins with another subject. An additional first round, which does not count, lets the code be
 * compiled.
 */
export async function sideBySide(
  subjects: readonly Subject[],
  { stream, threads, rounds }: { stream: StreamRecord; threads: number; rounds: number },
): Promise<Timing> {
  const collect = collector();
  const times: number[][] = subjects.map(() => []);
  const passes: number[] = [];
  for (let round = 0; round <= rounds; round++) {
    const pass = stream.sample(threads);
    if (round > 0) passes.push(pass);
    for (let i = 0; i < subjects.length; i++) {
      const index = (i + round) % subjects.length;
      const subject = subjects[index]!;
      collect();
      await idle();
      subject.prepare?.();
      const start = now(threads);
      const pending = subject.run();
      const told = pending === undefined ? undefined : await pending;
      const seconds = told ?? now(threads) - start;
      subject.finish?.();
      if (round > 0) times[index]!.push(seconds);
    }
  }
  return { seconds: times.map(typical), streamGbPerSecond: stream.gbPerSecond(typical(passes)) };
}
