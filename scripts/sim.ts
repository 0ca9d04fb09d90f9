/**
 * Runs the pool simulation: `npm run sim -- 4711` runs it with that seed, and without a number the seed is random.
 * The seed is printed, so that a failure can be repeated exactly.
 */
import { spawnSync } from 'node:child_process';
import { fileURLToPath } from 'node:url';

const given = process.argv[2];
const seed = given === undefined ? Math.floor(Math.random() * 2 ** 31) : Number(given);
if (!Number.isInteger(seed)) {
  console.error(`'${given}' is not a seed: give an integer`);
  process.exit(2);
}
const run = spawnSync(process.execPath, ['node_modules/vitest/vitest.mjs', 'run', 'test/simulation/pool.test.ts'], {
  cwd: fileURLToPath(new URL('..', import.meta.url)),
  stdio: 'inherit',
  env: { ...process.env, PALIMPSEST_SIM_SEED: String(seed) },
});
process.exitCode = run.status ?? 1;
