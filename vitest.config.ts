import { availableParallelism } from 'node:os';
import { fileURLToPath } from 'node:url';
import { configDefaults, defineConfig } from 'vitest/config';
import TestOrder from './scripts/test-order.ts';
import { ALL_TESTS } from './test/mutation/tests.ts';
import { isTurn, MERGE_FILES, NIGHTLY_FILES, TIER } from './test/tier.ts';
import { APART, TOGETHER } from './test/together.ts';

/** What every run of tests has, those with coverage and of mutants included. */
export const resolve = {
  alias: { 'palimpsest/lab': fileURLToPath(new URL('engine/lab.ts', import.meta.url)) },
};
export const everyRun = {
  // Models that a checkout fetched are its own, also where a test starts a process in another folder.
  env: { PALIMPSEST_CACHE: process.env.PALIMPSEST_CACHE ?? fileURLToPath(new URL('.cache', import.meta.url)) },
  setupFiles: ['./test/cost.ts', './test/native/binding.ts'],
  // Processes, not VM contexts: typed arrays that cross into native code must be of the realm that checks them.
  pool: 'forks' as const,
  // Only so that a test that hangs ends at all: no test is timed, because a slow machine is no failure.
  testTimeout: 600_000,
  hookTimeout: 600_000,
  allowOnly: false,
};

/** What does not run here: what belongs to another tier, is not its turn, or has run already. */
const exclude = [
  ...configDefaults.exclude,
  ...(TIER === 'home' ? MERGE_FILES : []),
  ...NIGHTLY_FILES.filter(([, turn]) => !isTurn(turn)).map(([file]) => file),
  // Formats that only a build of their own knows: test/everywhere/formats.test.ts runs them.
  ...(process.env.PALIMPSEST_TEST_FORMATS === '1' ? [] : ['test/formats/**']),
  // They have just been run with coverage (scripts/tests.mjs).
  ...(process.env.PALIMPSEST_TEST_COVERED === '1' ? ALL_TESTS.map((name) => `test/${name}.test.ts`) : []),
];

export default defineConfig({
  test: {
    maxWorkers: availableParallelism(),
    sequence: { sequencer: TestOrder },
    reporters: ['default', './scripts/summary-reporter.ts'],
    projects: [
      { resolve, test: { ...everyRun, name: 'apart', include: APART, exclude } },
      {
        resolve,
        test: { ...everyRun, name: 'together', isolate: false, include: TOGETHER, exclude: [...exclude, ...APART] },
      },
    ],
  },
});
