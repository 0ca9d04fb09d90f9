/**
 * `npm run sim -- [WORD] [SEED]` runs a simulation:
 *   bytes     bytes counted against bytes allocated, random steps (also without a word)
 *   pool      thousands of sessions on one budget, without a model; flags of its own (scripts/sim-pool.ts)
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
  bytes: [...VITEST, 'test/simulation/pool.test.ts'],
  million: [...VITEST, 'test/simulation/policy-million.test.ts', '--testTimeout=3600000'],
  log: [...VITEST, 'test/simulation/log.test.ts', '-t', 'seeds from', '--testTimeout=3600000'],
  'full-disk': ['--import', 'tsx', 'scripts/full-disk.ts'],
  drift: ['--import', 'tsx', 'scripts/drift.ts'],
};

if (process.argv[2] === 'pool') {
  const program = ['--import', 'tsx', 'scripts/sim-pool.ts', ...process.argv.slice(3)];
  const root = fileURLToPath(new URL('..', import.meta.url));
  process.exit(spawnSync(process.execPath, program, { cwd: root, stdio: 'inherit' }).status ?? 1);
}
const { values, positionals } = parseArgs({ allowPositionals: true, options: { seeds: { type: 'string' } } });
const [word = 'bytes', given] = Number.isInteger(Number(positionals[0] ?? 'bytes'))
  ? ['bytes', positionals[0]]
  : positionals;
const command = Object.hasOwn(COMMANDS, word) ? COMMANDS[word] : undefined;
const seeds = Number(values.seeds ?? (given === undefined ? 2000 : 1));
const seed = given === undefined ? Math.floor(Math.random() * 2 ** 31) : Number(given);
if (command === undefined || !Number.isInteger(seed) || !Number.isInteger(seeds)) {
  console.error(
    `'${process.argv.slice(2).join(' ')}' is no simulation: give pool, ${Object.keys(COMMANDS).join(', ')} and an integer`,
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
