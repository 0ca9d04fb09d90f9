/**
 * Runs before every test file: which build of the native cache is under test. PALIMPSEST_BINDING=wasm (or prebuilt,
 * debug, thread: BINDING_NAMES) chooses it; without, what the library chooses by itself. PALIMPSEST_TEST_FORMATS=1
 * registers the formats of test/formats/, PALIMPSEST_TEST_YARDSTICKS=1 the yardsticks; their build must be there.
 * PALIMPSEST_TEST_CALLED=FILE tells there which functions of the binary are called (called.ts).
 * CONTRIBUTING.md has the commands.
 */
import type { BindingName } from '../../native/types.ts';

/** Kept where files share a process. */
const hasCalls = globalThis as { palimpsestCalls?: boolean };

/** The binding that was asked for. */
export const BINDING = process.env.PALIMPSEST_BINDING as BindingName | undefined;

// Before anything asks which formats there are.
if (process.env.PALIMPSEST_TEST_FORMATS === '1') await import('../formats/register.ts');
if (process.env.PALIMPSEST_TEST_YARDSTICKS === '1') await import('../../native/yardsticks/register.ts');

// `npm test` has just compiled dist/ of these sources (scripts/tests.mjs).
if (process.env.PALIMPSEST_TEST_DIST === '1')
  (await import('../../native/thread.ts')).startThreadsFrom(new URL('../../dist/', import.meta.url));

const calls = process.env.PALIMPSEST_TEST_CALLED;
if (calls !== undefined && !hasCalls.palimpsestCalls) {
  hasCalls.palimpsestCalls = true;
  (await import('./called.ts')).tellCalls(calls);
}

if (BINDING !== undefined) (await import('../../native/index.ts')).useBinding(BINDING);
