// The sequences of trellis codes: levels and their error (T5), and the search against all sequences there are.

import { describe, expect, test } from 'vitest';
import { SEQUENCE_BITS, TrellisSearch, WINDOW_BITS } from '../../../native/formats/trellis/trellis.ts';
import { TRELLIS, TRELLIS_DIVISOR } from '../../../native/reference/tables.gen.ts';
import { gaussian } from '../../native/rows.ts';
import {
  codesOf,
  costOf,
  given,
  LEVEL_ONE,
  LEVELS,
  leftBy,
  most,
  normalTargets,
  PARTS,
  SEQUENCES,
  TARGET_MOST,
  targetOf,
  windowsOf,
} from '../../native/trellis.ts';
import { seeded } from '../../random.ts';

describe.each(SEQUENCES)('tables of %s', (sequence) => {
  test('levels are whole numbers over 32, and no sum of them wraps in its byte', () => {
    expect(TRELLIS_DIVISOR).toBe(32);
    expect(LEVELS[sequence]).toHaveLength(2 ** WINDOW_BITS[sequence]);
    const first = sequence.startsWith('low') ? most('high') : 0;
    const [a = [], b = [0]] = TRELLIS[sequence];
    for (const x of a) for (const y of b) expect(Math.abs(x + y) + first).toBeLessThanOrEqual(127);
  });

  test('the distance of any target from any level fits in 16 bits with its sign, and so do those of demotion', () => {
    const levels = LEVEL_ONE * most(sequence);
    const isLow = sequence.startsWith('low');
    // Whatever the first sequence chose.
    expect(TARGET_MOST + (isLow ? LEVEL_ONE * most('high') : 0) + levels).toBeLessThan(2 ** 15);
    // Those of demotion are levels.
    const reach = isLow ? most('low2') : most('high') + most('low2');
    expect(LEVEL_ONE * reach + levels).toBeLessThan(2 ** 15);
  });
});

test.each([
  [4, 0.0087, 0.0095],
  [3, 0.0277, 0.0345],
  [2, 0.087, 0.1175],
  [1, 0.304, 0.3634],
] as const)(
  'on a Gaussian %i bits err what is said of them, less than single codes and more than any code must (T5)',
  (bits, expected, single) => {
    const seed = 5;
    const random = seeded(seed);
    const searchers = PARTS[bits].map((sequence) => [sequence, new TrellisSearch(sequence)] as const);
    let error = 0;
    const [sequences, steps] = [300, 128];
    for (let row = 0; row < sequences; row++) {
      const x = Float64Array.from({ length: steps }, () => gaussian(random));
      let left: Int16Array = Int16Array.from(x, targetOf);
      const sums = new Float64Array(steps);
      for (const [sequence, searcher] of searchers) {
        const windows = searcher.windows(left);
        left = leftBy(sequence, left, windows);
        for (const [step, window] of windows.entries()) sums[step]! += LEVELS[sequence][window]! / TRELLIS_DIVISOR;
      }
      for (const [step, y] of sums.entries()) error += (x[step]! - y) ** 2 / (sequences * steps);
    }
    // What is said has two digits, and so many rows err the same within a per cent.
    expect(Math.abs(error / expected - 1), `seed ${seed}`).toBeLessThan(0.03);
    expect(error).toBeLessThan(single);
    expect(error).toBeGreaterThan(4 ** -bits);
  },
);

describe('the search', () => {
  // Ten steps of one bit pass the eighth, after which the least cost is taken off.
  test.each([
    ['high', 6],
    ['low2', 6],
    ['low1', 10],
    ['single', 10],
  ] as const)('finds the least sum of all sequences of %s in %i steps', (sequence, steps) => {
    const bits = SEQUENCE_BITS[sequence];
    const all = Array.from({ length: 2 ** (bits * steps) }, (_, number) =>
      windowsOf(
        sequence,
        Array.from({ length: steps }, (_, step) => (number >> (bits * step)) & (2 ** bits - 1)),
      ),
    );
    const random = seeded(SEQUENCES.indexOf(sequence) + 1);
    const searcher = new TrellisSearch(sequence);
    for (let tried = 0; tried < 40; tried++) {
      // Some of them run into the bounds of targets.
      const targets = given(sequence, normalTargets(steps, random, tried % 4 === 3 ? 3 : 1));
      const found = [...searcher.windows(targets)];
      expect(windowsOf(sequence, codesOf(sequence, found))).toEqual(found);
      let least = Number.POSITIVE_INFINITY;
      for (const windows of all) least = Math.min(least, costOf(windows, targets, sequence));
      expect(costOf(found, targets, sequence)).toBe(least);
    }
  });

  test('takes no sequence that one other code would better, in sequences of every length', () => {
    const random = seeded(9);
    for (const sequence of SEQUENCES) {
      const bits = SEQUENCE_BITS[sequence];
      const searcher = new TrellisSearch(sequence);
      for (const steps of [1, 7, 8, 9, 16, 17, 128, 512]) {
        const targets = given(sequence, normalTargets(steps, random));
        const found = searcher.windows(targets);
        const least = costOf(found, targets, sequence);
        const codes = codesOf(sequence, found);
        for (let tried = 0; tried < 30; tried++) {
          const other = codes.with(Math.floor(random() * steps), Math.floor(random() * 2 ** bits));
          expect(costOf(windowsOf(sequence, other), targets, sequence), sequence).toBeGreaterThanOrEqual(least);
        }
      }
    }
  });

  test('of equal costs takes the window with the lowest number, where a path ends and on its way', () => {
    for (const sequence of SEQUENCES) {
      // All levels the same: every window costs the same.
      const found = new TrellisSearch(sequence, new Int8Array(LEVELS[sequence].length)).windows(new Int16Array(20));
      expect([...found], sequence).toEqual(windowsOf(sequence, new Array<number>(20).fill(0)));
    }
  });
});
