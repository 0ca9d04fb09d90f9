/**
 * `npm run bench -- grammar` measures what it takes to follow a grammar over the vocabulary of a model: the processor
 * time for a token, which is taking it and finding the mask of the next one, and the time to compile the grammar, once.
 * Texts are of ours, in the tokens that the model has for them, and each token is one that the mask before it allowed.
 */
import { writeFileSync } from 'node:fs';
import { allows, type Constraint } from '../../engine/transformer/grammar/constraint.ts';
import { Grammars } from '../../engine/transformer/grammar/grammars.ts';
import type { GrammarOption } from '../../engine/transformer/grammar/options.ts';
import { loadModel } from '../../engine/transformer/load.ts';
import type { LoadedModel } from '../../engine/transformer/types.ts';
import { now, typical } from './measure.ts';
import { smallModel } from './small-model.ts';
import { columns, fixed } from './table.ts';

export interface GrammarRow {
  readonly grammar: string;
  readonly vocabulary: number;
  readonly tokens: number;
  readonly compileMs: number;
  /** Processor time of a token, on average over a text. */
  readonly msPerToken: number;
  /** The 95th percentile of single tokens, by the clock. */
  readonly p95Ms: number;
  readonly mostMs: number;
}

interface Case {
  readonly name: string;
  readonly grammar: GrammarOption;
  readonly text: string;
}

/** In milliseconds a token. */
const GOAL = 0.3;

const person = {
  type: 'object',
  properties: {
    name: { type: 'string' },
    born: { type: 'string', format: 'date' },
    hives: { type: 'integer', minimum: 1, maximum: 400 },
    kind: { enum: ['carnica', 'ligustica', 'mellifera'] },
    sells: { type: 'array', items: { type: 'string', maxLength: 20 }, maxItems: 5 },
    place: {
      anyOf: [{ type: 'null' }, { type: 'object', properties: { lat: { type: 'number' }, lon: { type: 'number' } } }],
    },
  },
  required: ['name', 'born', 'hives', 'kind', 'sells', 'place'],
};
const call = {
  type: 'object',
  properties: {
    name: { const: 'total' },
    arguments: {
      type: 'object',
      properties: { item: { enum: ['honey', 'wax', 'candle'] }, count: { type: 'integer', minimum: 1, maximum: 99 } },
      required: ['item', 'count'],
    },
  },
  required: ['name', 'arguments'],
};
const story =
  'The keeper of bees went up the hill before the sun did. He had seven hives there, and in each of them, so he told whoever would listen, lived a different kind of silence. "Listen," he said, and nobody heard a thing.';
const json = String.raw`root ::= value
value ::= object | array | string | number | "true" | "false" | "null"
object ::= "{" (string ": " value (", " string ": " value)*)? "}"
array ::= "[" (value (", " value)*)? "]"
string ::= "\"" text
text ::= "\"" | [^"\\\x00-\x1f\x7f] text | "\\" ["\\/bfnrt] text
number ::= "-"? ("0" | [1-9] [0-9]*) ("." [0-9]+)?`;
const written = (value: unknown): string =>
  JSON.stringify(value, null, 1)
    .replace(/,\n\s*/g, ', ')
    .replace(/\n\s*/g, '');

const CASES: readonly Case[] = [
  {
    name: 'a call of a tool',
    grammar: { jsonSchema: call },
    text: written({ name: 'total', arguments: { item: 'candle', count: 12 } }),
  },
  {
    name: 'a record',
    grammar: { jsonSchema: person },
    text: written({
      name: 'Ada of the seven hives',
      born: '1931-04-17',
      hives: 7,
      kind: 'carnica',
      sells: ['honey', 'candles', 'wax'],
      place: { lat: 46.0511, lon: 14.5051 },
    }),
  },
  {
    name: 'a long text in JSON',
    grammar: { jsonSchema: { type: 'object', properties: { story: { type: 'string' } }, required: ['story'] } },
    text: written({ story }),
  },
  {
    name: 'any JSON, in GBNF',
    grammar: { gbnf: json },
    text: written({ keeper: 'Ada', hives: [1, 2.5, null, { story }], sells: true }),
  },
];

/** Follows a text once. → milliseconds of each token by the clock, and processor time of all */
async function follow(
  constraint: Constraint,
  ids: readonly number[],
  what: string,
): Promise<{ each: number[]; ms: number }> {
  const each: number[] = [];
  const start = now(1);
  for (const [i, id] of ids.entries()) {
    if (!allows(constraint.mask, id)) throw new Error(`${what}: token ${i} of the text is not allowed`);
    const before = performance.now();
    await constraint.accept(id);
    each.push(performance.now() - before);
  }
  const ms = (now(1) - start) * 1000;
  if (!constraint.isComplete) throw new Error(`${what}: the text is not complete`);
  return { each, ms };
}

export async function grammarRows(model: LoadedModel, rounds: number): Promise<GrammarRow[]> {
  const grammars = Grammars.of(model);
  const rows: GrammarRow[] = [];
  // The library is opened, and told the vocabulary, with the first grammar.
  (await grammars.open({ gbnf: 'root ::= "a"' }))?.close();
  for (const { name, grammar, text } of CASES) {
    const ids = model.tokenizer.encode(text);
    const start = now(1);
    (await grammars.open(grammar))!.close();
    const compileMs = (now(1) - start) * 1000;
    const each: number[] = [];
    const means: number[] = [];
    for (let round = -1; round < rounds; round++) {
      const constraint = (await grammars.open(grammar))!;
      const followed = await follow(constraint, ids, name);
      constraint.close();
      // Code is compiled in the first round.
      if (round < 0) continue;
      means.push(followed.ms / ids.length);
      each.push(...followed.each);
    }
    each.sort((a, b) => a - b);
    rows.push({
      ...{ grammar: name, vocabulary: model.config.vocabSize, tokens: ids.length, compileMs },
      ...{ msPerToken: typical(means), p95Ms: each[Math.floor(0.95 * each.length)]!, mostMs: each.at(-1)! },
    });
  }
  await grammars.close();
  return rows;
}

export async function grammar(
  say: (line: string) => void,
  { rounds, json }: { readonly rounds: number; readonly json: string | null },
): Promise<void> {
  const { model: name, cacheDir } = smallModel(say);
  const model = await loadModel(name, { cacheDir });
  const rows = await grammarRows(model, rounds);
  model.weights.close();
  say(`following a grammar over the ${rows[0]!.vocabulary} tokens of ${model.name} (goal: ${GOAL} ms a token)`);
  const head = ['grammar', 'tokens', 'compiled, ms', 'ms a token', 'p95', 'most'];
  const table = rows.map((row) => [
    row.grammar,
    String(row.tokens),
    fixed(row.compileMs, 0),
    fixed(row.msPerToken, 3),
    fixed(row.p95Ms, 3),
    fixed(row.mostMs, 2),
  ]);
  for (const line of columns(head, table)) say(`  ${line}`);
  if (json !== null) writeFileSync(json, `${JSON.stringify(rows, null, 1)}\n`);
}
