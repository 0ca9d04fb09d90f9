/**
 * Builds lab/dist, what the package palimpsest-lab holds: its modules with their declarations, and the WebAssembly
 * build of the cache with the formats to compare with. `npm pack ./lab` runs it first. The compiler follows the lab's
 * imports of palimpsest/lab to the sources of this checkout and compiles those as well; only the lab's own modules are
 * kept.
 */
import { spawnSync } from 'node:child_process';
import {
  copyFileSync,
  cpSync,
  mkdirSync,
  mkdtempSync,
  readdirSync,
  readFileSync,
  rmSync,
  writeFileSync,
} from 'node:fs';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';

const root = fileURLToPath(new URL('..', import.meta.url));
const dist = join(root, 'lab/dist');

const isDone = (...args) => spawnSync(process.execPath, args, { stdio: ['ignore', 'inherit', 'inherit'] }).status === 0;

/** Declarations name modules as sources do; beside compiled modules those have another ending. */
function nameCompiled(file) {
  const text = readFileSync(file, 'utf8');
  writeFileSync(file, text.replaceAll(/(from|import\()( ?['"]\.{1,2}\/[^'"]+)\.ts(['"])/g, '$1$2.js$3'));
}

/** Compiles into a folder of its own, and keeps what is of the lab. → false where the compiler failed */
function compile() {
  const cache = join(root, '.cache');
  mkdirSync(cache, { recursive: true });
  const all = mkdtempSync(join(cache, 'lab-'));
  try {
    const compiler = join(root, 'node_modules/typescript/bin/tsc');
    if (!isDone(compiler, '-p', join(root, 'lab/tsconfig.build.json'), '--outDir', all)) return false;
    rmSync(dist, { recursive: true, force: true });
    cpSync(join(all, 'lab'), dist, { recursive: true });
    for (const name of readdirSync(dist, { recursive: true }))
      if (name.endsWith('.d.ts')) nameCompiled(join(dist, name));
    return true;
  } finally {
    rmSync(all, { recursive: true, force: true });
  }
}

if (!isDone(join(root, 'scripts/build-wasm.mjs'), '--yardsticks') || !compile()) process.exitCode = 1;
else copyFileSync(join(root, 'native/build/wasm-yardsticks/palimpsest.wasm'), join(dist, 'yardsticks.wasm'));
