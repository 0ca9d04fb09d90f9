/**
 * What lets a page become a latent: memory that is short, and tokens enough behind it. Which page that is, that both
 * give way to a hard budget, and that a policy of one's own is held to it.
 */
import { describe, expect, test } from 'vitest';
import {
  type Decision,
  LatentGuard,
  openPolicy,
  type PageForm,
  type Policy,
  type PolicyContext,
  type Situation,
  type ThresholdId,
  thresholdOf,
} from '../../../policy/index.ts';
import { contextOf, f16Bytes, type Result, simulate } from '../../suite/policy-simulation.ts';
import { price } from './hand.ts';

/** Every query head has its own KV head. */
const MHA = { layers: 6, kvHeads: 9, headDim: 64, latents: { kept: 'xq4', width: 576 } } as const;
const TOKENS = 6400;

function guarded(context: PolicyContext, bounds: Partial<Record<ThresholdId, number>>): PolicyContext {
  const { thresholds: set } = context;
  const changed = Object.entries(bounds).map(([id, value]) => [id, { ...thresholdOf(set, id as ThresholdId), value }]);
  return { ...context, thresholds: { ...set, thresholds: { ...set.thresholds, ...Object.fromEntries(changed) } } };
}

/** The same as in logs of sessions that knew nothing of the guard. */
function unguarded(context: PolicyContext): PolicyContext {
  const { 'latent.memory': _, 'latent.materialized': __, ...thresholds } = context.thresholds.thresholds;
  return { ...context, thresholds: { ...context.thresholds, thresholds } };
}

const run = (context: PolicyContext, share: number, more: object = {}): Result =>
  simulate({
    policy: price,
    context,
    tokens: TOKENS,
    budgetBytes: Math.floor(share * f16Bytes(context, TOKENS)),
    ...more,
  });
const isHeld = (form: PageForm): boolean => form.startsWith('xq');
const moves = ({ entries }: Result): { readonly decision: Decision; readonly situation: Situation }[] =>
  entries.flatMap(({ situation, decisions }) => decisions.map((decision) => ({ situation, decision })));
const latentsOf = (result: Result): ReturnType<typeof moves> =>
  moves(result).filter(({ decision: { from, to } }) => !isHeld(from) && isHeld(to as PageForm));

describe('compared', () => {
  const guard = (bounds: Partial<Record<ThresholdId, number>>, windowTokens?: number): LatentGuard =>
    new LatentGuard({
      ...guarded(contextOf(MHA), { 'latent.memory': 0, ...bounds }),
      ...(windowTokens === undefined ? {} : { windowTokens }),
    });
  const seen = { tokens: 1024, bytes: 800, sealBytes: 100, budgetBytes: 1000, lowMemory: false };

  test('how many tokens stand between the page and the window', () => {
    const young = guard({ 'latent.materialized': 256 });
    expect([3, 4, 5].map((page) => young.refuses(page, seen)?.measured ?? null)).toEqual([null, null, 128]);
    expect(young.refuses(5, seen)).toEqual({
      ...{ threshold: 'latent.materialized', measured: 128, bound: 256, unit: 'tokens', origin: 'default' },
      rule: 'latent-guard',
    });
    expect(guard({ 'latent.materialized': 256 }, 256).refuses(4, seen)?.measured).toBe(128);
  });

  test('how much of the budget is needed, where there is one and low memory is not signalled', () => {
    const scarce = guard({ 'latent.memory': 0.95 });
    expect(scarce.refuses(0, seen)).toMatchObject({ threshold: 'latent.memory', measured: 0.9, bound: 0.95 });
    expect(scarce.refuses(0, { ...seen, sealBytes: 150 })).toBeNull();
    expect(scarce.refuses(0, { ...seen, budgetBytes: null })).toBeNull();
    expect(scarce.refuses(0, { ...seen, lowMemory: true })).toBeNull();
  });

  test('nothing, in a session whose log knows no such bounds', () => {
    const old = new LatentGuard(unguarded(contextOf(MHA)));
    expect(old.refuses(0, { ...seen, bytes: 0, sealBytes: 0 })).toBeNull();
  });
});

describe('in sessions', () => {
  test('pages right behind the window keep their keys and values, unless nothing else keeps the budget', () => {
    const free = run(contextOf(MHA), 0.22);
    const held = run(guarded(contextOf(MHA), { 'latent.materialized': 512 }), 0.22);
    const ageOf = ({ decision, situation }: ReturnType<typeof moves>[number]): number =>
      situation.tokens - (decision.page + 2) * 128;
    expect(latentsOf(free).filter((one) => ageOf(one) < 512).length).toBeGreaterThan(10);
    const young = latentsOf(held).filter((one) => ageOf(one) < 512);
    for (const { decision, situation } of young) {
      expect(decision.because.rule).toBe('latent-gives-way');
      expect(situation.urgent).toBe(true);
    }
    expect(latentsOf(held).length - young.length).toBeGreaterThan(100);
    expect(held.entries.flatMap(({ verdicts }) => verdicts).every(({ accepted }) => accepted)).toBe(true);
  });

  test('a budget that all pages must be latents for is kept all the same', () => {
    const context = guarded(contextOf(MHA), { 'latent.materialized': 1e6 });
    const result = run(context, 0.19);
    expect(latentsOf(result).length).toBeGreaterThan(100);
    for (const { decision } of latentsOf(result)) expect(decision.because.rule).toBe('latent-gives-way');
  });

  test('no page becomes a latent early while memory is not short', () => {
    const latency = { stepLatencyMsP95: 1, stepLatencyBudgetMs: 100, tokensExpected: TOKENS };
    const needed = ({ situation: { bytes, sealBytes, budgetBytes } }: ReturnType<typeof moves>[number]): number =>
      (bytes + sealBytes) / budgetBytes!;
    // Whoever begins with a price makes moves at it before they must be made.
    const eager = guarded(contextOf(MHA), { 'price.start': 1 });
    const early = latentsOf(run(unguarded(eager), 0.25, latency));
    expect(early.filter((one) => needed(one) < 0.9).length).toBeGreaterThan(0);
    const held = latentsOf(run(eager, 0.25, latency));
    expect(held.length).toBeGreaterThan(100);
    expect(held.filter((one) => needed(one) < 0.9)).toEqual([]);
  });
});

describe('of a policy of one’s own', () => {
  const because = { threshold: 'mine', measured: 0, bound: 1, unit: '1', origin: 'option', rule: 'mine' } as const;
  const careless: Policy = {
    id: 'careless',
    version: 1,
    needsTrials: false,
    open: () => ({
      decide: () => [],
      judge: () => ({ accepted: true, because }),
      summary: () => ({ priceThreshold: 0, predictedKld: 0, layerStates: [], layerEpsilonMax: [], layerKld: [] }),
    }),
  };
  const move: Decision = {
    ...{ layer: 0, page: 5, side: 'kv', from: 'q8', to: 'xq4', epsilonFrom: null, epsilonTo: null, price: null },
    ...{ bytesFreed: 0, retry: false, because },
  };
  const situation: Situation = {
    ...{ index: 0, tokens: 1024, bytes: 950, sealBytes: 0, budgetBytes: 1000, kldBudget: null, tokensExpected: null },
    ...{ movesMax: 9, urgent: false, lowMemory: false, stepLatencyMsP95: 0, stepLatencyBudgetMs: null },
    ...{ trials: [], outcomes: [] },
  };

  test('a move that the guard holds back is refused, and names the bound; where it is urgent it is made', () => {
    const session = openPolicy(careless, guarded(contextOf(MHA), { 'latent.materialized': 256 }));
    session.decide(situation);
    const { accepted, because: why } = session.judge(move, null);
    expect(accepted).toBe(false);
    expect(why).toMatchObject({ threshold: 'latent.materialized', measured: 128, bound: 256, rule: 'unsafe-stays' });
    expect(session.judge({ ...move, page: 4 }, null).accepted).toBe(true);
    session.decide({ ...situation, index: 1, urgent: true });
    expect(session.judge(move, null).accepted).toBe(true);
  });
});
