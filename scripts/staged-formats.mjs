/**
 * Formats beyond those of the product, in a copy of the sources: for builds that compute the yardsticks, or formats of
 * one's own (scripts/build-native.mjs, scripts/build-wasm.mjs).
 */
import { spawnSync } from 'node:child_process';
import { copyFileSync, readdirSync } from 'node:fs';
import { basename, join } from 'node:path';
import { BuildFailure, native, root } from './native-toolchain.mjs';

/** The files of native/yardsticks/. */
export const yardsticks = () =>
  readdirSync(join(native, 'yardsticks'))
    .sort()
    .map((name) => join(native, 'yardsticks', name));

/** The C++ file of a family of formats, of which `module` is the TypeScript file. */
export const headerOf = (module) => module.replace(/\.ts$/, '.h');

/** Puts the yardsticks, and the families of `formats`, into the copy of the sources in `folder`. */
export function addFormats(folder, formats = []) {
  for (const header of [...yardsticks().filter((file) => file.endsWith('.h')), ...formats.map(headerOf)])
    copyFileSync(header, join(folder, 'formats', basename(header)));
  const generate = spawnSync(
    process.execPath,
    ['--import', 'tsx', join(root, 'scripts/generate-layout.ts'), '--into', folder, ...formats],
    { cwd: root, stdio: ['ignore', 'ignore', 'inherit'] },
  );
  if (generate.status !== 0) throw new BuildFailure('the headers of these formats cannot be written');
}
