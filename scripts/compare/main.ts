/** `npm run compare -- NAME …` compares a part of the product with the program that others have for the same. */
import { KvError } from '../../native/index.ts';
import { expressions } from './expressions.ts';
import { templates } from './templates.ts';

const COMPARISONS: ReadonlyMap<string, (args: readonly string[]) => number> = new Map([
  ['expressions', expressions],
  ['templates', templates],
]);

const [name = '', ...args] = process.argv.slice(2);
try {
  const compare = COMPARISONS.get(name);
  if (compare === undefined)
    throw new KvError('bad-argument', `npm run compare -- ${[...COMPARISONS.keys()].join(' | ')}`, {
      values: { name },
    });
  process.exitCode = compare(args);
} catch (error) {
  if (!(error instanceof KvError)) throw error;
  console.error(error.message);
  process.exitCode = 1;
}
