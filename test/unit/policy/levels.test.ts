// How far a single trial is believed: what is found again of first trials, how far pages differ and how far chance goes
// are learned from repeated trials, and the page that looks cheapest is the cheapest more often.
import { describe, expect, test } from 'vitest';
import { Levels } from '../../../policy/levels.ts';
import { mulberry32 } from '../../random.ts';

/** Standard normal numbers (Box and Muller). */
function normal(seed: number): () => number {
  const next = mulberry32(seed);
  return () => Math.sqrt(-2 * Math.log(1 - next())) * Math.cos(2 * Math.PI * next());
}

interface World {
  /** Standard deviations of the level of a page, of its first trial around it, and of later ones. */
  readonly pages: number;
  readonly first: number;
  readonly later: number;
}

/** Pages of one layer and side in such a world, tried so often again: by slot, what they are and what is said. */
function tried({ pages, first, later }: World, count: number, repeats: number, seed = 1) {
  const chance = normal(seed);
  const levels = new Levels(1);
  const truth = Array.from({ length: count }, () => pages * chance());
  const firsts = truth.map((level) => level + first * chance());
  for (const [slot, x] of firsts.entries()) levels.first(slot, 0, x);
  const sums = [...firsts];
  for (let trial = 0; trial < repeats; trial++)
    for (const [slot, level] of truth.entries()) {
      const found = level + later * chance();
      sums[slot]! += found;
      levels.again(slot, found - firsts[slot]!);
    }
  levels.settle();
  const expected = firsts.map((x, slot) => x + levels.shift(slot));
  return { levels, truth, firsts, means: sums.map((sum) => sum / (1 + repeats)), expected };
}

const meanSquare = (a: readonly number[], b: readonly number[]): number =>
  a.reduce((sum, value, i) => sum + (value - b[i]!) ** 2, 0) / a.length;

describe('levels', () => {
  test('of pages that are all alike nothing is believed, however unlike their first trials are', () => {
    const { levels, expected } = tried({ pages: 0, first: 0.5, later: 0.5 }, 400, 4);
    expect(Math.abs(levels.excess(0))).toBeGreaterThan(0);
    const mean = expected.reduce((sum, one) => sum + one, 0) / expected.length;
    expect(Math.max(...expected.map((one) => Math.abs(one - mean)))).toBeLessThan(0.25);
  });

  test('first trials that are found again are believed', () => {
    const { levels, firsts, expected } = tried({ pages: 0.5, first: 0, later: 0.01 }, 400, 4);
    for (const slot of firsts.keys()) expect(levels.excess(slot)).toBeCloseTo(0, 1);
    expect(meanSquare(expected, firsts)).toBeLessThan(0.001);
  });

  test.each([
    [{ pages: 0.4, first: 0.2, later: 0.6 }, 4],
    [{ pages: 0.2, first: 0.4, later: 0.9 }, 7],
    [{ pages: 0.5, first: 0.6, later: 0.3 }, 1],
  ])(
    'what is expected in %o after %i more trials is nearer to the truth than the first trial and than the mean of all',
    (world, repeats) => {
      const { truth, firsts, means, expected } = tried(world, 500, repeats);
      expect(meanSquare(expected, truth)).toBeLessThan(0.9 * meanSquare(firsts, truth));
      expect(meanSquare(expected, truth)).toBeLessThan(meanSquare(means, truth));
    },
  );

  test('the pages that look cheapest cost what was expected of them', () => {
    const { truth, firsts, expected } = tried({ pages: 0.3, first: 0.4, later: 0.6 }, 1000, 2);
    const cheapest = (of: readonly number[]) => [...of.keys()].sort((a, b) => of[a]! - of[b]!).slice(0, 100);
    const bias = (of: readonly number[]) => cheapest(of).reduce((sum, slot) => sum + truth[slot]! - of[slot]!, 0) / 100;
    expect(bias(firsts), 'the luckiest are believed').toBeGreaterThan(0.3);
    expect(Math.abs(bias(expected))).toBeLessThan(0.12);
  });

  test('before any repeated trial a first one is believed in part, and one page alone wholly', () => {
    const levels = new Levels(2);
    levels.first(0, 0, -4);
    levels.first(1, 1, -3);
    levels.first(2, 1, -5);
    levels.settle();
    expect(levels.shift(0)).toBeCloseTo(0, 12);
    expect(levels.shift(1)).toBeCloseTo(-0.4, 12);
    expect(levels.shift(2)).toBeCloseTo(0.4, 12);
  });

  test('one wild trial says no more than another, one of nothing says nothing, and room grows', () => {
    const levels = new Levels(1);
    for (let slot = 0; slot < 10_000; slot++) levels.first(slot, 0, -4);
    levels.again(9000, Number.NaN);
    levels.again(9000, Number.NEGATIVE_INFINITY);
    levels.again(10_000, 1);
    levels.again(1e6, 1);
    levels.settle();
    expect(levels.shift(9000)).toBeCloseTo(0, 12);
    levels.again(9000, 1e9);
    levels.again(9001, 0);
    levels.settle();
    expect(levels.shift(9000)).toBeGreaterThan(0);
    expect(levels.shift(9000)).toBeLessThan(2);
    for (const never of [10_000, 1e6]) expect([levels.excess(never), levels.shift(never)]).toEqual([0, 0]);
  });
});
