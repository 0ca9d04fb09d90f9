// The tests of native/ once more on builds with sanitizers: addresses and undefined behaviour under everything, on every instruction set
// of this machine; races under everything that has threads. A report fails the test and is shown, whatever the program around it
// made of it. Faults on purpose come first: a sanitizer that misses them proves nothing.
// Compiling takes about four minutes of one core, so it is asked for by name (PALIMPSEST_SANITIZERS=1; .ci/run does).
import { spawnSync } from 'node:child_process';
import { mkdtempSync, readdirSync, readFileSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { beforeAll, describe, expect, test } from 'vitest';
import { expectWell, MINUTES, node, type Ran, suite } from './node.ts';

const THREADED = [
  'test/unit/native/attend.test.ts',
  'test/unit/native/trial.test.ts',
  'test/unit/native/threads.test.ts',
  'test/unit/native/moves.test.ts',
  'test/unit/native/misuse.test.ts',
  'test/unit/engine/park-native.test.ts',
  'test/simulation/moves.test.ts',
  'test/property/attention.test.ts',
  'test/property/latent-cache.test.ts',
  'test/property/cache-steps.test.ts',
];
const EVERYTHING = [
  'test/unit/native',
  'test/unit/engine/park-native.test.ts',
  'test/golden/codecs.test.ts',
  'test/property/attention.test.ts',
  'test/property/latent-cache.test.ts',
  'test/property/skip.test.ts',
  'test/property/cache-steps.test.ts',
  'test/simulation/moves.test.ts',
  'test/simulation/pool.test.ts',
];

/** Path of one of gcc's libraries, or null when this compiler has none. */
function gccLibrary(name: string): string | null {
  const { stdout } = spawnSync('gcc', [`-print-file-name=${name}`], { encoding: 'utf8' });
  return stdout?.trim().startsWith('/') ? stdout.trim() : null;
}
const preload = (...names: string[]): string | null => {
  const files = names.map(gccLibrary);
  return files.includes(null) ? null : files.join(' ');
};

const isAsked = process.env.PALIMPSEST_SANITIZERS === '1';
const asan = isAsked ? preload('libasan.so', 'libubsan.so', 'libstdc++.so') : null;
const tsan = isAsked ? preload('libtsan.so', 'libstdc++.so') : null;

/** Runs `work` with a folder for reports. → what it answered, and the reports, in files and among what was said. */
function reported(settings: (log: string) => Record<string, string>, work: (env: Record<string, string>) => Ran) {
  const folder = mkdtempSync(join(tmpdir(), 'palimpsest-reports-'));
  try {
    const ran = work(settings(`log_path=${join(folder, 'report')}`));
    const files = readdirSync(folder).flatMap((name) => readFileSync(join(folder, name), 'utf8').split(/^={18,}$/m));
    // Undefined behaviour is told on stderr alone: a line, and its stack.
    const lines = ran.said.match(/^.*: runtime error: .*(\n +#.*)*/gm) ?? [];
    return {
      ran,
      reports: [...files, ...lines].filter((report) => report.trim() !== '').map((report) => report.slice(0, 6000)),
    };
  } finally {
    rmSync(folder, { recursive: true, force: true });
  }
}

/**
 * No leak detection: what JavaScript has not collected when Node ends is never given back, and a report could not tell that from a leak. That
 * every byte is given back is asked of the pool (test/simulation/pool.test.ts) and of the process (fifty caches, test/unit/engine/cache.test.ts).
 */
const addresses = (work: (env: Record<string, string>) => Ran) =>
  reported(
    (log) => ({
      LD_PRELOAD: asan!,
      ASAN_OPTIONS: `detect_leaks=0:${log}`,
      UBSAN_OPTIONS: 'print_stacktrace=1',
      PALIMPSEST_BINDING: 'debug',
      PALIMPSEST_SHORT: '1',
    }),
    work,
  );

const OURS = /\((palimpsest|kernels_test|cache_test)\.node\+/;
/** Frames that act for whoever called them. */
const RUNTIME = /\((libtsan|libstdc\+\+|libc|libgcc_s)\.so/;

/**
 * Whether an access of a data race happens in one of our binaries: its innermost frame outside the runtimes. Below that we may well have called
 * V8, whose threads race on locks of their own. Of other reports every frame counts.
 */
function isOurs(report: string): boolean {
  const accesses = [...report.matchAll(/(?:read|write) of size [^\n]*\n((?:\s*#\d[^\n]*\n)+)/gi)];
  if (!report.includes('data race') || accesses.length === 0) return OURS.test(report);
  return accesses.some(([, stack]) =>
    OURS.test(
      stack!
        .trim()
        .split('\n')
        .find((frame) => !RUNTIME.test(frame)) ?? '',
    ),
  );
}

/** Node itself is not built for this, and is reported too: it goes on, and only what happens in our binaries counts. */
function races(work: (env: Record<string, string>) => Ran) {
  const settings = (log: string) => ({
    LD_PRELOAD: tsan!,
    TSAN_OPTIONS: `exitcode=0:${log}`,
    PALIMPSEST_BINDING: 'thread',
    PALIMPSEST_SHORT: '1',
  });
  const { ran, reports } = reported(settings, work);
  return { ran, reports: reports.filter(isOurs) };
}

/** Calls one of native/test_canaries.cc. */
const canary = (folder: string, call: string) => (env: Record<string, string>) =>
  node(['-e', `require('./native/build/${folder}/kernels_test.node').${call}`], env);

describe.skipIf(asan === null)(
  'addresses and undefined behaviour (needs gcc with libasan and PALIMPSEST_SANITIZERS=1)',
  () => {
    beforeAll(() => expectWell(node(['scripts/build-native.mjs', '--debug'])), 20 * MINUTES);

    test('a kernel that reads one number too many is found on every instruction set, and so is an overflow', () => {
      const isas = JSON.parse(
        addresses((env) =>
          node(['-p', "JSON.stringify(require('./native/build/Debug/kernels_test.node').isas())"], env),
        ).ran.said,
      ) as number[];
      expect(isas.length).toBeGreaterThan(0);
      // By the last of whole vectors (which crosses the end: an unknown crash), and by one number behind them.
      for (const [isa, count] of isas.flatMap(
        (isa) =>
          [
            [isa, 64],
            [isa, 67],
          ] as const,
      )) {
        const { ran, reports } = addresses(canary('Debug', `overrunKernel(${isa}, ${count})`));
        expect(ran.status).not.toBe(0);
        expect(reports.join()).toMatch(/AddressSanitizer: (heap-buffer-overflow|unknown-crash) [\s\S]*READ of size/);
      }
      const { ran, reports } = addresses(canary('Debug', 'overflow(2 ** 31 - 1)'));
      expect(ran.status).not.toBe(0);
      expect(reports.join()).toContain('signed integer overflow');
      expect(addresses(canary('Debug', 'overflow(1)'))).toMatchObject({ ran: { status: 0 }, reports: [] });
    });

    test(
      'kernels on every instruction set, caches, moves, trials, latents, the dense half: no report',
      () => {
        const { ran, reports } = addresses((env) => suite(EVERYTHING, env));
        expect(reports).toEqual([]);
        expectWell(ran);
      },
      75 * MINUTES,
    );

    test(
      'random bytes to every kernel: no report',
      () => {
        const { ran, reports } = addresses((env) =>
          node(['--import', 'tsx', 'test/fuzz/main.ts', '--seconds', '30'], env),
        );
        expect(reports).toEqual([]);
        expectWell(ran);
      },
      5 * MINUTES,
    );
  },
);

describe.skipIf(tsan === null)('threads (needs gcc with libtsan and PALIMPSEST_SANITIZERS=1)', () => {
  beforeAll(() => expectWell(node(['scripts/build-native.mjs', '--thread'])), 20 * MINUTES);

  test('a race is found', () => {
    expect(races(canary('Thread', 'race()')).reports.join()).toContain('data race');
  });

  test('a race on what belongs to V8 is not ours, one inside a copy that we ask for is', () => {
    const report = (first: string) =>
      `WARNING: ThreadSanitizer: data race (pid=1)\n  Write of size 8 at 0x1 by thread T5:\n    #0 operator delete tsan_new_delete.cpp:150 (libtsan.so+0x8)\n    #1 ${first}\n    #2 <null> <null> (palimpsest.node+0xe4e9)\n\n  Previous write of size 1 at 0x1 by main thread:\n    #0 pthread_mutex_destroy (libtsan.so.2+0x4)\n    #1 v8::platform::DefaultJobState (node+0x1)\n    #2 <null> <null> (palimpsest.node+0xe4e9)\n`;
    expect(isOurs(report('v8::platform::DefaultJobWorker <null> (node+0x1d5aa65)'))).toBe(false);
    expect(isOurs(report('palimpsest::Mover::work() (palimpsest.node+0x1)'))).toBe(true);
  });

  test(
    'attention, trials, moves and misuse: no race',
    () => {
      const { ran, reports } = races((env) => suite(THREADED, env));
      expect(reports).toEqual([]);
      expectWell(ran);
    },
    75 * MINUTES,
  );

  test(
    'many caches on one pool: no race',
    () => {
      const { ran, reports } = races((env) =>
        node(['--import', 'tsx', 'test/fuzz/main.ts', '--only', 'manyCaches', '--seconds', '30'], env),
      );
      expect(reports).toEqual([]);
      expectWell(ran);
    },
    5 * MINUTES,
  );
});
