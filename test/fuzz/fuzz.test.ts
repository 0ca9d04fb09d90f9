// The differential fuzz finds what it is for: every case agrees on all instruction sets of this machine, and with a
// fault planted into one of them, in its answer (one bit of one element, or just beyond the bound) or in what it was
// given (one number), it ends at a difference in that machine, and the seed that it prints shows the same difference
// again. Seeds are fixed, so that a failure is a fault and not chance.
import { spawnSync } from 'node:child_process';
import { join } from 'node:path';
import { expect, test } from 'vitest';
import { CASES, fuzz, machines } from './run.ts';

const SEED = 40_961;
const root = join(import.meta.dirname, '../..');
const all = machines();
const isAlone = all.length < 2;
const names = Object.keys(CASES);

test.skipIf(isAlone).each(names)(
  `%s: no difference, until one is planted (seed ${SEED}; needs two instruction sets)`,
  (only) => {
    expect(fuzz({ seed: SEED, rounds: 12, only }, all).found).toBeNull();
    for (const plant of ['answer', 'input'] as const) {
      // A number may not matter (a token that nobody sees, a bit that rounding takes), and a round may have no numbers
      // at all.
      const { found } = fuzz({ seed: SEED, rounds: 200, only, plant }, all);
      expect(found, `${plant} planted into ${only}`).toMatchObject({ name: only, other: all.at(-1)!.name });
      const again = fuzz({ seed: found!.seed, rounds: 1, only, plant }, all);
      expect(again.found).toEqual(found);
    }
  },
);

test.skipIf(isAlone)('the command fails with the case, the machines and the seed (needs two instruction sets)', () => {
  const run = (...args: string[]) =>
    spawnSync(process.execPath, ['--import', 'tsx', 'test/fuzz/main.ts', '--seed', '7', ...args], {
      cwd: root,
      encoding: 'utf8',
    });
  const well = run('--seconds', '0.5');
  expect(well.stdout).toMatch(/\n[0-9]+ rounds, no difference\n$/);
  expect(well.status).toBe(0);
  const ill = run('--seconds', '60', '--only', 'attendPages', '--plant', 'answer');
  expect(ill.stdout).toContain(`differs between ${all[0]!.name} and ${all.at(-1)!.name}: result`);
  expect(ill.stdout).toMatch(/again: --only attendPages --seed [0-9]+\n/);
  expect(ill.status).toBe(1);
});
