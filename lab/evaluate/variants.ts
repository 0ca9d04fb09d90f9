/**
 * What sessions are compared with: policies of before, and the policy of today with one of its parts left out. Each is
 * one entry of a list.
 */
import { KvError } from '../../native/index.ts';
import {
  createPolicy,
  defaultThresholds,
  type Layers,
  type Policy,
  type PolicySession,
  type ThresholdSet,
  TIERS,
  type TrialReport,
} from '../../policy/index.ts';
import type { Asked } from './score.ts';

/**
 * The policy as it was before it learned: version 1 of 'price', the open page in f16, whole pages in the window,
 * nothing below 2 bits.
 */
export const BEFORE = { policy: 'price-1', openFormat: 'f16', windowTokens: 128, cacheTypes: 'rot2:rot2' } as const;
export const UNIFORM = { policy: 'uniform' } as const;

export interface Ablation {
  readonly without: string;
  /** Thresholds that switch the part off. An entry whose thresholds this version does not know is passed over. */
  readonly thresholds?: Readonly<Record<string, number>>;
  /** Changes what a session starts from. */
  readonly adjust?: (set: ThresholdSet) => ThresholdSet;
  readonly policy?: Policy;
  readonly options?: Asked['options'];
  /** Starts without the state folder. */
  readonly untaught?: boolean;
}

export const ABLATIONS: readonly Ablation[] = [
  { without: 'trials', policy: untried(createPolicy('price')) },
  { without: 'repeated trials', thresholds: { 'trial.again': 0 } },
  { without: 'machine', policy: unruled(createPolicy('price')) },
  { without: 'shrinkage', policy: createPolicy('price', {}, 3) },
  { without: 'canaries', thresholds: { 'canary.share': 0 } },
  { without: 'gain probes', thresholds: { 'probe.share': 0, 'probe.share.kld': 0 } },
  { without: 'retrieval', untaught: true },
  { without: 'learner', adjust: unlearned },
  { without: 'latents', thresholds: { 'latent.operations': 0 } },
  { without: '8-bit open page', options: { openFormat: 'f16' } as Asked['options'] },
  { without: 'per-channel keys', thresholds: { 'keys.outliers': 0 } },
  { without: '1-bit values', options: { cacheTypes: 'rot2:rot2' } },
];

/**
 * The policy with machines of layers that take no arrow: every tier is open from the start, and no layer is watched,
 * held or trusted. What stays is the price.
 */
export function unruled(policy: Policy): Policy {
  const open: Policy['open'] = (context) => {
    const session = policy.open(context);
    const { layers } = session as PolicySession & { readonly layers?: Layers };
    if (layers === undefined) throw new KvError('unsupported', `policy '${policy.id}' has no machine to do without`);
    layers.openTier.fill(TIERS.length - 1);
    layers.update = () => [];
    return session;
  };
  return { ...policy, open };
}

/** True if this version has what the ablation leaves out. */
export function isKnown({ thresholds = {} }: Ablation): boolean {
  const known = defaultThresholds(1).thresholds;
  return Object.keys(thresholds).every((id) => Object.hasOwn(known, id));
}

/** The ablation on top of what is asked of the whole. */
export function ablated(whole: Asked, ablation: Ablation): Asked {
  const { thresholds = {}, adjust = (set) => set, policy, options = {}, untaught = false } = ablation;
  return {
    options: { ...whole.options, ...options },
    stateDir: untaught ? null : whole.stateDir,
    adjust: (set) => withThresholds(adjust(set), thresholds),
    ...(policy === undefined ? {} : { policy }),
  };
}

/** A set in which some thresholds have other values. */
export function withThresholds(set: ThresholdSet, values: Readonly<Record<string, number>>): ThresholdSet {
  const known = defaultThresholds(set.gains.k.length).thresholds;
  const changed = Object.entries(values).map(([id, value]) => [id, { ...(set.thresholds[id] ?? known[id]!), value }]);
  return { ...set, thresholds: { ...set.thresholds, ...Object.fromEntries(changed) } };
}

/** Thresholds stay as they were found; gains, constant and law of errors are those of a session that knows nothing. */
function unlearned(set: ThresholdSet): ThresholdSet {
  const { thresholds: _, ...unknowing } = defaultThresholds(set.gains.k.length);
  return { ...unknowing, thresholds: set.thresholds };
}

/**
 * The policy as if no page had been tried: every page of a side has the mean errors of the first trials that were
 * reported, and no move is refused.
 */
function untried(policy: Policy): Policy {
  return {
    ...policy,
    id: `${policy.id}-untried`,
    triesAgain: false,
    open: (context) => {
      const session = policy.open(context);
      let typical: Map<string, number> | null = null;
      return {
        decide: (situation) => {
          if (typical === null && situation.trials.length > 0) typical = meansOf(situation.trials);
          const trials = situation.trials.map((trial) => ({ ...trial, epsilon: alike(trial, typical!) }));
          return session.decide({ ...situation, trials });
        },
        judge: (decision) => session.judge(decision, decision.epsilonTo),
        summary: () => session.summary(),
      };
    },
  };
}

function meansOf(trials: readonly TrialReport[]): Map<string, number> {
  const seen = new Map<string, number[]>();
  for (const { side, epsilon } of trials)
    for (const [format, value] of Object.entries(epsilon)) {
      const key = `${side} ${format}`;
      seen.set(key, [...(seen.get(key) ?? []), value]);
    }
  return new Map([...seen].map(([key, values]) => [key, values.reduce((sum, one) => sum + one, 0) / values.length]));
}

const alike = ({ side, epsilon }: TrialReport, typical: ReadonlyMap<string, number>): TrialReport['epsilon'] =>
  Object.fromEntries(
    Object.entries(epsilon).map(([format, value]) => [format, typical.get(`${side} ${format}`) ?? value]),
  );
