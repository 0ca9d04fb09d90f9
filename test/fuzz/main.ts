/**
 * Fuzzes every case for as long as asked; exit code 1 at the first difference (run.ts).
 *   npm run fuzz -- [--seconds 60] [--seed N] [--only CASE] [--plant answer|input]     kernels, on every machine that runs here
 *   npm run fuzz -- parsers [NAME …] [--seconds 60] [--seed N]                         readers of files (parsers.ts), so long each
 * --plant puts a fault into the last machine on purpose: the command must then fail.
 */
import { parseArgs } from 'node:util';
import { fuzzParser, PARSERS } from './parsers.ts';
import { CASES, fuzz, machines } from './run.ts';

const { values, positionals } = parseArgs({
  allowPositionals: true,
  options: {
    seconds: { type: 'string' },
    seed: { type: 'string' },
    only: { type: 'string' },
    plant: { type: 'string' },
  },
});
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
  for (const name of named.length > 0 ? named : Object.keys(PARSERS)) {
    const { rounds, refused, found } = await fuzzParser(name, { seed, seconds });
    console.log(`${name}: ${rounds} files, ${refused} refused${found === null ? '' : `, a finding: ${found.what}`}`);
    if (found === null) continue;
    console.log(`again: npm run fuzz -- parsers ${name} --seed ${found.seed}`);
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
