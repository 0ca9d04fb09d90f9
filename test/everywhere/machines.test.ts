// The tests of native/ once more, on every build that is not the usual one: WebAssembly, the prebuilt binary, an emulated 64-bit
// ARM, and the sanitizers; then the same random bytes to every kernel of all of them for a minute. Each runs in a process of its
// own, which must end well; what it says is shown when it does not. Minutes of work, so only CI does it (PALIMPSEST_EVERYWHERE).
import { spawnSync } from 'node:child_process';
import { mkdtempSync, readdirSync, readFileSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { expect, test } from 'vitest';

const root = join(import.meta.dirname, '../..');
const VITEST = 'node_modules/vitest/vitest.mjs';
const THREADED = [
  'test/unit/native/attend.test.ts',
  'test/unit/native/trial.test.ts',
  'test/unit/native/threads.test.ts',
  'test/unit/native/moves.test.ts',
  'test/simulation/moves.test.ts',
  'test/property/attention.test.ts',
];
const MINUTES = 60_000;

interface Ran {
  readonly status: number | null;
  readonly said: string;
}

function node(args: readonly string[], env: Readonly<Record<string, string>> = {}): Ran {
  // The tests inside are no workers of ours.
  const {
    VITEST: _vitest,
    VITEST_WORKER_ID: _id,
    VITEST_POOL_ID: _pool,
    PALIMPSEST_EVERYWHERE: _here,
    ...own
  } = process.env;
  const ran = spawnSync(process.execPath, args, { cwd: root, encoding: 'utf8', env: { ...own, ...env } });
  return { status: ran.status, said: `${ran.stdout}${ran.stderr}`.slice(-8000) };
}

const suite = (files: readonly string[], env: Readonly<Record<string, string>>): Ran =>
  node([VITEST, 'run', '--reporter=dot', '--maxWorkers=1', ...files], env);
const ends = (...args: string[]): boolean => node(args).status === 0;
const expectWell = ({ status, said }: Ran): void =>
  expect({ status, said: status === 0 ? '' : said }).toEqual({ status: 0, said: '' });

/** Path of one of gcc's libraries, or null when this compiler has none. */
function gccLibrary(name: string): string | null {
  const { stdout } = spawnSync('gcc', [`-print-file-name=${name}`], { encoding: 'utf8' });
  return stdout?.trim().startsWith('/') ? stdout.trim() : null;
}
const preload = (...names: string[]): string | null => {
  const files = names.map(gccLibrary);
  return files.includes(null) ? null : files.join(' ');
};

const hasWasm = ends('scripts/build-wasm.mjs', '--check');
const hasBinary = ends('scripts/prebuild.mjs', '--check', `${process.platform}-${process.arch}`);
const hasArm64 = ends('scripts/test-arm64.mjs', '--missing');
// Compiling every kernel with them takes longer than all the rest: asked for by name.
const isAsked = process.env.PALIMPSEST_SANITIZERS === '1';
const asan = !isAsked ? null : preload('libasan.so', 'libubsan.so', 'libstdc++.so');
const tsan = !isAsked ? null : preload('libtsan.so', 'libstdc++.so');

test.skipIf(!hasWasm)(
  'WebAssembly (needs npm run build:wasm)',
  () => {
    const files = ['test/unit/native', 'test/golden/codecs.test.ts', 'test/property/attention.test.ts'];
    expectWell(suite(files, { PALIMPSEST_BINDING: 'wasm' }));
  },
  15 * MINUTES,
);

test.skipIf(!hasWasm)(
  'WebAssembly is built twice with the same result (needs npm run build:wasm)',
  () => {
    expectWell(node(['scripts/build-wasm.mjs', '--twice']));
  },
  5 * MINUTES,
);

test.skipIf(!hasBinary)(
  'the prebuilt binary (needs npm run prebuilds)',
  () => {
    expectWell(
      suite(['test/unit/native/attend.test.ts', 'test/unit/native/cache.test.ts'], { PALIMPSEST_BINDING: 'prebuilt' }),
    );
  },
  5 * MINUTES,
);

test.skipIf(!hasArm64)(
  'an emulated 64-bit ARM (needs g++-aarch64-linux-gnu, qemu-user-static and Node for it)',
  () => {
    expectWell(node(['scripts/test-arm64.mjs', '--short']));
  },
  15 * MINUTES,
);

test.skipIf(asan === null)(
  'addresses and undefined behaviour, under their sanitizers (needs gcc with libasan and PALIMPSEST_SANITIZERS=1)',
  () => {
    expectWell(node(['scripts/build-native.mjs', '--debug']));
    const env = { LD_PRELOAD: asan!, ASAN_OPTIONS: 'detect_leaks=0', PALIMPSEST_BINDING: 'debug' };
    expectWell(suite([...THREADED, 'test/simulation/pool.test.ts'], env));
  },
  15 * MINUTES,
);

test.skipIf(tsan === null)(
  'threads, under the thread sanitizer (needs gcc with libtsan and PALIMPSEST_SANITIZERS=1)',
  () => {
    expectWell(node(['scripts/build-native.mjs', '--thread']));
    const folder = mkdtempSync(join(tmpdir(), 'palimpsest-tsan-'));
    try {
      // Node itself is not built for this, and is reported too: only what happens in our binaries counts.
      const options = `exitcode=0 log_path=${join(folder, 'report')}`;
      expectWell(suite(THREADED, { LD_PRELOAD: tsan!, TSAN_OPTIONS: options, PALIMPSEST_BINDING: 'thread' }));
      const reports = readdirSync(folder).flatMap((name) => readFileSync(join(folder, name), 'utf8').split(/^={18}$/m));
      expect(reports.filter((report) => /palimpsest\.node|kernels_test\.node/.test(report))).toEqual([]);
    } finally {
      rmSync(folder, { recursive: true, force: true });
    }
  },
  15 * MINUTES,
);

test(
  'a minute of the same random bytes to every kernel of every instruction set',
  () => {
    expectWell(node(['--import', 'tsx', 'test/fuzz/kernels.ts', '--seconds', '60']));
  },
  5 * MINUTES,
);
