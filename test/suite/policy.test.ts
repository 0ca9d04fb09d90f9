/** The contract of test/suite/policy.ts (T24) over every policy there is. */
import { expect, test } from 'vitest';
import { createPolicy, policies } from '../../policy/index.ts';
import { policySuite } from './policy.ts';

const LAYERS = 30;
const OPTIONS: Readonly<Record<string, Readonly<Record<string, unknown>>>> = {
  fixed: { k: 'rot4', v: 'rot2' },
  table: {
    layers: Array.from({ length: LAYERS }, (_, layer) =>
      layer % 3 === 0 ? { k: 'rot4', v: 'rot4' } : { k: 'rot3', v: 'rot2' },
    ),
  },
};
const KEEP_BUDGETS = ['price', 'price-1', 'uniform', 'age'];

for (const id of Object.keys(policies)) {
  policySuite(id, {
    create: () => createPolicy(id, OPTIONS[id] ?? {}),
    layers: LAYERS,
    keepsBudget: KEEP_BUDGETS.includes(id),
  });
}

// The list above is written by hand: a policy that is added must be looked at here.
test('every policy says what it needs', () => {
  expect(Object.keys(policies).map((id) => [id, createPolicy(id, OPTIONS[id] ?? {}).needsTrials])).toEqual([
    ['price', true],
    ['price-1', true],
    ['uniform', false],
    ['age', false],
    ['table', false],
    ['fixed', false],
    ['none', false],
  ]);
});
