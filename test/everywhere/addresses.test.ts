/**
 * The tests of native/ once more on a build with sanitizers of addresses and undefined behaviour, with the scalar
 * kernels, those of AVX2, and wider ones when it is their turn; of the files that take longest one group in turn. How
 * reports are told: reports.ts. Nothing shorter proves that no kernel reads beside its rows; it takes minutes because
 * every access of memory is checked by a call.
 */
import { mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { beforeAll, describe, expect, test } from 'vitest';
import { uncalled } from '../native/called.ts';
import { filesInTurn, isDealt, volume } from '../tier.ts';
import { expectWell, IN_TURN, MINUTES, node, onBinary, type Ran, suite } from './node.ts';
import { canary, preload, reported, setsUnderSanitizers } from './reports.ts';

const turn = filesInTurn(IN_TURN);
const FILES = [
  ...onBinary.filter((file) => !IN_TURN.flat().includes(file)),
  'test/property/cache-steps.test.ts',
  'test/simulation/pool.test.ts',
  ...turn.files,
];

/**
 * Formats that the product does not have are asked as well, with every third commit: they change seldom, and the
 * compiler takes minutes for them.
 */
const hasYardsticks = isDealt(0, 3);
const REGISTERED = ['--import', 'tsx', ...(hasYardsticks ? ['--import', './native/yardsticks/register.ts'] : [])];

const asan = preload('libasan.so', 'libubsan.so', 'libstdc++.so');

/**
 * No leak detection: what JavaScript has not collected when Node ends is never given back, and a report could not tell
 * that from a leak. That every byte is given back is asked of the pool (test/simulation/pool.test.ts) and of the
 * process (fifty caches, test/unit/engine/session/cache.test.ts).
 */
const addresses = (work: (env: Record<string, string>) => Ran) =>
  reported(
    (log) => ({
      LD_PRELOAD: asan!,
      ASAN_OPTIONS: `detect_leaks=0:${log}`,
      UBSAN_OPTIONS: 'print_stacktrace=1',
      PALIMPSEST_BINDING: 'debug',
      PALIMPSEST_TEST_YARDSTICKS: hasYardsticks ? '1' : '',
      PALIMPSEST_TEST_SHORT: '1',
    }),
    work,
  );

describe.skipIf(asan === null)('addresses and undefined behaviour (needs gcc with libasan)', () => {
  beforeAll(() => {
    const formats = hasYardsticks ? ['--yardsticks'] : [];
    const build = ['scripts/build-native.mjs', '--debug', '--tests', ...formats, '--isas', setsUnderSanitizers()];
    expectWell(node(build));
  }, 40 * MINUTES);

  test('a kernel that reads one number too many is found on every instruction set, and so is an overflow', () => {
    const isas = JSON.parse(
      addresses((env) => node(['-p', "JSON.stringify(require('./native/build/Debug/kernels_test.node').isas())"], env))
        .ran.said,
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
      const folder = mkdtempSync(join(tmpdir(), 'palimpsest-calls-'));
      try {
        const calls = join(folder, 'calls');
        const { ran, reports } = addresses((env) =>
          suite(FILES, { ...env, ...turn.env, PALIMPSEST_TEST_CALLED: calls }),
        );
        expect(reports).toEqual([]);
        expectWell(ran);
        // Whichever group it was, no function of the binary was left out.
        expect(uncalled(calls)).toEqual([]);
      } finally {
        rmSync(folder, { recursive: true });
      }
    },
    75 * MINUTES,
  );

  test(
    'random bytes to every kernel: no report',
    () => {
      const { ran, reports } = addresses((env) =>
        node([...REGISTERED, 'test/fuzz/main.ts', '--seconds', String(volume('kernel seconds'))], env),
      );
      expect(reports).toEqual([]);
      expectWell(ran);
    },
    5 * MINUTES,
  );
});
