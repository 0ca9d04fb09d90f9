/**
 * Pages that may become latents: which way they go, what is booked for it, and what it costs in time. By hand where a
 * person can follow the numbers, else in whole sessions, in which the simulation checks every move and all bytes.
 */
import { describe, expect, test } from 'vitest';
import { latentBytes } from '../../../native/index.ts';
import { createPolicy, defaultThresholds, type PageForm, thresholdOf } from '../../../policy/index.ts';
import { endPrice, isLatentBetter } from '../../../policy/ways.ts';
import { contextOf, epsilonOf, f16Bytes, lasting, type Result, simulate } from '../../suite/policy-simulation.ts';
import { Hand, price, report } from './hand.ts';

/** Every query head has its own KV head: the layer input is half as wide as keys and values together. */
const MHA = { layers: 6, kvHeads: 9, headDim: 64, latents: { kept: 'xq4', width: 576 } } as const;
/** Two query heads share a KV head: it is as wide as both. */
const PAIRED = { ...MHA, kvHeads: 3, latents: { kept: 'xq4', width: 384 } } as const;
/** Three do: it is half as wide again. */
const SHARED = { ...MHA, kvHeads: 3, latents: { kept: 'xq4', width: 576 } } as const;

const TOKENS = 6400;
const run = (shape: Parameters<typeof contextOf>[0], share: number, more: object = {}): Result => {
  const context = contextOf(shape);
  return simulate({
    policy: price,
    context,
    tokens: TOKENS,
    budgetBytes: Math.floor(share * f16Bytes(context, TOKENS)),
    ...more,
  });
};
const count = (result: Result, form: (form: PageForm) => boolean): number =>
  [...result.formats].filter(([key, one]) => key.endsWith('/kv') && form(one)).length;
const isHeld = (form: PageForm): boolean => form.startsWith('xq');
const { kept } = { kept: 'xq4' } as const;

describe('the way of a page', () => {
  test('where the latent has half the bytes, pages become latents, and divergence falls at equal bytes', () => {
    const withLatents = run(MHA, 0.2);
    const { latents: _, ...plain } = MHA;
    const without = run(plain, 0.2);
    expect(count(withLatents, isHeld)).toBeGreaterThan(100);
    expect(withLatents.epsilon2).toBeLessThan(0.6 * without.epsilon2);
  });

  test('where it has as many bytes and errs as much, or half as many again, no page becomes one', () => {
    expect(count(run(PAIRED, 0.25, { epsilon: epsilonOf(1, 1.1) }), isHeld)).toBe(0);
    expect(count(run(SHARED, 0.25), isHeld)).toBe(0);
  });

  test('a budget that asks for little leaves pages as they are, with their latents', () => {
    expect(run(MHA, 0.9).entries.flatMap(({ decisions }) => decisions)).toEqual([]);
  });

  test('what is booked is what the pages take, also where tokens are taken back', () => {
    for (const share of [0.19, 0.22, 0.3, 0.45]) {
      const context = contextOf(MHA);
      const { formats, bytes } = run(MHA, share, { back: { at: 4096, to: 3200 } });
      let sum = context.fixedBytes;
      for (const [key, form] of formats) {
        const latent = formats.get(key.replace(/[kv]+$/, 'kv'));
        const isLatent = latent !== undefined && isHeld(latent);
        if (key.endsWith('/kv')) sum += context.pageBytes[isLatent ? latent : kept]!;
        else if (!isLatent) sum += context.pageBytes[form]!;
      }
      expect(bytes).toBe(sum);
    }
  });

  test('the same situations give the same decisions', () => {
    const told = (result: Result): string =>
      JSON.stringify(result.entries.map(({ decisions, verdicts }) => [decisions, verdicts]));
    expect(told(run(MHA, 0.21))).toBe(told(run(MHA, 0.21)));
  });

  test('earlier versions of the policy make no latents', () => {
    const holds = [1, 2, 3, 4].map((version) => createPolicy('price', {}, version).holdsLatents === true);
    expect(holds).toEqual([false, false, true, true]);
  });
});

describe('by hand', () => {
  const latentReport = (layer: number, page: number, epsilon: object, from: PageForm = 'q8') => ({
    layer,
    page,
    side: 'kv' as const,
    from,
    epsilon,
  });
  const trials = [
    report(0, 0, 'k', { rot4: 0.02, rot3: 0.05, rot2: 0.2 }),
    report(0, 0, 'v', { rot4: 0.02, rot3: 0.05, rot2: 0.2 }),
    latentReport(0, 0, { xq4: 0.03 }),
  ];
  const shape = { ...MHA, layers: 1, thresholds: lasting(1) } as const;
  const tight = { bytes: 10_000_000, sealBytes: 100_000, budgetBytes: 10_050_000 };
  /** Sessions whose end asks for this many bytes a page. */
  const ends = (bytes: number, tokens = 384) => {
    const context = contextOf(shape);
    const beside = context.pageBytes.xq4!;
    // Two pages outside of the window at the end, and one in it.
    return {
      tokens,
      tokensExpected: 384,
      budgetBytes: context.fixedBytes + 2 * context.pageBytes.q8 + beside + 2 * bytes,
    };
  };

  test('a page that must end small becomes a latent at once, and what it frees counts the latent that becomes of it', () => {
    const hand = new Hand(contextOf(shape));
    const small = contextOf(shape).pageBytes.xq4! * 1.02;
    const [decision, ...rest] = hand.decide({
      ...ends(small),
      bytes: ends(small).budgetBytes,
      sealBytes: 1000,
      urgent: true,
      trials,
    });
    expect(rest).toEqual([]);
    const { pageBytes } = hand.context;
    expect(decision).toMatchObject({
      side: 'kv',
      from: 'q8',
      to: 'xq4',
      epsilonFrom: 0,
      epsilonTo: 0.03,
      bytesFreed: 2 * pageBytes.q8,
    });
    expect(decision!.price).toBeCloseTo((1.5 * 0.03 ** 2) / (2 * pageBytes.q8), 15);
    hand.settle(decision!, true);
    const again = { ...ends(small), bytes: ends(small).budgetBytes, sealBytes: 1000, urgent: true };
    expect(() => hand.decide(again), 'keys and values offer nothing any more').toThrow(/no legal move/);
    // Refused because it errs more than it was tried to: the page goes the other way.
    const other = new Hand(contextOf(shape));
    other.settle(other.decide({ ...again, trials })[0]!, false, 0.3);
    expect(other.decide(again)[0]).toMatchObject({ side: 'k' });
  });

  test('a page that may stay larger goes to lower formats, and its latent goes with the first step', () => {
    const hand = new Hand(contextOf(shape));
    const { pageBytes } = hand.context;
    const large = ends(2 * pageBytes.rot4);
    const [decision, ...rest] = hand.decide({
      ...large,
      bytes: large.budgetBytes,
      sealBytes: 1000,
      urgent: true,
      trials,
    });
    expect(rest).toEqual([]);
    expect(decision).toMatchObject({
      side: 'k',
      from: 'q8',
      bytesFreed: pageBytes.q8 - pageBytes.rot4 + pageBytes.xq4!,
    });
    hand.settle(decision!, true);
    const [next] = hand.decide({ ...large, bytes: large.budgetBytes, sealBytes: 1000, urgent: true });
    expect(next).toMatchObject({ side: 'v', from: 'q8', bytesFreed: pageBytes.q8 - pageBytes.rot4 });
  });

  test('no page becomes a latent while steps are slower than wished for, or when computing latents takes as much as is allowed', () => {
    const small = contextOf(shape).pageBytes.xq4! * 1.02;
    const point = { ...ends(small), bytes: ends(small).budgetBytes, sealBytes: 1000, urgent: true };
    const slow = new Hand(contextOf(shape));
    slow.decide({ ...point, urgent: false, bytes: 0, trials, stepLatencyBudgetMs: 10, stepLatencyMsP95: 12 });
    expect(slow.decide({ ...point, stepLatencyBudgetMs: 10, stepLatencyMsP95: 12 })[0]).toMatchObject({ side: 'k' });
    const allowed = thresholdOf(defaultThresholds(1), 'latent.operations').value;
    for (const [operations, side] of [
      [allowed, 'kv'],
      [allowed * 1.01, 'k'],
    ] as const) {
      const hand = new Hand(contextOf({ ...shape, latents: { ...shape.latents, operations } }));
      expect(hand.decide({ ...point, trials })[0]).toMatchObject({ side });
    }
    // One of two pages is allowed.
    const two = new Hand(contextOf({ ...shape, latents: { ...shape.latents, operations: allowed * 0.7 } }));
    const both = [...trials, ...trials.map((one) => ({ ...one, page: 1 }))];
    // At its end there are two such pages.
    const budgetBytes = point.budgetBytes + small;
    const again = { ...point, tokens: 512, tokensExpected: 512, budgetBytes, bytes: budgetBytes, sealBytes: 300_000 };
    const sides = two.decide({ ...again, trials: both }).map(({ side }) => side);
    expect(sides.filter((side) => side === 'kv').length).toBe(1);
    expect(sides.filter((side) => side !== 'kv').length).toBeGreaterThan(0);
  });

  test('a page that was made again from its latent has two sides as others do, and none of what it was', () => {
    const hand = new Hand(contextOf(shape));
    const reports = [
      report(0, 0, 'k', { rot4: 0.02 }),
      report(0, 0, 'v', { rot4: 0.02 }),
      latentReport(0, 0, {}, 'xq4'),
    ];
    hand.decide({ trials: reports });
    expect(() => hand.decide({ ...tight, urgent: true })).toThrow(/no legal move/);
    const change = { layer: 0, page: 0, side: 'kv', from: 'xq4', to: 'q8' } as const;
    const decisions = hand.decide({ ...tight, urgent: true, changes: [change] });
    expect(decisions.map(({ side, to }) => `${side} ${to}`)).toEqual(['k rot4', 'v rot4']);
  });
});

describe('where a page ends', () => {
  const page = {
    sides: [
      [
        { cost: 0, bytes: 80 },
        { cost: 1, bytes: 40 },
        { cost: 8, bytes: 20 },
      ],
    ],
    latents: [{ cost: 2, bytes: 20 }],
  };

  test('at a low price it keeps its bytes, at a high one the cheaper small form', () => {
    expect(isLatentBetter(page, 0.01)).toBe(false);
    expect(isLatentBetter(page, 0.04)).toBe(false);
    expect(isLatentBetter(page, 0.06)).toBe(true);
  });

  test('the price is the least at which pages take what is left for each', () => {
    for (const bytes of [80, 60, 40, 20]) {
      const price = endPrice([page, page], bytes);
      expect(price).toBeLessThan(bytes >= 80 ? 1e-15 : 0.2);
      expect(price).toBeGreaterThan(bytes >= 80 ? 0 : bytes >= 40 ? 0.02 : 0.04);
    }
    expect(endPrice([page], 10)).toBeGreaterThanOrEqual(1);
    expect(latentBytes('xq4', 576)).toBeLessThan(contextOf(MHA).pageBytes.rot4 * 1.05);
  });
});
