/**
 * A schema whose keywords stand beside anyOf, oneOf, allOf or $ref, as alternatives of plain schemas, which have none
 * of these. What two schemas say of one value within is said by an allOf, which is taken apart when it is met.
 */
import { asRecord, KvError } from '../../../native/index.ts';
import { disjoint } from './alternatives.ts';
import { isMultiple } from './decimal.ts';
import { canonical, schemasOf } from './fulfils.ts';
import { evaluated, isNothing, modern } from './modern.ts';
import { joinedPatterns } from './pattern.ts';
import type { Node, References } from './references.ts';
import { cannot } from './refusals.ts';

/** Alternatives that one schema may have when all is multiplied out. */
const ALTERNATIVES_MAX = 256;
const DEPTH_MAX = 32;

export interface Conjoining {
  readonly references: References;
  /** Something is left for when the text is complete. */
  leave(): void;
}

/** Empty: nothing fulfils the schema. Throws 'unsupported'. */
export function plainAlternatives(schema: unknown, where: string, how: Conjoining, depth = 0): readonly Node[] {
  if (isNothing(schema)) return [];
  const given = asRecord(schema);
  if (given === undefined) return [{}];
  if (depth > DEPTH_MAX) throw cannot('a conjunction that never ends', where);
  const { $ref: ref, allOf, anyOf, oneOf, unevaluatedProperties, unevaluatedItems, ...plain } = given;
  const unevaluated = { unevaluatedProperties, unevaluatedItems };
  const inner = (one: unknown): readonly Node[] => plainAlternatives(one, where, how, depth + 1);
  const find = (to: string): unknown => how.references.find(to, given, where);
  if (oneOf !== undefined && !disjoint(listOf(oneOf, 'oneOf', where), find))
    throw cannot("'oneOf' of alternatives that may both hold", where);
  const factors = [
    ...(ref === undefined ? [] : [inner(how.references.find(ref, given, where))]),
    ...(allOf === undefined ? [] : listOf(allOf, 'allOf', where).map(inner)),
    ...(anyOf === undefined ? [] : [listOf(anyOf, 'anyOf', where).flatMap(inner)]),
    ...(oneOf === undefined ? [] : [listOf(oneOf, 'oneOf', where).flatMap(inner)]),
  ];
  const own: readonly Node[] = [modern(plain)];
  const multiplied = factors.reduce<readonly Node[]>((all, factor) => {
    if (all.length * factor.length > ALTERNATIVES_MAX)
      throw cannot(`more than ${ALTERNATIVES_MAX} alternatives beside each other`, where);
    return all.flatMap((a) => factor.map((b) => both(a, b, where, how)).filter((node) => node !== null));
  }, own);
  return multiplied.map((node) => evaluated({ ...node, ...unevaluated }));
}

export function listOf(list: unknown, keyword: string, where: string): readonly unknown[] {
  if (Array.isArray(list) && list.length > 0) return list;
  throw new KvError('bad-argument', `'${keyword}' at ${where} must be a list of schemas`, { values: { where } });
}

type Merge = (a: unknown, b: unknown) => unknown;
const smaller: Merge = (a, b) => Math.min(Number(a), Number(b));
const larger: Merge = (a, b) => Math.max(Number(a), Number(b));
const together: Merge = (a, b) => ({ allOf: [a, b] });
/** Keywords whose values are one value for both. */
const MERGED: Readonly<Record<string, Merge>> = {
  ...Object.fromEntries(
    ['minimum', 'exclusiveMinimum', 'minLength', 'minItems', 'minProperties'].map((key) => [key, larger]),
  ),
  ...Object.fromEntries(
    ['maximum', 'exclusiveMaximum', 'maxLength', 'maxItems', 'maxProperties'].map((key) => [key, smaller]),
  ),
  propertyNames: together,
  uniqueItems: (a, b) => a === true || b === true,
  required: (a, b) => [...new Set([...(a as string[]), ...(b as string[])])],
};

/** null: nothing fulfils both. */
function both(a: Node, b: Node, where: string, how: Conjoining): Node | null {
  const made: Record<string, unknown> = { ...b, ...a };
  for (const [key, merge] of Object.entries(MERGED))
    if (a[key] !== undefined && b[key] !== undefined) made[key] = merge(a[key], b[key]);
  const types = typesOfBoth(a, b);
  if (types !== null) made['type'] = types;
  const values = valuesOfBoth(a, b);
  if (values !== null) {
    made['enum'] = values;
    delete made['const'];
  }
  if (types?.length === 0 || values?.length === 0) return null;
  Object.assign(made, patternOfBoth(a, b, where, how), stepOfBoth(a, b, how));
  Object.assign(made, propertiesOfBoth(a, b, how), itemsOfBoth(a, b));
  return made;
}

function typesOfBoth(a: Node, b: Node): readonly string[] | null {
  const [one, other] = [a, b].map(({ type }) => (type === undefined ? null : [type].flat())) as (string[] | null)[];
  if (one == null || other == null) return one ?? other ?? null;
  const isIn = (type: string, list: readonly string[]): boolean =>
    list.includes(type) || (type === 'integer' && list.includes('number'));
  return [...new Set([...one.filter((type) => isIn(type, other)), ...other.filter((type) => isIn(type, one))])];
}

function valuesOfBoth(a: Node, b: Node): readonly unknown[] | null {
  const [one, other] = [a, b].map(valuesOf);
  if (one == null || other == null) return one ?? other ?? null;
  const known = new Set(other.map(canonical));
  return one.filter((value) => known.has(canonical(value)));
}

/** The values that a schema lists; null: it lists none. */
export function valuesOf(node: Node): readonly unknown[] | null {
  const listed = Array.isArray(node['enum']) ? (node['enum'] as readonly unknown[]) : null;
  if (node['const'] === undefined) return listed;
  const one = canonical(node['const']);
  return listed === null || listed.some((value) => canonical(value) === one) ? [node['const']] : [];
}

function patternOfBoth(a: Node, b: Node, where: string, how: Conjoining): Node {
  const [one, other] = [a['pattern'], b['pattern']];
  if (typeof one !== 'string' || typeof other !== 'string' || one === other) return {};
  const joined = joinedPatterns([one, other], where);
  if (joined !== null) return { pattern: joined };
  how.leave();
  return { pattern: one };
}

function stepOfBoth(a: Node, b: Node, how: Conjoining): Node {
  const [one, other] = [Number(a['multipleOf']), Number(b['multipleOf'])];
  if (!(one > 0 && other > 0) || one === other) return {};
  const [small, large] = [Math.min(one, other), Math.max(one, other)];
  if (!isMultiple(large, small)) how.leave();
  return { multipleOf: large };
}

/** What each says of a property is said of it together. */
function propertiesOfBoth(a: Node, b: Node, how: Conjoining): Node {
  const [own, others] = [asRecord(a['properties']), asRecord(b['properties'])];
  const [patterns, otherPatterns] = [asRecord(a['patternProperties']), asRecord(b['patternProperties'])];
  const made: Record<string, unknown> = {};
  const names = new Set([...Object.keys(own ?? {}), ...Object.keys(others ?? {})]);
  if (names.size > 0)
    made['properties'] = Object.fromEntries(
      [...names].map((name) => [name, allOf([...schemasOf(name, a), ...schemasOf(name, b)])]),
    );
  if (patterns !== undefined || otherPatterns !== undefined) {
    const keys = new Set([...Object.keys(patterns ?? {}), ...Object.keys(otherPatterns ?? {})]);
    const said = (key: string, side: Node, its: Node | undefined): unknown =>
      its === undefined ? (side['additionalProperties'] ?? true) : Object.hasOwn(its, key) ? its[key] : true;
    const schemaOf = (key: string): unknown => allOf([said(key, a, patterns), said(key, b, otherPatterns)]);
    made['patternProperties'] = Object.fromEntries([...keys].map((key) => [key, schemaOf(key)]));
    if (patterns !== undefined && otherPatterns !== undefined) how.leave();
  }
  const [more, otherMore] = [a['additionalProperties'], b['additionalProperties']];
  if (more !== undefined && otherMore !== undefined) made['additionalProperties'] = allOf([more, otherMore]);
  return made;
}

function itemsOfBoth(a: Node, b: Node): Node {
  const [first, others] = [a, b].map(({ prefixItems = [] }) => prefixItems as readonly unknown[]);
  const [items, otherItems] = [a['items'] ?? true, b['items'] ?? true];
  const made: Record<string, unknown> = {};
  const length = Math.max(first!.length, others!.length);
  if (length > 0)
    made['prefixItems'] = Array.from({ length }, (_, index) =>
      allOf([index < first!.length ? first![index] : items, index < others!.length ? others![index] : otherItems]),
    );
  if (a['items'] !== undefined && b['items'] !== undefined) made['items'] = allOf([items, otherItems]);
  return made;
}

/** One schema that says what all say. */
export function allOf(schemas: readonly unknown[]): unknown {
  const telling = schemas.filter(
    (schema) => schema !== true && Object.keys(asRecord(schema) ?? { none: 0 }).length > 0,
  );
  if (telling.some(isNothing)) return false;
  return telling.length < 2 ? (telling[0] ?? true) : { allOf: telling };
}
