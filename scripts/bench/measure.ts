/**
 * Times several things side by side: round after round, one pass of each, the read stream among them. One thread is timed by the
 * processor time of the process, which is the same as the clock's on an idle machine and does not count the neighbours' turns on a busy
 * one; several threads are timed by the clock.
 */
import { setFlagsFromString } from 'node:v8';
import { runInNewContext } from 'node:vm';
import type { StreamRecord } from './stream.ts';

export interface Subject {
  /** Before each pass, not timed. */
  prepare?(): void;
  /**
   * One pass; what it reads must not be in a cache: the subject goes over its whole arena, or further through it with each pass.
   * Whoever runs elsewhere answers its own seconds.
   */
  run(): void | Promise<void> | Promise<number>;
  /** After each pass, not timed. */
  finish?(): void;
}

/** Seconds, from some beginning. */
export function now(threads: number): number {
  if (threads > 1) return performance.now() / 1000;
  const { user, system } = process.cpuUsage();
  return (user + system) / 1e6;
}

/** Takes away what earlier passes left, so that no subject pays for another's garbage. */
function collector(): () => void {
  setFlagsFromString('--expose-gc');
  return runInNewContext('gc') as () => void;
}

export interface Timing {
  /** Per subject, in the order given: seconds of one pass. */
  readonly seconds: readonly number[];
  readonly streamGbPerSecond: number;
}

/** Until threads of the runtime that a collection leaves at work (sweeping) have ended: their processor time would count. */
const idle = (): Promise<void> => new Promise((resolve) => setTimeout(resolve, 10));

const sorted = (values: readonly number[]): number[] => [...values].sort((a, b) => a - b);

export function median(values: readonly number[]): number {
  const list = sorted(values);
  const middle = list.length / 2;
  return list.length % 2 === 1 ? list[Math.floor(middle)]! : (list[middle - 1]! + list[middle]!) / 2;
}

/**
 * Median of the faster half. Whoever shares the machine can only slow a pass, so the slower half says more about the neighbours; the
 * fastest single pass would say more about luck.
 */
export function typical(values: readonly number[]): number {
  return median(sorted(values).slice(0, Math.ceil(values.length / 2)));
}

/** Rounds of one pass of every subject, each round beginning with the next one. The first round warms code up and does not count. */
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
