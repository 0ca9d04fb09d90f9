/**
 * Builds the binaries that packages contain for machines without a compiler:
 *   prebuilds/TARGET/palimpsest.node       for an operating system, a processor and on Linux a C library; with its
 *   package.json
 *                                          that folder is a package of its own, palimpsest-TARGET, which npm installs
 *   where it fits
 *   prebuilds/wasm/palimpsest.wasm         for every other machine; it is in the package itself
 *   prebuilds/manifest.json                for each, its compiler, the hash of its sources and its SHA-256
 *
 *   node scripts/prebuild.mjs                     builds all but UNTRIED; exit code 1 if one of them cannot be built
 *   node scripts/prebuild.mjs linux-x64 wasm      builds these two
 *   … --check                                     builds nothing; exit code 1 and a line for each that is missing or
 *   stale
 *   … --tools                                     builds nothing; exit code 1 and a line for each whose compiler is
 *   missing
 *   … --force                                     builds even when nothing has changed
 *   … --verbose                                   shows the compiler's commands
 * What is up to date is not built again. `npm pack` runs this script first, and stops if it fails.
 *
 * The binaries contain the C++ runtime and no symbols. What else they need on the machine that runs them is checked
 * here: on Linux libgcc_s, as Node itself does, and glibc in a version that is not too new (GLIBC_NEWEST); elsewhere
 * what scripts/needs.mjs allows.
 */
import { spawnSync } from 'node:child_process';
import { createHash } from 'node:crypto';
import { copyFileSync, existsSync, mkdirSync, readFileSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import {
  addonFiles,
  BuildFailure,
  fingerprint,
  locked,
  native,
  orFail,
  root,
  runNodeGyp,
  stage,
  version,
} from './native-toolchain.mjs';
import { checkNeeds } from './needs.mjs';
import { writePackage } from './platform-packages.mjs';
import { buildWithZig, ZIG_TARGETS, zigFiles, zigVersion } from './zig.mjs';

const prebuilds = join(root, 'prebuilds');
const manifestFile = join(prebuilds, 'manifest.json');

/** The newest version of glibc that a binary may need. native/README.md states it. */
const GLIBC_NEWEST = '2.28';

/** How the names of Debian's compilers for an architecture begin. */
const TRIPLES = { x64: 'x86_64-linux-gnu', arm64: 'aarch64-linux-gnu' };

const TARGETS = ['linux-x64', 'linux-arm64', ...Object.keys(ZIG_TARGETS), 'wasm'];

/**
 * What is built only when it is named: it compiles, and what it needs is checked, but no machine has run it yet
 * (docs/limits.md).
 */
const UNTRIED = ['linux-arm64-musl', 'darwin-x64', 'darwin-arm64'];

const sha256 = (file) => createHash('sha256').update(readFileSync(file)).digest('hex');

function readManifest() {
  try {
    return JSON.parse(readFileSync(manifestFile, 'utf8'));
  } catch {
    return {};
  }
}

function record(target, entry) {
  const manifest = { ...readManifest(), [target]: entry };
  const sorted = Object.fromEntries(TARGETS.filter((name) => name in manifest).map((name) => [name, manifest[name]]));
  writeFileSync(manifestFile, `${JSON.stringify(sorted, null, 2)}\n`);
}

/** The versions of glibc whose symbols a binary uses, newest last. */
function glibcVersions(objdump, file) {
  const run = spawnSync(objdump, ['-T', file], { encoding: 'utf8' });
  if (run.status !== 0) throw new BuildFailure(`${objdump} cannot read ${file}; install binutils`);
  const found = new Set([...run.stdout.matchAll(/\(?GLIBC_([\d.]+)\)?/g)].map((match) => match[1]));
  return [...found].sort(byVersion);
}

function byVersion(a, b) {
  const [x, y] = [a, b].map((text) => text.split('.').map(Number));
  return x[0] - y[0] || x[1] - y[1] || (x[2] ?? 0) - (y[2] ?? 0);
}

/** The addon of a target: where it lies, and whether it is that of these sources. */
function addonOf(target, says, files) {
  const file = join(prebuilds, target, 'palimpsest.node');
  const sources = fingerprint([target, says], files);
  const known = readManifest()[target];
  return { file, sources, isFresh: known?.sources === sources && existsSync(file) && sha256(file) === known.sha256 };
}

/** Makes a package of what was built. `needs` goes into the manifest. */
function keepAddon(target, { file, sources }, built, says, needs) {
  mkdirSync(join(prebuilds, target), { recursive: true });
  copyFileSync(built, file);
  record(target, { file: file.slice(root.length + 1), sha256: sha256(file), compiler: says, ...needs, sources });
}

/** Builds the addon for Linux with glibc on one architecture. */
function buildAddon(target, { check, force, tools, verbose }) {
  const arch = target.split('-')[1];
  const triple = TRIPLES[arch];
  const isOwn = process.platform === 'linux' && process.arch === arch;
  const prefix = isOwn ? '' : `${triple}-`;
  const says = version(`${prefix}g++`, isOwn ? 'g++' : `a cross compiler, e.g. apt-get install g++-${triple}`);
  version(`${prefix}objdump`, 'binutils');
  if (tools) return;
  const addon = addonOf(target, says, addonFiles());
  if (addon.isFresh && !force) return writePackage(target);
  if (check) throw new BuildFailure('missing or stale');

  console.error(`building prebuilt addon (${target}, ${says})`);
  const folder = isOwn ? native : stage(target);
  const compiler = isOwn ? { cxx: 'g++' } : { cxx: `${prefix}g++`, cc: `${prefix}gcc`, ar: `${prefix}ar` };
  const modules = ['palimpsest_portable'];
  // For this machine it is linked of the objects that the addon of the checkout is made of.
  const work = () => runNodeGyp({ folder, arch, compiler, modules, verbose });
  if (isOwn) locked(work);
  else work();
  const built = join(folder, 'build', 'Release', 'palimpsest_portable.node');
  const needs = glibcVersions(`${prefix}objdump`, built);
  if (byVersion(needs.at(-1), GLIBC_NEWEST) > 0) {
    throw new BuildFailure(`${target} needs glibc ${needs.at(-1)}, newer than ${GLIBC_NEWEST}: ${needs.join(', ')}`);
  }
  keepAddon(target, addon, built, says, { glibc: needs.at(-1) });
  writePackage(target);
}

/** Builds the addon for another operating system or C library. */
function buildElsewhere(target, { check, force, tools, verbose }) {
  const says = zigVersion();
  version('objdump', 'binutils');
  if (tools) return;
  const addon = addonOf(target, says, [...addonFiles(), ...zigFiles()]);
  if (addon.isFresh && !force) return writePackage(target);
  if (check) throw new BuildFailure('missing or stale');

  console.error(`building prebuilt addon (${target}, ${says})`);
  const folder = join(native, 'build', target);
  buildWithZig({ target, folder, verbose });
  const built = join(folder, 'palimpsest.node');
  keepAddon(target, addon, built, says, { libraries: checkNeeds(built, ZIG_TARGETS[target].os) });
  writePackage(target);
}

/** Builds the WebAssembly module by running build-wasm.mjs, which has its own compiler. */
function buildWasm({ check, force, tools, verbose }) {
  const args = [join(root, 'scripts', 'build-wasm.mjs')];
  if (check) args.push('--check');
  if (tools) args.push('--tools');
  if (force) args.push('--force');
  if (verbose) args.push('--verbose');
  const { status } = spawnSync(process.execPath, args, { stdio: 'inherit' });
  if (status !== 0) throw new BuildFailure('the line above says why');
  if (tools) return;
  const built = join(native, 'build', 'wasm', 'palimpsest.wasm');
  const file = join(prebuilds, 'wasm', 'palimpsest.wasm');
  const { compiler, sources } = JSON.parse(readFileSync(join(native, 'build', 'wasm', 'stamp.json'), 'utf8'));
  const sha = sha256(built);
  if (existsSync(file) && sha256(file) === sha && readManifest().wasm?.sha256 === sha) return;
  if (check) throw new BuildFailure('missing or stale');
  mkdirSync(join(prebuilds, 'wasm'), { recursive: true });
  copyFileSync(built, file);
  record('wasm', { file: file.slice(root.length + 1), sha256: sha, compiler, sources });
}

orFail('prebuild', () => {
  const words = process.argv.slice(2);
  const options = {
    check: words.includes('--check'),
    force: words.includes('--force'),
    tools: words.includes('--tools'),
    verbose: words.includes('--verbose'),
  };
  const asked = words.filter((word) => !word.startsWith('--'));
  const unknown = asked.find((word) => !TARGETS.includes(word));
  if (unknown !== undefined) throw new BuildFailure(`${unknown} is not one of ${TARGETS.join(', ')}`);
  const each = () => {
    mkdirSync(prebuilds, { recursive: true });
    const failures = [];
    for (const target of asked.length > 0 ? asked : TARGETS.filter((target) => !UNTRIED.includes(target))) {
      try {
        if (target === 'wasm') buildWasm(options);
        else if (target in ZIG_TARGETS) buildElsewhere(target, options);
        else buildAddon(target, options);
      } catch (error) {
        if (!(error instanceof BuildFailure)) throw error;
        failures.push(`${target}: ${error.message}`);
      }
    }
    if (failures.length > 0) throw new BuildFailure(failures.join('\n  '));
  };
  // What builds nothing need not wait for a build.
  if (options.check || options.tools) each();
  else locked(each, 'lock-prebuilds');
});
