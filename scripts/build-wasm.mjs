/**
 * Builds the WebAssembly modules: native/build/wasm/palimpsest.wasm (the cache, for machines without a binary) and
 * kernels_test.wasm (single kernels, for tests). The same sources as the addon; native/wasm/ holds what stands between.
 *   node scripts/build-wasm.mjs              … --force, --verbose
 *   node scripts/build-wasm.mjs --check      builds nothing; exit code 1 when the modules are missing or stale
 *   node scripts/build-wasm.mjs --twice      builds a second time elsewhere and compares: the build must be reproducible
 * Silent and instant when sources, flags and compiler are those of the last build.
 *
 * Needs clang, lld and the WebAssembly libraries, Debian's packages (another version: CLANG=clang++-16):
 *   apt-get install clang-19 lld-19 wasi-libc libc++-19-dev-wasm32 libc++abi-19-dev-wasm32 libclang-rt-19-dev-wasm32
 */
import { spawnSync } from 'node:child_process';
import { createHash } from 'node:crypto';
import {
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
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';
import {
  BuildFailure,
  buildFolder,
  fingerprint,
  native,
  orFail,
  root,
  sourceFiles,
  versionOf,
} from './native-toolchain.mjs';

const PACKAGES = 'clang-19 lld-19 wasi-libc libc++-19-dev-wasm32 libc++abi-19-dev-wasm32 libclang-rt-19-dev-wasm32';
const out = join(buildFolder, 'wasm');
const stampFile = join(out, 'stamp.json');

/** Four lanes leave room for one copy of the kernels and for scalar code to compare with. */
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
];

const LINK = [
  '--target=wasm32-wasi',
  '-mexec-model=reactor',
  '-Wl,--strip-all',
  '-Wl,--gc-sections',
  // Below the data, so that an overflow traps. The kernels keep whole tiles there.
  '-Wl,-z,stack-size=1048576',
  '-Wl,--stack-first',
  // native/wasm.ts makes the memory, and may want a smaller one. INITIAL_PAGES there is this number.
  '-Wl,--import-memory',
  '-Wl,--initial-memory=4194304',
  '-Wl,--max-memory=4294967296',
  // What native/wasm.ts sets back when a call ends early.
  '-Wl,--export=__stack_pointer',
];

function run(program, args, verbose) {
  if (verbose) console.error([program, ...args].join(' '));
  const { status, stderr } = spawnSync(program, args, {
    cwd: root,
    encoding: 'utf8',
    env: { ...process.env, SOURCE_DATE_EPOCH: '0' },
  });
  if (stderr !== '' && (status !== 0 || verbose)) process.stderr.write(stderr);
  if (status !== 0) throw new BuildFailure('the compiler refused; the lines above say where');
}

/** Compiles and links both modules into `folder`. */
function compile(clang, folder, verbose) {
  mkdirSync(folder, { recursive: true });
  const include = ['-Inative/wasm/include', '-Inative/wasm', '-Inative/kernels'];
  const object = (source, name, extra = []) => {
    const file = join(folder, `${name}.o`);
    run(clang, [...COMPILE, ...include, ...extra, '-c', `native/${source}`, '-o', file], verbose);
    return file;
  };
  const common = [
    object('kernels/isa.cc', 'wasmsimd', ['-msimd128', '-DPALIMPSEST_ISA=wasmsimd']),
    object('kernels/isa.cc', 'scalar', ['-DPALIMPSEST_ISA=scalar']),
    object('kernels/dispatch.cc', 'dispatch', ['-msimd128']),
    object('kernels/rot.cc', 'rot', ['-msimd128']),
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
    ],
    ...(existsSync(join(native, 'test_binding.cc'))
      ? { kernels_test: [...sources('.', /^test_binding.*\.cc$/).map(simd), simd('cache/rows.cc')] }
      : {}),
  };
  for (const [name, objects] of Object.entries(modules)) {
    run(clang, [...LINK, ...objects, ...common, '-o', join(folder, `${name}.wasm`)], verbose);
  }
}

const sha256 = (file) => createHash('sha256').update(readFileSync(file)).digest('hex');

function build({ check, force, tools, verbose, twice }) {
  const clang = process.env.CLANG ?? 'clang++-19';
  const compiler = versionOf(clang);
  if (compiler === null) throw new BuildFailure(`${clang} cannot be run; apt-get install ${PACKAGES}`);
  if (tools) return;
  const files = [
    fileURLToPath(import.meta.url),
    ...sourceFiles(['.', 'cache', 'formats', 'kernels', 'wasm', 'wasm/include']),
  ];
  const sources = fingerprint([compiler, ...COMPILE, ...LINK], files);
  const module = join(out, 'palimpsest.wasm');
  const known = existsSync(stampFile) ? JSON.parse(readFileSync(stampFile, 'utf8')) : {};
  if (force || known.sources !== sources || !existsSync(module)) {
    if (check) throw new BuildFailure('missing or stale; run npm run build:wasm');
    console.error(`building WebAssembly module (${compiler})`);
    rmSync(stampFile, { force: true });
    compile(clang, out, verbose);
    writeFileSync(`${stampFile}.new`, JSON.stringify({ sources, compiler, sha256: sha256(module) }));
    renameSync(`${stampFile}.new`, stampFile);
  }
  if (!twice) return;
  const other = mkdtempSync(join(tmpdir(), 'palimpsest-wasm-'));
  try {
    compile(clang, other, verbose);
    const [first, second] = [module, join(other, 'palimpsest.wasm')].map(sha256);
    if (first !== second) throw new BuildFailure(`two builds of the same sources differ: ${first}, ${second}`);
    console.log(`${first}  palimpsest.wasm, twice the same, ${compiler}`);
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
  });
});
