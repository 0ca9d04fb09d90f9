/**
 * Where the formats are computed that the product describes and does not compute: a WebAssembly build of its cache with
 * native/yardsticks/, which `npm pack` puts beside this module (scripts/build-lab.mjs).
 */
import { fileURLToPath } from 'node:url';

/** The path of that build. */
export const formatsModule = fileURLToPath(new URL('./yardsticks.wasm', import.meta.url));
