/**
 * JSON schemas as grammars. XGrammar reads schemas as well, but passes over keywords that it does not know, and writes
 * names and patterns into its grammar as they are; here what is not followed to the letter is refused by name. Where a
 * schema leaves a choice, the grammar may allow less, never more: an answer that is complete fulfils its schema. It is
 * JSON on one line with a space behind commas and colons, since free white space would let a small model write nothing
 * else.
 */
import { asRecord, KvError, show } from '../../../native/index.ts';
import { disjoint } from './alternatives.ts';
import { type Bound, numberRange } from './number-range.ts';
import { type JsonSchema, Repetitions } from './options.ts';
import { patternExpression } from './pattern.ts';
import { FORMATS, Rules } from './rules.ts';

/** Schemas in schemas, without those that are named by $ref. */
const NESTING_MAX = 64;
/** Numbers beyond it have gaps in float64. */
const BOUND_MAX = Number.MAX_SAFE_INTEGER;

const KEYWORDS: Readonly<Record<string, readonly string[]>> = {
  object: ['properties', 'required', 'additionalProperties', 'minProperties', 'maxProperties'],
  array: ['items', 'prefixItems', 'minItems', 'maxItems'],
  string: ['minLength', 'maxLength', 'pattern', 'format'],
  number: ['minimum', 'maximum', 'exclusiveMinimum', 'exclusiveMaximum', 'multipleOf'],
  integer: ['minimum', 'maximum', 'exclusiveMinimum', 'exclusiveMaximum', 'multipleOf'],
  boolean: [],
  null: [],
};
const TYPES = Object.keys(KEYWORDS);
const CONSTRAINTS = new Set(Object.values(KEYWORDS).flat());
/** What says all of a schema by itself. */
const WHOLE = ['$ref', 'const', 'enum', 'anyOf', 'oneOf', 'allOf'] as const;
/**
 * Keywords of validation that nothing here follows. Those that are no keywords of validation say nothing about the
 * answer.
 */
const REFUSED = [
  ...['not', 'if', 'then', 'else', 'dependentRequired', 'dependentSchemas', 'dependencies', 'patternProperties'],
  ...['propertyNames', 'unevaluatedProperties', 'unevaluatedItems', 'additionalItems', 'contains', 'minContains'],
  ...['maxContains', '$dynamicRef', '$recursiveRef'],
];

type Node = Readonly<Record<string, unknown>>;

/**
 * A grammar of the texts that fulfil a schema. Throws 'bad-argument' for what is no schema or allows nothing,
 * 'unsupported' for what cannot be followed.
 */
export function schemaGrammar(schema: JsonSchema): string {
  const rules = new Rules();
  return rules.grammar(schemaExpression(schema, rules, new Repetitions()));
}

/** The same as one expression among the rules of a larger grammar. */
export const schemaExpression = (schema: JsonSchema, rules: Rules, repetitions: Repetitions): string =>
  new Translation(schema, rules, repetitions).expression();

/** Each method gives an expression of the grammar. */
class Translation {
  readonly #root: JsonSchema;
  readonly #repetitions: Repetitions;
  readonly #rules: Rules;
  /** Rules of schemas that a $ref names, by where they are, in the order in which they are met. */
  readonly #named = new Map<string, { readonly rule: string; readonly schema: JsonSchema }>();

  constructor(root: JsonSchema, rules: Rules, repetitions: Repetitions) {
    this.#root = root;
    this.#rules = rules;
    this.#repetitions = repetitions;
  }

  expression(): string {
    const root = this.#node(this.#root, '#', 0);
    // The map grows while it is walked.
    for (const [where, { rule, schema }] of this.#named) this.#rules.named(rule, this.#node(schema, where, 0));
    return root;
  }

  #node(schema: unknown, where: string, depth: number): string {
    if (schema === true) return 'value';
    const node = asRecord(schema);
    if (node === undefined)
      throw new KvError('bad-argument', `the schema at ${where} ${schema === false ? 'allows nothing' : 'is none'}`, {
        values: { schema: show(schema).slice(0, 80), where },
      });
    if (depth > NESTING_MAX)
      throw new KvError('unsupported', `the schema nests deeper than ${NESTING_MAX} at ${where}`, {
        values: { where, nestingMax: NESTING_MAX },
        hint: 'give what is inside a name in $defs, and a $ref to it',
      });
    const refused = REFUSED.find((keyword) => node[keyword] !== undefined);
    if (refused !== undefined) throw cannot(`'${refused}'`, where);
    const whole = WHOLE.filter((keyword) => node[keyword] !== undefined);
    if (whole.length === 0) return this.#typed(node, where, depth);
    const [keyword] = whole;
    const isList = keyword === 'const' || keyword === 'enum';
    const beside = [
      ...whole.slice(1),
      ...(isList || node['type'] === undefined ? [] : ['type']),
      ...Object.keys(node).filter((name) => CONSTRAINTS.has(name)),
    ];
    if (beside.length > 0) throw cannot(`'${beside[0]}' beside '${keyword}'`, where);
    if (keyword === '$ref') return this.#reference(node['$ref'], where);
    if (isList)
      return this.#rules.add(
        this.#values(node, where)
          .map((value) => this.#rules.notation.value(value, where))
          .join(' | '),
      );
    return this.#alternatives(node[keyword!], keyword!, where, depth);
  }

  #reference(ref: unknown, where: string): string {
    if (typeof ref !== 'string' || !ref.startsWith('#')) throw cannot(`a $ref to ${show(ref).slice(0, 80)}`, where);
    const named = this.#named.get(ref) ?? { rule: this.#rules.reserve(), schema: found(this.#root, ref, where) };
    this.#named.set(ref, named);
    return named.rule;
  }

  /** The values that the type allows. */
  #values(node: Node, where: string): readonly unknown[] {
    const values = node['enum'] === undefined ? [node['const']] : node['enum'];
    const types = typesOf(node, where);
    const allowed = Array.isArray(values) ? values.filter((value) => types === null || isOf(value, types)) : [];
    if (allowed.length > 0) return allowed;
    throw new KvError('bad-argument', `the schema at ${where} lists no value that it allows`, { values: { where } });
  }

  #alternatives(list: unknown, keyword: string, where: string, depth: number): string {
    if (!Array.isArray(list) || list.length === 0)
      throw new KvError('bad-argument', `'${keyword}' at ${where} must be a list of schemas`, { values: { where } });
    if (keyword === 'allOf' && list.length > 1) throw cannot("'allOf' of several", where);
    if (keyword === 'oneOf' && !disjoint(list, (ref) => found(this.#root, ref, where)))
      throw cannot("'oneOf' of alternatives that may both hold", where);
    const nodes = list.map((schema, index) => this.#node(schema, `${where}/${keyword}/${index}`, depth + 1));
    return this.#any(nodes);
  }

  #typed(node: Node, where: string, depth: number): string {
    const given = Object.keys(node).filter((name) => CONSTRAINTS.has(name));
    // Without a type it would allow any value of the others as well.
    const types = typesOf(node, where) ?? TYPES.filter((type) => KEYWORDS[type]!.some((name) => given.includes(name)));
    if (types.length === 0) return 'value';
    const nodes = types.map((type) => this.#ofType(type, node, where, depth));
    return this.#any(nodes);
  }

  #any(expressions: readonly string[]): string {
    return expressions.length === 1 ? expressions[0]! : this.#rules.add(expressions.join(' | '));
  }

  #ofType(type: string, node: Node, where: string, depth: number): string {
    if (type === 'object') return this.#object(node, where, depth);
    if (type === 'array') return this.#array(node, where, depth);
    if (type === 'string') return this.#string(node, where);
    if (type === 'number' || type === 'integer') return this.#number(type, node, where);
    return type === 'boolean' ? '("true" | "false")' : '"null"';
  }

  /**
   * An object that names its properties has those and no others, since another one might have the name of one of them.
   */
  #object(node: Node, where: string, depth: number): string {
    const { required = [], additionalProperties = true } = node;
    const { notation } = this.#rules;
    const named = asRecord(node['properties'] ?? {});
    if (named === undefined || !Array.isArray(required) || !required.every((name) => typeof name === 'string'))
      throw new KvError('bad-argument', `properties or required at ${where} cannot be read`, { values: { where } });
    const least = count(node, 'minProperties', where) ?? 0;
    const most = count(node, 'maxProperties', where) ?? Number.POSITIVE_INFINITY;
    const missing = [...new Set(required)].filter((name) => !Object.hasOwn(named, name));
    const schemas = [...Object.entries(named), ...missing.map((name) => [name, additionalProperties] as const)];
    // A property that must not be there is left out.
    const allowed = schemas.filter(([name, schema]) => schema !== false || required.includes(name));
    if (least > new Set(required).size) throw cannot("'minProperties' beyond those that are required", where);
    if (allowed.length > 0) {
      if (most < allowed.length) throw cannot("'maxProperties' below the properties that are named", where);
      const properties = allowed.map(([name, schema]) => {
        const value = this.#node(schema, `${where}/properties/${name}`, depth + 1);
        const begun = `${notation.name(name, where)} ${notation.colon}`;
        return { pair: `${begun} ${value}`, isRequired: required.includes(name) };
      });
      return this.#rules.add(`"{" ${this.#members(properties)} "}"`);
    }
    if (most === 0 || additionalProperties === false || schemas.length > 0) return '"{}"';
    if (Number.isFinite(most)) throw cannot("'maxProperties' of an object that names no properties", where);
    const value = this.#node(additionalProperties, `${where}/additionalProperties`, depth + 1);
    const pair = this.#rules.add(`string ${notation.colon} ${value}`);
    return this.#rules.add(`"{" (${pair} (${notation.comma} ${pair})*)? "}"`);
  }

  /**
   * Properties in the order of the schema, a comma between those that are there. One rule each for what follows a
   * property, and for what follows none.
   */
  #members(properties: readonly { readonly pair: string; readonly isRequired: boolean }[]): string {
    const { comma } = this.#rules.notation;
    let after = '""';
    let first = '""';
    for (const { pair, isRequired } of properties.toReversed()) {
      const begun = `${pair} ${after}`;
      [first, after] = isRequired
        ? [this.#rules.add(begun), this.#rules.add(`${comma} ${begun}`)]
        : [this.#rules.add(`${begun} | ${first}`), this.#rules.add(`${comma} ${begun} | ${after}`)];
    }
    return first;
  }

  /** Where the first elements have schemas of their own, all of those are written. */
  #array(node: Node, where: string, depth: number): string {
    const { prefixItems = [], items = true, uniqueItems = false } = node;
    const { comma } = this.#rules.notation;
    if (uniqueItems !== false) throw cannot("'uniqueItems'", where);
    if (Array.isArray(items)) throw cannot("a list of 'items' (prefixItems is its newer name)", where);
    if (!Array.isArray(prefixItems))
      throw new KvError('bad-argument', `prefixItems at ${where} must be a list`, { values: { where } });
    const least = count(node, 'minItems', where) ?? 0;
    const most = count(node, 'maxItems', where) ?? Number.POSITIVE_INFINITY;
    const first = prefixItems.slice(0, most);
    const isClosed = items === false || most === first.length;
    if (least > most || (isClosed && least > first.length))
      throw new KvError('bad-argument', `the array at ${where} can have no length`, { values: { where, least, most } });
    this.#repetitions.add(Number.isFinite(most) ? most : least, where);
    const parts = first.map((schema, index) => this.#node(schema, `${where}/prefixItems/${index}`, depth + 1));
    if (isClosed) return parts.length === 0 ? '"[]"' : this.#rules.add(`"[" ${parts.join(` ${comma} `)} "]"`);
    const item = this.#node(items, `${where}/items`, depth + 1);
    const [fewest, end] = [Math.max(0, least - parts.length), Number.isFinite(most) ? most - parts.length : null];
    if (parts.length > 0)
      return this.#rules.add(`"[" ${parts.join(` ${comma} `)} (${comma} ${item}){${fewest},${end ?? ''}} "]"`);
    const more = `${item} (${comma} ${item}){${Math.max(0, fewest - 1)},${end === null ? '' : end - 1}}`;
    return this.#rules.add(fewest > 0 ? `"[" ${more} "]"` : `"[" (${more})? "]"`);
  }

  #string(node: Node, where: string): string {
    const { pattern, format } = node;
    const { quote, character, hasPatterns } = this.#rules.notation;
    const least = count(node, 'minLength', where) ?? 0;
    const most = count(node, 'maxLength', where);
    if (least > (most ?? Number.POSITIVE_INFINITY))
      throw new KvError('bad-argument', `the text at ${where} can have no length`, { values: { where, least, most } });
    this.#repetitions.add(most ?? least, where);
    const given = ['pattern', 'format', 'minLength', 'maxLength'].filter((key) => node[key] !== undefined);
    if (given.length === 0) return 'string';
    if (pattern === undefined && format === undefined)
      return this.#rules.addPlain(`${quote} ${character}{${least},${most ?? ''}} ${quote}`);
    if (given.length > 1) throw cannot(`'${given[0]}' together with '${given[1]}'`, where);
    if (pattern !== undefined) {
      if (typeof pattern !== 'string')
        throw new KvError('bad-argument', `the pattern at ${where} must be a text`, { values: { where } });
      if (!hasPatterns) throw cannot("'pattern', in texts that this model quotes in its own way,", where);
      return this.#rules.add(`${quote} (${patternExpression(pattern, where, this.#repetitions)}) ${quote}`);
    }
    const expression = typeof format === 'string' && Object.hasOwn(FORMATS, format) ? FORMATS[format] : undefined;
    if (expression === undefined) throw cannot(`the format ${show(format).slice(0, 40)}`, where);
    return this.#rules.add(`${quote} (${expression}) ${quote}`);
  }

  #number(type: string, node: Node, where: string): string {
    for (const name of KEYWORDS['number']!)
      if (node[name] !== undefined && !Number.isFinite(node[name]))
        throw new KvError('bad-argument', `${name} at ${where} must be a number`, {
          values: { [name]: show(node[name]).slice(0, 40), where },
        });
    const { minimum, maximum, exclusiveMinimum, exclusiveMaximum, multipleOf } = node as Record<string, number>;
    if (multipleOf !== undefined && !(type === 'integer' && multipleOf === 1)) throw cannot("'multipleOf'", where);
    const least = boundOf(minimum, exclusiveMinimum, Math.max);
    const most = boundOf(maximum, exclusiveMaximum, Math.min);
    if (least === null && most === null) return type;
    const beyond = [least, most].find((bound) => bound !== null && !(Math.abs(bound.value) <= BOUND_MAX));
    if (beyond != null) throw cannot(`the bound ${beyond.value}`, where);
    const range = type === 'integer' ? numberRange(least, most, 0) : numberRange(least, most);
    if (range !== null) return this.#rules.add(range);
    throw new KvError('bad-argument', `no number at ${where} is within its bounds`, {
      values: { where, minimum, maximum, exclusiveMinimum, exclusiveMaximum },
    });
  }
}

/** The stricter of two bounds. */
function boundOf(
  closed: number | undefined,
  open: number | undefined,
  stricter: (...values: number[]) => number,
): Bound | null {
  if (open === undefined) return closed === undefined ? null : { value: closed, isOpen: false };
  return closed === undefined || closed === open || stricter(closed, open) === open
    ? { value: open, isOpen: true }
    : { value: closed, isOpen: false };
}

function count(node: Node, name: string, where: string): number | undefined {
  const value = node[name];
  if (value === undefined) return undefined;
  if (Number.isSafeInteger(value) && Number(value) >= 0) return Number(value);
  throw new KvError('bad-argument', `${name} at ${where} must be a whole number of 0 or more`, {
    values: { [name]: show(value).slice(0, 40), where },
  });
}

/** null: the schema names none. */
function typesOf(node: Node, where: string): readonly string[] | null {
  const { type } = node;
  if (type === undefined) return null;
  const types: readonly unknown[] = Array.isArray(type) ? type : [type];
  if (types.length > 0 && types.every((name) => TYPES.includes(name as string))) return types as readonly string[];
  throw new KvError('bad-argument', `the schema at ${where} has the type ${show(type).slice(0, 80)}`, {
    values: { type: show(type).slice(0, 80), where, known: TYPES },
  });
}

function isOf(value: unknown, types: readonly string[]): boolean {
  if (value === null) return types.includes('null');
  if (Array.isArray(value)) return types.includes('array');
  if (typeof value === 'number')
    return types.includes('number') || (types.includes('integer') && Number.isInteger(value));
  return types.includes(typeof value);
}

/** What a reference within the schema leads to: a JSON pointer (RFC 6901) behind the #. */
function found(root: JsonSchema, ref: string, where: string): JsonSchema {
  let at: unknown = root;
  for (const part of ref.slice(1).split('/').slice(1)) {
    const key = decoded(part).replaceAll('~1', '/').replaceAll('~0', '~');
    at = typeof at === 'object' && at !== null && Object.hasOwn(at, key) ? (at as Node)[key] : undefined;
  }
  if ((ref === '#' || ref.startsWith('#/')) && (typeof at === 'boolean' || asRecord(at) !== undefined))
    return at as JsonSchema;
  throw new KvError('bad-argument', `the schema at ${where} refers to ${ref}, where there is none`, {
    values: { ref, where },
  });
}

function decoded(part: string): string {
  try {
    return decodeURIComponent(part);
  } catch {
    return part;
  }
}

const cannot = (what: string, where: string): KvError =>
  new KvError('unsupported', `the schema has ${what} at ${where}, which cannot be followed`, {
    values: { where },
    hint: 'docs/library.md lists what can: leave it out and check the answer, or say it in another way',
  });
