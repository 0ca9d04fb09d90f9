/**
 * Builds the native addon: native/build/Release/palimpsest.node (and kernels_test.node, for tests).
 *   node scripts/build-native.mjs            release
 *   node scripts/build-native.mjs --debug    address and undefined-behaviour sanitizers, native/build/Debug
 *   … --force                                even when nothing changed; --verbose shows the compiler's commands
 * Silent and instant when sources, flags and compiler are those of the last build (a stamp file keeps their hash).
 *
 * Needs Node, npm's packages, python3, make and g++; nothing is downloaded. node-gyp wants a folder with Node's headers;
 * the addon uses Node-API alone, so that folder is put together from the package `node-api-headers`. The same way on
 * every machine, whether or not Node came with its headers.
 */
import { spawnSync } from 'node:child_process';
import { createHash } from 'node:crypto';
import { cpSync, existsSync, mkdirSync, readdirSync, readFileSync, rmSync, statSync, writeFileSync } from 'node:fs';
import { createRequire } from 'node:module';
import { availableParallelism } from 'node:os';
import { dirname, join } from 'node:path';
import { fileURLToPath } from 'node:url';

const require = createRequire(import.meta.url);
const root = join(dirname(fileURLToPath(import.meta.url)), '..');
const native = join(root, 'native');
const out = join(native, 'build');

class BuildFailure extends Error {}

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

/** First line of `program --version`, or a failure that says what to install. */
function version(program, install) {
  const run = spawnSync(program, ['--version'], { encoding: 'utf8' });
  if (run.error !== undefined || run.status !== 0) {
    throw new BuildFailure(`${program} cannot be run; install ${install}`);
  }
  return `${run.stdout}${run.stderr}`.split('\n')[0];
}

/** Everything that decides the binary, as one hash. */
function fingerprint(configuration, compiler) {
  const hash = createHash('sha256');
  hash.update(
    JSON.stringify([configuration, compiler, process.arch, process.env.CXXFLAGS ?? '', process.env.LDFLAGS ?? '']),
  );
  const files = [fileURLToPath(import.meta.url), join(native, 'binding.gyp')];
  for (const folder of ['.', 'cache', 'kernels']) {
    const path = join(native, folder);
    if (!existsSync(path)) continue;
    for (const name of readdirSync(path).sort()) if (/\.(cc|h)$/.test(name)) files.push(join(path, name));
  }
  for (const file of files) hash.update(file.slice(root.length)).update('\0').update(readFileSync(file)).update('\0');
  for (const name of ['node-addon-api', 'node-api-headers']) {
    hash.update(readFileSync(join(packageFolder(name), 'package.json')));
  }
  return hash.digest('hex');
}

/** A Node header folder as node-gyp expects it: include/node with Node-API headers and the two files gyp includes. */
function headerFolder() {
  const folder = join(out, 'headers');
  const include = join(folder, 'include', 'node');
  rmSync(folder, { recursive: true, force: true });
  mkdirSync(include, { recursive: true });
  cpSync(join(packageFolder('node-api-headers'), 'include'), include, { recursive: true });
  const variables = { target_arch: process.arch, host_arch: process.arch, node_shared: false };
  writeFileSync(join(include, 'config.gypi'), JSON.stringify({ target_defaults: {}, variables }));
  const common = {
    variables: { 'configuring_node%': 0, 'library%': 'static_library', 'visibility%': 'hidden', 'clang%': 0 },
    target_defaults: { defines: ['_GLIBCXX_USE_CXX11_ABI=1', '_FILE_OFFSET_BITS=64'] },
  };
  writeFileSync(join(include, 'common.gypi'), JSON.stringify(common));
  return folder;
}

/** Runs `work` while no other build does. A lock whose process is gone is taken over. */
function locked(work) {
  mkdirSync(out, { recursive: true });
  const lock = join(out, 'lock');
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

function build({ debug, force, verbose }) {
  const configuration = debug ? 'Debug' : 'Release';
  const compilerProgram = process.env.CXX ?? 'g++';
  const compiler = version(compilerProgram, 'a C++20 compiler, e.g. apt-get install g++');
  const folder = join(out, configuration);
  const stamp = join(folder, 'stamp');
  const wanted = fingerprint(configuration, compiler);
  const isFresh = () =>
    existsSync(join(folder, 'palimpsest.node')) && existsSync(stamp) && readFileSync(stamp, 'utf8') === wanted;
  if (!force && isFresh()) return;

  locked(() => {
    if (!force && isFresh()) return; // another process has just built it
    version('make', 'make, e.g. apt-get install make');
    version('python3', 'python3, e.g. apt-get install python3');
    rmSync(stamp, { force: true });
    const nodeGyp = join(packageFolder('node-gyp'), 'bin', 'node-gyp.js');
    const args = [
      nodeGyp,
      'configure',
      'build',
      `--nodedir=${headerFolder()}`,
      `--jobs=${Math.min(4, availableParallelism())}`,
    ];
    args.push(debug ? '--debug' : '--release', verbose ? '--verbose' : '--loglevel=warn');
    console.error(`building native addon (${configuration.toLowerCase()}, ${compiler})`);
    const run = spawnSync(process.execPath, args, {
      cwd: native,
      encoding: 'utf8',
      stdio: verbose ? 'inherit' : 'pipe',
      env: { ...withoutNpmSettings(process.env), CXX: compilerProgram, PALIMPSEST_COMPILER: compiler },
    });
    if (run.status !== 0) {
      if (!verbose) process.stderr.write((run.stderr ?? '').replace(/^(gyp ERR!|make:).*\n/gm, ''));
      throw new BuildFailure(
        'the compiler refused; the lines above say where (g++ 12 or newer, make and python3 are needed)',
      );
    }
    writeFileSync(stamp, wanted);
  });
}

try {
  const flags = new Set(process.argv.slice(2));
  build({ debug: flags.has('--debug'), force: flags.has('--force'), verbose: flags.has('--verbose') });
} catch (error) {
  if (!(error instanceof BuildFailure)) throw error;
  console.error(`native build failed: ${error.message}`);
  process.exitCode = 1;
}
