/**
 * The tests of native/ once more on a build with sanitizers of addresses and undefined behaviour, with the scalar kernels, those of AVX2,
 * and wider ones when it is their turn. How reports are told: reports.ts. The build has two formats of its own, those of test/formats/: a format is one TypeScript file and one C++
 * file, and everything that asks about formats is asked about them as well, without a line that names them: the codec suite, kernels, attention,
 * trials, moves, stored pages, the differential fuzz, the price policy, log, replay and explanations, the command line. Nothing shorter proves that no
 * kernel reads beside its rows; it takes minutes because every access of memory is checked by a call.
 */
import { mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { volume } from '../tier.ts';
import { expectWell, MINUTES, node, onBinary, type Ran, suite } from './node.ts';
import { canary, preload, reported, setsUnderSanitizers } from './reports.ts';

const EVERYTHING = [
  ...onBinary,
  'test/unit/engine/park-native.test.ts',
  'test/golden/codecs.test.ts',
  'test/property/attention.test.ts',
  'test/property/latent-cache.test.ts',
  'test/property/skip.test.ts',
  'test/property/cache-steps.test.ts',
  'test/simulation/moves.test.ts',
  'test/simulation/pool.test.ts',
  'test/suite/codec.test.ts',
  'test/formats',
];
const FORMATS = ['--formats', 'test/formats/chan4.ts', 'test/formats/int4.ts'];
const REGISTER = ['--import', 'tsx', '--import', './test/formats/register.ts'];

const asan = preload('libasan.so', 'libubsan.so', 'libstdc++.so');

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
      PALIMPSEST_TEST_FORMATS: '1',
      PALIMPSEST_TEST_SHORT: '1',
    }),
    work,
  );

describe.skipIf(asan === null)('addresses and undefined behaviour (needs gcc with libasan)', () => {
  const state = mkdtempSync(join(tmpdir(), 'palimpsest-formats-'));
  afterAll(() => rmSync(state, { recursive: true, force: true }));
  beforeAll(() => {
    const build = ['scripts/build-native.mjs', '--debug', '--tests', '--isas', setsUnderSanitizers()];
    expectWell(node([...build, ...FORMATS]));
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
        node([...REGISTER, 'test/fuzz/main.ts', '--seconds', String(volume('kernel seconds'))], env),
      );
      expect(reports).toEqual([]);
      expectWell(ran);
    },
    5 * MINUTES,
  );

  test.each(['int4', 'chan4:int4'])(
    '--cache-type-k %s from the command line, and what the audit says of it: no report',
    (types) => {
      const main = [...REGISTER, 'engine/cli/main.ts'];
      const prompt = join(state, 'prompt.txt');
      const line = 'It was a bright cold day, and the old man went down to the river to see what the night had left. ';
      writeFileSync(prompt, line.repeat(40));
      const clean = (...args: string[]): string => {
        const { ran, reports } = addresses((env) => node([...main, ...args, '--state', state], env));
        expect(reports).toEqual([]);
        expectWell(ran);
        return ran.said;
      };
      const said = clean('run', '-m', 'reference', '-p', prompt, '-n', '4', '--cache-type-k', types, '--json');
      const session = /"session":\s*"([0-9a-f-]+)"/.exec(said)?.[1] ?? expect.fail(said);
      const list = clean('audit', 'list', '--session', session, '--json');
      expect(list).toContain(types.split(':')[0]);
      clean('audit', 'replay', session);
    },
    10 * MINUTES,
  );
});
