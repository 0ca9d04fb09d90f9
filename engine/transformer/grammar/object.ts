/**
 * Objects of a schema. One that names its properties has those and no others, since another one might have the name of
 * one of them.
 */
import { asRecord, KvError } from '../../../native/index.ts';
import { allOf } from './conjunction.ts';
import { schemasOf } from './fulfils.ts';
import { isNothing } from './modern.ts';
import type { Node } from './references.ts';
import { cannot } from './refusals.ts';
import { lengths, type Writing } from './writing.ts';

/** Names that are held against patterns, each against each. */
const MATCHED_MAX = 10_000;

interface Properties {
  readonly node: Node;
  readonly where: string;
  readonly depth: number;
  readonly least: number;
  readonly most: number;
  readonly required: readonly string[];
}

export function objectExpression(node: Node, where: string, depth: number, writing: Writing): string {
  const { required = [], propertyNames: names = true } = node;
  const named = asRecord(node['properties'] ?? {});
  const patterns = asRecord(node['patternProperties'] ?? {});
  const isList = Array.isArray(required) && required.every((name) => typeof name === 'string');
  if (named === undefined || patterns === undefined || !isList)
    throw new KvError('bad-argument', `properties or required at ${where} cannot be read`, { values: { where } });
  const { least, most } = lengths(node, ['minProperties', 'maxProperties'], where);
  const properties = { node, where, depth, least, most, required: [...new Set(required as string[])] };
  const listed = Object.keys(named).length > 0 ? null : namesAmong(names, where, writing);
  const own = new Set([...Object.keys(named), ...(listed ?? []), ...(required as string[])]);
  if (own.size === 0 && listed === null) return mapExpression(properties, writing);
  if (own.size * Object.keys(patterns).length > MATCHED_MAX)
    throw cannot(`'patternProperties' for more than ${MATCHED_MAX} names and patterns`, where);
  const schemas = [...own].map((name): readonly [string, unknown] => {
    const isName = names === true || writing.fulfils(name, names);
    return [name, isName ? allOf(schemasOf(name, node)) : false];
  });
  return namedExpression(schemas, properties, writing);
}

/** The names that there may be; null: any others. */
function namesAmong(names: unknown, where: string, writing: Writing): readonly string[] | null {
  const values = names === true ? null : writing.values(names, `${where}/propertyNames`);
  return values?.filter((name) => typeof name === 'string') ?? null;
}

function namedExpression(
  schemas: readonly (readonly [name: string, schema: unknown])[],
  { where, depth, least, most, required }: Properties,
  writing: Writing,
): string {
  const { rules } = writing;
  // A property that must not be there is left out.
  const possible = schemas.filter(([name, schema]) => !isNothing(schema) || required.includes(name));
  const allowed = most === required.length ? possible.filter(([name]) => required.includes(name)) : possible;
  if (least > allowed.length || most < required.length)
    throw new KvError('bad-argument', `the object at ${where} can have no properties`, {
      values: { where, least, most },
    });
  if (least > required.length || most < allowed.length) writing.leave();
  if (allowed.length === 0) return '"{}"';
  const properties = allowed.map(([name, schema]) => {
    const value = writing.node(schema, `${where}/properties/${name}`, depth + 1);
    const begun = `${rules.notation.name(name, where)} ${rules.notation.colon}`;
    return { pair: `${begun} ${value}`, isRequired: required.includes(name) };
  });
  return rules.add(`"{" ${members(properties, writing)} "}"`);
}

/**
 * Properties in the order of the schema, a comma between those that are there. One rule each for what follows a
 * property, and for what follows none.
 */
function members(
  properties: readonly { readonly pair: string; readonly isRequired: boolean }[],
  { rules }: Writing,
): string {
  const { comma } = rules.notation;
  let after = '""';
  let first = '""';
  for (const { pair, isRequired } of properties.toReversed()) {
    const begun = `${pair} ${after}`;
    [first, after] = isRequired
      ? [rules.add(begun), rules.add(`${comma} ${begun}`)]
      : [rules.add(`${begun} | ${first}`), rules.add(`${comma} ${begun} | ${after}`)];
  }
  return first;
}

/** An object whose names are free, or follow a schema or patterns. */
function mapExpression({ node, where, depth, least, most }: Properties, writing: Writing): string {
  const { propertyNames: names = true, additionalProperties: others = true } = node;
  const { rules, repetitions } = writing;
  const { colon, comma } = rules.notation;
  const patterns = Object.entries((node['patternProperties'] as Node | undefined) ?? {});
  const kinds = patterns.filter(([, schema]) => !isNothing(schema));
  if (patterns.length > 1) writing.leave();
  const pairOf = (name: unknown, value: unknown, at: string): string => {
    const text = name === true ? 'string' : writing.node(name, `${where}/propertyNames`, depth + 1);
    return rules.add(`${text} ${colon} ${writing.node(value, `${where}/${at}`, depth + 1)}`);
  };
  const isEmpty = most === 0 || (kinds.length === 0 && (isNothing(others) || patterns.length > 0));
  if (isEmpty && least > 0)
    throw new KvError('bad-argument', `the object at ${where} can have no properties`, { values: { where, least } });
  if (isEmpty) return '"{}"';
  const pairs = kinds.map(([pattern, schema]) => {
    const name = allOf([{ type: 'string', pattern }, names]);
    return pairOf(name, schema, `patternProperties/${pattern}`);
  });
  const free = (): string =>
    pairOf(names === true ? true : allOf([{ type: 'string' }, names]), others, 'additionalProperties');
  const pair = pairs.length === 0 ? free() : rules.add(pairs.join(' | '));
  const isCounted = repetitions.addLength(Number.isFinite(most) ? most : least);
  // Two properties may have one name.
  if (!isCounted || least > 1) writing.leave();
  const [fewest, end] = isCounted ? [least, Number.isFinite(most) ? most - 1 : ''] : [0, ''];
  const more = `${pair} (${comma} ${pair}){${Math.max(0, fewest - 1)},${end}}`;
  const any = fewest <= 1 && end === '' ? `${pair} (${comma} ${pair})*` : more;
  return rules.add(fewest > 0 ? `"{" ${any} "}"` : `"{" (${any})? "}"`);
}
