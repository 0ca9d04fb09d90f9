/**
 * `npm run sim -- [WORD] [SEED]` runs a simulation:
 *   pool      bytes counted against bytes allocated, random steps (also without a word)
 *   million   1,000,000 seeded decisions of the default policy without content, and the arrows of the machine that they
 *   take
 *   log       the log on a simulated disk and clock, with crashes at any call; --seeds N runs so many (2,000), SEED
 *   alone that one, with all it does
 *   full-disk the log on a file system that is really full: what is counted, and what becomes of decode steps
 *   (scripts/full-disk.ts)
 *   drift     changes of topic, a planted gain and planted trials on SmolLM2, and the arrows taken (scripts/drift.ts)
 * Without a seed it is random. It is printed, so that a failure can be repeated exactly.
 */
import { spawnSync } from 'node:child_process';
import { fileURLToPath } from 'node:url';
import { parseArgs } from 'node:util';

const VITEST = ['node_modules/vitest/vitest.mjs', 'run'];
const COMMANDS: Readonly<Record<string, readonly string[]>> = {
  pool: [...VITEST, 'test/simulation/pool.test.ts'],
  million: [...VITEST, 'test/simulation/policy-million.test.ts', '--testTimeout=3600000'],
  log: [...VITEST, 'test/simulation/log.test.ts', '-t', 'seeds from', '--testTimeout=3600000'],
  'full-disk': ['--import', 'tsx', 'scripts/full-disk.ts'],
  drift: ['--import', 'tsx', 'scripts/drift.ts'],
};

const { values, positionals } = parseArgs({ allowPositionals: true, options: { seeds: { type: 'string' } } });
const [word = 'pool', given] = Number.isInteger(Number(positionals[0] ?? 'pool'))
  ? ['pool', positionals[0]]
  : positionals;
const command = Object.hasOwn(COMMANDS, word) ? COMMANDS[word] : undefined;
const seeds = Number(values.seeds ?? (given === undefined ? 2000 : 1));
const seed = given === undefined ? Math.floor(Math.random() * 2 ** 31) : Number(given);
if (command === undefined || !Number.isInteger(seed) || !Number.isInteger(seeds)) {
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
    // What has a volume of its own here is no part of `npm test`.
    PALIMPSEST_TEST_TIER: 'merge',
    PALIMPSEST_SIM_SEED: String(seed),
    ...(word === 'log' ? { PALIMPSEST_SIM_SEEDS: String(seeds) } : {}),
    ...(word === 'million' ? { PALIMPSEST_SIM_DECISIONS: '1000000' } : {}),
  },
});
process.exitCode = run.status ?? 1;
