import { availableParallelism } from 'node:os';
import { defineConfig } from 'vitest/config';

export default defineConfig({
  test: {
    include: ['test/**/*.test.ts'],
    // Builds other than the usual one, for minutes: .ci/run asks for them.
    exclude: process.env.PALIMPSEST_EVERYWHERE === '1' ? [] : ['test/everywhere/**'],
    setupFiles: ['./test/native/binding.ts'],
    // Processes, not VM contexts: typed arrays that cross into native code must be of the realm that checks them.
    pool: 'forks',
    maxWorkers: availableParallelism(),
    // Several tests load a model, a database or a child process: generous, because a slow machine is no failure.
    testTimeout: 120_000,
    hookTimeout: 120_000,
    allowOnly: false,
    reporters: ['default', './scripts/summary-reporter.ts'],
  },
});
