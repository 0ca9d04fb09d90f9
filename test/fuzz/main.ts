/**
 * Fuzzes every case for as long as asked; exit code 1 at the first difference (run.ts).
 *   npm run fuzz -- [--seconds 60] [--seed N] [--only CASE] [--plant answer|input]     kernels, on every machine that
 *   runs here
 *   npm run fuzz -- parsers [NAME …] [--seconds 60] [--seed N] [--trail FILE]          readers of files (parsers.ts),
 *   so long each
 * The file of --trail says at any time which round is being read, also of a run that was killed because it did not end.
 * --plant puts a fault into the last machine on purpose: the command must then fail.
 */
import { openSync, writeSync } from 'node:fs';
import { inspect, parseArgs } from 'node:util';
import { fuzzParser, PARSERS } from './parsers.ts';
import { CASES, fuzz, machines } from './run.ts';

const { values, positionals } = parseArgs({
  allowPositionals: true,
  options: {
    seconds: { type: 'string' },
    seed: { type: 'string' },
    only: { type: 'string' },
    plant: { type: 'string' },
    trail: { type: 'string' },
  },
});
/** More than any line of the trail has, so that each replaces the one before. */
const TRAIL_CHARACTERS = 120;
const { only } = values;
const plant = values.plant === undefined || values.plant === 'answer' ? values.plant : 'input';
if (only !== undefined && !Object.hasOwn(CASES, only))
  throw new Error(`--only is one of ${Object.keys(CASES).join(', ')}`);
if (plant !== values.plant) throw new Error('--plant is answer or input');
const seed = Number(values.seed ?? Math.floor(Math.random() * 2 ** 31));
const seconds = Number(values.seconds ?? 60);
if (positionals[0] === 'parsers') await parsers(positionals.slice(1));
else kernels();

async function parsers(named: readonly string[]): Promise<void> {
  const unknown = named.find((name) => !Object.hasOwn(PARSERS, name));
  if (unknown !== undefined) throw new Error(`'${unknown}' is no parser: name ${Object.keys(PARSERS).join(', ')}`);
  console.log(`seed ${seed}`);
  const trail = values.trail === undefined ? null : openSync(values.trail, 'w');
  let at = 'before the first round';
  // What fails beside a reading, in a thread or behind a timer, ends the program from there.
  const fail = (error: unknown): never => {
    console.log(`${at}\n${inspect(error)}`);
    process.exit(1);
  };
  process.on('uncaughtException', fail);
  for (const name of named.length > 0 ? named : Object.keys(PARSERS)) {
    const again = (own: number): string => `again: npm run fuzz -- parsers ${name} --seed ${own}`;
    const onRound = (round: number, own: number): void => {
      at = `${name} in round ${round}; ${again(own)}`;
      if (trail !== null) writeSync(trail, at.padEnd(TRAIL_CHARACTERS), 0);
    };
    const { rounds, refused, found } = await fuzzParser(name, { seed, seconds, onRound }).catch(fail);
    console.log(`${name}: ${rounds} files, ${refused} refused`);
    if (found === null) continue;
    console.log(`${name}: a finding in round ${found.round}: ${found.what}\n${again(found.seed)}`);
    process.exitCode = 1;
  }
}

function kernels(): void {
  const all = machines();
  const count = only === undefined ? Object.keys(CASES).length : 1;
  console.log(`seed ${seed}, ${count} cases on ${all.map(({ name }) => name).join(', ')}`);

  const { rounds, found } = fuzz({ seed, seconds, only, plant }, all);
  if (found !== null) {
    const { name, shape, first, other, what } = found;
    console.log(`${name} (${shape}) differs between ${first} and ${other}: ${what}`);
    console.log(`again: --only ${name} --seed ${found.seed}`);
    process.exitCode = 1;
  }
  console.log(`${rounds} rounds, ${found === null ? 'no difference' : 'one difference'}`);
}
