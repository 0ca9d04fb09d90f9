/** The tests that Stryker runs for one file. */
import { defineConfig } from 'vitest/config';
import { everyRun, resolve } from '../../vitest.config.ts';
import { TESTS } from './tests.ts';

const [file = ''] = (process.env['PALIMPSEST_MUTATE'] ?? '').split(':');
const tests = TESTS[file];
if (tests === undefined) throw new Error('test/mutation/tests.ts names no tests for this file');

export default defineConfig({
  // What several test files import is loaded once for each change.
  resolve,
  test: { ...everyRun, include: tests.map((name) => `test/${name}.test.ts`), reporters: [], isolate: false },
});
