/**
 * Batches between `append` and the disk: the open one, which takes what is appended now, and before it those that are
 * finished, in order.
 */
import { assert } from '../native/index.ts';
import { Batch, type ChainEnd } from './batch.ts';
import type { SegmentHeader } from './segment.ts';

export class BatchQueue {
  /** The first may be on its way to the disk. */
  readonly #finished: Batch[] = [];
  #finishedBytes = 0;
  #open: Batch;
  /** Memory of a batch that is on disk: what is allocated anew must be cleared by the system, page by page. */
  #spare: Buffer | null = null;

  constructor(open: Batch) {
    this.#open = open;
  }

  get open(): Batch {
    return this.#open;
  }

  /** The next one for the disk. */
  get first(): Batch | undefined {
    return this.#finished[0];
  }

  get isEmpty(): boolean {
    return this.#finished.length === 0 && this.#open.length === 0;
  }

  /** Bytes that wait. */
  get bytes(): number {
    return this.#finishedBytes + this.#open.length;
  }

  /** The first segment that something waits for. */
  get oldestSegment(): number {
    return this.#finished[0]?.segment ?? this.#open.segment;
  }

  all(): readonly Batch[] {
    return [...this.#finished, this.#open];
  }

  /** Puts what was appended behind the finished ones. → the state after it */
  finish(): ChainEnd {
    const end = this.#open.finish();
    if (this.#open.length > 0) this.#begin((spare) => new Batch(this.#open.segment, this.#open.end, end, null, spare));
    return end;
  }

  /** The same, and what is appended next begins a segment. */
  beginSegment(header: (number: number, end: ChainEnd) => SegmentHeader): SegmentHeader {
    const number = this.#open.segment + 1;
    const end = this.#open.finish();
    const made = header(number, end);
    this.#begin((spare) => new Batch(number, 0, end, made, spare));
    return made;
  }

  #begin(make: (spare: Buffer | null) => Batch): void {
    const open = make(this.#spare);
    this.#spare = null;
    if (this.#open.length > 0) {
      this.#finished.push(this.#open);
      this.#finishedBytes += this.#open.length;
    }
    this.#open = open;
  }

  /** The first one is on disk. */
  take(batch: Batch): void {
    assert(this.#finished[0] === batch, `batch of segment ${batch.segment} at ${batch.position} finished out of turn`);
    this.#finished.shift();
    this.#finishedBytes -= batch.length;
  }

  /** One that was taken, and that nobody reads any more. */
  reuse(batch: Batch): void {
    this.#spare ??= batch.giveUpMemory();
  }

  /** All finished ones, which are given up. */
  takeAll(): Batch[] {
    this.#finishedBytes = 0;
    return this.#finished.splice(0);
  }
}
