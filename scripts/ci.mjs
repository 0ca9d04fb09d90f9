/**
 * What CI runs: the tests of a merge (`npm test` with PALIMPSEST_TEST_TIER=merge), after an attempt to have everything
 * at hand that some of them need and a fresh machine lacks. What cannot be had is said in a line, and its tests are
 * skipped by name. Two lanes run beside each other, one that mostly waits for downloads and one that compiles. What
 * each stage cost is told at the end. Last line: N passed, N failed, N skipped.
 */
import { spawn, spawnSync } from 'node:child_process';
import { existsSync, mkdirSync, rmSync, writeFileSync } from 'node:fs';
import { at, onPath, root } from './processes.mjs';

const STAGES = at('.cache', 'stages.jsonl');
const isDebian = process.getuid?.() === 0 && spawnSync('apt-get', ['--version']).status === 0;
const has = (program) => onPath([program]);

/** Runs a program as a stage. → whether it ended well; if it did not, `lack` is printed. */
function stage(title, words, lack, env = {}) {
  return new Promise((resolve) => {
    const child = spawn(process.execPath, ['scripts/cost.mjs', STAGES, title, '--', ...words], {
      cwd: root,
      env: { ...process.env, ...env },
      stdio: ['ignore', 'inherit', 'inherit'],
    });
    child.on('close', (code) => {
      if (code !== 0) console.log(lack);
      resolve(code === 0);
    });
  });
}

const node = (title, args, lack) => stage(title, [process.execPath, ...args], lack);

/** Debian's packages for programs of which one is missing. */
async function debian(title, programs, packages, lack) {
  if (programs.every(has)) return;
  if (!isDebian) return console.log(lack);
  const quiet = `apt-get install -y --no-install-recommends ${packages} >/dev/null 2>&1`;
  await stage(title, ['bash', '-c', quiet], lack, { DEBIAN_FRONTEND: 'noninteractive' });
}

/**
 * A PostgreSQL server for tests makes a cluster of its own (scripts/with-postgres.mjs); Debian's package is told not to
 * make one.
 */
async function postgres() {
  if (existsSync('/usr/lib/postgresql') || has('initdb')) return;
  const settings = '/etc/postgresql-common/createcluster.conf';
  if (isDebian && !existsSync(settings)) {
    mkdirSync('/etc/postgresql-common', { recursive: true });
    writeFileSync(settings, 'create_main_cluster = false\n');
  }
  await debian(
    'apt: PostgreSQL',
    ['initdb'],
    'postgresql',
    'PostgreSQL cannot be installed; its tests will be skipped',
  );
}

const CROSS = ['aarch64-linux-gnu-g++', 'qemu-aarch64-static', 'clang++-19', 'wasm-ld-19'];
const CROSS_PACKAGES =
  'g++-aarch64-linux-gnu qemu-user-static clang-19 lld-19 wasi-libc libc++-19-dev-wasm32 libc++abi-19-dev-wasm32 libclang-rt-19-dev-wasm32';

async function fetchAll(built) {
  await debian(
    'apt: compilers',
    CROSS,
    CROSS_PACKAGES,
    'the compilers for arm64 and WebAssembly cannot be installed; their tests will be skipped',
  );
  await postgres();
  const noBrowser = 'Chromium cannot be installed; the pages of reports will not be tried in a browser';
  await debian('apt: Chromium', ['chromium'], 'chromium', noBrowser);
  await node(
    'runtimes',
    ['scripts/smoke-runtimes.mjs'],
    'other runtimes cannot be fetched; their tests will be skipped',
  );
  const noArm = 'Node for arm64 cannot be fetched; its tests will be skipped';
  await node('Node for arm64', ['scripts/test-arm64.mjs', '--fetch'], noArm);
  await built;
  const noModel = 'smollm2-135m cannot be fetched; its tests will be skipped';
  await node('the model', ['scripts/bootstrap.mjs', 'fetch', 'smollm2-135m'], noModel);
}

async function main() {
  rmSync(STAGES, { force: true });
  mkdirSync(at('.cache'), { recursive: true });
  if (isDebian && !['ccache', 'chromium', ...CROSS].every(has))
    await stage('apt: lists', ['bash', '-c', 'apt-get update >/dev/null 2>&1'], 'the lists of packages cannot be read');
  await debian('apt: ccache', ['ccache'], 'ccache', 'without ccache everything is compiled anew');

  const built = node('build', ['scripts/bootstrap.mjs', 'build:all'], 'the build failed; the tests will say so again');
  await Promise.all([fetchAll(built), built]);
  // What a package carries. The binaries for other systems take minutes each, so only `npm pack` makes them.
  const noPackage = 'a package cannot be made here; what it lacks is not tested';
  const prebuild = (target) => node(`prebuilt: ${target}`, ['scripts/prebuild.mjs', target], noPackage);
  await Promise.all([prebuild('wasm'), prebuild('linux-x64').then(() => prebuild('linux-arm64'))]);
}

await main();
const { status } = spawnSync(process.execPath, ['scripts/with-postgres.mjs', 'npm', 'test'], {
  cwd: root,
  env: { ...process.env, PALIMPSEST_TEST_TIER: 'merge', PALIMPSEST_TEST_STAGES: STAGES },
  stdio: ['ignore', 'inherit', 'inherit'],
});
process.exitCode = status ?? 1;
