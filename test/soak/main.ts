/**
 * `npm run soak -- kills [flags]` kills servers and processes at random moments for as often as asked, and prints what
 * was lost. It can be interrupted at any time: lives that stand in the file are not repeated. Exit code 1 when anything
 * was lost, failed or did not heal.
 *   --count N     kills of each (default 200)
 *   --only LIST   qdrant, postgres, process, engine, pack, log (default: those that this machine has)
 *   --seed N      default 1
 *   --file FILE   default .cache/soak-kills.json
 */
import { mkdirSync } from 'node:fs';
import { dirname, join } from 'node:path';
import { parseArgs } from 'node:util';
import { HAS_POSTGRES } from '../suite/postgres-server.ts';
import { HAS_BINARY } from '../suite/qdrant-server.ts';
import { isWhole, killTable, LIVES, recoveryMs, soakKills } from './kills.ts';

const { values, positionals } = parseArgs({
  allowPositionals: true,
  options: {
    count: { type: 'string', default: '200' },
    only: { type: 'string' },
    seed: { type: 'string', default: '1' },
    file: { type: 'string', default: join('.cache', 'soak-kills.json') },
  },
});
const missing: Readonly<Record<string, string | false>> = {
  qdrant: !HAS_BINARY && '../shared/bin/qdrant is not here',
  postgres: !HAS_POSTGRES && 'PostgreSQL 15 or later is not installed',
};
const count = Number(values.count);
const seed = Number(values.seed);
const asked = values.only?.split(',') ?? Object.keys(LIVES);
const wrong =
  positionals.join(' ') !== 'kills'
    ? 'say what: npm run soak -- kills'
    : !Number.isInteger(count) || count < 1 || !Number.isInteger(seed)
      ? '--count and --seed are whole numbers'
      : asked.some((victim) => !Object.hasOwn(LIVES, victim))
        ? `--only is a list of ${Object.keys(LIVES).join(', ')}`
        : null;
if (wrong !== null) {
  console.error(wrong);
  process.exit(2);
}
for (const victim of asked) if (missing[victim]) console.log(`${victim} is not killed: ${missing[victim]}`);
mkdirSync(dirname(values.file), { recursive: true });
const rows = await soakKills({
  victims: asked.filter((victim) => !missing[victim]),
  count,
  seed,
  file: values.file,
  onLife: (life) => {
    const { victim, life: number, acknowledged } = life.at(-1)!;
    const state = isWhole(life) ? 'whole' : `NOT WHOLE: ${JSON.stringify(life.filter((row) => !isWhole([row])))}`;
    console.log(`${victim}, life ${number}: ${life.length} kills, ${acknowledged} acknowledged, ${state}`);
  },
});
for (const line of killTable(rows)) console.log(line);
const recovery = recoveryMs(rows);
if (recovery !== null) console.log(`opening a killed log took at most ${recovery.toFixed(0)} ms for 100,000 entries`);
process.exitCode = isWhole(rows) ? 0 : 1;
