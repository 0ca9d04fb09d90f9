/** The tests that Stryker runs for one file. */
import { mergeConfig } from 'vitest/config';
import base from '../../vitest.config.ts';
import { TESTS } from './tests.mjs';

const file = process.env.PALIMPSEST_MUTATE ?? '';
base.test!.include = TESTS[file]!.map((name: string) => `test/${name}.test.ts`);
base.test!.reporters = [];
export default mergeConfig(base, { test: {} });
