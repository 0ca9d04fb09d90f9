import { availableParallelism } from 'node:os';
import { fileURLToPath } from 'node:url';
import { defineConfig } from 'vitest/config';
import TestOrder from './scripts/test-order.ts';
import { ALL_TESTS } from './test/mutation/tests.ts';
import { isTurn, NIGHTLY_FILES, TIER } from './test/tier.ts';

export default defineConfig({
  resolve: { alias: { 'palimpsest/lab': fileURLToPath(new URL('engine/lab.ts', import.meta.url)) } },
  test: {
    include: ['test/**/*.test.ts'],
    exclude: [
      // Other builds, and packages that npm puts together, which take minutes: for what others merge, and at night.
      ...(TIER === 'home' ? ['test/everywhere/**', 'test/package/lab.test.ts'] : []),
      ...NIGHTLY_FILES.filter(([, turn]) => !isTurn(turn)).map(([file]) => file),
      // Formats that only a build of their own knows: test/everywhere/formats.test.ts runs them.
      ...(process.env.PALIMPSEST_TEST_FORMATS === '1' ? [] : ['test/formats/**']),
      // They have just been run with coverage (scripts/tests.mjs).
      ...(process.env.PALIMPSEST_TEST_COVERED === '1' ? ALL_TESTS.map((name) => `test/${name}.test.ts`) : []),
    ],
    setupFiles: ['./test/cost.ts', './test/native/binding.ts'],
    // Processes, not VM contexts: typed arrays that cross into native code must be of the realm that checks them.
    pool: 'forks',
    maxWorkers: availableParallelism(),
    sequence: { sequencer: TestOrder },
    // Only so that a test that hangs ends at all: no test is timed, because a slow machine is no failure.
    testTimeout: 600_000,
    hookTimeout: 600_000,
    allowOnly: false,
    reporters: ['default', './scripts/summary-reporter.ts'],
  },
});
