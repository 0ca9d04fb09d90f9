/**
 * What a session is for those that do a part of its work while a call has it: the loop that writes an answer
 * (write.ts), the probe of the text, and the look-up in the book.
 */
import type { Stepper } from '../cache/stepper.ts';
import type { DenseBackend } from '../transformer/types.ts';
import type { Probe } from './probe.ts';

export interface Reader extends Stepper {
  /** What computes rows of so many of its tokens from one of them on, adapters included. */
  denseFor(position: number, tokens: number): DenseBackend;
  /** What stands for the weights that computed all of its rows: the digest of the model, and of what adds to all. */
  readonly weights: string;
  /** Token ids in the cache, in order. */
  readonly tokens: readonly number[];
  /** True if it was closed meanwhile. */
  readonly isClosed: boolean;
  /**
   * Of the token behind these, or behind a row of the residual stream [m]: [V]. They may be overwritten by the next
   * step.
   */
  logits(row?: Float32Array): Promise<Float32Array>;
  /** Reads tokens behind these. → the residual stream behind each, [T, m] */
  forward(ids: readonly number[]): Promise<Float32Array>;
  /** Takes back all but the first `tokens`, the last of which left this row. */
  retract(tokens: number, row: Float32Array): void;
  /** Steps are kept by this probe from now on, and by no other; null: by none. */
  keepFor(probe: Probe | null): void;
}
