/**
 * Every branch of what appends, recovers, verifies and imports is taken by some test: `npm run coverage` runs those
 * tests, and fails where one is not.
 */
import { defineConfig } from 'vitest/config';
import base from '../../vitest.config.ts';
import { ALL_TESTS, TESTS } from './tests.ts';

export default defineConfig({
  test: {
    ...base.test,
    include: ALL_TESTS.map((name) => `test/${name}.test.ts`),
    exclude: [],
    coverage: {
      provider: 'v8',
      include: Object.keys(TESTS),
      reporter: ['text', 'json'],
      thresholds: { branches: 100, perFile: true },
    },
  },
});
