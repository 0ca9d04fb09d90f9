/**
 * Whether no value fulfils two of several schemas, so that `oneOf` of them says what `anyOf` does. Where that cannot be
 * seen, it is not so.
 */
import { asRecord } from '../../../native/index.ts';

/** Properties of properties that are compared. */
const DEPTH_MAX = 8;

type Find = (ref: string) => unknown;
type Node = Readonly<Record<string, unknown>>;

/** What is compared of a schema. */
interface Described {
  readonly node: Node;
  readonly types: readonly string[] | null;
  readonly values: ReadonlySet<string> | null;
  readonly required: ReadonlySet<string>;
}

/** More alternatives than these are not compared, each with each. */
const COMPARED_MAX = 1000;

/** find: what a `$ref` leads to. */
export function disjoint(schemas: readonly unknown[], find: Find): boolean {
  if (schemas.length > COMPARED_MAX) return false;
  const known = new Map<unknown, Described>();
  const described = (schema: unknown): Described => {
    const made = known.get(schema) ?? describe(resolved(schema, find));
    known.set(schema, made);
    return made;
  };
  return schemas.every((schema, index) =>
    schemas.slice(index + 1).every((other) => areDisjoint(described(schema), described(other), described, 0)),
  );
}

function resolved(schema: unknown, find: Find): Node {
  const node = asRecord(schema);
  const ref = node?.['$ref'];
  return (typeof ref === 'string' ? asRecord(find(ref)) : node) ?? {};
}

function describe(node: Node): Described {
  const values = valuesOf(node);
  const required: readonly string[] = Array.isArray(node['required']) ? node['required'] : [];
  return { node, types: typesOf(node), values: values === null ? null : new Set(values), required: new Set(required) };
}

function areDisjoint(a: Described, b: Described, described: (schema: unknown) => Described, depth: number): boolean {
  if (a.types !== null && b.types !== null && !a.types.some((type) => b.types!.includes(type))) return true;
  if (a.values !== null && b.values !== null) return ![...a.values].some((value) => b.values!.has(value));
  if (depth > DEPTH_MAX || !a.types?.every(isObject) || !b.types?.every(isObject)) return false;
  return [...a.required].some((name) => {
    const property = ({ node }: Described): Described => described(asRecord(node['properties'])?.[name]);
    return b.required.has(name) && areDisjoint(property(a), property(b), described, depth + 1);
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
