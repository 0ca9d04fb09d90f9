/**
 * Runs before every test file: which build of the native cache is under test. PALIMPSEST_BINDING=wasm (or prebuilt, debug,
 * thread: BINDING_NAMES) chooses it; without, what the library chooses by itself. CONTRIBUTING.md has the commands.
 */
import { useBinding } from '../../native/index.ts';
import type { BindingName } from '../../native/types.ts';

/** The binding that was asked for. */
export const BINDING = process.env.PALIMPSEST_BINDING as BindingName | undefined;

if (BINDING !== undefined) useBinding(BINDING);
