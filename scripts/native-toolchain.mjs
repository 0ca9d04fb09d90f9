/**
 * What every build of the native addon needs, for any machine and compiler: a way to run node-gyp with Node's headers,
 * and the list of files that a binary is made from. build-native.mjs uses it to build for this machine, and
 * prebuild.mjs and build-wasm.mjs use it to build for machines without a compiler.
 *
 * node-gyp needs a folder with Node's headers. The addon uses only Node-API, so that folder is made from the package
 * `node-api-headers`, on every machine alike, whether or not Node was installed with its headers.
 */
import { spawnSync } from 'node:child_process';
import { createHash } from 'node:crypto';
import {
  copyFileSync,
  cpSync,
  existsSync,
  mkdirSync,
  readdirSync,
  readFileSync,
  rmSync,
  statSync,
  writeFileSync,
} from 'node:fs';
import { createRequire } from 'node:module';
import { availableParallelism } from 'node:os';
import { dirname, join } from 'node:path';
import { fileURLToPath } from 'node:url';

const require = createRequire(import.meta.url);
export const root = join(dirname(fileURLToPath(import.meta.url)), '..');
export const native = join(root, 'native');
export const buildFolder = join(native, 'build');

/** A reason why a build is not possible. It is reported by its message alone, without a stack trace. */
export class BuildFailure extends Error {}

/**
 * node-gyp reads npm_config_* as options and prefers them to its arguments, so a user's nodedir would replace our
 * headers.
 */
function withoutNpmSettings(env) {
  return Object.fromEntries(Object.entries(env).filter(([name]) => !name.toLowerCase().startsWith('npm_config_')));
}

function packageFolder(name) {
  try {
    return dirname(require.resolve(`${name}/package.json`));
  } catch {
    throw new BuildFailure(`the package ${name} is missing; run npm ci`);
  }
}

/** The first line that `program --version` prints, or null if the program cannot be run. */
export function versionOf(program) {
  const run = spawnSync(program, ['--version'], { encoding: 'utf8' });
  return run.error !== undefined || run.status !== 0 ? null : `${run.stdout}${run.stderr}`.split('\n')[0];
}

/** The same, except that it throws an error that says what to install if the program cannot be run. */
export function version(program, install) {
  const found = versionOf(program);
  if (found === null) throw new BuildFailure(`${program} cannot be run; install ${install}`);
  return found;
}

const FOLDERS = ['.', 'cache', 'formats', 'kernels', 'log', 'portable'];

/**
 * The files of a folder below `native`, and of its own folders: each family of formats is one. Those of `native` itself
 * are not looked for in its folders, where builds are.
 */
function filesIn(folder, native) {
  const path = join(native, folder);
  if (!existsSync(path)) return [];
  return readdirSync(path, { recursive: folder !== '.', withFileTypes: true })
    .filter((entry) => entry.isFile())
    .map((entry) => join(entry.parentPath, entry.name))
    .sort();
}

/** The sources, headers and linker files below native/ that a build reads. */
export const sourceFiles = (folders = FOLDERS) =>
  folders.flatMap((folder) => filesIn(folder, native)).filter((file) => /\.(cc|h|map|flags)$/.test(file));

/** One hash of everything that a binary depends on: the settings and the contents of the files. */
export function fingerprint(settings, files) {
  const hash = createHash('sha256');
  hash.update(JSON.stringify(settings));
  for (const file of files) hash.update(file.slice(root.length)).update('\0').update(readFileSync(file)).update('\0');
  for (const name of ['node-addon-api', 'node-api-headers']) {
    hash.update(readFileSync(join(packageFolder(name), 'package.json')));
  }
  return hash.digest('hex');
}

/** The files that an addon is built from, including this one. */
export const addonFiles = () => [fileURLToPath(import.meta.url), join(native, 'binding.gyp'), ...sourceFiles()];

/**
 * Makes a header folder as node-gyp expects it: include/node with the Node-API headers and the two files that gyp
 * includes.
 */
function headerFolder(parent, arch) {
  const folder = join(parent, 'headers');
  const include = join(folder, 'include', 'node');
  rmSync(folder, { recursive: true, force: true });
  mkdirSync(include, { recursive: true });
  // With their times, or make would compile again whatever includes them.
  cpSync(join(packageFolder('node-api-headers'), 'include'), include, { recursive: true, preserveTimestamps: true });
  const variables = { target_arch: arch, host_arch: process.arch, node_shared: false };
  writeFileSync(join(include, 'config.gypi'), JSON.stringify({ target_defaults: {}, variables }));
  const common = {
    variables: { 'configuring_node%': 0, 'library%': 'static_library', 'visibility%': 'hidden', 'clang%': 0 },
    target_defaults: { defines: ['_GLIBCXX_USE_CXX11_ABI=1', '_FILE_OFFSET_BITS=64'] },
  };
  writeFileSync(join(include, 'common.gypi'), JSON.stringify(common));
  return folder;
}

/**
 * Runs `work` while no other build of this name runs. If the process that holds the lock is gone, the lock is taken
 * over.
 */
export function locked(work, name = 'lock') {
  mkdirSync(buildFolder, { recursive: true });
  const lock = join(buildFolder, name);
  for (const started = Date.now(); ; ) {
    try {
      writeFileSync(lock, String(process.pid), { flag: 'wx' });
      break;
    } catch (error) {
      if (error.code !== 'EEXIST') throw error;
      if (!holderLives(lock)) rmSync(lock, { force: true });
      else if (Date.now() - started > 600_000) throw new BuildFailure(`another build holds ${lock}`);
      else Atomics.wait(new Int32Array(new SharedArrayBuffer(4)), 0, 0, 200);
    }
  }
  try {
    return work();
  } finally {
    rmSync(lock, { force: true });
  }
}

function holderLives(lock) {
  try {
    const pid = Number(readFileSync(lock, 'utf8'));
    if (pid === 0) return Date.now() - statSync(lock).mtimeMs < 2000; // the file is still empty: it is being written
    process.kill(pid, 0);
    return true;
  } catch (error) {
    return error.code === 'EPERM';
  }
}

/**
 * Copies the addon's sources, and `more` from each file to its path there, to native/build/NAME and returns that
 * folder, because node-gyp builds only in the folder of its binding.gyp. Files that have not changed keep their time,
 * so that make compiles only those that have.
 */
export function stage(name, more = []) {
  const folder = join(buildFolder, name);
  const own = [join(native, 'binding.gyp'), ...sourceFiles()].map((file) => [file, file.slice(native.length + 1)]);
  const wanted = new Set();
  for (const [file, path] of [...own, ...more]) {
    const copy = join(folder, path);
    wanted.add(copy);
    mkdirSync(dirname(copy), { recursive: true });
    if (!existsSync(copy) || !readFileSync(copy).equals(readFileSync(file))) copyFileSync(file, copy);
  }
  for (const file of FOLDERS.flatMap((part) => filesIn(part, folder))) if (!wanted.has(file)) rmSync(file);
  return folder;
}

/**
 * The instruction sets of an architecture beside the scalar one, best first, each with what Linux lists as flags of a
 * processor that has it (/proc/cpuinfo). native/kernels/dispatch.cc asks the processor itself.
 */
const SETS = {
  x64: {
    avx512vnni: ['avx512f', 'avx512bw', 'avx512dq', 'avx512vl', 'avx512_vnni', 'avx2', 'fma', 'f16c'],
    avx2vnni: ['avx_vnni', 'avx2', 'fma', 'f16c'],
    avx2: ['avx2', 'fma', 'f16c'],
  },
  arm64: { neoni8mm: ['asimddp', 'i8mm'], neondot: ['asimddp'], neon: [] },
};

/** Every instruction set of an architecture beside the scalar one, best first. */
export const allSets = (arch) => Object.keys(SETS[arch] ?? {});

/**
 * The best of them that this machine runs, alone or, where it runs none, nothing; all where it does not say what it
 * has.
 */
export function bestSets() {
  const all = allSets(process.arch);
  let listed;
  try {
    listed = /^(?:flags|Features)\s*:(.*)$/m.exec(readFileSync('/proc/cpuinfo', 'utf8'));
  } catch {
    return all;
  }
  if (!listed) return all;
  const has = new Set(listed[1].trim().split(/\s+/));
  return all.filter((set) => SETS[process.arch][set].every((flag) => has.has(flag))).slice(0, 1);
}

/**
 * What runs a compiler: ccache before it, where that is on the PATH. A compilation is found again in another folder,
 * since paths are kept relative to the checkout. → the words of the command, and its environment
 */
export function cached(compiler) {
  if (versionOf('ccache') === null) return { words: [compiler], env: {} };
  return { words: ['ccache', compiler], env: { CCACHE_BASEDIR: root, CCACHE_NOHASHDIR: '1' } };
}

/**
 * Configures and builds some modules of the addon (targets of native/binding.gyp) in `folder`. `compiler` is { cxx, cc,
 * ar }, `arch` is Node's name of the architecture, `isas` are the instruction sets to build beside the scalar one, and
 * `defines` are other variables for gyp. Throws BuildFailure when the compiler fails.
 */
export function runNodeGyp({
  folder,
  modules,
  arch = process.arch,
  isas = allSets(arch),
  compiler,
  debug = false,
  verbose = false,
  defines = {},
}) {
  version('make', 'make, e.g. apt-get install make');
  version('python3', 'python3, e.g. apt-get install python3');
  const nodeGyp = join(packageFolder('node-gyp'), 'bin', 'node-gyp.js');
  const common = [
    `--nodedir=${headerFolder(join(folder, folder === native ? 'build' : '.'), arch)}`,
    `--arch=${arch}`,
    debug ? '--debug' : '--release',
    verbose ? '--verbose' : '--loglevel=warn',
  ];
  const variables = Object.entries({ isas: isas.join(','), ...defines });
  const cxx = cached(compiler.cxx);
  const commands = [
    ['configure', ...common, '--', ...variables.map(([name, value]) => `-D${name}=${value}`)],
    ['build', ...common, `--jobs=${Math.min(4, availableParallelism())}`, ...modules],
  ];
  for (const args of commands) {
    const run = spawnSync(process.execPath, [nodeGyp, ...args], {
      cwd: folder,
      encoding: 'utf8',
      stdio: verbose ? 'inherit' : 'pipe',
      env: {
        ...withoutNpmSettings(process.env),
        ...cxx.env,
        CXX: cxx.words.join(' '),
        ...(compiler.cc === undefined ? {} : { CC: compiler.cc }),
        ...(compiler.ar === undefined ? {} : { AR: compiler.ar }),
      },
    });
    if (run.status === 0) continue;
    if (!verbose) process.stderr.write((run.stderr ?? '').replace(/^(gyp ERR!|make:).*\n/gm, ''));
    throw new BuildFailure(
      'the compiler failed; the lines above say where (g++ 12 or newer, make and python3 are needed)',
    );
  }
}

/** Runs the main function of a script. A BuildFailure becomes one line on stderr and exit code 1. */
export function orFail(what, work) {
  try {
    work();
  } catch (error) {
    if (!(error instanceof BuildFailure)) throw error;
    console.error(`${what} failed: ${error.message}`);
    process.exitCode = 1;
  }
}
