/**
 * Who takes steps: a model over a governed cache. A step (step.ts) works on what it has, and tells it what goes into
 * the cache and what comes out.
 */
import type { Rotary } from '../transformer/rotary.ts';
import type { Runtime } from '../transformer/runtime/runtime.ts';
import type { ScaledAdapter } from '../transformer/types.ts';
import type { Governed } from './governed.ts';
import type { LayerRows } from './types.ts';

/** Milliseconds of the halves of all steps so far. */
export interface StepTimes {
  denseMs: number;
  attentionMs: number;
}

export interface Stepper {
  readonly runtime: Runtime;
  readonly governed: Governed;
  readonly rotary: Rotary;
  readonly times: StepTimes;
  /** What adapters add to its rows, in this order; left out: nothing. */
  readonly adapters?: readonly ScaledAdapter[];
  /** A step is about to begin; throws where none may. */
  begins?(): void;
  /** Sees the rows of each layer before the cache does; left out where nobody wants to. */
  sees?(rows: LayerRows): void;
  /**
   * The cache holds these tokens now, and nothing is decided yet. hidden: the residual stream behind the last layer,
   * [T, m], until the next step.
   */
  holds(tokenIds: Int32Array, hidden: Float32Array): void;
}
