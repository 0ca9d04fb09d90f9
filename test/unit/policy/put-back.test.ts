// A layer whose errors exceed what was promised gets sides back of which the original was kept, and goes on moving:
// what moves beside them in the same plan must be allowed beside what comes back.
import { expect, test } from 'vitest';
import { contextOf } from '../../suite/policy-simulation.ts';
import { Hand, report } from './hand.ts';

test('keys go no lower than the values allow that come back in the same plan', () => {
  const context = contextOf({ layers: 1 });
  const { q8, rot3, rot2 } = context.pageBytes;
  const hand = new Hand(context);
  const move = (change: Parameters<Hand['decide']>[0]): string[] =>
    hand.decide(change).map((decision) => {
      hand.settle(decision, true);
      return `${decision.page}${decision.side} ${decision.from} ${decision.to} ${decision.because.rule}`;
    });
  const [low, high] = [
    { rot4: 1e-4, rot3: 2e-4, rot2: 3e-4 },
    { rot4: 1e-2, rot3: 2e-2, rot2: 3e-1 },
  ];
  const trials = [report(0, 0, 'k', high), report(0, 0, 'v', low)];
  const bytes = 2 * q8;
  const kept = (keys: number): number => keys + rot2;
  expect(move({ trials, bytes, budgetBytes: kept(rot3), tokens: 384, urgent: true })).toEqual([
    '0v q8 rot2 deficit',
    '0k q8 rot3 deficit',
  ]);
  const canary = { layer: 0, page: 0, side: 'v', from: 'q8', to: 'rot2', age: 256 } as const;
  const canaries = [{ ...canary, epsilonPromised: 3e-4, epsilonNow: 3e-1 }];
  // A byte more is wanted than what comes back makes room for.
  const held = kept(rot3) + q8;
  expect(move({ bytes: held, budgetBytes: held - q8 - 1, tokens: 768, urgent: true, canaries })).toEqual([
    '0v rot2 q8 put-back',
  ]);
  expect(hand.policy.summary().layerStates[0]).toMatch(/degraded/);
});
