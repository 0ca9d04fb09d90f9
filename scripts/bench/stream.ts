/** The read stream of this machine (native/stream.cc): what every figure of a bench stands beside. */
import { createRequire } from 'node:module';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';

interface StreamHandle {
  /** Seconds for one pass over the region by this many threads. */
  read(threads: number): number;
  close(): void;
  /** How it reads, for people. */
  readonly way: string;
  readonly bytes: number;
}

/** Beyond any last-level cache of the machines this runs on, several times over. */
export const STREAM_BYTES = 256 * 2 ** 20;

/** Fills the region and settles on the fastest way to read it: about a second. */
export function openStream(bytes = STREAM_BYTES): StreamHandle {
  const file = join(fileURLToPath(new URL('../../native/build/Release', import.meta.url)), 'bench_stream.node');
  const { Stream } = createRequire(import.meta.url)(file) as { Stream: new (bytes: number) => StreamHandle };
  return new Stream(bytes);
}

/** int8 operations a second of one thread that stays in its registers (0: not known on this kind of CPU): the other ceiling. */
export function openProducts(): () => number {
  const file = join(fileURLToPath(new URL('../../native/build/Release', import.meta.url)), 'bench_stream.node');
  return (createRequire(import.meta.url)(file) as { products(): number }).products;
}

/** What the stream reached, per number of threads, over everything measured so far. */
export class StreamRecord {
  readonly handle: StreamHandle;
  readonly #seconds = new Map<number, number[]>();

  constructor(handle: StreamHandle) {
    this.handle = handle;
  }

  /** One pass; → seconds. */
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

  /** Fastest pass of the run: the ceiling for every row. */
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
