// Written by scripts/generate-entries.ts from witness/entries/. Change these, not this file.
import type { Part } from '../../native/index.ts';
import type { LaterForm, PageForm, ThresholdOrigin } from '../../policy/index.ts';
import type { DecisionBody, SituationBody } from '../entries/index.ts';

interface Envelope {
  readonly seq: number;
  readonly timeMs: number;
  readonly session: string;
}

/** One decision entry, flat: what a list shows and what the SQL index stores. `seq` is the id that a person types. */
export interface DecisionRow {
  /** Id of the entry: what `explain` takes. */
  readonly seq: number;
  /** Milliseconds since the epoch. */
  readonly timeMs: number;
  /** Id of the session. */
  readonly session: string;
  /** Number of the situation that it answers, within the session. */
  readonly situation: number;
  /** Its place in the plan for that situation. */
  readonly order: number;
  /** Tokens in the cache when it was decided. */
  readonly tokens: number;
  /** Number of the layer, from 0. */
  readonly layer: number;
  /** Number of the page, from 0. */
  readonly page: number;
  /** Keys, values, or both where a latent is concerned or the page is let go. */
  readonly side: Part;
  /** Format or latent that the page had. */
  readonly from: PageForm;
  /** That which it was to get; 'freed': the page was let go. */
  readonly to: LaterForm;
  /** Made, or refused after its trial. */
  readonly accepted: boolean;
  /** Why it was planned (decision.because): the rule. */
  readonly rule: string;
  /** The threshold that bound the plan. */
  readonly threshold: string;
  /** What was compared with it. */
  readonly measured: number;
  /** Its value then. */
  readonly bound: number;
  /** Unit of both; '1' for a bare number. */
  readonly unit: string;
  /** Where the value of the threshold came from. */
  readonly origin: ThresholdOrigin;
  /** Why it was accepted or refused (verdict.because): the rule. */
  readonly verdictRule: string;
  /** The threshold that bound the verdict. */
  readonly verdictThreshold: string;
  /** What was compared with it. */
  readonly verdictMeasured: number;
  /** Its value then. */
  readonly verdictBound: number;
  /** Predicted error of the page in the format it had; null where the policy needs no trial. */
  readonly epsilonFrom: number | null;
  /** The same in the format it was to get. */
  readonly epsilonTo: number | null;
  /** Measured just before the move; null when the first trial was recent enough. */
  readonly epsilonNow: number | null;
  /** Predicted divergence (KLD) per byte freed; null where the policy has no prices. */
  readonly price: number | null;
  /** Planned; what was really freed is bytesBefore − bytesAfter. */
  readonly bytesFreed: number;
  /** Bytes of the cache before it. */
  readonly bytesBefore: number;
  /** Bytes of the cache after it. */
  readonly bytesAfter: number;
}

/** The numbers of one situation entry, flat: what the SQL index stores. */
export interface SituationRow {
  /** Id of the entry: what `explain` takes. */
  readonly seq: number;
  /** Milliseconds since the epoch. */
  readonly timeMs: number;
  /** Id of the session. */
  readonly session: string;
  readonly situation: number;
  readonly tokens: number;
  readonly bytes: number;
  readonly budgetBytes: number | null;
  readonly kldBudget: number | null;
  readonly urgent: boolean;
  readonly lowMemory: boolean;
  readonly trials: number;
  readonly outcomes: number;
}

/** One session, from its 'open' entry and, when it ended, its 'close' entry. */
export interface SessionRow {
  /** Id of the session. */
  readonly session: string;
  /** seq of the 'open' entry. */
  readonly seq: number;
  /** When it began, milliseconds since the epoch. */
  readonly openedMs: number;
  /** null: still running, or killed. */
  readonly closedMs: number | null;
  /** Name of the model. */
  readonly model: string;
  /** SHA-256 of the model's file. */
  readonly modelDigest: string;
  /** Name of the policy. */
  readonly policy: string;
  /** Of the 'close' entry; without one, of the last situation seen. */
  readonly tokens: number;
  /** Bytes of its cache at that point. */
  readonly kvBytes: number;
  /** What the same tokens take in f16; null without a 'close' entry. */
  readonly kvBytesF16: number | null;
  /** Divergence from the exact cache, when it was measured. */
  readonly meanKld: number | null;
  /** Moves planned, refused ones included. */
  readonly decisions: number;
  /** Moves refused after their trial. */
  readonly refused: number;
  /** How it ended; 'open': it still runs, or was killed. */
  readonly end: 'open' | 'done' | 'aborted' | 'error';
}

/** An entry of this kind as its row. */
export function decisionRow({ seq, timeMs, session, body }: Envelope & { readonly body: DecisionBody }): DecisionRow {
  const inDecision = body.decision;
  const inVerdict = body.verdict;
  const inDecisionBecause = inDecision.because;
  const inVerdictBecause = inVerdict.because;
  return {
    seq,
    timeMs,
    session,
    situation: body.situation,
    order: body.order,
    tokens: body.tokens,
    layer: inDecision.layer,
    page: inDecision.page,
    side: inDecision.side,
    from: inDecision.from,
    to: inDecision.to,
    accepted: inVerdict.accepted,
    rule: inDecisionBecause.rule,
    threshold: inDecisionBecause.threshold,
    measured: inDecisionBecause.measured,
    bound: inDecisionBecause.bound,
    unit: inDecisionBecause.unit,
    origin: inDecisionBecause.origin,
    verdictRule: inVerdictBecause.rule,
    verdictThreshold: inVerdictBecause.threshold,
    verdictMeasured: inVerdictBecause.measured,
    verdictBound: inVerdictBecause.bound,
    epsilonFrom: inDecision.epsilonFrom,
    epsilonTo: inDecision.epsilonTo,
    epsilonNow: body.epsilonNow,
    price: inDecision.price,
    bytesFreed: inDecision.bytesFreed,
    bytesBefore: body.bytesBefore,
    bytesAfter: body.bytesAfter,
  };
}

/** An entry of this kind as its row. */
export function situationRow({ seq, timeMs, session, body }: Envelope & { readonly body: SituationBody }): SituationRow {
  const inSituation = body.situation;
  return {
    seq,
    timeMs,
    session,
    situation: inSituation.index,
    tokens: inSituation.tokens,
    bytes: inSituation.bytes,
    budgetBytes: inSituation.budgetBytes,
    kldBudget: inSituation.kldBudget,
    urgent: inSituation.urgent,
    lowMemory: inSituation.lowMemory,
    trials: inSituation.trials.length,
    outcomes: inSituation.outcomes.length,
  };
}
