/**
 * What every build of the native addon needs, whichever compiler and machine it is for: node-gyp with Node's headers, and
 * the list of files that decide the binary. Used by build-native.mjs (this machine), prebuild.mjs (machines without a
 * compiler) and build-wasm.mjs.
 *
 * node-gyp wants a folder with Node's headers; the addon uses Node-API alone, so that folder is put together from the
 * package `node-api-headers`. The same way on every machine, whether or not Node came with its headers.
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
/** Ignored by git. */
export const buildFolder = join(native, 'build');

/** A build that cannot be: told in words, without a stack. */
export class BuildFailure extends Error {}

/** node-gyp takes npm_config_* for its own options and lets them win over its arguments: a user's nodedir would replace our headers. */
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

/** First line of `program --version`, or null. */
export function versionOf(program) {
  const run = spawnSync(program, ['--version'], { encoding: 'utf8' });
  return run.error !== undefined || run.status !== 0 ? null : `${run.stdout}${run.stderr}`.split('\n')[0];
}

/** The same, or a failure that says what to install. */
export function version(program, install) {
  const found = versionOf(program);
  if (found === null) throw new BuildFailure(`${program} cannot be run; install ${install}`);
  return found;
}

const FOLDERS = ['.', 'cache', 'formats', 'kernels', 'portable'];

/** Sources, headers and linker files below native/ that a build reads. */
export function sourceFiles(folders = FOLDERS) {
  const files = [];
  for (const folder of folders) {
    const path = join(native, folder);
    if (!existsSync(path)) continue;
    for (const name of readdirSync(path).sort()) if (/\.(cc|h|map|flags)$/.test(name)) files.push(join(path, name));
  }
  return files;
}

/** Everything that decides a binary, as one hash: files by content, `settings` as they are. */
export function fingerprint(settings, files) {
  const hash = createHash('sha256');
  hash.update(JSON.stringify(settings));
  for (const file of files) hash.update(file.slice(root.length)).update('\0').update(readFileSync(file)).update('\0');
  for (const name of ['node-addon-api', 'node-api-headers']) {
    hash.update(readFileSync(join(packageFolder(name), 'package.json')));
  }
  return hash.digest('hex');
}

/** The files of an addon build by node-gyp. */
export const addonFiles = () => [fileURLToPath(import.meta.url), join(native, 'binding.gyp'), ...sourceFiles()];

/** A Node header folder as node-gyp expects it: include/node with Node-API headers and the two files gyp includes. */
function headerFolder(parent, arch) {
  const folder = join(parent, 'headers');
  const include = join(folder, 'include', 'node');
  rmSync(folder, { recursive: true, force: true });
  mkdirSync(include, { recursive: true });
  cpSync(join(packageFolder('node-api-headers'), 'include'), include, { recursive: true });
  const variables = { target_arch: arch, host_arch: process.arch, node_shared: false };
  writeFileSync(join(include, 'config.gypi'), JSON.stringify({ target_defaults: {}, variables }));
  const common = {
    variables: { 'configuring_node%': 0, 'library%': 'static_library', 'visibility%': 'hidden', 'clang%': 0 },
    target_defaults: { defines: ['_GLIBCXX_USE_CXX11_ABI=1', '_FILE_OFFSET_BITS=64'] },
  };
  writeFileSync(join(include, 'common.gypi'), JSON.stringify(common));
  return folder;
}

/** Runs `work` while no other build does. A lock whose process is gone is taken over. */
export function locked(work) {
  mkdirSync(buildFolder, { recursive: true });
  const lock = join(buildFolder, 'lock');
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
    if (pid === 0) return Date.now() - statSync(lock).mtimeMs < 2000; // being written
    process.kill(pid, 0);
    return true;
  } catch (error) {
    return error.code === 'EPERM';
  }
}

/**
 * A copy of the addon's sources in native/build/NAME, because node-gyp builds only in the folder of its binding.gyp.
 * Files that did not change keep their time, so that make compiles only what did. → the folder
 */
export function stage(name) {
  const folder = join(buildFolder, name);
  const wanted = new Set();
  for (const file of [join(native, 'binding.gyp'), ...sourceFiles()]) {
    const copy = join(folder, file.slice(native.length + 1));
    wanted.add(copy);
    mkdirSync(dirname(copy), { recursive: true });
    if (!existsSync(copy) || !readFileSync(copy).equals(readFileSync(file))) copyFileSync(file, copy);
  }
  for (const part of FOLDERS) {
    for (const entry of readdirSync(join(folder, part), { withFileTypes: true })) {
      const path = join(folder, part, entry.name);
      if (entry.isFile() && !wanted.has(path)) rmSync(path);
    }
  }
  return folder;
}

/**
 * Configures and builds the addon in `folder`. compiler: { cxx, cc, ar, says }; arch as Node names it; defines: gyp
 * variables. Throws BuildFailure when the compiler refuses.
 */
export function runNodeGyp({ folder, arch = process.arch, compiler, debug = false, verbose = false, defines = {} }) {
  version('make', 'make, e.g. apt-get install make');
  version('python3', 'python3, e.g. apt-get install python3');
  const nodeGyp = join(packageFolder('node-gyp'), 'bin', 'node-gyp.js');
  const common = [
    `--nodedir=${headerFolder(join(folder, folder === native ? 'build' : '.'), arch)}`,
    `--arch=${arch}`,
    debug ? '--debug' : '--release',
    verbose ? '--verbose' : '--loglevel=warn',
  ];
  const commands = [
    ['configure', ...common, '--', ...Object.entries(defines).map(([name, value]) => `-D${name}=${value}`)],
    ['build', ...common, `--jobs=${Math.min(4, availableParallelism())}`],
  ];
  for (const args of commands) {
    const run = spawnSync(process.execPath, [nodeGyp, ...args], {
      cwd: folder,
      encoding: 'utf8',
      stdio: verbose ? 'inherit' : 'pipe',
      env: {
        ...withoutNpmSettings(process.env),
        CXX: compiler.cxx,
        ...(compiler.cc === undefined ? {} : { CC: compiler.cc }),
        ...(compiler.ar === undefined ? {} : { AR: compiler.ar }),
        PALIMPSEST_COMPILER: compiler.says,
      },
    });
    if (run.status === 0) continue;
    if (!verbose) process.stderr.write((run.stderr ?? '').replace(/^(gyp ERR!|make:).*\n/gm, ''));
    throw new BuildFailure(
      'the compiler refused; the lines above say where (g++ 12 or newer, make and python3 are needed)',
    );
  }
}

/** Runs a script's main; a BuildFailure is one line on stderr and exit code 1. */
export function orFail(what, work) {
  try {
    work();
  } catch (error) {
    if (!(error instanceof BuildFailure)) throw error;
    console.error(`${what} failed: ${error.message}`);
    process.exitCode = 1;
  }
}
