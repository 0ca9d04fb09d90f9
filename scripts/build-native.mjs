/**
 * Builds the native addon, native/build/Release/palimpsest.node, with the scalar kernels and the best that this
 * processor runs.
 *   node scripts/build-native.mjs            release
 *   node scripts/build-native.mjs --debug    address and undefined-behaviour sanitizers, native/build/Debug
 *   node scripts/build-native.mjs --thread   thread sanitizer, native/build/Thread
 *   … --all                                  the kernels of every instruction set, also of those that this processor
 *   lacks
 *   … --isas avx2,avx512vnni                 these instead of the best
 *   … --tests                                also the modules for tests (kernels_test, cache_test), and bench_stream
 *   for benches
 *   … --yardsticks                           with the published methods to compare with (native/yardsticks/); a release
 *   is then in native/build/Yardsticks
 *   … --formats FOLDER…                      with those and formats of one's own, a folder for each family; a release
 *   is then in native/build/Formats
 *   … --force                                builds even when nothing has changed
 *   … --verbose                              shows the compiler's commands
 * It does nothing when the sources, flags and compiler are those of the last build, and that has all that is asked for;
 * a stamp file says so. It needs Node, npm's packages, python3, make and g++, and downloads nothing. ccache is used
 * where it is on the PATH.
 */
import { copyFileSync, existsSync, mkdirSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { join, resolve } from 'node:path';
import { parseArgs } from 'node:util';
import {
  addonFiles,
  allSets,
  BuildFailure,
  bestSets,
  buildFolder,
  fingerprint,
  locked,
  native,
  orFail,
  runNodeGyp,
  stage,
  version,
} from './native-toolchain.mjs';
import { filesBelow, moduleOf, stageWithFormats, YARDSTICKS } from './staged-formats.mjs';

/**
 * Where each build is made. gyp knows only two configurations, Release and Debug, so the others have folders of their
 * own, and need not wait.
 */
const KINDS = {
  Release: { debug: false },
  Debug: { debug: true },
  Thread: { debug: true, own: 'thread', defines: { sanitizer: 'thread' } },
  Yardsticks: { debug: false, own: 'yardsticks' },
  Formats: { debug: false, own: 'formats' },
};

const PRODUCT = ['palimpsest'];
const FOR_TESTS = ['kernels_test', 'cache_test', 'bench_stream'];

/** Compiles, and copies what was built elsewhere to where it is looked for. */
function compile({ kind, hasYardsticks, formats, isas, modules, verbose }, compiler) {
  const { debug, own, defines } = KINDS[kind];
  const name = own ?? (hasYardsticks ? `${kind.toLowerCase()}-formats` : undefined);
  const folder = name === undefined ? native : hasYardsticks ? stageWithFormats(name, formats) : stage(name);
  runNodeGyp({ folder, compiler, modules, isas, debug, verbose, defines });
  if (folder === native) return;
  const target = join(buildFolder, kind);
  mkdirSync(target, { recursive: true });
  for (const module of modules) {
    copyFileSync(join(folder, 'build', debug ? 'Debug' : 'Release', `${module}.node`), join(target, `${module}.node`));
  }
}

/** What the last build was made from and what it has, or nothing. */
function lastBuild(stamp) {
  try {
    return JSON.parse(readFileSync(stamp, 'utf8'));
  } catch {
    return { sources: null, isas: [], modules: [] };
  }
}

function build(wanted) {
  const { kind, hasYardsticks, formats, force } = wanted;
  const cxx = process.env.CXX ?? 'g++';
  const says = version(cxx, 'a C++20 compiler, e.g. apt-get install g++');
  const folder = join(buildFolder, kind);
  const stamp = join(folder, 'stamp');
  const settings = [kind, says, process.arch, process.env.CXXFLAGS ?? '', process.env.LDFLAGS ?? ''];
  for (const family of formats)
    if (!existsSync(moduleOf(family))) throw new BuildFailure(`${moduleOf(family)} is not there`);
  const own = [...(hasYardsticks ? [YARDSTICKS] : []), ...formats].flatMap(filesBelow);
  const sources = fingerprint(settings, [...addonFiles(), ...own]);
  const has = (last) =>
    last.sources === sources &&
    wanted.isas.every((isa) => last.isas.includes(isa)) &&
    wanted.modules.every((module) => last.modules.includes(module) && existsSync(join(folder, `${module}.node`)));
  if (!force && has(lastBuild(stamp))) return;

  locked(
    () => {
      const last = lastBuild(stamp);
      if (!force && has(last)) return; // another process has just built it
      // What the last build has of the same sources stays.
      const isStill = last.sources === sources;
      const all = (name) => [...new Set([...wanted[name], ...(isStill ? last[name] : [])])];
      const [isas, modules] = [all('isas'), all('modules')];
      rmSync(stamp, { force: true });
      console.error(`building native addon (${kind.toLowerCase()}: ${['scalar', ...isas].join(', ')}; ${says})`);
      compile({ ...wanted, isas, modules }, { cxx });
      writeFileSync(stamp, JSON.stringify({ sources, isas, modules }));
    },
    KINDS[kind].own === undefined ? 'lock' : `lock-${KINDS[kind].own}`,
  );
}

function kindOf({ thread, debug, formats, yardsticks }) {
  if (thread) return 'Thread';
  if (debug) return 'Debug';
  return formats ? 'Formats' : yardsticks ? 'Yardsticks' : 'Release';
}

/** The instruction sets that a list of names asks for. */
function setsOf(list) {
  const names = list.split(',').filter((name) => name !== '' && name !== 'scalar');
  const unknown = names.find((name) => !allSets(process.arch).includes(name));
  if (unknown !== undefined)
    throw new BuildFailure(`'${unknown}' is not one of scalar, ${allSets(process.arch).join(', ')}`);
  return names;
}

orFail('native build', () => {
  const { values, positionals } = parseArgs({
    allowPositionals: true,
    options: {
      ...Object.fromEntries(
        ['debug', 'thread', 'all', 'tests', 'yardsticks', 'formats', 'force', 'verbose'].map((name) => [
          name,
          { type: 'boolean' },
        ]),
      ),
      isas: { type: 'string' },
    },
  });
  const formats = positionals.map((folder) => resolve(folder));
  if ((values.formats ?? false) !== formats.length > 0)
    throw new BuildFailure('--formats takes the folders of formats');
  build({
    kind: kindOf(values),
    hasYardsticks: values.yardsticks || values.formats || false,
    formats,
    isas: values.all ? allSets(process.arch) : values.isas === undefined ? bestSets() : setsOf(values.isas),
    modules: values.tests ? [...PRODUCT, ...FOR_TESTS] : PRODUCT,
    force: values.force ?? false,
    verbose: values.verbose ?? false,
  });
});
