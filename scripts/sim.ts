/**
 * `npm run sim -- [WORD] [SEED]` runs a simulation:
 *   pool      bytes counted against bytes allocated, random steps (also without a word)
 *   million   1,000,000 seeded decisions of the default policy without content, and the arrows of the machine that they take
 *   drift     changes of topic, a planted gain and planted trials on SmolLM2, and the arrows taken (scripts/drift.ts)
 * Without a seed it is random. It is printed, so that a failure can be repeated exactly.
 */
import { spawnSync } from 'node:child_process';
import { fileURLToPath } from 'node:url';

const VITEST = ['node_modules/vitest/vitest.mjs', 'run'];
const COMMANDS: Readonly<Record<string, readonly string[]>> = {
  pool: [...VITEST, 'test/simulation/pool.test.ts'],
  million: [...VITEST, 'test/simulation/policy-million.test.ts', '--testTimeout=3600000'],
  drift: ['--import', 'tsx', 'scripts/drift.ts'],
};

const [word = 'pool', given] = Number.isInteger(Number(process.argv[2] ?? 'pool'))
  ? ['pool', process.argv[2]]
  : process.argv.slice(2);
const command = Object.hasOwn(COMMANDS, word) ? COMMANDS[word] : undefined;
const seed = given === undefined ? Math.floor(Math.random() * 2 ** 31) : Number(given);
if (command === undefined || !Number.isInteger(seed)) {
  console.error(
    `'${process.argv.slice(2).join(' ')}' is no simulation: give ${Object.keys(COMMANDS).join(', ')} and an integer`,
  );
  process.exit(2);
}
const run = spawnSync(process.execPath, [...command], {
  cwd: fileURLToPath(new URL('..', import.meta.url)),
  stdio: 'inherit',
  env: {
    ...process.env,
    PALIMPSEST_SIM_SEED: String(seed),
    ...(word === 'million' ? { PALIMPSEST_SIM_DECISIONS: '1000000' } : {}),
  },
});
process.exitCode = run.status ?? 1;
