/**
 * The tests of what has threads once more on a build with a sanitizer of races, with scalar kernels and those of AVX2
 * (and others when it is their turn): how wide the vectors of a row are changes no lock. How reports are told:
 * reports.ts. Nothing shorter meets the mover, the pool's threads and misuse in enough orders; it takes minutes because
 * every access of memory is recorded.
 */
import { beforeAll, describe, expect, test } from 'vitest';
import { filesInTurn, volume } from '../tier.ts';
import { expectWell, MINUTES, node, type Ran, suite } from './node.ts';
import { canary, preload, reported, setsUnderSanitizers } from './reports.ts';

/** What has threads but is much alike: one group in turn. */
const turn = filesInTurn([
  ['test/unit/engine/session/park-native.test.ts'],
  ['test/property/attention.test.ts'],
  ['test/property/cache-steps.test.ts'],
  ['test/unit/native/trial.test.ts', 'test/unit/native/tried.test.ts'],
  ['test/unit/native/kept-rows.test.ts', 'test/property/latent-cache.test.ts'],
]);
const THREADED = [
  'test/unit/native/attend.test.ts',
  'test/unit/native/batch.test.ts',
  'test/unit/native/adapters.test.ts',
  'test/unit/native/adopt.test.ts',
  'test/unit/native/threads.test.ts',
  'test/unit/native/moves.test.ts',
  'test/unit/native/misuse.test.ts',
  'test/simulation/moves.test.ts',
  ...turn.files,
];

const SECONDS = String(volume('many caches seconds'));
const tsan = preload('libtsan.so', 'libstdc++.so');

const OURS = /\((palimpsest|kernels_test|cache_test)\.node\+/;
/** Frames that act for whoever called them. */
const RUNTIME = /\((libtsan|libstdc\+\+|libc|libgcc_s)\.so/;

/**
 * True if an access of a data race happens in one of our binaries: its innermost frame outside the runtimes. Below that
 * we may well have called V8, whose threads race on locks of their own. Of other reports every frame counts.
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
    PALIMPSEST_TEST_SHORT: '1',
  });
  const { ran, reports } = reported(settings, work);
  return { ran, reports: reports.filter(isOurs) };
}

describe.skipIf(tsan === null)('threads (needs gcc with libtsan)', () => {
  beforeAll(
    () => expectWell(node(['scripts/build-native.mjs', '--thread', '--tests', '--isas', setsUnderSanitizers()])),
    40 * MINUTES,
  );

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
      const { ran, reports } = races((env) => suite(THREADED, { ...env, ...turn.env }));
      expect(reports).toEqual([]);
      expectWell(ran);
    },
    75 * MINUTES,
  );

  test(
    'many caches on one pool: no race',
    () => {
      const { ran, reports } = races((env) =>
        node(['--import', 'tsx', 'test/fuzz/main.ts', '--only', 'manyCaches', '--seconds', SECONDS], env),
      );
      expect(reports).toEqual([]);
      expectWell(ran);
    },
    5 * MINUTES,
  );
});
