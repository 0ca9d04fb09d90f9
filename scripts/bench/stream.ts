/** The read stream (native/stream.cc): how fast this machine reads memory. Benches compare their figures with it. */
import { createRequire } from 'node:module';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';

interface StreamHandle {
  /** Reads the region once with so many threads and returns the seconds that it took. */
  read(threads: number): number;
  close(): void;
  /** How it reads, in words. */
  readonly way: string;
  readonly bytes: number;
}

/** Several times the last-level cache of any machine that this runs on. */
export const STREAM_BYTES = 256 * 2 ** 20;

/** Fills the region and finds the fastest way to read it, which takes about a second. */
export function openStream(bytes = STREAM_BYTES): StreamHandle {
  const file = join(fileURLToPath(new URL('../../native/build/Release', import.meta.url)), 'bench_stream.node');
  const { Stream } = createRequire(import.meta.url)(file) as { Stream: new (bytes: number) => StreamHandle };
  return new Stream(bytes);
}

/**
 * The int8 operations per second of one thread that uses only registers, which is the other limit; 0 if it is not known
 * for this kind of CPU.
 */
export function openProducts(): () => number {
  const file = join(fileURLToPath(new URL('../../native/build/Release', import.meta.url)), 'bench_stream.node');
  return (createRequire(import.meta.url)(file) as { products(): number }).products;
}

/** The speeds that the read stream has reached so far, for each number of threads. */
export class StreamRecord {
  readonly handle: StreamHandle;
  readonly #seconds = new Map<number, number[]>();

  constructor(handle: StreamHandle) {
    this.handle = handle;
  }

  /** Makes one pass and returns its seconds. */
  sample(threads: number): number {
    const seconds = this.handle.read(threads);
    const list = this.#seconds.get(threads) ?? [];
    this.#seconds.set(threads, list);
    list.push(seconds);
    return seconds;
  }

  gbPerSecond(seconds: number): number {
    return this.handle.bytes / seconds / 1e9;
  }

  /** The speed of the fastest pass of the run, which is the limit for every row. */
  best(threads: number): number {
    return this.gbPerSecond(Math.min(...(this.#seconds.get(threads) ?? [Number.POSITIVE_INFINITY])));
  }

  get threads(): number[] {
    return [...this.#seconds.keys()].sort((a, b) => a - b);
  }

  samples(threads: number): readonly number[] {
    return this.#seconds.get(threads) ?? [];
  }
}
