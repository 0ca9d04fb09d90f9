/**
 * Builds the kernel packs of ours from their sources in C (packs/NAME/NAME.c): packs/NAME/NAME.wasm, which are
 * committed, because a digest that is signed must not depend on who has which compiler.
 *   node scripts/build-packs.mjs            builds them into their folders; then `npm run golden -- packs`
 *   … --twice                               builds each in two other folders; exit code 1 unless both are what is there
 *
 * It needs clang and lld 19, from these packages of Debian:
 *   apt-get install clang-19 lld-19
 */
import { spawnSync } from 'node:child_process';
import { createHash } from 'node:crypto';
import { cpSync, mkdtempSync, readdirSync, readFileSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { BuildFailure, orFail, root, versionOf } from './native-toolchain.mjs';

const COMPILER = 'clang-19';
const FLAGS = [
  ...['--target=wasm32', '-O3', '-msimd128', '-mbulk-memory', '-ffreestanding', '-nostdlib', '-ffp-contract=off'],
  ...['-fvisibility=hidden', '-Wall', '-Wextra', '-Werror', '-Wl,--no-entry', '-Wl,--strip-all'],
  ...['-Wl,--max-memory=1048576', '-Wl,-z,stack-size=16384', '-Wl,--export=__heap_base'],
];

const packs = join(root, 'packs');
const names = readdirSync(packs, { withFileTypes: true })
  .filter((entry) => entry.isDirectory())
  .map(({ name }) => name)
  .sort();

const sha256 = (file) => createHash('sha256').update(readFileSync(file)).digest('hex');

/** Compiles one pack whose sources lie in `folder`. → the digest of the module */
function compile(name, folder) {
  const module = join(folder, name, `${name}.wasm`);
  const args = [...FLAGS, '-o', module, join(name, `${name}.c`)];
  const { status, stderr } = spawnSync(COMPILER, args, { cwd: folder, encoding: 'utf8' });
  if (status !== 0) throw new BuildFailure(`${name}: ${stderr}`);
  return sha256(module);
}

/** Compiles a copy of the sources in a folder of its own. */
function compiledElsewhere(name) {
  const folder = mkdtempSync(join(tmpdir(), 'palimpsest-packs-'));
  try {
    cpSync(join(packs, 'pack.h'), join(folder, 'pack.h'));
    cpSync(join(packs, name, `${name}.c`), join(folder, name, `${name}.c`));
    return compile(name, folder);
  } finally {
    rmSync(folder, { recursive: true, force: true });
  }
}

function twice(name) {
  const digests = [compiledElsewhere(name), compiledElsewhere(name), sha256(join(packs, name, `${name}.wasm`))];
  if (new Set(digests).size !== 1)
    throw new BuildFailure(`${name}: two builds and what is committed differ: ${digests.join(', ')}`);
  return digests[0];
}

orFail('packs', () => {
  const version = versionOf(COMPILER);
  if (version === null) throw new BuildFailure(`${COMPILER} cannot be run; apt-get install clang-19 lld-19`);
  const isTwice = process.argv.includes('--twice');
  for (const name of names) console.log(`${isTwice ? twice(name) : compile(name, packs)}  ${name}.wasm, ${version}`);
});
