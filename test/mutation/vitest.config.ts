/** The tests that Stryker runs for one file. */
import { defineConfig } from 'vitest/config';
import base from '../../vitest.config.ts';
import { TESTS } from './tests.ts';

const tests = TESTS[process.env['PALIMPSEST_MUTATE'] ?? ''];
if (tests === undefined) throw new Error('test/mutation/tests.ts names no tests for this file');

export default defineConfig({
  test: { ...base.test, include: tests.map((name) => `test/${name}.test.ts`), reporters: [] },
});
