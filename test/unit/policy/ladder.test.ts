/**
 * Tries the hull against brute force: its prices rise, nothing lies below it, and taking its steps cheapest first is
 * optimal.
 */

import { expect, test } from 'vitest';
import { isMove, TRIAL_CANDIDATES } from '../../../native/index.ts';
import { mulberry32 } from '../../random.ts';
import { contextOf, type Epsilon } from '../../suite/policy-simulation.ts';
import { hull, type Rung } from './hull.ts';

const { pageBytes } = contextOf({ layers: 1 });
const randomEpsilon = (next: () => number): Epsilon =>
  Object.fromEntries(TRIAL_CANDIDATES.filter(() => next() < 0.9).map((format) => [format, 10 ** (-4 + 3.5 * next())]));

test('a page side by hand: rot3 is too dear for what it saves, so the way leads past it', () => {
  const rungs = hull('q8', { rot4: 0.01, rot3: 0.05, rot2: 0.051 }, pageBytes, 4);
  expect(rungs.map(({ format }) => format)).toEqual(['q8', 'rot4', 'rot2']);
  expect(rungs[1]!.price).toBeCloseTo((4 * 0.01 ** 2) / (pageBytes.q8 - pageBytes.rot4), 15);
  expect(rungs[2]!.cost).toBeCloseTo(4 * 0.051 ** 2, 12);
});

// Random tables, also with errors out of order and formats missing: no mixture of two rungs lies above any candidate
// that a page in the upper one may still move to.
test('prices rise along the hull and no candidate lies below it', () => {
  const seed = 71;
  const next = mulberry32(seed);
  for (let round = 0; round < 2000; round++) {
    const epsilon = randomEpsilon(next);
    const rungs = hull('q8', epsilon, pageBytes, 4);
    for (let i = 2; i < rungs.length; i++)
      expect(rungs[i]!.price, `seed ${seed} round ${round}`).toBeGreaterThan(rungs[i - 1]!.price);
    for (const format of TRIAL_CANDIDATES) {
      const value = epsilon[format];
      if (value === undefined) continue;
      const bytes = pageBytes[format];
      const above = rungs.findIndex((rung) => rung.bytes <= bytes);
      if (above < 1) continue;
      const [a, b] = [rungs[above - 1]!, rungs[above]!];
      if (!isMove(a.format, format)) continue;
      const line = a.cost + ((b.cost - a.cost) * (a.bytes - bytes)) / (a.bytes - b.bytes);
      expect(4 * value * value, `seed ${seed} round ${round} ${format}`).toBeGreaterThanOrEqual(line - 1e-15);
    }
  }
});

/** Takes hull steps cheapest first until `bytes` are saved. */
function greedy(sides: readonly Rung[][], bytes: number): { saved: number; cost: number } {
  const steps = sides.flatMap((rungs) =>
    rungs
      .slice(1)
      .map((rung, i) => ({ saved: rungs[i]!.bytes - rung.bytes, cost: rung.cost - rungs[i]!.cost, price: rung.price })),
  );
  steps.sort((a, b) => a.price - b.price);
  const total = { saved: 0, cost: 0 };
  for (const step of steps) {
    if (total.saved >= bytes) break;
    total.saved += step.saved;
    total.cost += step.cost;
  }
  return total;
}

// Five page sides, all 4^5 assignments: no assignment that saves as many bytes as the greedy one costs less (1%).
test('cheapest first is the best use of the bytes it frees, against every assignment', () => {
  const seed = 72;
  const next = mulberry32(seed);
  const formats = ['q8', ...TRIAL_CANDIDATES.slice(0, 3)] as const;
  for (let round = 0; round < 60; round++) {
    const tables = Array.from(
      { length: 5 },
      () => Object.fromEntries(TRIAL_CANDIDATES.map((format) => [format, 10 ** (-3 + 2 * next())])) as Epsilon,
    );
    const most = 5 * (pageBytes.q8 - pageBytes.rot2);
    const found = greedy(
      tables.map((epsilon) => hull('q8', epsilon, pageBytes, 4)),
      most * (0.2 + 0.7 * next()),
    );
    let best = Number.POSITIVE_INFINITY;
    for (let code = 0; code < 4 ** 5; code++) {
      let saved = 0;
      let cost = 0;
      for (const [i, epsilon] of tables.entries()) {
        const format = formats[Math.floor(code / 4 ** i) % 4]!;
        saved += pageBytes.q8 - pageBytes[format];
        cost += 4 * (epsilon[format] ?? 0) ** 2;
      }
      if (saved >= found.saved) best = Math.min(best, cost);
    }
    expect(found.cost, `seed ${seed} round ${round}`).toBeLessThanOrEqual(best * 1.01);
  }
});
