/** Logits that an independent computation has found, and how far others are from them. */
import { expect } from 'vitest';

export interface GoldenRow {
  readonly position: number;
  /** At `probes`. */
  readonly logits: readonly number[];
  readonly topIds: readonly number[];
  readonly topLogits: readonly number[];
  readonly mean: number;
  readonly std: number;
  readonly logSumExp: number;
}

export interface Golden {
  readonly vocabSize: number;
  readonly probes: readonly number[];
  readonly rows: readonly GoldenRow[];
}

/** Difference of the logits at probes and top ids: root mean square over the spread of all logits. */
export function distance(logits: Float32Array, probes: readonly number[], row: GoldenRow): number {
  const ids = [...probes, ...row.topIds];
  const expected = [...row.logits, ...row.topLogits];
  const square = ids.reduce((sum, id, i) => sum + (logits[id]! - expected[i]!) ** 2, 0);
  return Math.sqrt(square / ids.length) / row.std;
}

function logSumExp(logits: Float32Array): number {
  const largest = logits.reduce((a, b) => Math.max(a, b), -Infinity);
  return largest + Math.log(logits.reduce((sum, logit) => sum + Math.exp(logit - largest), 0));
}

/**
 * Checks every stored number of every row within `tolerance` standard deviations of the logits (six for a single one).
 */
export function expectGolden(found: readonly Float32Array[], golden: Golden, tolerance: number): void {
  expect(found.length).toBe(golden.rows.length);
  for (const [i, row] of golden.rows.entries()) {
    const logits = found[i]!;
    const where = `position ${row.position}`;
    expect(logits.length).toBe(golden.vocabSize);
    expect(distance(logits, golden.probes, row), where).toBeLessThan(tolerance);
    for (const [rank, id] of row.topIds.entries()) {
      expect(Math.abs(logits[id]! - row.topLogits[rank]!), `${where}, rank ${rank}`).toBeLessThan(
        6 * tolerance * row.std,
      );
    }
    const mean = logits.reduce((a, b) => a + b, 0) / logits.length;
    const spread = Math.sqrt(logits.reduce((sum, logit) => sum + (logit - mean) ** 2, 0) / logits.length);
    expect(Math.abs(mean - row.mean), where).toBeLessThan(6 * tolerance * row.std);
    expect(Math.abs(spread - row.std), where).toBeLessThan(6 * tolerance * row.std);
    expect(Math.abs(logSumExp(logits) - row.logSumExp), where).toBeLessThan(6 * tolerance * row.std);
  }
}
