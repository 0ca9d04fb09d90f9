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
  worth: 'degraded.worth',
  seen: 'reread.seen',
  rereadSd: 'reread.sd',
  spread: 'reread.spread',
  aim: 'reread.aim',
} as const satisfies Readonly<Record<string, ThresholdId>>;

export type Bounds = Readonly<Record<keyof typeof IDS, number>>;

/** The value of each, or what stands `instead` of it. */
export function boundsOf(set: ThresholdSet, instead: Partial<Bounds> = {}): Bounds {
  const values = Object.entries(IDS).map(([name, id]) => [name, thresholdOf(set, id).value]);
  const bounds = { ...Object.fromEntries(values), ...instead } as Bounds;
  // A session that began without this bound repeats every old trial: logs of that time are replayed as they were.
  return Object.hasOwn(set.thresholds, 'trial.settled') ? bounds : { ...bounds, settled: Number.POSITIVE_INFINITY };
}
