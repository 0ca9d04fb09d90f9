/**
 * `npm run compare -- expressions` makes random expressions of Jinja, evaluates them here and with Python's jinja2, and
 * prints those that differ. `--count` says how many (2,000), `--seed` which ones (1).
 */
import { TemplateFault } from '../../engine/transformer/template/fault.ts';
import { givenValue } from '../../engine/transformer/template/given.ts';
import { renderTemplate } from '../../engine/transformer/template/template.ts';
import type { Value } from '../../engine/transformer/template/values.ts';
import { KvError } from '../../native/index.ts';
import { seeded } from '../../test/random.ts';
import { randomExpression } from './random-expression.ts';
import { readConstructs, renderThere } from './templates.ts';

/** Differing ones of which no more are printed. */
const SHOWN_MAX = 60;
/** What Python writes of generators and functions is where they lie in memory, which is refused here. */
const NO_TEXT = /^an? [\w ]+ has no text/;

export function expressions(args: readonly string[]): number {
  const [count, seed] = [numberOf(args, '--count', 2000), numberOf(args, '--seed', 1)];
  const { date, data } = readConstructs();
  const chance = seeded(seed);
  const all = [...new Set(Array.from({ length: count }, () => `{{ ${randomExpression(chance)} }}`))];
  const texts = Object.fromEntries(all.map((text) => [text, text]));
  const theirs = renderThere(date, texts, { data: JSON.stringify(data) }, 'values');
  const values = new Map(Object.entries(data).map(([name, value]) => [name, givenValue(value)] as const));
  const compared = all.flatMap((text) => {
    const ours = evaluated(text, values, date);
    return ours === undefined ? [] : [{ text, python: theirs[text]!['data']!, ours }];
  });
  const differing = compared.filter(({ ours, python }) => ours !== python);
  for (const { text, ours, python } of differing.slice(0, SHOWN_MAX))
    console.log(`${text}\n  here   ${JSON.stringify(ours)}\n  Python ${JSON.stringify(python)}`);
  const rendered = compared.filter(({ python }) => python !== null).length;
  console.log(`${differing.length} of ${compared.length} expressions differ from Python's, which renders ${rendered}`);
  return differing.length === 0 ? 0 : 1;
}

/** null: refused; undefined: it has no text that stays the same. */
function evaluated(template: string, values: ReadonlyMap<string, Value>, date: string): string | null | undefined {
  try {
    return renderTemplate(template, values, { date: new Date(date), letters: 10_000 }).value;
  } catch (error) {
    if (!(error instanceof TemplateFault)) throw error;
    return NO_TEXT.test(error.message) ? undefined : null;
  }
}

function numberOf(args: readonly string[], flag: string, otherwise: number): number {
  const at = args.indexOf(flag);
  const value = at < 0 ? otherwise : Number(args[at + 1]);
  if (Number.isSafeInteger(value) && value > 0) return value;
  throw new KvError('bad-argument', `${flag} takes a whole number above 0`, {
    values: { given: args[at + 1] ?? null },
  });
}
