/**
 * A small copy of the checkout: the compiled files that some tests of native/ need, each in the same place, and a
 * runner for them. It is for a Node that cannot run vitest, because its bundler has no binary there: for another
 * processor, C library or system.
 */
import { spawnSync } from 'node:child_process';
import { copyFileSync, mkdirSync, rmSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { BuildFailure, root } from './native-toolchain.mjs';

/**
 * Makes the copy in `folder`, with `binaries`, a file for each module, as its build. Then `node run.mjs
 * test/native/binding.js TEST.js…` runs there.
 */
export function smallCheckout({ folder, binaries, tests }) {
  rmSync(folder, { recursive: true, force: true });
  mkdirSync(join(folder, 'native', 'build', 'Release'), { recursive: true });
  for (const [module, file] of Object.entries(binaries)) {
    copyFileSync(file, join(folder, 'native', 'build', 'Release', `${module}.node`));
  }
  const settings = {
    extends: join(root, 'tsconfig.json'),
    compilerOptions: {
      noEmit: false,
      allowImportingTsExtensions: false,
      outDir: folder,
      rootDir: root,
      types: ['node'],
    },
    files: [...tests, 'test/native/binding.ts'].map((file) => join(root, file)),
    include: [],
  };
  writeFileSync(join(folder, 'tsconfig.json'), JSON.stringify(settings));
  const args = ['node_modules/typescript/bin/tsc', '-p', join(folder, 'tsconfig.json')];
  const { status, stdout, stderr } = spawnSync(process.execPath, args, { cwd: root, encoding: 'utf8' });
  if (status !== 0) throw new BuildFailure(`the tests do not compile: ${stdout}${stderr}`);
  copyFileSync(join(root, 'package.json'), join(folder, 'package.json'));
  copyFileSync(join(root, 'test/golden/codecs.json'), join(folder, 'test/golden/codecs.json'));
  const runner = join(folder, 'node_modules', 'vitest');
  mkdirSync(runner, { recursive: true });
  writeFileSync(join(runner, 'package.json'), '{ "type": "module", "exports": "./vitest.mjs" }');
  copyFileSync(join(root, 'test/arm64/vitest.mjs'), join(runner, 'vitest.mjs'));
  copyFileSync(join(root, 'test/arm64/run.mjs'), join(folder, 'run.mjs'));
}

/** The compiled form of a test, from the folder of the copy. */
export const compiled = (test) => test.replace(/\.ts$/, '.js');
