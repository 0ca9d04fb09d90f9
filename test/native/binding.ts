/**
 * Runs before every test file: which build of the native cache is under test. PALIMPSEST_BINDING=wasm (or prebuilt,
 * debug, thread: BINDING_NAMES) chooses it; without, what the library chooses by itself. PALIMPSEST_TEST_FORMATS=1
 * registers the formats of test/formats/, PALIMPSEST_TEST_YARDSTICKS=1 the yardsticks; their build must be there.
 * CONTRIBUTING.md has the commands.
 */
import type { BindingName } from '../../native/types.ts';

/** The binding that was asked for. */
export const BINDING = process.env.PALIMPSEST_BINDING as BindingName | undefined;

// Before anything asks which formats there are.
if (process.env.PALIMPSEST_TEST_FORMATS === '1') await import('../formats/register.ts');
if (process.env.PALIMPSEST_TEST_YARDSTICKS === '1') await import('../../native/yardsticks/register.ts');

// `npm test` has just compiled dist/ of these sources (scripts/tests.mjs).
if (process.env.PALIMPSEST_TEST_DIST === '1')
  (await import('../../native/thread.ts')).startThreadsFrom(new URL('../../dist/', import.meta.url));

if (BINDING !== undefined) (await import('../../native/index.ts')).useBinding(BINDING);
