/**
 * Whether a value fulfils a schema, for what a grammar does not say: lengths that are too large to be counted, items
 * that are unique, multiples, several patterns for one text. Formats are annotations.
 */
import { asRecord, KvError } from '../../../native/index.ts';
import { within } from '../bounded.ts';
import { isMultiple } from './decimal.ts';
import { modern } from './modern.ts';
import { compiledPattern } from './pattern.ts';
import type { Node, References } from './references.ts';

/** Schemas in schemas and references to references that are looked into, and schemas in all. */
const DEPTH_MAX = 256;
const LOOKS_MAX = 1_000_000;
/** What one pattern may take. */
const PATTERN_MS = 100;

/** As JSON, its properties in order: equal values have equal ones. */
export const canonical = (value: unknown): string =>
  JSON.stringify(value, (_, inner: unknown) =>
    asRecord(inner) === undefined
      ? inner
      : Object.fromEntries(Object.entries(inner as Node).sort(([a], [b]) => (a < b ? -1 : 1))),
  );

/** Throws 'unsupported' where matching takes too long. */
function matches(pattern: string, text: string): boolean {
  const expression = compiledPattern(pattern, 'the schema');
  const found = within(PATTERN_MS, () => expression.test(text));
  if (found !== null) return found.value;
  throw new KvError('unsupported', 'a pattern of the schema takes too long to be matched', {
    values: { pattern: pattern.slice(0, 200), ms: PATTERN_MS },
    hint: 'a pattern that does not repeat what is repeated within it',
  });
}

/** False as well where there is too much to look at. Throws 'unsupported' where a pattern takes too long. */
export function fulfils(value: unknown, schema: unknown, references: References): boolean {
  return isFulfilled(value, schema, { references, left: { looks: LOOKS_MAX } }, 0);
}

interface Looking {
  readonly references: References;
  readonly left: { looks: number };
}

function isFulfilled(value: unknown, schema: unknown, looking: Looking, depth: number): boolean {
  const given = asRecord(schema);
  if (given === undefined || depth > DEPTH_MAX || looking.left.looks-- <= 0) return schema === true;
  const { references } = looking;
  const node = modern(given);
  const inner = (part: unknown, its: unknown): boolean => isFulfilled(part, its, looking, depth + 1);
  const lists = (name: string): readonly unknown[] | null => (Array.isArray(node[name]) ? node[name] : null);
  return (
    (node['$ref'] === undefined || inner(value, references.find(node['$ref'], given, 'the schema'))) &&
    lists('allOf')?.every((one) => inner(value, one)) !== false &&
    lists('anyOf')?.some((one) => inner(value, one)) !== false &&
    (lists('oneOf') === null || lists('oneOf')!.filter((one) => inner(value, one)).length === 1) &&
    (node['const'] === undefined || canonical(node['const']) === canonical(value)) &&
    lists('enum')?.some((one) => canonical(one) === canonical(value)) !== false &&
    (node['not'] === undefined || !inner(value, node['not'])) &&
    isOfType(value, node['type']) &&
    isWithin(value, node, inner)
  );
}

type Inner = (part: unknown, schema: unknown) => boolean;

function isOfType(value: unknown, type: unknown): boolean {
  if (type === undefined) return true;
  const types: readonly unknown[] = Array.isArray(type) ? type : [type];
  if (value === null) return types.includes('null');
  if (Array.isArray(value)) return types.includes('array');
  if (typeof value === 'number')
    return types.includes('number') || (types.includes('integer') && Number.isInteger(value));
  return types.includes(typeof value);
}

function isWithin(value: unknown, node: Node, inner: Inner): boolean {
  if (typeof value === 'string') return isText(value, node);
  if (typeof value === 'number') return isNumber(value, node);
  if (Array.isArray(value)) return isArray(value, node, inner);
  const record = asRecord(value);
  return record === undefined || isObject(record, node, inner);
}

const counts = (count: number, least: unknown, most: unknown): boolean =>
  count >= Number(least ?? 0) && count <= Number(most ?? Number.POSITIVE_INFINITY);

const isText = (text: string, node: Node): boolean =>
  counts([...text].length, node['minLength'], node['maxLength']) &&
  (typeof node['pattern'] !== 'string' || matches(node['pattern'], text));

function isNumber(value: number, node: Node): boolean {
  const { minimum, maximum, exclusiveMinimum: above, exclusiveMaximum: below, multipleOf: step } = node;
  return (
    counts(value, minimum ?? Number.NEGATIVE_INFINITY, maximum) &&
    (above === undefined || value > Number(above)) &&
    (below === undefined || value < Number(below)) &&
    (typeof step !== 'number' || isMultiple(value, step))
  );
}

function isArray(value: readonly unknown[], node: Node, inner: Inner): boolean {
  const { prefixItems: first = [], items = true, minItems, maxItems, uniqueItems } = node;
  const own = first as readonly unknown[];
  return (
    counts(value.length, minItems, maxItems) &&
    value.every((item, index) => inner(item, index < own.length ? own[index] : items)) &&
    (uniqueItems !== true || new Set(value.map(canonical)).size === value.length)
  );
}

function isObject(value: Node, node: Node, inner: Inner): boolean {
  const { required, propertyNames: names = true, minProperties, maxProperties } = node;
  return (
    counts(Object.keys(value).length, minProperties, maxProperties) &&
    (!Array.isArray(required) || required.every((name) => Object.hasOwn(value, name))) &&
    Object.entries(value).every(
      ([name, one]) => inner(name, names) && schemasOf(name, node).every((schema) => inner(one, schema)),
    )
  );
}

/** All schemas that the property of an object has to fulfil. */
export function schemasOf(name: string, node: Node): readonly unknown[] {
  const properties = asRecord(node['properties']) ?? {};
  const patterns = Object.entries(asRecord(node['patternProperties']) ?? {});
  const own = [
    ...(Object.hasOwn(properties, name) ? [properties[name]] : []),
    ...patterns.filter(([pattern]) => matches(pattern, name)).map(([, schema]) => schema),
  ];
  return own.length > 0 ? own : [node['additionalProperties'] ?? true];
}
