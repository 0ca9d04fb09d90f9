/**
 * Compiles the addon for a system that has no compiler here, with zig: it brings clang, a linker, and the C libraries
 * and C++ runtimes of all of them, and comes from PyPI (CONTRIBUTING.md says how). node-gyp is not used, because gyp
 * asks the system it runs on how to link; sources and flags are those of native/binding.gyp all the same.
 */
import { spawnSync } from 'node:child_process';
import { existsSync, mkdirSync, readdirSync, readFileSync, renameSync, rmSync, writeFileSync } from 'node:fs';
import { createRequire } from 'node:module';
import { basename, dirname, join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { addonFiles, BuildFailure, fingerprint, native, root, version } from './native-toolchain.mjs';

const require = createRequire(import.meta.url);

/** The version that the flags below were tried with. */
const ZIG_VERSION = '0.17.1';
const INSTALL = `zig, e.g. python3 -m venv .cache/zig && .cache/zig/bin/pip install ziglang==${ZIG_VERSION}`;

/** What zig calls each system, how it links a module of Node's there, and Node's name of the processor. */
export const ZIG_TARGETS = {
  'linux-x64-musl': { arch: 'x64', triple: 'x86_64-linux-musl', os: 'linux' },
  'linux-arm64-musl': { arch: 'arm64', triple: 'aarch64-linux-musl', os: 'linux' },
  'darwin-x64': { arch: 'x64', triple: 'x86_64-macos.11.0', os: 'darwin' },
  'darwin-arm64': { arch: 'arm64', triple: 'aarch64-macos.11.0', os: 'darwin' },
  'win32-x64': { arch: 'x64', triple: 'x86_64-windows-gnu', os: 'win32' },
};

/** The words that run zig: $ZIG, the one in .cache/zig, or one on the PATH. */
function zigWords() {
  const own = join(root, '.cache', 'zig', 'bin', 'python');
  const tries = process.env.ZIG ? [[process.env.ZIG]] : [[own, '-m', 'ziglang'], ['zig']];
  const found = tries.find(([program, ...args]) => spawnSync(program, [...args, 'version']).status === 0);
  if (found === undefined) throw new BuildFailure(`zig cannot be run; install ${INSTALL}`);
  return found;
}

/** What a binary depends on beside the addon's own files. */
export const zigFiles = () => ['zig.mjs', 'needs.mjs'].map((name) => join(root, 'scripts', name));

/** → what `zig version` says */
export function zigVersion() {
  const [program, ...args] = zigWords();
  return `zig ${spawnSync(program, [...args, 'version'], { encoding: 'utf8' }).stdout.trim()}`;
}

function zig(args, verbose) {
  const [program, ...before] = zigWords();
  if (verbose) console.error(['zig', ...args].join(' '));
  const { status, stderr, error } = spawnSync(program, [...before, ...args], { cwd: root, encoding: 'utf8' });
  if (stderr && (status !== 0 || verbose)) process.stderr.write(stderr);
  if (status !== 0) throw new BuildFailure(`zig failed; the lines above say where ${error ?? ''}`);
}

/** binding.gyp is a literal of Python with comments. */
function gyp() {
  version('python3', 'python3, e.g. apt-get install python3');
  const program = 'import ast, json, sys; print(json.dumps(ast.literal_eval(open(sys.argv[1]).read())))';
  const run = spawnSync('python3', ['-c', program, join(native, 'binding.gyp')], { encoding: 'utf8' });
  if (run.status !== 0) throw new BuildFailure(`native/binding.gyp cannot be read: ${run.stderr}`);
  return JSON.parse(run.stdout);
}

/** gcc says in one word that a warning with a number is an error, clang in two. */
const wordsOfClang = (flag) => {
  const [, name, number] = /^-Werror=(.+)=(\d+)$/.exec(flag) ?? [];
  return name === undefined ? [flag] : [`-W${name}=${number}`, `-Werror=${name}`];
};

/**
 * The sources of kernels with the flags of each instruction set of a processor. zig has words of its own for processors
 * of ARM.
 */
function kernelSets(settings, arch) {
  const [, only] = settings.conditions.find(([condition]) => condition === `target_arch=="${arch}"`);
  const all = [...only.targets, ...settings.targets.filter(({ target_name }) => target_name === 'kernels_scalar')];
  return all.flatMap(({ target_name, sources, defines, cflags = [] }) =>
    sources.map((source) => ({
      source,
      name: `${target_name}_${basename(source, '.cc')}`,
      flags: [
        ...defines.map((define) => `-D${define}`),
        ...cflags.map((flag) => flag.replace(/^-march=armv8\.2-a\+/, '-mcpu=generic+')),
      ],
    })),
  );
}

const listed = (folder, pattern) =>
  readdirSync(join(native, folder))
    .filter((name) => pattern.test(name))
    .sort()
    .map((name) => join(folder, name));

/** Windows binds names to the program that has them, so the linker is told that node.exe has those of Node-API. */
function nodeLibrary(folder, verbose) {
  const definitions = join(dirname(require.resolve('node-api-headers/package.json')), 'def', 'node_api.def');
  const library = join(folder, 'node.lib');
  zig(['dlltool', '-m', 'i386:x86-64', '-D', 'node.exe', '-d', definitions, '-l', library], verbose);
  return library;
}

function linkFlags(os, folder, verbose) {
  if (os === 'darwin') return ['-Wl,-undefined,dynamic_lookup', '-Wl,-dead_strip', '-s'];
  if (os === 'win32') return [nodeLibrary(folder, verbose), '-s'];
  return ['-dynamic', `-Wl,--version-script=${join(native, 'portable', 'exports.map')}`, '-Wl,--gc-sections', '-s'];
}

/** What a module is made of beside the kernels. */
const MODULES = {
  palimpsest: () => [...listed('.', /^addon.*\.cc$/), ...listed('cache', /\.cc$/), ...listed('log', /\.cc$/)],
  kernels_test: (settings) => [
    ...settings.targets.find(({ target_name }) => target_name === 'kernels_test').sources,
    ...['start_thread', 'threads', 'rows'].map((name) => `cache/${name}.cc`),
  ],
};

/**
 * Removes what was compiled from other sources or by another zig: what is left can be linked, so a build that was
 * broken off goes on.
 */
function keepFresh(folder, target) {
  mkdirSync(folder, { recursive: true });
  const stamp = join(folder, 'stamp');
  const sources = fingerprint([target, zigVersion()], [...addonFiles(), fileURLToPath(import.meta.url)]);
  if (existsSync(stamp) && readFileSync(stamp, 'utf8') === sources) return;
  for (const name of readdirSync(folder).filter((name) => name.endsWith('.o'))) rmSync(join(folder, name));
  writeFileSync(stamp, sources);
}

/** Compiles and links modules for a target into `folder`, each as NAME.node. */
export function buildWithZig({ target, folder, modules = ['palimpsest'], verbose = false }) {
  const { arch, triple, os } = ZIG_TARGETS[target];
  const settings = gyp();
  const shared = settings.target_defaults;
  keepFresh(folder, target);
  const includes = ['node-addon-api', 'node-api-headers/include'].map((path) => `-Inode_modules/${path}`);
  const compile = [
    ...[
      'c++',
      '-target',
      triple,
      ...shared.cflags,
      ...shared.configurations.Release.cflags.flatMap(wordsOfClang),
      ...shared.cflags_cc,
    ],
    ...shared.defines.map((define) => `-D${define}`),
    ...['-Inative/kernels', ...includes],
  ].filter((flag) => os !== 'win32' || flag !== '-fPIC');
  const object = (source, name = source.replaceAll('/', '_'), flags = []) => {
    const file = join(folder, `${name}.o`);
    if (existsSync(file)) return file;
    zig([...compile, ...flags, '-c', `native/${source}`, '-o', `${file}.part`], verbose);
    renameSync(`${file}.part`, file);
    return file;
  };
  // The files that take seconds first: what is wrong shows soon.
  const parts = modules.map((name) => [name, MODULES[name](settings).map((file) => object(file))]);
  const kernels = [
    ...settings.targets.find(({ target_name }) => target_name === 'kernels_common').sources.map((file) => object(file)),
    ...kernelSets(settings, arch).map(({ source, name, flags }) => object(source, name, flags)),
  ];
  const link = ['c++', '-target', triple, '-shared'];
  const how = linkFlags(os, folder, verbose);
  for (const [name, objects] of parts) {
    zig([...link, ...objects, ...kernels, ...how, '-o', join(folder, `${name}.node`)], verbose);
  }
}
