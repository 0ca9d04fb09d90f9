// When a session tells that its stated divergence is broken: by what it expects, and by what was found on tokens that
// were read twice, once these are enough.
import { expect, test } from 'vitest';
import { Stated } from '../../../../engine/cache/stated.ts';
import { Meter } from '../../../../engine/metrics/meter.ts';
import type { MeasuredKld } from '../../../../policy/index.ts';

const BUDGET = 0.01;

function told(): { readonly stated: Stated; readonly notes: Readonly<Record<string, unknown>>[] } {
  const notes: Readonly<Record<string, unknown>>[] = [];
  const meter = new Meter();
  return { stated: new Stated({ session: 's', budgetNats: BUDGET, meter, note: (body) => notes.push(body) }), notes };
}

const measured = (tokens: number, meanKld: number, expectedKld: number): MeasuredKld => ({
  ...{ tokens, meanKld, expectedKld },
  level: { value: 1, sd: 0.5, samples: tokens / 32 },
});

test('what is expected is compared where nothing was measured, and where it was', () => {
  const { stated, notes } = told();
  stated.look(1000, { predictedKld: 0.009 });
  stated.look(1100, { predictedKld: 0.011 });
  stated.look(1200, { predictedKld: 0.02, measured: measured(32, 0.001, 0.008) });
  expect(notes).toMatchObject([
    { statedDivergence: 'broken', tokens: 1100, expectedNats: 0.011, measuredTokens: 0 },
    { statedDivergence: 'kept', tokens: 1200, expectedNats: 0.008, measuredTokens: 32 },
  ]);
});

test('what was found on few tokens is not believed, and on 128 of them it is, whatever is expected', () => {
  const { stated, notes } = told();
  stated.look(3000, { predictedKld: 0.001, measured: measured(96, 0.05, 0.006) });
  expect(stated.report()).toMatchObject({ isBroken: false, expectedNats: 0.006 });
  stated.look(3300, { predictedKld: 0.001, measured: measured(128, 0.05, 0.006) });
  expect(stated.report()).toEqual({
    ...{ budgetNats: BUDGET, expectedNats: 0.05, measuredTokens: 128, worstNats: 0.05, isBroken: true },
    timesBroken: 1,
  });
  expect(notes).toEqual([
    { statedDivergence: 'broken', tokens: 3300, budgetNats: BUDGET, expectedNats: 0.05, measuredTokens: 128 },
  ]);
  stated.look(3400, { predictedKld: 0.001, measured: measured(160, 0.004, 0.006) });
  expect(notes).toHaveLength(2);
});
