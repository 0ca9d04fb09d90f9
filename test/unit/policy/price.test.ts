/**
 * The default policy, rule by rule: by hand where a person can follow the numbers, in whole sessions where they cannot.
 */

import { describe, expect, test } from 'vitest';
import { type FormatName, type Part, SIDES } from '../../../native/index.ts';
import {
  createPolicy,
  type Decision,
  defaultThresholds,
  type PolicyContext,
  type SharedPages,
  type ThresholdId,
  type ThresholdSet,
  type TrialReport,
  thresholdOf,
} from '../../../policy/index.ts';
import { mulberry32 } from '../../random.ts';
import {
  contextOf,
  epsilonOf,
  f16Bytes,
  lasting,
  type Result,
  sideKey,
  simulate,
} from '../../suite/policy-simulation.ts';
import { Hand, price, report } from './hand.ts';
import { hull } from './hull.ts';

const withThreshold = (layers: number, values: Partial<Record<ThresholdId, number>>): ThresholdSet => {
  const set = defaultThresholds(layers);
  const changed = Object.entries(values).map(([id, value]) => [
    id,
    { ...thresholdOf(set, id as ThresholdId), value, origin: 'learned' as const },
  ]);
  return { ...set, thresholds: { ...set.thresholds, ...Object.fromEntries(changed) } };
};
const moves = (result: Result): Decision[] => result.entries.flatMap(({ decisions }) => decisions);

describe('water', () => {
  test('without evidence nothing moves before the budget binds', () => {
    const context = contextOf({ layers: 6 });
    expect(
      moves(simulate({ policy: price, context, tokens: 2560, budgetBytes: Math.floor(0.6 * f16Bytes(context, 2560)) })),
    ).toEqual([]);
    expect(moves(simulate({ policy: price, context, tokens: 2560 }))).toEqual([]);
  });

  test('the cheapest offer goes first, and says why', () => {
    const hand = new Hand(contextOf({ layers: 2 }));
    const trials = [
      report(0, 0, 'k', { rot4: 0.02 }),
      report(0, 0, 'v', { rot4: 0.01 }),
      report(1, 0, 'k', { rot4: 0.03 }),
      report(1, 0, 'v', { rot4: 0.005 }),
    ];
    const tokens = 256;
    expect(hand.decide({ tokens, trials })).toEqual([]);
    const [decision, ...rest] = hand.decide({ tokens, bytes: 9_999_000, sealBytes: 5000 });
    expect(rest).toEqual([]);
    const { pageBytes } = hand.context;
    const bytesFreed = pageBytes.q8 - pageBytes.rot4;
    expect(decision).toEqual({
      layer: 1,
      page: 0,
      side: 'v',
      from: 'q8',
      to: 'rot4',
      epsilonFrom: 0,
      epsilonTo: 0.005,
      price: expect.closeTo((1.5 * 0.005 ** 2) / bytesFreed, 15),
      bytesFreed,
      retry: false,
      because: {
        threshold: 'pressure.critical',
        measured: 1.0004,
        bound: 1,
        unit: 'share',
        origin: 'default',
        rule: 'deficit',
      },
    });
    // It is under way: what it will free is counted, and nothing is planned twice.
    expect(hand.decide({ tokens, bytes: 9_999_000, sealBytes: 5000 })).toEqual([]);
  });

  test('of equal offers the first by layer, page and side goes, in whatever order they were reported', () => {
    const trials = [0, 1, 2].flatMap((layer) =>
      [0, 1].flatMap((page) => SIDES.map((side) => report(layer, page, side, { rot4: 0.01 }))),
    );
    const run = (order: readonly TrialReport[]): readonly Decision[] => {
      const hand = new Hand(contextOf({ layers: 3, thresholds: lasting(3) }));
      hand.decide({ trials: [...order] });
      return hand.decide({ bytes: 10_000_000, sealBytes: 60_000 });
    };
    const planned = run(trials);
    expect(planned.length).toBeGreaterThan(3);
    expect(planned.map(({ layer, page, side }) => `${layer}${page}${side}`)).toEqual(
      trials.slice(0, planned.length).map(({ layer, page, side }) => `${layer}${page}${side}`),
    );
    expect(run([...trials].reverse())).toEqual(planned);
  });

  test('a page that others hold as well costs all of them, and goes when that is the cheapest', () => {
    const trials = [0, 1].flatMap((page) =>
      SIDES.map((side) => report(0, page, side, { rot4: page === 0 ? 0.01 : 0.03 })),
    );
    const firstPage = (...told: readonly (readonly SharedPages[])[]): number => {
      const hand = new Hand(contextOf({ layers: 1, thresholds: lasting(1) }));
      hand.decide({ trials });
      for (const sharers of told) hand.decide({ sharers });
      return hand.decide({ bytes: 9_999_000, sealBytes: 5000 })[0]!.page;
    };
    expect(firstPage()).toBe(0);
    expect(firstPage([{ pages: 1, sessions: 1 }])).toBe(0);
    expect(firstPage([{ pages: 1, sessions: 20 }])).toBe(1);
    expect(firstPage([{ pages: 2, sessions: 20 }])).toBe(0);
    // They are closed.
    expect(firstPage([{ pages: 1, sessions: 20 }], [])).toBe(0);
  });

  test('a layer with a larger gain gives fewer bytes', () => {
    const budgetBytes = Math.floor(0.25 * f16Bytes(contextOf({ layers: 8 }), 2560));
    const bytesOf = (gain: number): number => {
      const gains = Array.from({ length: 8 }, (_, layer) => (layer === 5 ? gain : 1));
      const context = contextOf({ layers: 8, thresholds: { gains: { k: gains, v: gains } } });
      const { formats } = simulate({ policy: price, context, tokens: 2560, budgetBytes });
      return [...formats]
        .filter(([key]) => key.startsWith('5/'))
        .reduce((sum, [, format]) => sum + context.pageBytes[format]!, 0);
    };
    expect(bytesOf(30)).toBeGreaterThan(bytesOf(1));
    expect(bytesOf(1)).toBeGreaterThan(bytesOf(1 / 30));
  });

  // The same page sides, allocated at once by an offline greedy over all hulls and at random, to the same bytes.
  test('a whole session ends near the best allocation of its bytes, far from a random one, and below the fixed steps', () => {
    for (const seed of [1, 2, 3]) {
      const context = contextOf({ layers: 12, thresholds: lasting(12) });
      const tokens = 4096;
      const epsilon = epsilonOf(seed);
      const run = { context, tokens, budgetBytes: Math.floor(0.25 * f16Bytes(context, tokens)), epsilon, again: true };
      const result = simulate({ policy: price, ...run });
      // The newest page left the window after the last seal: it was never asked for anything.
      const pages = tokens / 128 - 2;
      const sides = Array.from({ length: pages * 24 }, (_, i) => ({
        layer: i % 12,
        page: Math.floor(i / 24),
        side: SIDES[Math.floor(i / 12) % 2]!,
      }));
      const bytesOf = (format: (i: number) => FormatName): number =>
        sides.reduce((sum, _, i) => sum + context.pageBytes[format(i)], 0);
      const costOf = (format: (i: number) => FormatName): number =>
        sides.reduce((sum, { layer, page, side }, i) => sum + (epsilon(layer, page, side)[format(i)] ?? 0) ** 2, 0);
      const ours = (i: number): FormatName =>
        result.formats.get(sideKey(sides[i]!.layer, sides[i]!.page, sides[i]!.side)) as FormatName;
      const target = bytesOf(ours);
      const steps = sides.flatMap(({ layer, page, side }, i) =>
        hull('q8', epsilon(layer, page, side), context.pageBytes, 1).map((rung) => ({ ...rung, i })),
      );
      steps.sort((a, b) => a.price - b.price);
      const best = new Map<number, FormatName>();
      for (const step of steps) {
        if (bytesOf((i) => best.get(i) ?? 'q8') <= target) break;
        best.set(step.i, step.format);
      }
      expect(costOf(ours) / costOf((i) => best.get(i) ?? 'q8'), `seed ${seed}`).toBeLessThan(1.03);
      const next = mulberry32(seed);
      const chance = new Map<number, FormatName>();
      const rungs: readonly FormatName[] = ['q8', 'rot4', 'rot3', 'rot2'];
      while (bytesOf((i) => chance.get(i) ?? 'q8') > target) {
        const i = Math.floor(next() * sides.length);
        const rung = rungs.indexOf(chance.get(i) ?? 'q8') + 1;
        chance.set(i, rungs[Math.min(rungs.length - 1, rung)]!);
      }
      expect(costOf(ours), `seed ${seed}`).toBeLessThan(0.5 * costOf((i) => chance.get(i) ?? 'q8'));
      expect(result.epsilon2, `seed ${seed}`).toBeLessThan(
        0.8 * simulate({ policy: createPolicy('uniform', {}, 1), ...run }).epsilon2,
      );
    }
  });
});

describe('while there is time', () => {
  const context = contextOf({ layers: 6, thresholds: lasting(6) });
  const tokens = 2560;
  const budgetBytes = Math.floor(0.25 * f16Bytes(context, tokens));
  const result = simulate({ policy: price, context, tokens, budgetBytes, chunk: 1 });

  test('a page side rests 128 tokens between moves, unless it is urgent', () => {
    const last = new Map<string, number>();
    let again = 0;
    for (const { situation, decisions } of result.entries) {
      for (const { layer, page, side } of decisions) {
        const key = sideKey(layer, page, side);
        const before = last.get(key);
        if (before !== undefined) again++;
        if (before !== undefined && !situation.urgent) expect(situation.tokens - before).toBeGreaterThanOrEqual(128);
        last.set(key, situation.tokens);
      }
    }
    expect(again).toBeGreaterThan(20);
  });

  // Every threshold that was passed at an unhurried point is compared with the one the page began with.
  test('the price at most doubles within a page, unless it is urgent', () => {
    let compared = 0;
    let pagePrice = 0;
    let priceNow = 0;
    let page = -1;
    for (const { situation, decisions } of result.entries) {
      const now = Math.floor(situation.tokens / 128);
      if (now !== page) pagePrice = priceNow;
      page = now;
      for (const decision of decisions) {
        if (!situation.urgent && pagePrice > 0) {
          expect(decision.price!).toBeLessThanOrEqual(2 * pagePrice * (1 + 1e-12));
          compared++;
        }
        priceNow = Math.max(priceNow, decision.price!);
      }
    }
    expect(compared).toBeGreaterThan(50);
  });

  test('a known price moves cheap pages early where a latency budget asks for it, and not while steps are slow', () => {
    const start = result.summary.priceThreshold / 2;
    const learned = { ...context, thresholds: { ...withThreshold(6, { 'price.start': start }), ...lasting(6) } };
    const latency = { stepLatencyBudgetMs: 20 };
    const early = simulate({ policy: price, context: learned, tokens, budgetBytes, chunk: 1, ...latency });
    const first = early.entries.find(({ decisions }) => decisions.length > 0)!;
    expect(first.situation.tokens).toBeLessThan(
      result.entries.find(({ decisions }) => decisions.length > 0)!.situation.tokens,
    );
    for (const { price: asked, because } of first.decisions) {
      expect(asked).toBeLessThanOrEqual(start);
      expect(because).toMatchObject({ threshold: 'price.start', bound: start, origin: 'learned', rule: 'price' });
    }
    // A budget that will not bind asks for nothing early.
    expect(
      moves(
        simulate({
          policy: price,
          context: learned,
          tokens,
          budgetBytes: Math.floor(0.6 * f16Bytes(context, tokens)),
          ...latency,
        }),
      ),
    ).toEqual([]);
    // Bytes that were paid for are used: without a latency budget a known price changes nothing.
    expect(moves(simulate({ policy: price, context: learned, tokens, budgetBytes, chunk: 1 }))).toEqual(
      moves(simulate({ policy: price, context, tokens, budgetBytes, chunk: 1 })),
    );
    const hand = new Hand(learned);
    const slow = { stepLatencyMsP95: 30, stepLatencyBudgetMs: 20, tokensExpected: 128 * 60, budgetBytes: 2_000_000 };
    const trials = Array.from({ length: 6 }, (_, layer) =>
      SIDES.map((side) => report(layer, 0, side, { rot4: 1e-5 })),
    ).flat();
    expect(hand.decide({ ...slow, trials })).toEqual([]);
    expect(hand.decide({ ...slow, stepLatencyMsP95: 10 }).length).toBeGreaterThan(0);
  });

  test('no more moves than wanted, and none for a seal that is not expected', () => {
    for (const { situation, decisions } of result.entries) {
      if (!situation.urgent) expect(decisions.length).toBeLessThanOrEqual(situation.movesMax);
      if (situation.tokens > tokens - 128) expect(decisions).toEqual([]);
    }
  });
});

describe('judging', () => {
  const old = (hand: Hand): Decision => {
    hand.decide({ trials: [report(0, 0, 'k', { rot4: 0.01, rot3: 0.02 }), report(0, 0, 'v', {})] });
    const [decision] = hand.decide({
      tokens: 600,
      bytes: 9_999_000,
      sealBytes: 5000,
      tokensExpected: 10_000,
      urgent: true,
    });
    return decision!;
  };

  test('an old trial is repeated; twice the price passes, more is refused, nothing to see passes', () => {
    const hand = new Hand(contextOf({ layers: 1, thresholds: lasting(1) }));
    const decision = old(hand);
    expect(decision.retry).toBe(true);
    hand.decide({ tokens: 601 });
    const judge = (epsilonNow: number | null) => hand.policy.judge(decision, epsilonNow);
    expect(judge(0.01 * Math.SQRT2 * 0.999)).toMatchObject({
      accepted: true,
      because: { threshold: 'price.slack', rule: 'trial-again' },
    });
    const refused = judge(0.01 * Math.SQRT2 * 1.001);
    expect(refused).toMatchObject({ accepted: false, because: { rule: 'trial-again', unit: 'KLD/byte' } });
    expect(refused.because.measured).toBeGreaterThan(refused.because.bound);
    expect(judge(null)).toMatchObject({ accepted: true, because: { rule: 'not-seen' } });
  });

  test('behind an old page the first trial stands, unless the session began without that bound', () => {
    const trials = [report(0, 0, 'k', { rot4: 0.01, rot3: 0.02 }), report(0, 0, 'v', {})];
    // Page 0 left the window at 256 tokens and is settled 512 tokens later.
    const at = (tokens: number, context: PolicyContext) => {
      const hand = new Hand(context);
      hand.decide({ trials });
      const [decision] = hand.decide({ tokens, bytes: 9_999_000, sealBytes: 5000, urgent: true });
      return { retry: decision!.retry, rule: hand.policy.judge(decision!, null).because.rule };
    };
    const context = contextOf({ layers: 1, thresholds: lasting(1) });
    expect(at(400, context)).toEqual({ retry: false, rule: 'fresh-trial' });
    expect(at(767, context)).toEqual({ retry: true, rule: 'not-seen' });
    expect(at(768, context)).toEqual({ retry: false, rule: 'settled-trial' });
    const { 'trial.settled': _, ...before } = context.thresholds.thresholds;
    expect(at(5000, { ...context, thresholds: { ...context.thresholds, thresholds: before } })).toEqual({
      retry: true,
      rule: 'not-seen',
    });
  });

  test('when it is urgent the move is made all the same, and the verdict says so', () => {
    const hand = new Hand(contextOf({ layers: 1, thresholds: lasting(1) }));
    const decision = old(hand);
    expect(hand.policy.judge(decision, 0.5)).toMatchObject({
      accepted: true,
      because: { rule: 'deficit-override' },
    });
  });

  /** Two pages of one side with equal first trials; what page 0 is tried again with, if anything. */
  const two = (again: number | null): Hand => {
    const hand = new Hand(contextOf({ layers: 1, thresholds: lasting(1) }));
    const of = (page: number, epsilon: TrialReport['epsilon']) => report(0, page, 'k', epsilon);
    const values = [report(0, 0, 'v', {}), report(0, 1, 'v', {})];
    hand.decide({
      tokens: 512,
      trials: [of(0, { rot4: 0.01, rot3: 0.02 }), of(1, { rot4: 0.01, rot3: 0.02 }), ...values],
    });
    if (again !== null) hand.decide({ tokens: 513, again: [of(0, { rot3: again }), of(1, { rot3: 0.02 })] });
    return hand;
  };
  const deficit = { bytes: 9_999_000, sealBytes: 5000, urgent: true } as const;
  /** Expected errors of keys by page and format, in units of their own, as they are planned one after the other. */
  const expected = (hand: Hand): Map<string, number> => {
    const found = new Map<string, number>();
    for (let step = 0; step < 4; step++) {
      const [decision] = hand.decide({ tokens: 700, ...deficit, sealBytes: 2000 });
      found.set(`${decision!.page} ${decision!.to}`, Math.sqrt(decision!.price! * decision!.bytesFreed));
      hand.settle(decision!, true);
    }
    return found;
  };

  test('a page that erred more when it was tried again is expected to err more, by less than was found, in all formats', () => {
    const before = expected(two(null));
    expect([...before.keys()]).toEqual(['0 rot4', '1 rot4', '0 rot3', '1 rot3']);
    const after = expected(two(0.08));
    expect([...after.keys()].slice(0, 2), 'the other goes first').toEqual(['1 rot4', '0 rot4']);
    const grown = after.get('0 rot4')! / after.get('1 rot4')!;
    expect(grown).toBeGreaterThan(1.02);
    expect(grown).toBeLessThan(2);
    expect(after.get('0 rot3')! / after.get('1 rot3')!).toBeCloseTo(grown, 9);
  });

  test('a refused move is planned again at the mean of both measurements, without another trial', () => {
    const hand = new Hand(contextOf({ layers: 1, thresholds: lasting(1) }));
    const decision = old(hand);
    hand.settle(decision, false, 0.03);
    const [again] = hand.decide({ tokens: 610, bytes: 9_999_000, sealBytes: 5000, urgent: true });
    expect(again).toMatchObject({ layer: 0, page: 0, side: 'k', to: 'rot4', retry: false });
    expect(again!.epsilonTo).toBeCloseTo(0.02, 12);
  });

  test('of a page that was never tried nothing is expected, and predictions stay numbers', () => {
    const hand = new Hand(contextOf({ layers: 1 }));
    const trials = [0, 1].flatMap((page) => [report(0, page, 'k', {}), report(0, page, 'v', { rot4: 0.01 })]);
    hand.decide({ tokens: 512, trials });
    const change = { layer: 0, page: 0, side: 'k', from: 'q8', to: 'rot4' } as const;
    for (const tokens of [640, 768]) hand.decide({ tokens, ...(tokens === 640 ? { changes: [change] } : {}) });
    const [decision] = hand.decide({ tokens: 768, ...deficit });
    expect(decision).toMatchObject({ side: 'v', to: 'rot4', epsilonTo: expect.closeTo(0.01, 12) });
    hand.settle(decision!, true);
    hand.decide({ tokens: 896 });
    const { predictedKld, layerKld } = hand.policy.summary();
    expect(predictedKld).toBeGreaterThan(0);
    expect(layerKld[0]).toBeCloseTo(predictedKld, 12);
  });

  // Later errors that are now larger, now smaller than their trial, many of them refused: the budget holds all the
  // same.
  test('a session of drifting errors refuses some, and ends within its budget', () => {
    const context = contextOf({ layers: 6 });
    const result = simulate({
      policy: price,
      context,
      tokens: 2560,
      budgetBytes: Math.floor(0.22 * f16Bytes(context, 2560)),
      chunk: 1,
      drift: ({ layer, page }, tokens) => ((layer + page + tokens) % 5 === 0 ? 2.5 : 0.7),
    });
    const verdicts = result.entries.flatMap((entry) => entry.verdicts);
    expect(verdicts.filter(({ accepted }) => !accepted).length).toBeGreaterThan(10);
  });
});

describe('divergence budget', () => {
  const context = contextOf({ layers: 8 });
  const run = (kldBudget: number, more = {}): Result =>
    simulate({ policy: price, context, tokens: 4096, kldBudget, ...more });

  test('the predicted sum stays under it and comes near, and a larger one means fewer bytes', () => {
    let before = Number.POSITIVE_INFINITY;
    for (const kldBudget of [0.002, 0.01, 0.05, 0.2]) {
      const { summary, bytes } = run(kldBudget);
      expect(summary.predictedKld).toBeLessThanOrEqual(kldBudget);
      // The cautious end of what is assumed of an unknown text is three quarters of a deviation of 0.5 above its
      // middle, twice the length costs 1.6 times as much, and later rows will carry more.
      expect(summary.predictedKld).toBeGreaterThan(0.5 * Math.exp(-0.75 * 0.5) * kldBudget);
      expect(bytes).toBeLessThan(before);
      before = bytes;
    }
    expect(moves(run(0))).toEqual([]);
  });

  test('is spent late where the length is known, and all along where it is not', () => {
    const halfway = (tokensExpected: number | null): number => {
      const seen: number[] = [];
      run(0.05, { tokensExpected, see: ({ predictedKld }: { predictedKld: number }) => seen.push(predictedKld) });
      return seen[seen.length >> 1]!;
    };
    expect(halfway(4096)).toBeLessThan(0.2 * halfway(null));
    expect(halfway(null)).toBeGreaterThan(0.01);
  });

  test('is kept where divergence grows much with the length, since what was moved early counts as it does at the end', () => {
    const grown = (ahead: number): number => {
      const thresholds = withThreshold(8, { 'divergence.length': 4, 'divergence.ahead': ahead });
      return run(0.01, { context: { ...context, thresholds }, tokensExpected: 4096 }).summary.predictedKld;
    };
    expect(grown(1)).toBeLessThanOrEqual(0.01);
    expect(grown(0)).toBeGreaterThan(0.01);
  });

  test('in version 1 its sum is Σ c·g·ε² over what was moved', () => {
    const result = run(0.05, { policy: createPolicy('price-1') });
    // What was planned at the very end has no outcome yet.
    const last = result.entries
      .at(-1)!
      .decisions.reduce((sum, { price: asked, bytesFreed }) => sum + asked! * bytesFreed, 0);
    expect(result.summary.predictedKld + last).toBeCloseTo(4 * result.epsilon2, 9);
    expect(result.summary.layerKld.reduce((sum, kld) => sum + kld, 0)).toBeCloseTo(result.summary.predictedKld, 12);
  });

  test('errors fade with age, so what is predicted is less than the sum of what was paid, and layers share it', () => {
    const { summary, epsilon2 } = run(0.05);
    expect(summary.predictedKld).toBeLessThan(0.8 * epsilon2);
    expect(summary.layerKld.reduce((sum, kld) => sum + kld, 0)).toBeCloseTo(summary.predictedKld, 12);
  });

  test('beside a byte budget it is a ceiling; when both bind the error names both', () => {
    const budgetBytes = Math.floor(0.25 * f16Bytes(context, 4096));
    const free = simulate({ policy: price, context, tokens: 4096, budgetBytes });
    // It was more on the way, before errors faded.
    const wide = run(free.summary.predictedKld * 3, { budgetBytes });
    expect(wide.bytes).toBe(free.bytes);
    expect(() => run(free.summary.predictedKld * 0.3, { budgetBytes })).toThrow(
      expect.objectContaining({
        code: 'budget-too-small',
        values: expect.objectContaining({ budgetBytes, kldBudget: free.summary.predictedKld * 0.3 }),
      }),
    );
  });
});

describe('limits', () => {
  test('keys go to 2 bits only after their values are under 4, as whole sessions show', () => {
    const cheapKeys = (layer: number, page: number, side: Part) => {
      const [a, b] = [epsilonOf(9)(layer, page, 'k'), epsilonOf(9)(layer, page, 'v')];
      return side === 'k' ? b : a;
    };
    const context = contextOf({ layers: 6 });
    // The simulation checks the pair after every move.
    const result = simulate({
      policy: price,
      context,
      tokens: 2560,
      budgetBytes: Math.floor(0.26 * f16Bytes(context, 2560)),
      epsilon: cheapKeys,
    });
    expect(moves(result).filter(({ side, to }) => side === 'k' && to === 'rot2').length).toBeGreaterThan(0);
  });

  test('in version 1 a layer that has borne too much is left alone even when it is urgent, and the error says so', () => {
    const price = createPolicy('price', {}, 1);
    const context = contextOf({ layers: 4, thresholds: withThreshold(4, { 'quality.epsilon': 0.002 }) });
    const run = () =>
      simulate({ policy: price, context, tokens: 2560, budgetBytes: Math.floor(0.26 * f16Bytes(context, 2560)) });
    expect(run).toThrow(
      expect.objectContaining({
        code: 'budget-too-small',
        values: expect.objectContaining({ layersStopped: expect.any(Number) }),
      }),
    );
    try {
      run();
    } catch (error) {
      expect((error as { values: { layersStopped: number } }).values.layersStopped).toBeGreaterThan(0);
    }
  });

  test('bounds of quality do not interfere with ordinary budgets', () => {
    const context = contextOf({ layers: 30 });
    for (const share of [0.25, 0.22]) {
      const { summary } = simulate({
        policy: price,
        context,
        tokens: 4096,
        budgetBytes: Math.floor(share * f16Bytes(context, 4096)),
      });
      for (const name of summary.layerStates)
        expect(name).toMatch(/^(exact|warm|archive)\/healthy\/(relaxed|elevated|critical)\/headroom$/);
      expect(summary.layerEpsilonMax).toHaveLength(30);
    }
  });

  test('low memory shrinks to three quarters of the budget, or of what there is', () => {
    const context = contextOf({ layers: 6, thresholds: lasting(6) });
    const budgetBytes = Math.floor(0.5 * f16Bytes(context, 2560));
    const wide = simulate({ policy: price, context, tokens: 2560, budgetBytes });
    const narrow = simulate({ policy: price, context, tokens: 2560, budgetBytes, lowMemoryFrom: 2048 });
    expect(narrow.bytes).toBeLessThanOrEqual(0.75 * budgetBytes);
    expect(wide.bytes).toBeGreaterThan(0.75 * budgetBytes);
    expect(moves(narrow).at(-1)!.because).toMatchObject({
      threshold: 'pressure.low-memory',
      bound: 0.75,
      rule: 'low-memory',
    });
    const free = simulate({ policy: price, context, tokens: 2560 });
    const freed = simulate({ policy: price, context, tokens: 2560, lowMemoryFrom: 2048 });
    expect(freed.bytes).toBeLessThanOrEqual(0.75 * free.bytes);
  });

  test('pages of an f16 window go to q8 first, which costs nothing', () => {
    const context = contextOf({ layers: 4, windowFormat: 'f16' });
    const result = simulate({
      policy: price,
      context,
      tokens: 2560,
      budgetBytes: Math.floor(0.8 * f16Bytes(context, 2560)),
    });
    expect(moves(result).length).toBeGreaterThan(0);
    for (const { from, to, price: asked } of moves(result)) expect([from, to, asked]).toEqual(['f16', 'q8', 0]);
  });
});
