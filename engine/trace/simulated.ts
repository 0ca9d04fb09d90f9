/** What a simulation finds out about one cache, of our policies or of the yardsticks. */
import type { Decision, Verdict } from '../../policy/index.ts';

/** A planned move and what became of it. */
export interface SimulatedDecision {
  readonly tokens: number;
  readonly decision: Decision;
  readonly epsilonNow: number | null;
  readonly verdict: Verdict;
}

export interface Simulated {
  /** The cache as `--caches` names it: 'price@25%'. */
  readonly cache: string;
  /** Bytes at the end of each page, of the layers and heads of the trace. */
  readonly bytes: readonly number[];
  readonly bytesPeak: number;
  readonly bytesF16: number;
  /** Mean over layers and later queries of ‖S·W_o(o′−o)‖/‖x‖. */
  readonly epsilon: number;
  /** Mean square of it in each layer. */
  readonly squares: readonly number[];
  /** Divergence by the error law from these errors, in nats. */
  readonly errorKld: number;
  /** What the policy predicted from its trials, in nats; null where there were none. */
  readonly predictedKld: number | null;
  /** Divergence of a real run of the same cache, where the trace has one. */
  readonly meanKld: number | null;
  /** Share of the attention of later queries that fell on tokens that are no longer there. */
  readonly droppedMass: number;
  readonly decisions: readonly SimulatedDecision[];
  readonly seconds: number;
}
