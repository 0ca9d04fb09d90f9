// Errors fade with the age of their pages: the assumed course without evidence, what was measured with much of it, and
// sums that follow it.
import { describe, expect, test } from 'vitest';
import { ageOf, Divergence } from '../../../policy/divergence.ts';
import { Fading } from '../../../policy/fading.ts';
import { defaultLaw, observed } from '../../../policy/index.ts';

const law = defaultLaw(2);

describe('fading', () => {
  test('without evidence one over the age is left, and all of it at age 1', () => {
    const fading = new Fading(law);
    expect(fading.energyAt(1)).toBe(1);
    expect(fading.energyAt(0)).toBe(1);
    for (const age of [2, 5, 16, 100]) expect(fading.energyAt(age)).toBeCloseTo(1 / age, 12);
  });

  test('much evidence outweighs the assumption at its ages, and only there', () => {
    const fading = new Fading(law);
    for (let i = 0; i < 10_000; i++) fading.learn(5, 2, 1.6);
    expect(fading.energyAt(4)).toBeCloseTo(0.8, 1);
    expect(fading.energyAt(7)).toBeCloseTo(0.8, 1);
    expect(fading.energyAt(8)).toBeCloseTo(1 / 8, 12);
    // A page that a first trial found free of errors promises nothing, and age 1 is where promises are made.
    fading.learn(9, 0, 1);
    fading.learn(1, 1, 9);
    expect(fading.energyAt(8)).toBeCloseTo(1 / 8, 12);
    expect(fading.energyAt(1)).toBe(1);
  });

  test('nothing is predicted to grow with age', () => {
    const fading = new Fading(law);
    for (let i = 0; i < 10_000; i++) fading.learn(3, 1, 50);
    expect(fading.energyAt(3)).toBeLessThanOrEqual(1);
  });
});

describe('divergence', () => {
  test('is the sum of what moves cost at the present age of their pages, by layer and in all', () => {
    const divergence = new Divergence(2, new Fading(law));
    divergence.add(0, 0, 0.4);
    divergence.add(2, 3, 0.1);
    const tokens = 5 * 128;
    expect([ageOf(0, tokens), ageOf(3, tokens)]).toEqual([4, 1]);
    expect(divergence.total(tokens)).toBeCloseTo(0.4 / 4 + 0.1, 12);
    expect([...divergence.byLayer(tokens)]).toEqual([expect.closeTo(0.1, 12), expect.closeTo(0.1, 12)]);
    divergence.add(2, 3, -1);
    expect(divergence.total(tokens)).toBeCloseTo(0.1, 12);
    divergence.add(3, 3, 0.1);
    divergence.weigh(Float64Array.of(2, 1, 1, 3));
    expect(divergence.total(tokens)).toBeCloseTo(2 * 0.1 + 3 * 0.1, 12);
    expect([...divergence.byLayer(tokens)]).toEqual([expect.closeTo(0.2, 12), expect.closeTo(0.3, 12)]);
  });

  test('past is its mean over the tokens read, and tokens taken back take their share with them', () => {
    const divergence = new Divergence(1, null);
    divergence.pass(256);
    divergence.add(0, 0, 0.2);
    divergence.pass(512);
    expect(divergence.past).toBeCloseTo(0.1, 12);
    divergence.pass(256);
    expect(divergence.past).toBeCloseTo(0.1, 12);
  });
});

test('a measurement moves an estimate by its precision, and makes it more certain', () => {
  const before = { value: 1, sd: 0.5, samples: 0 };
  const after = observed(before, 4, 0.5);
  expect(after).toMatchObject({ value: expect.closeTo(2, 12), sd: expect.closeTo(Math.SQRT1_2 / 2, 12), samples: 1 });
  expect(observed(before, 4, 1e-9).value).toBeCloseTo(4, 6);
});
