/**
 * Forty thousand seeded decisions (`npm run sim -- million` makes a million): the same again from JSON, at rest on
 * constant input, every arrow taken.
 */
import { expect, it } from 'vitest';
import { runMillion } from './policy-million.ts';

const DECISIONS = Number(process.env['PALIMPSEST_SIM_DECISIONS'] ?? 40_000);
const SEED = Number(process.env['PALIMPSEST_SIM_SEED'] ?? 1);

it(`${DECISIONS} decisions are the same again, come to rest, and take every arrow of the machine`, () => {
  const { decisions, sessions, situations, putBack, different, restless, arrows } = runMillion(DECISIONS, SEED);
  console.log(
    `seed ${SEED}: ${decisions} decisions of ${sessions} sessions in ${situations} situations, ${putBack} put back`,
  );
  for (const [arrow, count] of arrows.counts) console.log(`  ${arrow}  ${count}`);
  expect(decisions).toBeGreaterThanOrEqual(DECISIONS);
  expect(putBack).toBeGreaterThan(0);
  expect({ different, restless }).toEqual({ different: 0, restless: 0 });
  // These sessions know nothing of earlier ones, so no layer is trusted; course.test.ts takes the arrows of trust.
  expect(arrows.missing).toEqual(['trust: unknown → trusted', 'trust: trusted → watched', 'trust: watched → trusted']);
});
