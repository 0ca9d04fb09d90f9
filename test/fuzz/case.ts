/** One thing that is fuzzed: arguments chosen from random numbers, and what a machine makes of them. */
import type { Binary } from '../../native/load.ts';
import type { KernelsBinding } from '../native/kernels-binding.ts';
import { gaussian } from '../native/rows.ts';

export type Random = () => number;
export type Numbers = Float32Array | Float64Array | Int8Array | Uint8Array | Int16Array | Uint16Array | Int32Array;

/** A build on one of its instruction sets. */
export interface Machine {
  readonly name: string;
  /** Single kernels, the instruction set is their first argument. */
  readonly kernels: KernelsBinding;
  /** The cache and what is around it, by its raw surface; setIsa(isa) before anything is opened. */
  readonly binary: Binary;
  readonly isa: number;
}

export interface Case {
  readonly shape: string;
  /** What the machine answers, each time from the same inputs, which it leaves as they are. */
  run(machine: Machine): Numbers[];
  /**
   * Per result the largest difference allowed of each element, derived from what the first machine answered; left out
   * or undefined: bits.
   */
  bounds?(expected: readonly Numbers[]): (Float64Array | undefined)[];
}

export type Cases = Readonly<Record<string, (random: Random) => Case>>;

export const whole = (random: Random, least: number, most: number): number =>
  least + Math.floor(random() * (most - least + 1));
export const one = <T>(random: Random, list: readonly T[]): T => list[Math.floor(random() * list.length)]!;
export const bytes = (random: Random, count: number): Uint8Array =>
  Uint8Array.from({ length: count }, () => Math.floor(random() * 256));
export const signed = (random: Random, count: number): Int8Array => new Int8Array(bytes(random, count).buffer);

/** Copies an array so that it starts at an odd place. */
export function shifted<T extends Float32Array | Uint16Array | Int16Array>(random: Random, values: T): T {
  const by = whole(random, 0, 3);
  const room = new (values.constructor as new (length: number) => T)(values.length + by);
  room.set(values, by);
  return room.subarray(by) as T;
}

/** Finite numbers of one size or of many, with zeros of both signs and denormals among them. */
export function floats(random: Random, count: number, most = 2 ** 60): Float32Array {
  const spread = one(random, [0, 0, 4, 40]);
  const size = 2 ** one(random, [0, 0, -10, 10]);
  const zeros = one(random, [0, 0, 0.1, 0.9]);
  return shifted(
    random,
    Float32Array.from({ length: count }, () => {
      if (random() < zeros) return one(random, [0, -0, 1e-40, -1e-40]);
      const x = gaussian(random) * size * 2 ** (spread * (random() - 0.5));
      return Math.max(-most, Math.min(most, x));
    }),
  );
}

/** What the raw surface answers is a status; fuzzed calls are right ones. */
export function succeed(status: number, what: string): void {
  if (status !== 0) throw new Error(`${what} answered status ${status}`);
}
