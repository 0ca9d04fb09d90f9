/**
 * JSON schemas at random, of all that can be followed: nested, optional, recursive, with bounds, patterns, formats and
 * names that JSON escapes.
 */
import type { RandomNumbers } from '../../../../../engine/transformer/sampling/random.ts';

type Schema = Record<string, unknown>;

const NAMES = ['a', 'name', 'of "x"', 'é', 'a\\b', 'line\nbreak', '', 'x-1', 'toString', '𝄞'];
const PATTERNS = [
  '^[a-z]{2,4}$',
  '[A-F0-9]+',
  '^\\d{3}-\\d{2}$',
  '(?:ab|c)+?d',
  '[^a-y]{1,3}',
  '.{2,3}',
  '^\\w+@\\w+\\.(com|org)$',
  '\\S\\s\\D\\W',
  '^(yes|no)$',
  '[\\u00e0-\\u00ff\\-/.]{1,2}',
  'x{0,2}y{2}',
  '[\\w.-]*',
];
const FORMATS = ['date', 'time', 'date-time', 'duration', 'email', 'hostname', 'ipv4', 'ipv6', 'uuid', 'uri'];
const VALUES = ['a', 'b "c"', 'é\n', 0, -1, 0.1, 1e21, 12345678901234, true, null, [1, 'a'], { a: [1] }, ''];

const upTo = (rng: RandomNumbers, most: number): number => Math.floor(rng.uniform() * (most + 1));
const oneOf = <T>(rng: RandomNumbers, list: readonly T[]): T => list[upTo(rng, list.length - 1)]!;
const maybe = (rng: RandomNumbers, schema: Schema): Schema => (rng.uniform() < 0.5 ? schema : {});

/** A schema, whose references all lead to a tree in its $defs. */
export function randomSchema(rng: RandomNumbers): Schema {
  const tree = {
    type: 'object',
    properties: { leaf: randomNode(rng, 0), next: { anyOf: [{ type: 'null' }, { $ref: '#/$defs/tree' }] } },
    required: ['leaf'],
  };
  return { $schema: 'https://json-schema.org/draft/2020-12/schema', ...randomNode(rng, 3), $defs: { tree } };
}

function randomNode(rng: RandomNumbers, depth: number): Schema {
  const kinds = depth === 0 ? 8 : 13;
  const note = maybe(rng, { title: 'T', description: 'what "it" is', default: 1, examples: [1] });
  return { ...note, ...made(rng, upTo(rng, kinds - 1), depth - 1) };
}

function made(rng: RandomNumbers, kind: number, depth: number): Schema {
  const low = upTo(rng, 3);
  const high = low + upTo(rng, 4);
  if (kind === 0) return { type: 'string', ...maybe(rng, { minLength: low }), ...maybe(rng, { maxLength: high }) };
  if (kind === 1)
    return { type: 'string', pattern: oneOf(rng, PATTERNS), ...(rng.uniform() < 0.1 ? { minLength: low } : {}) };
  if (kind === 2) return { type: 'string', format: oneOf(rng, FORMATS) };
  if (kind === 3) {
    const least = upTo(rng, 2000) - 1000;
    const bound = rng.uniform() < 0.5 ? 'maximum' : 'exclusiveMaximum';
    return {
      type: 'integer',
      ...maybe(rng, { minimum: least }),
      ...maybe(rng, { [bound]: least + 1 + upTo(rng, 500) }),
    };
  }
  if (kind === 4) {
    const least = (upTo(rng, 2000) - 1000) / oneOf(rng, [1, 8, 10, 1000, 3]);
    return {
      type: 'number',
      ...maybe(rng, { minimum: least }),
      ...maybe(rng, { maximum: least + rng.uniform() * 20 }),
    };
  }
  if (kind === 5) return { enum: VALUES.filter(() => rng.uniform() < 0.5).concat('z') };
  if (kind === 6) return { const: oneOf(rng, VALUES) };
  if (kind === 7 && rng.uniform() < 0.5)
    return { type: oneOf(rng, ['integer', 'number']), multipleOf: oneOf(rng, [2, 5, 7, 100, 0.25, 0.01, 1.5]) };
  if (kind === 7) return { type: oneOf(rng, ['boolean', 'null', ['integer', 'null'], ['string', 'boolean']]) };
  if (kind === 8 || kind === 9) {
    const names = NAMES.filter(() => rng.uniform() < 0.3);
    const properties = Object.fromEntries(names.map((name) => [name, randomNode(rng, depth)]));
    const required = names.filter(() => rng.uniform() < 0.6);
    return { type: 'object', properties, required, ...maybe(rng, { additionalProperties: rng.uniform() < 0.5 }) };
  }
  if (kind === 10) {
    const isUnique = rng.uniform() < 0.2;
    return {
      type: 'array',
      items: randomNode(rng, depth),
      // Items may be one value only, of which no two differ.
      ...maybe(rng, { minItems: isUnique ? Math.min(low, 1) : low }),
      ...maybe(rng, { maxItems: high }),
      ...(isUnique ? { uniqueItems: true } : {}),
      ...maybe(rng, { prefixItems: [randomNode(rng, 0), randomNode(rng, 0)].slice(0, 1 + upTo(rng, 1)) }),
    };
  }
  if (kind === 11) return { anyOf: [randomNode(rng, depth), randomNode(rng, depth)] };
  if (rng.uniform() < 0.3) return { ...combined(rng), description: 'several beside each other' };
  if (rng.uniform() < 0.3)
    return {
      type: 'object',
      propertyNames: { pattern: oneOf(rng, PATTERNS) },
      additionalProperties: randomNode(rng, 0),
    };
  return rng.uniform() < 0.5 ? { $ref: '#/$defs/tree' } : { type: 'object', additionalProperties: randomNode(rng, 0) };
}

/** What is said in several places of one value. */
function combined(rng: RandomNumbers): Schema {
  const first = { properties: { a: randomNode(rng, 0) }, required: ['a'] };
  const second = { properties: { b: randomNode(rng, 0), a: {} } };
  return oneOf<Schema>(rng, [
    { type: 'object', anyOf: [first, second] },
    { type: 'object', allOf: [first, second] },
    { $ref: '#/$defs/tree', properties: { next: { type: 'null' } } },
    { type: ['string', 'integer'], anyOf: [{ minimum: 3 }, { type: 'boolean' }] },
  ]);
}
