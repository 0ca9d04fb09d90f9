/** Situations made by hand, for the tests of the price policy where a person can follow the numbers. */
import {
  createPolicy,
  type Decision,
  type Outcome,
  type PolicyContext,
  type PolicySession,
  type Situation,
  type TrialReport,
} from '../../../policy/index.ts';

export const price = createPolicy('price');

/** A session of the price policy by hand: one call per scheduling point, outcomes as told. */
export class Hand {
  readonly context: PolicyContext;
  readonly policy: PolicySession;
  index = 0;
  outcomes: Outcome[] = [];

  constructor(context: PolicyContext) {
    this.context = context;
    this.policy = price.open(context);
  }

  decide(change: Partial<Situation>): readonly Decision[] {
    const situation: Situation = {
      index: this.index++,
      tokens: 384,
      bytes: 1_000_000,
      sealBytes: 0,
      budgetBytes: 10_000_000,
      kldBudget: null,
      tokensExpected: null,
      movesMax: 1000,
      urgent: false,
      lowMemory: false,
      stepLatencyMsP95: 0,
      stepLatencyBudgetMs: null,
      trials: [],
      outcomes: this.outcomes,
      ...change,
    };
    this.outcomes = [];
    return this.policy.decide(JSON.parse(JSON.stringify(situation)) as Situation);
  }

  settle(decision: Decision, accepted: boolean, epsilonNow: number | null = null): void {
    const { layer, page, side, from, to, bytesFreed } = decision;
    this.outcomes.push({ layer, page, side, from, to, accepted, epsilonNow, bytesFreed: accepted ? bytesFreed : 0 });
  }
}

export const report = (layer: number, page: number, side: 'k' | 'v', epsilon: TrialReport['epsilon']): TrialReport => ({
  layer,
  page,
  side,
  from: 'q8',
  epsilon,
});
