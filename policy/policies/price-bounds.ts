/** The bounds that a session of the price policy compares with, read once from its thresholds. */
import { type ThresholdId, thresholdOf } from '../thresholds.ts';
import type { ThresholdSet } from '../types.ts';

const IDS = {
  dwell: 'dwell.tokens',
  trialAge: 'trial.age',
  settled: 'trial.settled',
  relaxed: 'pressure.leave',
  lowMemory: 'pressure.low-memory',
  epsilon: 'quality.epsilon',
  kld: 'quality.kld',
  past: 'divergence.past',
  chosen: 'divergence.chosen',
  cautious: 'divergence.cautious',
  length: 'divergence.length',
  probeGain: 'probe.gain',
  ratio: 'quality.ratio',
  shift: 'quality.shift',
  watched: 'quality.watched',
  operations: 'latent.operations',
} as const satisfies Readonly<Record<string, ThresholdId>>;

export type Bounds = Readonly<Record<keyof typeof IDS, number>>;

/** What versions before 3 of the policy decided by in place of thresholds that they did not know. */
const BEFORE = { chosen: 1, cautious: 1, length: 0 } as const;

/** The value of each. */
export function boundsOf(set: ThresholdSet, version: number): Bounds {
  const values = Object.entries(IDS).map(([name, id]) => [name, thresholdOf(set, id).value]);
  const bounds = { ...Object.fromEntries(values), ...(version < 3 ? BEFORE : {}) } as Bounds;
  // A session that began without this bound repeats every old trial: logs of that time are replayed as they were.
  return Object.hasOwn(set.thresholds, 'trial.settled') ? bounds : { ...bounds, settled: Number.POSITIVE_INFINITY };
}
