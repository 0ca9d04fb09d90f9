/** Programs of the checkout in processes of their own, which must end well. */
import { spawnSync } from 'node:child_process';
import { existsSync, mkdtempSync, readdirSync, readFileSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { expect } from 'vitest';
import { costTable } from '../../scripts/cost.mjs';
import type { Cost } from '../../scripts/summary-reporter.ts';

const root = join(import.meta.dirname, '../..');
const VITEST = 'node_modules/vitest/vitest.mjs';
export const MINUTES = 60_000;

export interface Ran {
  readonly status: number | null;
  readonly said: string;
}

export function node(args: readonly string[], env: Readonly<Record<string, string>> = {}): Ran {
  // The tests inside are no workers of ours.
  const {
    VITEST: _vitest,
    VITEST_WORKER_ID: _id,
    VITEST_POOL_ID: _pool,
    // Nor do they leave out what others run with coverage.
    PALIMPSEST_TEST_COVERED: _covered,
    ...own
  } = process.env;
  const ran = spawnSync(process.execPath, args, {
    cwd: root,
    encoding: 'utf8',
    env: { ...own, ...env },
    maxBuffer: 2 ** 28,
  });
  return { status: ran.status, said: `${ran.stdout}${ran.stderr}` };
}

/**
 * The tests of native/ that compute in the binary. The others are about TypeScript alone (formats as the reference has
 * them), and would be the same on every build.
 */
export const onBinary: readonly string[] = readdirSync(join(root, 'test/unit/native'))
  .filter((name) => name.endsWith('.test.ts'))
  .map((name) => `test/unit/native/${name}`)
  .filter((file) => /native\/(index|load|kernels-binding|twin)\.ts'/.test(readFileSync(join(root, file), 'utf8')));

const native = (...names: string[]): string[] => names.map((name) => `test/unit/native/${name}.test.ts`);

/**
 * Those of which each takes a large part of a minute on a slow build, as what they try is much alike: one group in turn
 * (test/tier.ts), so dealt that each takes about as long. Every function of the binary is met by the others as well.
 */
export const IN_TURN: readonly (readonly string[])[] = [
  native('allocations'),
  [...native('isas'), 'test/property/skip.test.ts'],
  native('trial', 'steering', 'cap'),
  ['test/unit/engine/session/park-native.test.ts'],
  native('pool', 'evicted'),
  [...native('numbers', 'stored', 'worker-end'), 'test/golden/codecs.test.ts'],
  [
    ...native('threads', 'codecs'),
    ...['property/attention', 'property/latent-cache', 'simulation/moves'].map((name) => `test/${name}.test.ts`),
  ],
];

const LONGEST = 10;

/**
 * Test files, one after the other in one process: a sanitizer takes ten seconds to start one. Prints which of them took
 * longest.
 */
export function suite(files: readonly string[], env: Readonly<Record<string, string>>): Ran {
  const folder = mkdtempSync(join(tmpdir(), 'palimpsest-suite-'));
  const summary = join(folder, 'summary.json');
  try {
    const reporters = ['--reporter=dot', '--reporter=./scripts/summary-reporter.ts'];
    const args = [VITEST, 'run', ...reporters, '--maxWorkers=1', '--no-isolate', ...files];
    const ran = node(args, { ...env, PALIMPSEST_TEST_SUMMARY: summary });
    if (existsSync(summary)) {
      const { files: costs } = JSON.parse(readFileSync(summary, 'utf8')) as { files: Cost[] };
      const longest = costs.toSorted((a, b) => b.seconds - a.seconds).slice(0, LONGEST);
      console.log(costTable('the longest test files of this suite', longest).join('\n'));
    }
    return ran;
  } finally {
    rmSync(folder, { recursive: true, force: true });
  }
}
export const ends = (...args: string[]): boolean => node(args).status === 0;
export const expectWell = ({ status, said }: Ran): void =>
  expect({ status, said: status === 0 ? '' : said.slice(-8000) }).toEqual({ status: 0, said: '' });
