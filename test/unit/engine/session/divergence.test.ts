// Divergence of two runs from their residual rows: with an identity output matrix the logits are the rows, so KLD,
// same-top and perplexity can be computed by hand.
import { describe, expect, it } from 'vitest';
import {
  addDivergence,
  divergenceFrom,
  divergenceOf,
  emptySums,
  exactOf,
  logSumExp,
  toDivergence,
} from '../../../../engine/session/divergence.ts';
import type { DenseBackend } from '../../../../engine/transformer/types.ts';

const identity = { logits: async (x: Float32Array) => x } as unknown as DenseBackend;
const log = (...p: number[]): number[] => p.map((v) => Math.log(v));

describe('divergence', () => {
  it('is zero for equal runs', async () => {
    const rows = Float32Array.from([...log(0.5, 0.25, 0.25), ...log(0.1, 0.8, 0.1)]);
    const sums = emptySums();
    await addDivergence(sums, identity, rows, rows.slice(), Int32Array.from([0, 1]), 3);
    const d = toDivergence(sums);
    expect(d.meanKld).toBeCloseTo(0, 7);
    expect(d.sameTop).toBe(1);
    expect(d.perplexity).toBeCloseTo(Math.exp((-Math.log(0.5) - Math.log(0.8)) / 2), 5);
  });
  it('is Σ p·ln(p/q) of exact against ours, and counts a changed most likely token', async () => {
    const exact = Float32Array.from(log(0.5, 0.3, 0.2));
    const ours = Float32Array.from(log(0.2, 0.6, 0.2));
    const sums = emptySums();
    await addDivergence(sums, identity, exact, ours, Int32Array.from([0]), 3);
    const d = toDivergence(sums);
    expect(d.meanKld).toBeCloseTo(0.5 * Math.log(0.5 / 0.2) + 0.3 * Math.log(0.3 / 0.6), 6);
    expect(d.sameTop).toBe(0);
    expect(d.perplexity).toBeCloseTo(5, 5);
    expect(d.perplexityExact).toBeCloseTo(2, 5);
  });
  it('refuses runs of different length', async () => {
    await expect(
      addDivergence(emptySums(), identity, new Float32Array(3), new Float32Array(6), Int32Array.from([0]), 3),
    ).rejects.toThrow(/different length/);
  });
  it('is the same of one row beside many, to the last digits that doubles have', () => {
    // Logits down to the 20 below the largest at which they are left out, and beyond; the steps hit each other's ends.
    const exact = Float32Array.from({ length: 4000 }, (_, i) => -((i * 37) % 4000) / 160);
    for (const spread of [0, 1e-4, 0.3, 8]) {
      const ours = exact.map((logit, i) => logit + spread * Math.sin(i));
      const expected = divergenceOf(exact, logSumExp(exact).logSum, ours, logSumExp(ours).logSum);
      if (spread === 0) expect(divergenceFrom(exactOf(exact), ours)).toBe(0);
      // What lies more than 20 below the largest is some 1e-9 of the sums.
      expect(Math.abs(divergenceFrom(exactOf(exact), ours) - expected)).toBeLessThan(1e-8 * (1 + spread));
    }
    const near = exact.slice(0, 160).map((logit) => logit / 2);
    const moved = near.map((logit, i) => logit + 0.01 * Math.cos(i));
    const expected = divergenceOf(near, logSumExp(near).logSum, moved, logSumExp(moved).logSum);
    expect(divergenceFrom(exactOf(near), moved)).toBeGreaterThan(0);
    expect(Math.abs(divergenceFrom(exactOf(near), moved) - expected)).toBeLessThan(1e-14);
  });
});
