/** Synthetic logs for the store suite: sessions with situations, moves and outcomes, all from a seed. */

import { fingerprint } from '../../memory/index.ts';
import { FORMAT_NAMES, pageBytes } from '../../native/index.ts';
import type { Because, Decision, PolicyContext } from '../../policy/index.ts';
import {
  type CloseBody,
  type DecisionBody,
  type OpenBody,
  openWitnessLog,
  type SituationBody,
} from '../../witness/index.ts';
import { seeded } from '../random.ts';

export interface LogPlan {
  readonly seed: number;
  readonly sessions: number;
  readonly decisionsPerSession: number;
  /** Leave the last session without its 'close'. */
  readonly leaveOpen?: boolean;
  /** First time, ms. */
  readonly startMs?: number;
  readonly prefix?: string;
  /** Size at which a segment ends. */
  readonly segmentBytesMax?: number;
  /** Fingerprint of a session by its number. Default: one of its length. */
  readonly fingerprintOf?: (session: number) => readonly number[];
}

/** What pages go down through, from the window on. */
const FORMATS = FORMAT_NAMES.slice(1);
const thresholds = { version: 1 as const, thresholds: {}, gains: { k: [1, 1], v: [1, 1] }, c: 4 };
const context: PolicyContext = {
  layers: 2,
  kvHeads: 2,
  headDim: 64,
  windowFormat: 'q8',
  pageBytes: Object.fromEntries(
    FORMAT_NAMES.map((name) => [name, pageBytes(name, 2, 64)]),
  ) as PolicyContext['pageBytes'],
  fixedBytes: 4096,
  thresholds,
  skipLayers: [],
  floor: null,
};

/** Appends the sessions of a plan to the log in `dir`, creating it when missing. → acknowledged seq */
export async function writeSessions(dir: string, plan: LogPlan): Promise<number> {
  const next = seeded(plan.seed);
  const whole = (n: number): number => Math.floor(next() * n);
  let now = plan.startMs ?? 1_760_000_000_000;
  const size = plan.segmentBytesMax === undefined ? {} : { segmentBytesMax: plan.segmentBytesMax };
  const log = await openWitnessLog({ dir, ...size, clock: () => (now += 1 + whole(5)) });
  for (let s = 0; s < plan.sessions; s++) {
    const session = `${plan.prefix ?? 's'}${s}`;
    const digest = `sha256:${s % 2}`;
    const open: OpenBody = {
      model: { name: `model ${s % 2} “ä”`, digest, architecture: 'llama' },
      shape: { layers: 2, queryHeads: 4, kvHeads: 2, headDim: 64 },
      policy: { id: s % 3 === 2 ? 'uniform' : 'price', version: 1, options: {}, machine: 'm' },
      context,
      requested: {},
      effective: {},
    };
    log.append(session, 'open', open);
    let refused = 0;
    let tokens = plan.fingerprintOf === undefined ? 0 : 128;
    for (let d = 0; d < plan.decisionsPerSession; d++) {
      tokens += whole(3) * 64;
      if (d % 4 === 0) {
        const situation: SituationBody = {
          situation: {
            index: d / 4,
            tokens,
            bytes: 100_000 + whole(100_000),
            sealBytes: 0,
            budgetBytes: s % 2 === 0 ? 2 ** 40 : null,
            kldBudget: s % 2 === 0 ? null : 0.02,
            tokensExpected: null,
            movesMax: 4,
            urgent: next() < 0.1,
            lowMemory: false,
            stepLatencyMsP95: 0,
            stepLatencyBudgetMs: null,
            trials: [],
            outcomes: [],
          },
        };
        log.append(session, 'situation', situation);
      }
      const accepted = next() < 0.7;
      if (!accepted) refused += 1;
      const because = (rule: string): Because => ({
        threshold: rule === 'price' ? 'price' : 'pressure.enter',
        measured: next() * 1e-9,
        bound: 1e-9 + 1e-17,
        unit: 'KLD/byte',
        origin: 'controller',
        rule,
      });
      const from = whole(3);
      const decision: Decision = {
        layer: whole(2),
        page: whole(30),
        side: next() < 0.5 ? 'k' : 'v',
        from: FORMATS[from]!,
        to: FORMATS[from + 1]!,
        epsilonFrom: next() < 0.2 ? null : next() * 1e-3,
        epsilonTo: next() * 1e-2,
        price: next() < 0.2 ? null : next() * 1e-9,
        bytesFreed: 2000 + whole(5000),
        retry: false,
        because: because(next() < 0.5 ? 'price' : 'deficit'),
      };
      const body: DecisionBody = {
        situation: Math.floor(d / 4),
        order: d % 4,
        decision,
        epsilonNow: next() < 0.5 ? null : next(),
        verdict: { accepted, because: because(accepted ? 'price' : 'trial') },
        bytesBefore: 2 ** 33 + d,
        bytesAfter: 2 ** 33 + d - decision.bytesFreed,
        tokens,
      };
      log.append(session, 'decision', body);
    }
    if (plan.leaveOpen === true && s === plan.sessions - 1) continue;
    const close: CloseBody = {
      tokens,
      kvBytes: 123_456,
      kvBytesF16: 2 ** 34,
      effectiveBits: 4.25,
      decisions: plan.decisionsPerSession,
      refused,
      priceThreshold: 1e-9 * (1 + next()),
      predictedKld: 0.02,
      meanKld: s % 2 === 0 ? 0.0123456789012345 : null,
      fingerprint: plan.fingerprintOf?.(s) ?? [
        ...fingerprint({ layers: 2, queryHeads: 4, kvHeads: 2, headDim: 64, tokens: 128 + tokens, pressure: next() }),
      ],
      gains: { k: [1, 1.25], v: [1, 1] },
      c: 4,
      reason: s % 5 === 4 ? 'error' : 'done',
    };
    log.append(session, 'close', close);
  }
  const seq = await log.flush();
  await log.close();
  return seq;
}
