/**
 * Builds the WebAssembly modules in native/build/wasm: palimpsest.wasm, which is the cache for machines without a
 * binary, and kernels_test.wasm, which holds single kernels for the tests. They are made from the sources of the addon,
 * with native/wasm/ in the place of its binding.
 *   node scripts/build-wasm.mjs              builds both modules
 *   … --force                                builds even when nothing has changed
 *   … --verbose                              shows the compiler's commands
 *   … --check                                builds nothing; exit code 1 when the modules are missing or stale
 *   … --twice                                builds again in another folder; exit code 1 when the two results differ
 *   … --yardsticks                           builds the cache alone, with the published methods to compare with
 *   (native/yardsticks/), in native/build/wasm-yardsticks: palimpsest-lab brings it
 * It does nothing when the sources, flags and compiler are those of the last build.
 *
 * It needs clang, lld and the WebAssembly libraries, from these packages of Debian (CLANG=clang++-16 chooses another
 * clang):
 *   apt-get install clang-19 lld-19 wasi-libc libc++-19-dev-wasm32 libc++abi-19-dev-wasm32 libclang-rt-19-dev-wasm32
 */
import { spawnSync } from 'node:child_process';
import { createHash } from 'node:crypto';
import {
  cpSync,
  existsSync,
  mkdirSync,
  mkdtempSync,
  readdirSync,
  readFileSync,
  renameSync,
  rmSync,
  writeFileSync,
} from 'node:fs';
import { tmpdir } from 'node:os';
import { join, relative } from 'node:path';
import { fileURLToPath } from 'node:url';
import {
  BuildFailure,
  buildFolder,
  cached,
  fingerprint,
  native,
  orFail,
  root,
  sourceFiles,
  versionOf,
} from './native-toolchain.mjs';
import { filesBelow, stageWithFormats, YARDSTICKS } from './staged-formats.mjs';

const PACKAGES = 'clang-19 lld-19 wasi-libc libc++-19-dev-wasm32 libc++abi-19-dev-wasm32 libclang-rt-19-dev-wasm32';

const COMPILE = [
  '--target=wasm32-wasi',
  '-std=gnu++20',
  '-O3',
  '-fvisibility=hidden',
  '-fno-rtti',
  '-fexceptions',
  '-ffp-contract=off',
  '-fno-math-errno',
  '-fno-trapping-math',
  '-Wall',
  '-Wextra',
  '-Wno-unused-function',
  // As in native/binding.gyp.
  '-Wframe-larger-than=32768',
  '-Werror=frame-larger-than',
];

const LINK = [
  '--target=wasm32-wasi',
  '-mexec-model=reactor',
  '-Wl,--strip-all',
  '-Wl,--gc-sections',
  // The stack lies below the data, so that an overflow traps.
  '-Wl,-z,stack-size=1048576',
  '-Wl,--stack-first',
  // native/wasm.ts creates the memory, so that it can choose a smaller one. INITIAL_PAGES in that file is the same
  // size.
  '-Wl,--import-memory',
  '-Wl,--initial-memory=4194304',
  '-Wl,--max-memory=4294967296',
  // native/wasm.ts restores the stack pointer when a call ends early.
  '-Wl,--export=__stack_pointer',
];

/** `compiler` is what `cached` answers. */
function run({ words: [program, ...before], env }, args, verbose) {
  if (verbose) console.error([program, ...before, ...args].join(' '));
  const { status, stderr } = spawnSync(program, [...before, ...args], {
    cwd: root,
    encoding: 'utf8',
    env: { ...process.env, ...env, SOURCE_DATE_EPOCH: '0' },
  });
  if (stderr !== '' && (status !== 0 || verbose)) process.stderr.write(stderr);
  if (status !== 0) throw new BuildFailure('the compiler failed; the lines above say where');
}

/** The sources as paths from the root: those of the checkout, or a copy of them that has the yardsticks. */
function sourcesOf(hasYardsticks) {
  if (!hasYardsticks) return 'native';
  const folder = stageWithFormats('wasm-sources');
  cpSync(join(native, 'wasm'), join(folder, 'wasm'), { recursive: true });
  return relative(root, folder);
}

/** Compiles and links the modules into `folder`. */
function compile(compiler, { folder, hasYardsticks, verbose }) {
  mkdirSync(folder, { recursive: true });
  const from = sourcesOf(hasYardsticks);
  const include = ['-Inative/wasm/include', `-I${from}/wasm`, `-I${from}/kernels`];
  const object = (source, name, extra = []) => {
    const file = join(folder, `${name}.o`);
    run(compiler, [...COMPILE, ...include, ...extra, '-c', `${from}/${source}`, '-o', file], verbose);
    return file;
  };
  const common = [
    object('kernels/hot.cc', 'hot', ['-msimd128', '-DPALIMPSEST_ISA=wasmsimd', '-DPALIMPSEST_COLD=wasmsimd']),
    object('kernels/cold.cc', 'cold', ['-msimd128', '-DPALIMPSEST_COLD=wasmsimd']),
    object('kernels/hot.cc', 'hot_scalar', ['-O1', '-DPALIMPSEST_ISA=scalar', '-DPALIMPSEST_COLD=scalar']),
    object('kernels/cold.cc', 'cold_scalar', ['-O1', '-DPALIMPSEST_COLD=scalar']),
    object('kernels/dispatch.cc', 'dispatch', ['-msimd128']),
    object('formats/rot/worth.cc', 'worth', ['-msimd128']),
    object('wasm/binding.cc', 'binding'),
  ];
  const sources = (folder, pattern) =>
    readdirSync(join(native, folder))
      .filter((name) => pattern.test(name))
      .sort();
  const simd = (source) => object(source, source.replaceAll('/', '_').slice(0, -3), ['-msimd128']);
  const modules = {
    palimpsest: [
      ...sources('.', /^addon.*\.cc$/).map(simd),
      ...sources('cache', /\.cc$/).map((name) => simd(`cache/${name}`)),
      ...sources('log', /\.cc$/).map((name) => simd(`log/${name}`)),
    ],
    ...(!hasYardsticks && existsSync(join(native, 'test_binding.cc'))
      ? {
          kernels_test: [...sources('.', /^test_binding.*\.cc$/).map(simd), simd('cache/rows.cc')],
        }
      : {}),
  };
  for (const [name, objects] of Object.entries(modules)) {
    run(compiler, [...LINK, ...objects, ...common, '-o', join(folder, `${name}.wasm`)], verbose);
  }
}

const sha256 = (file) => createHash('sha256').update(readFileSync(file)).digest('hex');

function build({ check, force, tools, verbose, twice, yardsticks: hasYardsticks }) {
  const clang = process.env.CLANG ?? 'clang++-19';
  const compiler = versionOf(clang);
  if (compiler === null) throw new BuildFailure(`${clang} cannot be run; apt-get install ${PACKAGES}`);
  if (tools) return;
  const files = [
    fileURLToPath(import.meta.url),
    ...sourceFiles(['.', 'cache', 'formats', 'kernels', 'log', 'wasm', 'wasm/include']),
    ...(hasYardsticks ? filesBelow(YARDSTICKS) : []),
  ];
  const out = join(buildFolder, hasYardsticks ? 'wasm-yardsticks' : 'wasm');
  const stampFile = join(out, 'stamp.json');
  const sources = fingerprint([compiler, ...COMPILE, ...LINK], files);
  const module = join(out, 'palimpsest.wasm');
  const known = existsSync(stampFile) ? JSON.parse(readFileSync(stampFile, 'utf8')) : {};
  if (force || known.sources !== sources || !existsSync(module)) {
    if (check) throw new BuildFailure('missing or stale; run npm run build:wasm');
    console.error(`building WebAssembly module${hasYardsticks ? ' with yardsticks' : ''} (${compiler})`);
    rmSync(stampFile, { force: true });
    compile(cached(clang), { folder: out, hasYardsticks, verbose });
    writeFileSync(`${stampFile}.new`, JSON.stringify({ sources, compiler, sha256: sha256(module) }));
    renameSync(`${stampFile}.new`, stampFile);
  }
  if (!twice) return;
  const other = mkdtempSync(join(tmpdir(), 'palimpsest-wasm-'));
  try {
    // By the compiler itself: a cache would answer with the first build.
    compile({ words: [clang], env: {} }, { folder: other, hasYardsticks, verbose });
    const [first, second] = [module, join(other, 'palimpsest.wasm')].map(sha256);
    if (first !== second) throw new BuildFailure(`two builds of the same sources differ: ${first}, ${second}`);
    console.log(`${first}  palimpsest.wasm, the same in both builds, ${compiler}`);
  } finally {
    rmSync(other, { recursive: true, force: true });
  }
}

orFail('WebAssembly build', () => {
  const flags = new Set(process.argv.slice(2));
  const has = (word) => flags.has(`--${word}`);
  build({
    check: has('check'),
    force: has('force'),
    tools: has('tools'),
    verbose: has('verbose'),
    twice: has('twice'),
    yardsticks: has('yardsticks'),
  });
});
