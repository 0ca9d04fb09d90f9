/**
 * Whether no value fulfils two of several schemas, so that `oneOf` of them says what `anyOf` does. Where that cannot be
 * seen, it is not so.
 */
import { asRecord } from '../../../native/index.ts';

type Find = (ref: string) => unknown;
type Node = Readonly<Record<string, unknown>>;

/** find: what a `$ref` leads to. */
export function disjoint(schemas: readonly unknown[], find: Find): boolean {
  const nodes = schemas.map((schema) => resolved(schema, find));
  return nodes.every((node, index) => nodes.slice(index + 1).every((other) => areDisjoint(node, other, find)));
}

function resolved(schema: unknown, find: Find): Node {
  const node = asRecord(schema);
  const ref = node?.['$ref'];
  return (typeof ref === 'string' ? asRecord(find(ref)) : node) ?? {};
}

function areDisjoint(a: Node, b: Node, find: Find): boolean {
  const [types, others] = [typesOf(a), typesOf(b)];
  if (types !== null && others !== null && !types.some((type) => others.includes(type))) return true;
  const [values, otherValues] = [valuesOf(a), valuesOf(b)];
  if (values !== null && otherValues !== null) return !values.some((value) => otherValues.includes(value));
  return requiredOf(a).some((name) => {
    if (!requiredOf(b).includes(name) || !types?.every(isObject) || !others?.every(isObject)) return false;
    const property = (node: Node): Node => resolved(asRecord(node['properties'])?.[name], find);
    return areDisjoint(property(a), property(b), () => undefined);
  });
}

const isObject = (type: string): boolean => type === 'object';

/** Integers are numbers. */
function typesOf(node: Node): readonly string[] | null {
  const type = node['type'] ?? null;
  const types = type === null ? valuesOf(node)?.map(typeOfText) : ((Array.isArray(type) ? type : [type]) as string[]);
  return types?.map((name) => (name === 'integer' ? 'number' : name)) ?? null;
}

/** The values that a schema lists, as JSON. */
function valuesOf(node: Node): readonly string[] | null {
  if (node['const'] !== undefined) return [JSON.stringify(node['const'])];
  return Array.isArray(node['enum']) ? node['enum'].map((value) => JSON.stringify(value)) : null;
}

function typeOfText(json: string): string {
  const value: unknown = JSON.parse(json);
  return value === null ? 'null' : Array.isArray(value) ? 'array' : typeof value;
}

const requiredOf = (node: Node): readonly string[] => (Array.isArray(node['required']) ? node['required'] : []);
