// Divergence of two runs from their residual rows: with an identity output matrix the logits are the rows, so KLD,
// same-top and perplexity can be computed by hand.
import { describe, expect, it } from 'vitest';
import { addDivergence, emptySums, toDivergence } from '../../../../engine/session/divergence.ts';
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
});
