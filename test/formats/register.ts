/**
 * Registers the formats of this folder, before anything of the package is imported: `node --import tsx --import
 * ./test/formats/register.ts …`, and in tests with PALIMPSEST_TEST_FORMATS=1. A format is every TypeScript file with a
 * C++ file of its name beside it.
 */
import { readdirSync } from 'node:fs';
import { pathToFileURL } from 'node:url';
import { registerFormats } from '../../native/formats/registry.ts';

const names = readdirSync(import.meta.dirname).sort();
/** Paths of the modules. */
export const MODULES = names
  .filter((name) => name.endsWith('.ts') && names.includes(name.replace(/ts$/, 'h')))
  .map((name) => `${import.meta.dirname}/${name}`);
for (const module of MODULES) await registerFormats(pathToFileURL(module).href);
