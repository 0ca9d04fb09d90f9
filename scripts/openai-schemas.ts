/**
 * Writes test/golden/openai-schemas.json: what the helpers of the package openai make of schemas of zod, each with a
 * value that it takes and one that it does not. The project does not depend on that package; install it elsewhere:
 *
 *   mkdir ../openai && (cd ../openai && npm init -y && npm install openai@6 zod@4)
 *   node --import tsx scripts/openai-schemas.ts ../openai
 */
import { readFileSync, writeFileSync } from 'node:fs';
import { createRequire } from 'node:module';
import { join, resolve } from 'node:path';
import { fileURLToPath } from 'node:url';
import type { z as Zod } from 'zod';

type Z = typeof Zod;
type Helper = (schema: unknown, name: string, options?: object) => { readonly [field: string]: unknown };
interface Helpers {
  readonly zodResponseFormat: Helper;
  readonly zodTextFormat: Helper;
  readonly zodFunction: (options: { readonly name: string; readonly parameters: unknown }) => {
    readonly function: { readonly parameters: unknown; readonly strict: unknown };
  };
}

interface Made {
  readonly asks: string;
  readonly schema: unknown;
  readonly right: unknown;
  readonly wrong: unknown;
}

type Case = readonly [asks: string, make: (z: Z) => Zod.ZodType, right: unknown, wrong: unknown];

const UUID = '12345678-1234-4234-8234-123456789abc';
const one = (asks: string, make: (z: Z) => Zod.ZodType, right: unknown, wrong: unknown): Case => [
  asks,
  (z) => z.object({ a: make(z) }),
  { a: right },
  { a: wrong },
];

/** What zod 3 and zod 4 both have. */
const BOTH: readonly Case[] = [
  one('a text', (z) => z.string(), 'é "b"', 1),
  one('a described text', (z) => z.string().describe('What is said'), '', null),
  one('lengths', (z) => z.string().min(2).max(4), 'abc', 'a'),
  one('a pattern', (z) => z.string().regex(/^[A-Z]{2}\d+$/), 'ZH1', 'zh1'),
  one('an address', (z) => z.string().email(), 'a.b@c.org', 'a@'),
  one('a uuid', (z) => z.string().uuid(), UUID, 'a'),
  one('a moment', (z) => z.string().datetime(), '2024-02-29T10:00:00Z', '2024-02-29'),
  one('an url', (z) => z.string().url(), 'https://a.org/b', 1),
  one('a number', (z) => z.number(), -1.5, '1'),
  one('bounds', (z) => z.number().int().min(1).max(40), 40, 41),
  one('a multiple', (z) => z.number().multipleOf(0.25), 0.75, 0.3),
  one('a positive number', (z) => z.number().positive(), 0.5, -1),
  one('a truth', (z) => z.boolean(), false, 0),
  one('null or a text', (z) => z.string().nullable(), null, 1),
  one('null or an object', (z) => z.object({ b: z.number() }).nullable(), { b: 1 }, { b: null }),
  one('null or a number', (z) => z.number().int().min(1).nullable(), null, 0),
  one('null or one of words', (z) => z.enum(['red', 'green']).nullable(), null, 'blue'),
  one('null or a literal', (z) => z.literal('yes').nullable(), null, 'no'),
  one('a list or null', (z) => z.array(z.string()).nullable(), null, [null]),
  one('one of words', (z) => z.enum(['red', 'green']), 'green', 'blue'),
  one('a literal', (z) => z.literal('yes'), 'yes', 'no'),
  one('a list', (z) => z.array(z.number().int()).min(1).max(3), [1, 2], []),
  one('objects in lists', (z) => z.array(z.object({ b: z.array(z.string()) })), [{ b: ['c'] }], [{ b: 'c' }]),
  one('one of types', (z) => z.union([z.string(), z.number()]), 1, true),
  one(
    'one of kinds',
    (z) =>
      z.discriminatedUnion('t', [
        z.object({ t: z.literal('x'), n: z.number().int() }),
        z.object({ t: z.literal('y') }),
      ]),
    { t: 'x', n: 1 },
    { t: 'x' },
  ),
  one('a text with a default', (z) => z.string().default('b'), 'c', 1),
  [
    'the same object twice',
    (z) => {
      const hive = z.object({ bees: z.number().int() });
      return z.object({ left: hive, right: hive });
    },
    { left: { bees: 1 }, right: { bees: 2 } },
    { left: { bees: 1 }, right: { bees: 'two' } },
  ],
  [
    'a tree',
    (z) => {
      const node: Zod.ZodType = z.lazy(() => z.object({ value: z.string(), children: z.array(node) }));
      return z.object({ root: node });
    },
    { root: { value: 'a', children: [{ value: 'b', children: [] }] } },
    { root: { value: 'a', children: ['b'] } },
  ],
  ['an empty object', (z) => z.object({}), {}, { a: 1 }],
];

/** What only zod 4 has, or writes. */
const FOURTH: readonly Case[] = [
  one('a day', (z) => z.iso.date(), '2024-02-29', '2023-02-29'),
  one('a time', (z) => z.iso.time(), '10:00:00', '25:00'),
  one('a span', (z) => z.iso.duration(), 'P1D', 'D'),
  one('an address of the network', (z) => z.ipv4(), '10.0.0.1', '10.0.0.256'),
  one('a word that begins so', (z) => z.string().startsWith('bee-'), 'bee-1', 'wasp'),
  one('literals', (z) => z.literal([1, 'b', null]), null, 2),
  one('words around a number', (z) => z.templateLiteral(['hive-', z.int()]), 'hive-7', 'hive'),
  one('a whole number', (z) => z.int(), 3, 3.5),
];

const json = (value: unknown): unknown => JSON.parse(JSON.stringify(value));

function made(helpers: Helpers, version: string, z: Z, cases: readonly Case[]): Made[] {
  return cases.flatMap(([asks, make, right, wrong]) => {
    const schema = make(z);
    const response = helpers.zodResponseFormat(schema, 'answer')['json_schema'] as { readonly schema: unknown };
    const text = helpers.zodTextFormat(schema, 'answer')['schema'];
    const { parameters } = helpers.zodFunction({ name: 'answer', parameters: schema }).function;
    const named = Object.entries({ zodResponseFormat: response.schema, zodTextFormat: text, zodFunction: parameters });
    const distinct = new Map(named.reverse().map(([name, one]) => [JSON.stringify(one), name] as const));
    return [...distinct].map(([said, name]) => ({
      asks: `${asks} (${name}, ${version})`,
      schema: json(JSON.parse(said)),
      right,
      wrong,
    }));
  });
}

const [folder] = process.argv.slice(2);
if (folder === undefined) {
  console.error('node --import tsx scripts/openai-schemas.ts FOLDER: where the packages openai and zod are installed');
  process.exit(2);
}
const packages = createRequire(join(resolve(folder), 'package.json'));
const versionOf = (name: string): string =>
  (JSON.parse(readFileSync(join(folder, 'node_modules', name, 'package.json'), 'utf8')) as { version: string }).version;
const helpers = packages('openai/helpers/zod') as Helpers;
const { z: third } = packages('zod/v3') as { readonly z: Z };
const { z: fourth } = packages('zod/v4') as { readonly z: Z };
const schemas = [...made(helpers, 'zod 4', fourth, [...BOTH, ...FOURTH]), ...made(helpers, 'zod 3', third, BOTH)];
const head = JSON.stringify({ openai: versionOf('openai'), zod: versionOf('zod') });
const lines = schemas.map((one) => `    ${JSON.stringify(one)}`).join(',\n');
const path = fileURLToPath(new URL('../test/golden/openai-schemas.json', import.meta.url));
writeFileSync(path, `{\n  "versions": ${head},\n  "schemas": [\n${lines}\n  ]\n}\n`);
console.log(`${schemas.length} schemas are recorded`);
