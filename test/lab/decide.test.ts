// The table of decisions: of the pairs that were measured on every passage of a situation the one that diverges least
// within the bits, and the policy offers for keys with outlier channels what wins with them.
import { readFileSync } from 'node:fs';
import { expect, test } from 'vitest';
import { DECISIONS, type DecisionRow, decisionsFrom } from '../../lab/evaluate/decide.ts';
import type { QualityRow } from '../../lab/evaluate/frontier-rows.ts';
import { FORMAT_NAMES, isAutomatic } from '../../native/index.ts';
import { createPolicy } from '../../policy/index.ts';
import { PER_CHANNEL } from '../../policy/outlier-keys.ts';

const row = (model: string, textDigest: string, cache: string, bits: number, meanKld: number): QualityRow =>
  ({ part: 'quality', model, context: 2048, cache, textDigest, measured: { bits, meanKld } }) as QualityRow;

const situationOf = ({ model }: QualityRow) => ({
  outliers: model === 'large',
  queriesPerKv: 2,
  headDim: 64,
  context: 2048,
});

test('the least divergence within the bits, as the geometric mean over passages', () => {
  const rows = [
    row('small', 'a', 'rot4:rot4+q8', 4.4, 0.01),
    row('small', 'b', 'rot4:rot4+q8', 4.4, 0.04),
    row('small', 'a', 'rot2:rot2+q8', 2.9, 0.1),
    row('small', 'b', 'rot2:rot2+q8', 2.9, 0.1),
    // Measured on one passage alone: does not count.
    row('small', 'a', 'kivi4:rot2+q8', 3.9, 0.0001),
    row('large', 'a', 'kivi4:rot2+q8', 3.9, 0.02),
    row('large', 'a', 'rot4:rot4+q8', 4.4, 0.03),
  ];
  const best = (outliers: boolean, targetBits: number): string | undefined => {
    const found = decisionsFrom(rows, situationOf).find(
      (one) => one.outliers === outliers && one.targetBits === targetBits,
    );
    return found && `${found.keys}:${found.values} ${found.bits} ${found.meanKld}`;
  };
  expect(best(false, 3)).toBe('rot2:rot2 2.9 0.1');
  expect(best(false, 4)).toBe('rot2:rot2 2.9 0.1');
  expect(best(false, 4.5)).toBe('rot4:rot4 4.4 0.02');
  expect(best(true, 3)).toBeUndefined();
  expect(best(true, 5)).toBe('kivi4:rot2 3.9 0.02');
});

test('what wins with outlier channels, and what shows them, is what the policy offers for them', () => {
  const rows = JSON.parse(readFileSync(DECISIONS, 'utf8')) as DecisionRow[];
  const winners = new Set([...rows.filter(({ outliers }) => outliers).map(({ keys }) => keys), PER_CHANNEL]);
  const offered = createPolicy('price').outlierKeys!;
  expect(offered.length).toBeGreaterThan(0);
  expect(offered).toEqual(FORMAT_NAMES.filter((name) => winners.has(name) && !isAutomatic(name)));
});
