/**
 * A session as the engine would record it, made by a policy that fits on a page: two layers, five pages, numbers one
 * can check.
 */
import {
  type Decision,
  machineDigest,
  type Outcome,
  type Policy,
  type PolicyContext,
  type PolicySession,
  type Situation,
  type ThresholdSet,
  type TrialReport,
} from '../../../policy/index.ts';
import type { WitnessLog } from '../../../witness/index.ts';

export const PRICE = 2e-6;

const thresholds: ThresholdSet = {
  version: 1,
  thresholds: {
    price: {
      id: 'price',
      value: PRICE,
      unit: 'KLD/byte',
      origin: 'learned',
      source: 'median of three sessions',
      samples: 12,
      evidence: [3, 5, 8],
    },
  },
  gains: { k: [1, 2], v: [1, 0.5] },
  c: 4,
};

const bytesOf = (family: 'rot' | 'trellis'): object => ({
  [`${family}4`]: 12928,
  [`${family}3`]: 9856,
  [`${family}2`]: 6784,
  [`${family}1`]: 3712,
});

export const context: PolicyContext = {
  layers: 2,
  kvHeads: 3,
  headDim: 64,
  windowFormat: 'q8',
  pageBytes: { f16: 49152, q8: 25344, ...bytesOf('rot'), ...bytesOf('trellis') } as PolicyContext['pageBytes'],
  fixedBytes: 1000,
  thresholds,
  skipLayers: [],
  floor: null,
};

/** Plans q8 → rot4 for every trial it is shown, priced c·g·ε²; refuses what is dearer than PRICE per byte. */
export function tinyPolicy(id = 'tiny', version = 1): Policy {
  const because = (measured: number, rule: string) => ({
    threshold: 'price',
    measured,
    bound: PRICE,
    unit: 'KLD/byte',
    origin: 'learned' as const,
    rule,
  });
  const open = (): PolicySession => {
    let seen = 0;
    return {
      decide: ({ trials }) => {
        const before = seen;
        seen += trials.length;
        return trials.map(({ layer, page, side, from, epsilon }): Decision => {
          const epsilonTo = epsilon.rot4 ?? 0;
          const bytesFreed = context.pageBytes[from]! - context.pageBytes.rot4;
          const price =
            (thresholds.c * (thresholds.gains[side === 'kv' ? 'k' : side][layer] ?? 1) * epsilonTo ** 2) / bytesFreed;
          return {
            layer,
            page,
            side,
            from,
            to: 'rot4',
            epsilonFrom: 0,
            epsilonTo,
            price,
            bytesFreed,
            retry: before > 0,
            because: because(price, 'price'),
          };
        });
      },
      judge: (decision, epsilonNow) => {
        const price =
          ((decision.price ?? 0) * (epsilonNow ?? decision.epsilonTo ?? 0) ** 2) / (decision.epsilonTo ?? 1) ** 2;
        return { accepted: price <= PRICE, because: because(price, epsilonNow === null ? 'price' : 'retried') };
      },
      summary: () => ({ priceThreshold: PRICE, predictedKld: 0, layerStates: [], layerEpsilonMax: [], layerKld: [] }),
    };
  };
  return { id, version, needsTrials: true, open };
}

/** Situation `index`: page `index` of both layers and sides became movable. */
function situationOf(index: number, outcomes: readonly Outcome[], bytes: number): Situation {
  const trials: TrialReport[] = [];
  for (let layer = 0; layer < 2; layer++) {
    for (const side of ['k', 'v'] as const) {
      const rot4 = 0.01 * (1 + index) * (1 + layer) * (side === 'k' ? 2 : 1);
      trials.push({ layer, page: index, side, from: 'q8', epsilon: { rot4, rot3: 2 * rot4, rot2: 4 * rot4 } });
    }
  }
  return {
    index,
    tokens: 128 * (index + 2),
    bytes,
    sealBytes: 4 * 25344,
    budgetBytes: 400_000,
    kldBudget: null,
    tokensExpected: 1024,
    movesMax: 8,
    urgent: false,
    lowMemory: index === 3,
    stepLatencyMsP95: 0,
    stepLatencyBudgetMs: null,
    trials,
    outcomes,
  };
}

export interface SessionOptions {
  readonly situations?: number;
  readonly close?: boolean;
  readonly policy?: Policy;
  readonly policyOptions?: Readonly<Record<string, unknown>>;
  /** Instead of the one threshold that the tiny policy knows. */
  readonly thresholds?: ThresholdSet;
  /** In the cache before the first move. */
  readonly bytes?: number;
}

/** Drives the policy over synthetic situations and records everything. → seqs of the decisions */
export function recordSession(log: WitnessLog, session: string, options: SessionOptions = {}): number[] {
  const { situations = 5, close = true, policyOptions = {} } = options;
  const setting = { ...context, thresholds: options.thresholds ?? thresholds };
  const policy = options.policy ?? tinyPolicy();
  log.append(session, 'evidence', {
    fingerprint: [1, 2],
    neighbours: [{ session: 'older', distance: 0.25, seq: 3 }],
    thresholds,
  });
  log.append(session, 'open', {
    model: { name: 'tiny-model', digest: 'd'.repeat(64), architecture: 'llama' },
    shape: { layers: 2, queryHeads: 9, kvHeads: 3, headDim: 64 },
    policy: { id: policy.id, version: policy.version, options: policyOptions, machine: machineDigest() },
    context: setting,
    requested: { kvBudget: '25%' },
    effective: { budgetBytes: 400_000 },
  });
  const decider = policy.open(setting);
  let outcomes: Outcome[] = [];
  const start = options.bytes ?? 300_000;
  let bytes = start;
  const seqs: number[] = [];
  let refused = 0;
  for (let index = 0; index < situations; index++) {
    const situation = situationOf(index, outcomes, bytes);
    const decisions = decider.decide(situation);
    outcomes = [];
    log.append(session, 'situation', { situation });
    for (const [order, decision] of decisions.entries()) {
      const epsilonNow = decision.retry ? (decision.epsilonTo ?? 0) * 0.9 : null;
      const verdict = decider.judge(decision, epsilonNow);
      const bytesBefore = bytes;
      const bytesFreed = verdict.accepted ? decision.bytesFreed : 0;
      bytes -= bytesFreed;
      if (!verdict.accepted) refused++;
      const { layer, page, side, from, to } = decision;
      outcomes.push({ layer, page, side, from, to, accepted: verdict.accepted, epsilonNow, bytesFreed });
      const seq = log.append(session, 'decision', {
        situation: index,
        order,
        decision,
        epsilonNow,
        verdict,
        bytesBefore,
        bytesAfter: bytes,
        tokens: situation.tokens,
      });
      seqs.push(seq as number);
    }
  }
  const { priceThreshold, predictedKld, text } = decider.summary();
  const kvBytesF16 = 900 * 2 * 3 * 64 * 4;
  if (close) {
    log.append(session, 'close', {
      tokens: 900,
      kvBytes: start,
      kvBytesF16,
      effectiveBits: (16 * start) / kvBytesF16,
      decisions: seqs.length,
      refused,
      priceThreshold,
      predictedKld,
      meanKld: null,
      fingerprint: [1, 2],
      gains: setting.thresholds.gains,
      c: setting.thresholds.c,
      ...(text?.measured == null ? {} : { text: text.measured }),
      reason: 'done',
    });
  }
  return seqs;
}
