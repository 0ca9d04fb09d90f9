/**
 * Builds the native addon, native/build/Release/palimpsest.node, and kernels_test.node for the tests.
 *   node scripts/build-native.mjs            release
 *   node scripts/build-native.mjs --debug    address and undefined-behaviour sanitizers, native/build/Debug
 *   node scripts/build-native.mjs --thread   thread sanitizer, native/build/Thread
 *   node scripts/build-native.mjs --formats MODULE…   release, with formats of one's own, native/build/Formats
 *   … --force                                builds even when nothing has changed
 *   … --verbose                              shows the compiler's commands
 * It does nothing when the sources, flags and compiler are those of the last build; a stamp file holds their hash.
 * It needs Node, npm's packages, python3, make and g++, and downloads nothing.
 */
import { spawnSync } from 'node:child_process';
import { copyFileSync, existsSync, mkdirSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { basename, join, resolve } from 'node:path';
import {
  addonFiles,
  BuildFailure,
  buildFolder,
  fingerprint,
  locked,
  native,
  orFail,
  root,
  runNodeGyp,
  stage,
  version,
} from './native-toolchain.mjs';

/** Builds in folders of their own need not wait for others. */
const LOCKS = { Thread: 'lock-thread', Formats: 'lock-formats' };

/** gyp knows only two configurations, Release and Debug, so the build with the thread sanitizer has its own folder. */
function buildThread(compiler, verbose) {
  const folder = stage('thread');
  runNodeGyp({ folder, compiler, debug: true, verbose, defines: { sanitizer: 'thread' } });
  mkdirSync(join(buildFolder, 'Thread'), { recursive: true });
  for (const file of ['palimpsest.node', 'kernels_test.node', 'cache_test.node']) {
    copyFileSync(join(folder, 'build', 'Debug', file), join(buildFolder, 'Thread', file));
  }
}

/** Each module is the TypeScript file of a family of formats; its C++ file lies beside it. */
function buildFormats(modules, compiler, verbose) {
  const folder = stage('formats');
  for (const module of modules) copyFileSync(headerOf(module), join(folder, 'formats', basename(headerOf(module))));
  const generate = spawnSync(
    process.execPath,
    ['--import', 'tsx', join(root, 'scripts/generate-layout.ts'), '--into', folder, ...modules],
    { cwd: root, stdio: ['ignore', 'ignore', 'inherit'] },
  );
  if (generate.status !== 0) throw new BuildFailure('the headers of these formats cannot be written');
  runNodeGyp({ folder, compiler, verbose });
  mkdirSync(join(buildFolder, 'Formats'), { recursive: true });
  for (const file of ['palimpsest.node', 'kernels_test.node']) {
    copyFileSync(join(folder, 'build', 'Release', file), join(buildFolder, 'Formats', file));
  }
}

const headerOf = (module) => module.replace(/\.ts$/, '.h');

function build({ configuration, force, verbose, modules }) {
  const cxx = process.env.CXX ?? 'g++';
  const says = version(cxx, 'a C++20 compiler, e.g. apt-get install g++');
  const compiler = { cxx, says };
  const folder = join(buildFolder, configuration);
  const stamp = join(folder, 'stamp');
  const settings = [configuration, says, process.arch, process.env.CXXFLAGS ?? '', process.env.LDFLAGS ?? ''];
  const own = modules.flatMap((module) => [module, headerOf(module)]);
  for (const file of own) if (!existsSync(file)) throw new BuildFailure(`${file} is not there`);
  const wanted = fingerprint(settings, [...addonFiles(), ...own]);
  const isFresh = () =>
    existsSync(join(folder, 'palimpsest.node')) && existsSync(stamp) && readFileSync(stamp, 'utf8') === wanted;
  if (!force && isFresh()) return;

  locked(() => {
    if (!force && isFresh()) return; // another process has just built it
    rmSync(stamp, { force: true });
    console.error(`building native addon (${configuration.toLowerCase()}, ${says})`);
    if (configuration === 'Thread') buildThread(compiler, verbose);
    else if (configuration === 'Formats') buildFormats(modules, compiler, verbose);
    else runNodeGyp({ folder: native, compiler, debug: configuration === 'Debug', verbose });
    writeFileSync(stamp, wanted);
  }, LOCKS[configuration]);
}

orFail('native build', () => {
  const flags = new Set(process.argv.slice(2));
  const modules = process.argv
    .slice(2)
    .filter((word) => !word.startsWith('--'))
    .map((module) => resolve(module));
  const isOwn = flags.has('--formats');
  if (isOwn !== modules.length > 0) throw new BuildFailure('--formats takes the TypeScript files of formats');
  const configuration = isOwn
    ? 'Formats'
    : flags.has('--thread')
      ? 'Thread'
      : flags.has('--debug')
        ? 'Debug'
        : 'Release';
  build({ configuration, force: flags.has('--force'), verbose: flags.has('--verbose'), modules });
});
