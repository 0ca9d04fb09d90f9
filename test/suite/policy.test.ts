/** The contract of test/suite/policy.ts (T24) over every policy there is. */
import { expect, test } from 'vitest';
import { REASONS } from '../../engine/metrics/meter.ts';
import { BOUND_IDS, createPolicy, policies } from '../../policy/index.ts';
import { RULES } from '../../witness/index.ts';
import { mulberry32 } from '../random.ts';
import { policySuite } from './policy.ts';
import { contextOf, epsilonOf, f16Bytes, simulate } from './policy-simulation.ts';

const LAYERS = 30;
/** What policies take that are nothing without options. */
const optionsOf = (id: string, layers: number): Readonly<Record<string, unknown>> =>
  id === 'fixed'
    ? { k: 'rot4', v: 'rot2' }
    : id === 'table'
      ? {
          layers: Array.from({ length: layers }, (_, layer) =>
            layer % 3 === 0 ? { k: 'rot4', v: 'rot4' } : { k: 'rot3', v: 'rot2' },
          ),
        }
      : {};
/** Policies that set formats by a list, whatever the budget is. */
const NO_BUDGETS = ['table', 'fixed', 'none'];

for (const id of Object.keys(policies)) {
  policySuite(id, {
    create: () => createPolicy(id, optionsOf(id, LAYERS)),
    layers: LAYERS,
    keepsBudget: !NO_BUDGETS.includes(id),
    hopeless: createPolicy(id, optionsOf(id, LAYERS)).evicts === true ? 0.03 : 0.13,
  });
}

// What a person or a program is told of a move: its bound is one that filters know, its rule has a meaning in words,
// and is counted under its own name.
test('every reason that a policy gives is known by name', () => {
  const context = contextOf({ layers: 4 });
  const tokens = 20 * 128;
  const reasons = Object.keys(policies).flatMap((id) =>
    simulate({
      policy: createPolicy(id, optionsOf(id, context.layers)),
      context,
      tokens,
      budgetBytes: NO_BUDGETS.includes(id) ? null : Math.floor(0.25 * f16Bytes(context, tokens)),
    }).entries.flatMap(({ decisions }) => decisions.map(({ because }) => because)),
  );
  const unknown = reasons.flatMap(({ threshold, rule }) => [
    ...(BOUND_IDS.includes(threshold) ? [] : [`${threshold} is missing in policy/thresholds.ts`]),
    ...(Object.hasOwn(RULES, rule) ? [] : [`${rule} is missing in witness/explain-text.ts`]),
    ...(REASONS.includes(rule as 'price') ? [] : [`${rule} is missing in engine/metrics/meter.ts`]),
  ]);
  expect([...new Set(unknown)]).toEqual([]);
});

// Attention is added up for those alone who ask for it, so a policy that says so must go by it.
test.each(Object.keys(policies))(
  '%s decides by where attention went if it says that it reads it, and only then',
  (id) => {
    const context = contextOf({ layers: 4 });
    const tokens = 20 * 128;
    const { readsMasses = false } = createPolicy(id, optionsOf(id, context.layers));
    const decided = (seed: number) =>
      simulate({
        policy: { ...createPolicy(id, optionsOf(id, context.layers)), readsMasses: true },
        context,
        tokens,
        budgetBytes: NO_BUDGETS.includes(id) ? null : Math.floor(0.25 * f16Bytes(context, tokens)),
        mass: (layer, page) => mulberry32(seed * 7919 + layer * 131 + page)(),
      }).entries.flatMap(({ decisions }) => decisions.map(({ layer, page, side, to }) => [layer, page, side, to]));
    expect(JSON.stringify(decided(1)) === JSON.stringify(decided(2))).toBe(!readsMasses);
  },
);

// Trials cost time, so a policy that does not need them must not look at them; and one that says that it does would
// have sessions measure for nothing if it did not.
test.each(Object.keys(policies))('%s decides by what trials say if it says that it needs them, and only then', (id) => {
  const context = contextOf({ layers: 4 });
  const tokens = 20 * 128;
  const decided = (seed: number) =>
    simulate({
      policy: createPolicy(id, optionsOf(id, context.layers)),
      context,
      tokens,
      budgetBytes: NO_BUDGETS.includes(id) ? null : Math.floor(0.25 * f16Bytes(context, tokens)),
      epsilon: epsilonOf(seed),
    }).entries.flatMap(({ decisions }) => decisions.map(({ layer, page, side, to }) => [layer, page, side, to]));
  const { needsTrials } = createPolicy(id, optionsOf(id, context.layers));
  expect(JSON.stringify(decided(1)) === JSON.stringify(decided(2))).toBe(!needsTrials);
});
