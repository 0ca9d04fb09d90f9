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
  ahead: 'divergence.ahead',
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
  doubled: 'reread.doubled',
  drift: 'reread.drift',
} as const satisfies Readonly<Record<string, ThresholdId>>;

export type Bounds = Readonly<Record<keyof typeof IDS, number>>;

/** The value of each, or what stands `instead` of it. */
export function boundsOf(set: ThresholdSet, instead: Partial<Bounds> = {}): Bounds {
  const values = Object.entries(IDS).map(([name, id]) => [name, thresholdOf(set, id).value]);
  const bounds = { ...Object.fromEntries(values), ...instead } as Bounds;
  // Logs of sessions that began without one of these bounds are replayed as they were: every old trial is repeated, and
  // the level of what was measured does not change, and what moves will cost later is what they cost now.
  const has = (id: ThresholdId): boolean => Object.hasOwn(set.thresholds, id);
  return {
    ...bounds,
    ...(has('trial.settled') ? {} : { settled: Number.POSITIVE_INFINITY }),
    ...(has('reread.drift') ? {} : { drift: 0 }),
    ...(has('divergence.ahead') ? {} : { ahead: 0 }),
  };
}
