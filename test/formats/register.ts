/**
 * Registers the formats of this folder, before anything of the package is imported: `node --import tsx --import
 * ./test/formats/register.ts …`, and in tests with PALIMPSEST_TEST_FORMATS=1. Every folder is a family of formats.
 */
import { readdirSync } from 'node:fs';
import { pathToFileURL } from 'node:url';
import { registerFormats } from '../../native/formats/registry.ts';

/** Paths of the modules. */
export const MODULES = readdirSync(import.meta.dirname, { withFileTypes: true })
  .filter((entry) => entry.isDirectory())
  .map(({ name }) => `${import.meta.dirname}/${name}/${name}.ts`)
  .sort();
for (const module of MODULES) await registerFormats(pathToFileURL(module).href);
