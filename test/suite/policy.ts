/**
 * What every policy promises, whatever its rule. Each test runs whole simulated sessions (policy-simulation.ts), which
 * check each single move against the unsafe combinations, the window, the floor, the skipped layers and the byte
 * budget.
 */
import { describe, expect, test } from 'vitest';
import { FORMAT_NAMES, type SIDES } from '../../native/index.ts';
import { type Decision, FORMS, type Outcome, type PageForm, type Policy, type Situation } from '../../policy/index.ts';
import { contextOf, epsilonOf, f16Bytes, type Result, sideKey, simulate } from './policy-simulation.ts';

export interface Subject {
  readonly create: () => Policy;
  readonly layers: number;
  /** Keeps a byte budget by its own means. */
  readonly keepsBudget: boolean;
  /** Share of f16 that no policy of its kind can keep. */
  readonly hopeless: number;
}

const canonical = (result: Result): string =>
  JSON.stringify(result.entries.map(({ decisions, verdicts }) => ({ decisions, verdicts })));
const drift = (decision: Decision, tokens: number): number =>
  0.4 + ((decision.layer * 7 + decision.page * 13 + tokens / 128) % 10) / 5;

export function policySuite(name: string, subject: Subject): void {
  const { create, layers, keepsBudget, hopeless } = subject;
  const tokens = 40 * 128;
  const session = (
    share: number | null,
    more: Partial<Parameters<typeof simulate>[0]> = {},
    shape: Partial<Parameters<typeof contextOf>[0]> = {},
  ): Result => {
    const context = contextOf({ layers, ...shape });
    const budgetBytes = share === null || !keepsBudget ? null : Math.floor(share * f16Bytes(context, tokens));
    return simulate({ policy: create(), context, tokens, budgetBytes, epsilon: epsilonOf(11), drift, ...more });
  };

  describe(`policy ${name}`, () => {
    // Tries 40 pages under three budgets in prefill, and one in decode; the simulation fails when a byte is over at any
    // seal.
    test('keeps the budget, never promotes, and leaves window and skipped layers alone', () => {
      for (const share of [0.3, 0.25, 0.2]) session(share);
      session(0.25, {
        chunk: 1,
        tokens: 20 * 128,
        budgetBytes: keepsBudget ? Math.floor(0.28 * f16Bytes(contextOf({ layers }), 20 * 128)) : null,
      });
      const result = session(0.4, {}, { skipLayers: [1, 3] });
      for (const [key, format] of result.formats)
        if (key.startsWith('1/') || key.startsWith('3/')) expect(format).toBe('q8');
    });

    // Tries a length that nobody foretold: the budget is kept all the same, by tightening as the cache grows.
    test('keeps the budget when the length is not known', () => {
      const result = session(0.25, { tokensExpected: null });
      if (keepsBudget) expect(result.entries.flatMap(({ decisions }) => decisions).length).toBeGreaterThan(0);
      // Longer than foretold is the same as not known.
      session(0.25, { tokensExpected: 20 * 128 });
    });

    // Takes back half of what was read, as an aborted prompt does, and goes on: what is planned then is checked like
    // everything else.
    test.each([
      [0.25, 30 * 128, 15 * 128, 128],
      [0.12, 12 * 128, 7 * 128 + 127, 1],
    ])('goes on from where tokens were taken back to (%d, %d to %d)', (share, at, to, chunk) => {
      const { entries } = session(share, { back: { at, to }, tokens: at + 4 * 128, chunk });
      const after = entries.slice(entries.findIndex(({ situation }) => situation.tokens === at));
      if (name !== 'none') expect(after.flatMap(({ decisions }) => decisions).length).toBeGreaterThan(0);
    });

    // Runs a session, writes its situations as JSON, and lets a new policy decide on what was read back.
    test('decides the same again from the situations alone, byte for byte', () => {
      const context = contextOf({ layers });
      const result = session(0.25);
      expect(canonical(session(0.25))).toBe(canonical(result));
      const policy = create().open(JSON.parse(JSON.stringify(context)));
      for (const { situation, decisions, verdicts } of result.entries) {
        const again = policy.decide(JSON.parse(JSON.stringify(situation)) as Situation);
        expect(JSON.stringify(again)).toBe(JSON.stringify(decisions));
        // The simulation's drift is known, so the repeated trial is too.
        const judged = again.map((decision) => {
          const predicted = Math.sqrt(Math.max(0, (decision.epsilonTo ?? 0) ** 2 - (decision.epsilonFrom ?? 0) ** 2));
          return policy.judge(decision, decision.retry ? drift(decision, situation.tokens) * predicted : null);
        });
        expect(JSON.stringify(judged)).toBe(JSON.stringify(verdicts));
      }
      expect(JSON.stringify(policy.summary())).toBe(JSON.stringify(result.summary));
    });

    // Holds tokens, budget and seal constant after a session and carries out what is planned: it must come to rest, and
    // stay so.
    test('comes to rest in a constant situation', () => {
      const result = session(0.25);
      const policy = create().open(contextOf({ layers }));
      for (const { situation } of result.entries) policy.decide(situation);
      const last = result.entries.at(-1)!;
      let bytes = result.bytes;
      let outcomes: Outcome[] = outcomesOf(
        last.decisions,
        last.verdicts.map(({ accepted }) => accepted),
      );
      const counts: number[] = [];
      for (let round = 0; round < 40; round++) {
        const situation: Situation = {
          ...last.situation,
          index: last.situation.index + 1 + round,
          bytes,
          trials: [],
          outcomes,
        };
        const decisions = policy.decide(situation);
        counts.push(decisions.length);
        bytes -= decisions.reduce((sum, { bytesFreed }) => sum + bytesFreed, 0);
        outcomes = outcomesOf(
          decisions,
          decisions.map(() => true),
        );
      }
      expect(counts.slice(-30)).toEqual(new Array(30).fill(0));
    });

    // Sets a floor per side that is above what the policy would like; the simulation fails on the first move below it.
    test('respects the floor', () => {
      const floor = { k: 'rot4', v: 'rot3' } as const;
      if (create().evicts === true) {
        expect(() => session(0.35, {}, { floor })).toThrow(expect.objectContaining({ code: 'unsupported' }));
        return;
      }
      const result = session(0.35, {}, { floor });
      const worst = (side: 'k' | 'v'): number =>
        Math.max(
          ...[...result.formats].filter(([key]) => key.endsWith(side)).map(([, format]) => FORMS.indexOf(format)),
        );
      expect(worst('k')).toBeLessThanOrEqual(FORMAT_NAMES.indexOf('rot4'));
      expect(worst('v')).toBeLessThanOrEqual(FORMAT_NAMES.indexOf('rot3'));
    });

    // Asks for a budget that 2 bits everywhere cannot keep, nor the window alone where pages are let go (policies that
    // do not steer by one are asked too): one typed error with numbers, no hang.
    test('says so when nothing that is legal frees enough', () => {
      const budgetBytes = Math.floor(hopeless * f16Bytes(contextOf({ layers }), tokens));
      expect(() => session(null, { budgetBytes })).toThrow(
        expect.objectContaining({
          code: 'budget-too-small',
          values: expect.objectContaining({ deficitBytes: expect.any(Number) }),
        }),
      );
    });

    // Reports what cannot be: a page inside the window, a page twice, an outcome that nobody planned.
    test('refuses situations that contradict themselves', () => {
      const context = contextOf({ layers });
      const base: Situation = {
        index: 0,
        tokens: 384,
        bytes: context.fixedBytes,
        sealBytes: 0,
        budgetBytes: null,
        kldBudget: null,
        tokensExpected: null,
        movesMax: 4,
        urgent: false,
        lowMemory: false,
        stepLatencyMsP95: 0,
        stepLatencyBudgetMs: null,
        trials: [],
        outcomes: [],
      };
      const report = { layer: 0, page: 0, side: 'k', from: 'q8', epsilon: {} } as const;
      const refused: Partial<Situation>[] = [
        { trials: [{ ...report, page: 2 }] },
        { trials: [{ ...report, page: 1e9 }] },
        { trials: [{ ...report, layer: layers }] },
        { trials: [{ ...report, epsilon: { rot4: Number.NaN } }] },
        { trials: [report, report] },
        {
          outcomes: [
            { layer: 0, page: 0, side: 'k', from: 'q8', to: 'rot4', accepted: true, epsilonNow: null, bytesFreed: 1 },
          ],
        },
      ];
      for (const change of refused) {
        const policy = create().open(context);
        expect(() => policy.decide({ ...base, ...change }), JSON.stringify(change)).toThrow(
          expect.objectContaining({ code: 'bad-value' }),
        );
      }
    });
  });
}

const outcomesOf = (decisions: readonly Decision[], accepted: readonly boolean[]): Outcome[] =>
  decisions.map(({ layer, page, side, from, to, bytesFreed }, i) => ({
    layer,
    page,
    side,
    from,
    to,
    accepted: accepted[i]!,
    epsilonNow: null,
    bytesFreed: accepted[i] ? bytesFreed : 0,
  }));

/** Formats of all pages of a result, [layer][page] as 'k:v'. */
export function pairsOf(result: Result, layers: number): string[][] {
  const pages = result.formats.size / (2 * layers);
  const format = (layer: number, page: number, side: (typeof SIDES)[number]): PageForm =>
    result.formats.get(sideKey(layer, page, side))!;
  return Array.from({ length: layers }, (_, layer) =>
    Array.from({ length: pages }, (_, page) => `${format(layer, page, 'k')}:${format(layer, page, 'v')}`),
  );
}
