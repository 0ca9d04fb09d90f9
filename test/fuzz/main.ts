/**
 * Fuzzes every case for as long as asked; exit code 1 at the first difference (run.ts).
 *   node --import tsx test/fuzz/main.ts [--seconds 60] [--seed N] [--only CASE] [--plant answer|input]
 * --plant puts a fault into the last machine on purpose: the command must then fail.
 */
import { parseArgs } from 'node:util';
import { CASES, fuzz, machines } from './run.ts';

const { values } = parseArgs({
  options: {
    seconds: { type: 'string' },
    seed: { type: 'string' },
    only: { type: 'string' },
    plant: { type: 'string' },
  },
});
const { only, plant } = values;
if (only !== undefined && !Object.hasOwn(CASES, only))
  throw new Error(`--only is one of ${Object.keys(CASES).join(', ')}`);
if (plant !== undefined && plant !== 'answer' && plant !== 'input') throw new Error('--plant is answer or input');
const seed = Number(values.seed ?? Math.floor(Math.random() * 2 ** 31));
const all = machines();
const count = only === undefined ? Object.keys(CASES).length : 1;
console.log(`seed ${seed}, ${count} cases on ${all.map(({ name }) => name).join(', ')}`);

const { rounds, found } = fuzz({ seed, seconds: Number(values.seconds ?? 60), only, plant }, all);
if (found !== null) {
  const { name, shape, first, other, what } = found;
  console.log(`${name} (${shape}) differs between ${first} and ${other}: ${what}`);
  console.log(`again: --only ${name} --seed ${found.seed}`);
  process.exitCode = 1;
}
console.log(`${rounds} rounds, ${found === null ? 'no difference' : 'one difference'}`);
