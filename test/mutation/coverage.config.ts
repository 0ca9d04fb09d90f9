/**
 * Every branch of what appends, recovers, verifies and imports is taken by some test: `npm run coverage` runs those
 * tests, and fails where one is not.
 */
import { availableParallelism } from 'node:os';
import { defineConfig } from 'vitest/config';
import TestOrder from '../../scripts/test-order.ts';
import { everyRun, resolve } from '../../vitest.config.ts';
import { ALL_TESTS, TESTS } from './tests.ts';

export default defineConfig({
  resolve,
  test: {
    ...everyRun,
    maxWorkers: availableParallelism(),
    sequence: { sequencer: TestOrder },
    reporters: ['default', './scripts/summary-reporter.ts'],
    include: ALL_TESTS.map((name) => `test/${name}.test.ts`),
    coverage: {
      provider: 'v8',
      include: Object.keys(TESTS),
      reporter: ['text', 'json'],
      thresholds: { branches: 100, perFile: true },
    },
  },
});
