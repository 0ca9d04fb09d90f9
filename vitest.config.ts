import { availableParallelism } from 'node:os';
import { defineConfig } from 'vitest/config';
import TestOrder from './scripts/test-order.ts';

export default defineConfig({
  test: {
    include: ['test/**/*.test.ts'],
    // Builds other than the usual one, for minutes: .ci/run asks for them.
    // And tests of formats that only a build of their own knows: those run them.
    exclude: [
      ...(process.env.PALIMPSEST_EVERYWHERE === '1' ? [] : ['test/everywhere/**']),
      ...(process.env.PALIMPSEST_FORMATS === '1' ? [] : ['test/formats/**']),
    ],
    setupFiles: ['./test/native/binding.ts'],
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
