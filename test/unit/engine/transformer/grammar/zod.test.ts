// Every function of zod, and every method of its schemas: what it writes as a JSON schema (2020-12, draft 7 as
// zodResponseFormat of OpenAI's package, draft 4) is accepted, or refused by name. A function that a new zod brings and
// that this table does not know fails the test. Of what is accepted a value is complete, another is not, and what is
// written at random is what zod itself accepts.
import { describe, expect, it } from 'vitest';
import { z } from 'zod';
import { schemaGrammar } from '../../../../../engine/transformer/grammar/schema.ts';
import { RandomNumbers } from '../../../../../engine/transformer/sampling/random.ts';
import { Sampler } from '../../../../../engine/transformer/sampling/sampler.ts';
import { KvError } from '../../../../../native/index.ts';
import { onGrammars } from './following.ts';
import { RandomLogits, randomText } from './random-text.ts';

const { model, grammars, follow } = onGrammars();

interface Row {
  readonly schema: z.ZodType;
  /** What it takes, and what it does not. */
  readonly right: unknown;
  readonly wrong: unknown;
  /** zod asks for more than it writes into its schema. */
  readonly says?: 'less';
}
/** 'no schema': zod itself cannot write one. 'nothing': its schema allows nothing. 'none': it makes no schema. */
type Verdict = Row | 'no schema' | 'nothing' | 'none';

const row = (schema: unknown, right: unknown, wrong: unknown, says?: 'less'): Row =>
  ({ schema, right, wrong, ...(says === undefined ? {} : { says }) }) as Row;
const text = (check: unknown, right: string, wrong: string, says?: 'less'): Row =>
  row(z.string().check(check as never), right, wrong, says);
const number = (check: unknown, right: number, wrong: number): Row =>
  row(z.number().check(check as never), right, wrong);
const UUID = '12345678-1234-4234-8234-123456789abc';
const AB = z.object({ a: z.string(), b: z.number() });
const tree: z.ZodType = z.object({
  v: z.string(),
  get next() {
    return z.array(tree);
  },
});

const TYPES: Readonly<Record<string, Verdict>> = {
  any: row(z.any(), { a: [1] }, undefined),
  array: row(z.array(z.int()).min(1).max(2), [1], []),
  base64: row(z.base64(), 'aGk=', 'aGk'),
  base64url: row(z.base64url(), 'aGk', 'a+k'),
  bigint: 'no schema',
  boolean: row(z.boolean(), true, 'true'),
  catch: row(z.catch(z.string(), 'a'), 'b', 1),
  cidrv4: row(z.cidrv4(), '10.0.0.0/8', '10.0.0.0'),
  cidrv6: row(z.cidrv6(), '::/0', '::'),
  codec: row(z.codec(z.string(), z.number(), { decode: Number, encode: String }), 1, 'a', 'less'),
  compile: row(z.compile(z.string()), 'a', 1),
  creditCard: row(z.creditCard(), '4111 1111 1111 1111', 'a', 'less'),
  cuid: row(z.cuid(), 'cabcdefgh', 'a'),
  cuid2: row(z.cuid2(), 'abc', 'A'),
  currencyCode: row(z.currencyCode(), 'CHF', 'XYZ'),
  custom: 'no schema',
  date: 'no schema',
  deepPartial: row(z.deepPartial(AB), {}, { a: 1 }),
  discriminatedUnion: row(
    z.discriminatedUnion('t', [z.object({ t: z.literal('a') }), z.object({ t: z.literal('b'), n: z.int() })]),
    { t: 'b', n: 1 },
    { t: 'b' },
  ),
  e164: row(z.e164(), '+41441234567', '0441234567'),
  email: row(z.email(), 'a.b@c.org', 'a@b'),
  emoji: row(z.emoji(), '🙂', '1'),
  enum: row(z.enum(['a', 'b']), 'a', 'c'),
  exactOptional: row(z.object({ a: z.exactOptional(z.string()) }), {}, { a: 1 }),
  file: row(z.file(), 'bytes', 1, 'less'),
  float32: row(z.float32(), 1.5, 1e39),
  float64: row(z.float64(), 1.5, 'a'),
  fromJSONSchema: row(z.fromJSONSchema({ type: 'string' }), 'a', 1),
  function: 'no schema',
  guid: row(z.guid(), UUID, 'a'),
  hash: row(z.hash('sha256'), 'a'.repeat(64), 'a'),
  hex: row(z.hex(), 'ff', 'g'),
  hostname: row(z.hostname(), 'a.org', 'a b'),
  httpUrl: row(z.httpUrl(), 'https://a.org', 'a', 'less'),
  iban: row(z.iban(), 'CH9300762011623852957', 'a', 'less'),
  instanceof: 'no schema',
  int: row(z.int(), 1, 1.5),
  int32: row(z.int32(), -1, 2147483648),
  int64: 'no schema',
  intersection: row(z.intersection(AB, z.object({ c: z.boolean() })), { a: '', b: 1, c: true }, { a: '', b: 1 }),
  invertCodec: row(z.invertCodec(z.codec(z.int(), z.string(), { decode: String, encode: Number })), 1, 'a', 'less'),
  ipv4: row(z.ipv4(), '10.0.0.1', '10.0.0.256'),
  ipv6: row(z.ipv6(), '::1', 'g'),
  json: row(z.json(), [{ a: null }], undefined),
  jwt: row(z.jwt(), 'a.b.c', 1, 'less'),
  keyof: row(z.keyof(AB), 'a', 'c'),
  ksuid: row(z.ksuid(), 'a'.repeat(27), 'a'),
  lazy: row(
    z.lazy(() => z.string()),
    'a',
    1,
  ),
  literal: row(z.literal(['a', 1, null]), null, 2),
  looseObject: row(z.looseObject({ a: z.string() }), { a: '' }, {}),
  looseRecord: row(z.looseRecord(z.string().regex(/^x/), z.int()), { x1: 1 }, { x1: 'a' }),
  mac: row(z.mac(), '00:11:22:33:44:55', '00'),
  map: 'no schema',
  nan: 'no schema',
  nanoid: row(z.nanoid(), 'a'.repeat(21), 'a'),
  nativeEnum: row(z.nativeEnum({ A: 1, B: 'b' }), 1, 'A'),
  never: 'nothing',
  nonoptional: row(z.nonoptional(z.string().optional()), 'a', 1),
  null: row(z.null(), null, 0),
  nullable: row(z.nullable(z.string()), null, 1),
  nullish: row(z.object({ a: z.nullish(z.string()) }), { a: null }, { a: 1 }),
  number: row(z.number(), -1.5, 'a'),
  object: row(AB, { a: '', b: 1 }, { a: '' }),
  optional: row(z.object({ a: z.optional(z.string()) }), {}, { a: 1 }),
  partialRecord: row(z.partialRecord(z.enum(['a', 'b']), z.int()), { b: 1 }, { c: 1 }),
  pipe: row(z.pipe(z.string(), z.string()), 'a', 1),
  prefault: row(z.prefault(z.string(), 'a'), 'a', 1),
  preprocess: row(
    z.preprocess((value) => value, z.string()),
    'a',
    1,
  ),
  promise: row(z.promise(z.string()), 'a', 1, 'less'),
  readonly: row(z.readonly(z.array(z.string())), ['a'], [1]),
  record: row(z.record(z.string().regex(/^[a-z]+$/), z.int()), { a: 1 }, { A: 1 }),
  set: 'no schema',
  strictObject: row(z.strictObject({ a: z.string() }), { a: '' }, { a: '', b: 1 }),
  string: row(z.string().min(2).max(4), 'abc', 'a'),
  stringFormat: row(z.stringFormat('plate', /^[A-Z]{2}\d+$/), 'ZH1', 'zh1'),
  stringbool: row(z.stringbool(), true, 'true', 'less'),
  success: row(z.success(z.string()), true, 'a', 'less'),
  symbol: 'no schema',
  templateLiteral: row(z.templateLiteral(['id-', z.int()]), 'id-7', 'id'),
  transform: 'no schema',
  tuple: row(z.tuple([z.string(), z.int()], z.boolean()), ['a', 1, true], ['a', 1, 2]),
  uint32: row(z.uint32(), 7, -1),
  uint64: 'no schema',
  ulid: row(z.ulid(), `0${'A'.repeat(25)}`, 'a'),
  undefined: 'no schema',
  union: row(z.union([z.string(), z.int()]), 1, null),
  unknown: row(z.unknown(), 1, undefined),
  url: row(z.url(), 'https://a.org/b', 'a'),
  uuid: row(z.uuid(), UUID, 'a'),
  uuidv4: row(z.uuidv4(), UUID, 'a'),
  uuidv6: row(z.uuidv6(), UUID.replace('-4', '-6'), UUID),
  uuidv7: row(z.uuidv7(), UUID.replace('-4', '-7'), UUID),
  void: 'no schema',
  xid: row(z.xid(), 'a'.repeat(20), 'a'),
  xor: row(z.xor([z.string(), z.int()]), 'a', null),
};

const CHECKS: Readonly<Record<string, Verdict>> = {
  check: row(z.string().check(z.minLength(1)), 'a', ''),
  endsWith: text(z.endsWith('a.b'), 'ca.b', 'a.bc'),
  gt: number(z.gt(1), 2, 1),
  gte: number(z.gte(1), 1, 0),
  includes: text(z.includes('b"'), 'ab"c', 'a'),
  length: text(z.length(2), 'ab', 'a'),
  lowercase: text(z.lowercase(), 'a', 'A'),
  lt: number(z.lt(1), 0, 1),
  lte: number(z.lte(1), 1, 2),
  maxLength: text(z.maxLength(2), 'ab', 'abc'),
  maxSize: 'none',
  mime: 'none',
  minLength: text(z.minLength(2), 'ab', 'a'),
  minSize: 'none',
  multipleOf: number(z.multipleOf(0.05), 0.15, 0.07),
  negative: number(z.negative(), -1, 0),
  nonnegative: number(z.nonnegative(), 0, -1),
  nonpositive: number(z.nonpositive(), 0, 1),
  normalize: text(z.normalize(), 'a', '', 'less'),
  overwrite: text(
    z.overwrite((value) => value),
    'a',
    '',
    'less',
  ),
  positive: number(z.positive(), 1, 0),
  properties: row(z.array(z.int()).check(z.properties({ length: z.number() })), [1], ['a']),
  property: row(z.array(z.int()).check(z.property('length', z.number())), [1], ['a']),
  refine: text(
    z.refine(() => true),
    'a',
    '',
    'less',
  ),
  regex: text(z.regex(/b+/), 'abc', 'a'),
  size: 'none',
  slugify: text(z.slugify(), 'a', '', 'less'),
  startsWith: text(z.startsWith('a.b'), 'a.bc', 'aab'),
  superRefine: text(
    z.superRefine(() => undefined),
    'a',
    '',
    'less',
  ),
  toLowerCase: text(z.toLowerCase(), 'a', '', 'less'),
  toUpperCase: text(z.toUpperCase(), 'a', '', 'less'),
  trim: text(z.trim(), 'a', '', 'less'),
  uppercase: text(z.uppercase(), 'A', 'a'),
  describe: text(z.describe('a text'), 'a', '', 'less'),
  meta: text(z.meta({ title: 'a text' }), 'a', '', 'less'),
};

/** Functions that parse, describe, compare or configure. */
const HELPERS = [
  ...['clone', 'config', 'decode', 'decodeAsync', 'encode', 'encodeAsync', 'flattenError', 'formatError'],
  ...['getDiscriminatedOption', 'getErrorMap', 'input', 'memoizer', 'output', 'parse', 'parseAsync', 'prettifyError'],
  ...['registry', 'safeDecode', 'safeDecodeAsync', 'safeEncode', 'safeEncodeAsync', 'safeParse', 'safeParseAsync'],
  ...['setErrorMap', 'toJSONSchema', 'toZod', 'treeifyError', 'validate', 'validateAsync', 'withParser'],
];

const ISO: Readonly<Record<string, Verdict>> = {
  date: row(z.iso.date(), '2024-02-29', '2023-02-29'),
  datetime: row(z.iso.datetime({ offset: true, local: true }), '2024-02-29T10:00:00.5+01:00', '2024-02-29'),
  duration: row(z.iso.duration(), 'P1Y2MT3H', 'P'),
  time: row(z.iso.time(), '10:00', '24:00'),
};
const COERCE: Readonly<Record<string, Verdict>> = {
  bigint: 'no schema',
  boolean: row(z.coerce.boolean(), true, 'a', 'less'),
  date: 'no schema',
  number: row(z.coerce.number(), 1, 'a'),
  string: row(z.coerce.string(), 'a', 1, 'less'),
};

const functionsOf = (namespace: object): string[] =>
  Object.entries(namespace).flatMap(([name, value]) =>
    /^[a-z]/.test(name) && typeof value === 'function' ? [name] : [],
  );

describe.each([
  ['z', z, { ...TYPES, ...CHECKS }, HELPERS],
  ['z.iso', z.iso, ISO, []],
  ['z.coerce', z.coerce, COERCE, []],
] as const)('%s', (_, namespace, table: Readonly<Record<string, Verdict>>, helpers) => {
  it('has no function that the table does not know', () => {
    expect(functionsOf(namespace).sort()).toEqual([...Object.keys(table), ...helpers].sort());
  });

  it.each(
    Object.entries(table).flatMap(([name, verdict]) => (typeof verdict === 'string' ? [] : [[name, verdict] as const])),
  )('%s is accepted', async (name, { schema, right, wrong, says }) => {
    for (const target of ['draft-2020-12', 'draft-7', 'draft-4'] as const) {
      const jsonSchema = z.toJSONSchema(schema, { target });
      expect([right, await follow({ jsonSchema }, spelled(right))]).toEqual([right, 'complete']);
      // Draft 4 has nothing for names of properties.
      const isLess = says !== undefined || (target === 'draft-4' && name.endsWith('ecord'));
      if (wrong !== undefined && !isLess)
        expect([wrong, await follow({ jsonSchema }, spelled(wrong))]).not.toEqual([wrong, 'complete']);
    }
    for (const value of await drawn(z.toJSONSchema(schema) as Readonly<Record<string, unknown>>, 4))
      if (says === undefined) expect([value, schema.safeParse(value).success]).toEqual([value, true]);
  });

  it('what zod cannot write has no schema, and what allows nothing is refused', () => {
    for (const [name, verdict] of Object.entries(table)) {
      const make = (namespace as unknown as Record<string, (...values: unknown[]) => z.ZodType>)[name]!;
      const given = { map: [z.any(), z.any()], set: [z.any()], instanceof: [Date], transform: [String] }[name] ?? [];
      if (verdict === 'no schema') expect(() => z.toJSONSchema(make(...given)), name).toThrow(/cannot be represented/);
      if (verdict !== 'nothing') continue;
      expect(() => schemaGrammar(z.toJSONSchema(make()) as never), name).toThrow(KvError);
      expect(() => schemaGrammar(z.toJSONSchema(make()) as never), name).toThrow(/allows nothing/);
    }
  });
});

/** On one line, with a space behind commas and colons. */
const spelled = (value: unknown): string =>
  JSON.stringify(value, null, 1)
    .replace(/\n\s*/g, ' ')
    .replace(/([[{]) | (?=[\]}])/g, '$1');

async function drawn(jsonSchema: Readonly<Record<string, unknown>>, count: number): Promise<unknown[]> {
  const rng = new RandomNumbers(3);
  const logits = new RandomLogits(model(), 3);
  const values: unknown[] = [];
  for (let seed = 0; seed < count; seed++) {
    const constraint = (await grammars().open({ jsonSchema }))!;
    const sampler = new Sampler(
      { temperature: 1, topK: 0, topP: 1, minP: 0, seed },
      { size: model().config.vocabSize, tokenizer: model().tokenizer },
    );
    const ids = await randomText(model(), constraint, sampler, logits, rng);
    const written = model().tokenizer.decode(ids, { continues: true });
    if (constraint.isComplete && (await constraint.fulfils(written))) values.push(JSON.parse(written));
    constraint.close();
  }
  return values;
}

/** Methods of every schema: they wrap it, or parse with it. */
const ANY = [
  ...['and', 'apply', 'array', 'brand', 'catch', 'check', 'clone', 'decode', 'decodeAsync', 'default', 'describe'],
  ...[
    'encode',
    'encodeAsync',
    'exactOptional',
    'isNullable',
    'isOptional',
    'meta',
    'nonoptional',
    'nullable',
    'nullish',
  ],
  ...['optional', 'or', 'overwrite', 'parse', 'parseAsync', 'pipe', 'prefault', 'readonly', 'refine', 'register'],
  ...['safeDecode', 'safeDecodeAsync', 'safeEncode', 'safeEncodeAsync', 'safeParse', 'safeParseAsync', 'spa'],
  ...['superRefine', 'toJSONSchema', 'transform', 'validate', 'validateAsync', 'with'],
];
/** Methods whose names no function above has. */
const METHODS: readonly (readonly [what: string, schema: z.ZodType, table: Readonly<Record<string, Row>>])[] = [
  ['any', z.any(), {}],
  [
    'string',
    z.string(),
    {
      max: row(z.string().max(2), 'ab', 'abc'),
      min: row(z.string().min(2), 'ab', 'a'),
      nonempty: row(z.string().nonempty(), 'a', ''),
      datetime: row(z.string().datetime(), '2024-02-29T10:00:00Z', '2024-02-30T10:00:00Z'),
      duration: row(z.string().duration(), 'P1D', 'D'),
      time: row(z.string().time(), '10:00:00', '10'),
    },
  ],
  [
    'number',
    z.number(),
    {
      finite: row(z.number().finite(), 1, 'a'),
      max: row(z.number().max(1), 1, 2),
      min: row(z.number().min(1), 1, 0),
      safe: row(z.number().safe(), 1, 'a'),
      step: row(z.number().step(3), 6, 7),
    },
  ],
  [
    'array',
    z.array(z.any()),
    {
      max: row(z.array(z.null()).max(1), [null], [null, null]),
      min: row(z.array(z.null()).min(1), [null], []),
      nonempty: row(z.array(z.null()).nonempty(), [null], []),
      unwrap: row(z.array(z.null()).unwrap(), null, []),
    },
  ],
  [
    'object',
    z.object({}),
    {
      catchall: row(AB.catchall(z.int()), { a: '', b: 1 }, { a: '' }),
      exactPartial: row(AB.exactPartial(), {}, { a: 1 }),
      extend: row(AB.extend({ c: z.null() }), { a: '', b: 1, c: null }, { a: '', b: 1 }),
      loose: row(AB.loose(), { a: '', b: 1 }, {}),
      merge: row(AB.merge(z.object({ c: z.null() })), { a: '', b: 1, c: null }, { a: '', b: 1 }),
      omit: row(AB.omit({ a: true }), { b: 1 }, { a: '' }),
      partial: row(AB.partial(), {}, { a: 1 }),
      passthrough: row(AB.passthrough(), { a: '', b: 1 }, {}),
      pick: row(AB.pick({ a: true }), { a: '' }, {}),
      required: row(AB.partial().required(), { a: '', b: 1 }, {}),
      safeExtend: row(AB.safeExtend({ c: z.null() }), { a: '', b: 1, c: null }, { a: '', b: 1 }),
      strict: row(AB.strict(), { a: '', b: 1 }, {}),
      strip: row(AB.strip(), { a: '', b: 1 }, {}),
    },
  ],
];

describe.each(METHODS)('methods of z.%s()', (_, schema, table) => {
  it('are wrappers, functions of zod, or in the table', () => {
    const known = new Set([...ANY, ...Object.keys({ ...TYPES, ...CHECKS, ...table })]);
    expect(methodsOf(schema).filter((name) => !known.has(name))).toEqual([]);
    expect([...ANY, ...Object.keys(table)].filter((name) => !methodsOf(schema).includes(name))).toEqual([]);
  });
});

it.each(METHODS.flatMap(([what, , table]) => Object.entries(table).map(([name, its]) => [what, name, its] as const)))(
  'z.%s().%s() is followed',
  async (_, __, { schema, right, wrong }) => {
    const jsonSchema = z.toJSONSchema(schema);
    expect(await follow({ jsonSchema }, spelled(right))).toBe('complete');
    expect(await follow({ jsonSchema }, spelled(wrong))).not.toBe('complete');
  },
);

function methodsOf(schema: z.ZodType): string[] {
  const names = new Set<string>();
  for (
    let at = Object.getPrototypeOf(schema) as object;
    at !== Object.prototype;
    at = Object.getPrototypeOf(at) as object
  )
    for (const name of Object.getOwnPropertyNames(at)) names.add(name);
  const isMethod = (name: string): boolean =>
    /^[a-z]/.test(name) && name !== 'constructor' && typeof schema[name as keyof z.ZodType] === 'function';
  return [...names].filter(isMethod).sort();
}
