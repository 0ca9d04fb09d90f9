/**
 * Formats beyond those of the product, in a copy of the sources: for builds that compute the yardsticks, or formats of
 * one's own (scripts/build-native.mjs, scripts/build-wasm.mjs). A family of formats is a folder.
 */
import { spawnSync } from 'node:child_process';
import { readdirSync } from 'node:fs';
import { basename, dirname, join, relative } from 'node:path';
import { BuildFailure, native, root, stage } from './native-toolchain.mjs';

export const YARDSTICKS = join(native, 'yardsticks');

/** The TypeScript file of the family in a folder, which has the folder's name. */
export const moduleOf = (folder) => join(folder, `${basename(folder)}.ts`);

/** The files of a folder and of its own folders. */
export const filesBelow = (folder) =>
  readdirSync(folder, { recursive: true, withFileTypes: true })
    .filter((entry) => entry.isFile())
    .map((entry) => join(entry.parentPath, entry.name))
    .sort();

/**
 * A copy of the sources with yardsticks and the families in the folders `formats`: their headers, and those that are
 * derived from all of the descriptions.
 */
export function stageWithFormats(name, formats = []) {
  const headers = (files) => files.filter((file) => file.endsWith('.h'));
  const folder = stage(name, [
    ...headers(filesBelow(YARDSTICKS)).map((file) => [file, relative(native, file)]),
    ...formats.flatMap((family) =>
      headers(filesBelow(family)).map((file) => [file, join('formats', relative(dirname(family), file))]),
    ),
  ]);
  const generate = spawnSync(
    process.execPath,
    ['--import', 'tsx', join(root, 'scripts/generate-layout.ts'), '--into', folder, ...formats.map(moduleOf)],
    { cwd: root, stdio: ['ignore', 'ignore', 'inherit'] },
  );
  if (generate.status !== 0) throw new BuildFailure('the headers of these formats cannot be written');
  return folder;
}
