// How long errors last in each layer and side: nothing is known at first, repeated trials tell, and the price policy
// spares the layers where they last.
import { describe, expect, test } from 'vitest';
import { Persistence } from '../../../policy/persistence.ts';
import { contextOf } from '../../suite/policy-simulation.ts';
import { Hand, report } from './hand.ts';

describe('persistence', () => {
  test('is the same everywhere until it was measured, and moves half of the way with as many trials as the assumption counts for', () => {
    const persistence = new Persistence(2, 'logarithms');
    expect(persistence.settle()).toBeNull();
    for (let i = 0; i < 8; i++) persistence.learn(1, 1, Math.exp(2));
    expect(persistence.factor(1)).toBe(1);
    expect([...persistence.settle()!]).toEqual([0, 1]);
    expect(persistence.factor(1)).toBeCloseTo(Math.exp(1), 12);
    expect(persistence.factor(0)).toBe(1);
    expect(persistence.settle()).toBeNull();
  });

  test('one wild measurement says no more than another, and one of nothing says nothing', () => {
    const persistence = new Persistence(1, 'logarithms');
    persistence.learn(0, 0, 0);
    persistence.learn(0, 0, 1);
    persistence.learn(0, Number.NaN, 1);
    expect(persistence.settle()).toBeNull();
    persistence.learn(0, 1e-100, 1e100);
    persistence.settle();
    expect(persistence.factor(0)).toBeCloseTo(Math.exp((2 * 2) / 9), 12);
  });
});

describe('persistence by sums', () => {
  // Nine trials in ten find nothing, and one finds ten times as much: in the mean errors last as expected.
  test('is what was found in the mean, not what is found mostly', () => {
    const [sums, logarithms] = [new Persistence(1, 'sums'), new Persistence(1, 'logarithms')];
    for (const persistence of [sums, logarithms]) {
      for (let trial = 0; trial < 100; trial++) persistence.learn(0, 1, trial % 10 === 0 ? 10 : 1e-3);
      persistence.settle();
    }
    expect(sums.factor(0)).toBeCloseTo(1, 1);
    expect(logarithms.factor(0)).toBeLessThan(0.05);
  });

  test('moves half of the way with as many trials as the assumption counts for, and nothing says nothing', () => {
    const persistence = new Persistence(2, 'sums');
    persistence.learn(0, 0, 1);
    persistence.learn(0, 1, 0);
    for (let i = 0; i < 8; i++) persistence.learn(1, 1, Math.exp(2));
    expect([...persistence.settle()!]).toEqual([0, 1]);
    expect(persistence.factor(1)).toBeCloseTo(Math.exp(1), 12);
    expect(persistence.factor(0)).toBe(1);
  });
});

describe('the price policy', () => {
  /**
   * The layers of the first decisions after pages of two layers with equal first trials were tried again, `later` times
   * as bad as expected in each.
   */
  function layersAfter(later: readonly number[]): number[] {
    const hand = new Hand(contextOf({ layers: 2 }));
    const pages = [0, 1, 2, 3];
    const both = (page: number, epsilon: number, by: readonly number[]) =>
      [0, 1].flatMap((layer) => [
        report(layer, page, 'k', { rot4: epsilon * by[layer]! }),
        report(layer, page, 'v', { rot4: epsilon * by[layer]! }),
      ]);
    hand.decide({ tokens: 6 * 128, trials: pages.flatMap((page) => both(page, 0.01, [1, 1])) });
    // Only the oldest three are tried again: the prices of page 3 tell what was learned from the others.
    for (const tokens of [8, 9, 10, 11])
      hand.decide({ tokens: tokens * 128, again: [0, 1, 2].flatMap((page) => both(page, 0.005, later)) });
    const decisions = hand.decide({ tokens: 12 * 128, bytes: 9_999_000, sealBytes: 200_000, urgent: true });
    return decisions.filter(({ page }) => page === 3).map(({ layer }) => layer);
  }

  test('moves pages first where errors do not last, also pages that were not tried again', () => {
    expect(layersAfter([1.5, 0.5])[0]).toBe(1);
    expect(layersAfter([0.5, 1.5])[0]).toBe(0);
  });
});
