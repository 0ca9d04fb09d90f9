/**
 * JSON schemas as grammars. XGrammar reads schemas as well, but passes over keywords that it does not know, and writes
 * names and patterns into its grammar as they are; here what is not followed to the letter is looked at when the text
 * is complete, or refused by name. Where a schema leaves a choice, the grammar may allow less. It is JSON on one line
 * with a space behind commas and colons, since free white space would let a small model write nothing else.
 */
import { asRecord, jsonOf, KvError, show } from '../../../native/index.ts';
import { disjoint } from './alternatives.ts';
import { listOf, plainAlternatives, valuesOf } from './conjunction.ts';
import { fulfils } from './fulfils.ts';
import { listExpression } from './list.ts';
import { isNothing, modern } from './modern.ts';
import { numberExpression } from './number.ts';
import { objectExpression } from './object.ts';
import { type JsonSchema, Repetitions } from './options.ts';
import { type Node, References } from './references.ts';
import { cannot } from './refusals.ts';
import { Rules } from './rules.ts';
import { textExpression } from './text.ts';
import type { Writing } from './writing.ts';

/** Schemas in schemas, without those that are named by $ref. */
const NESTING_MAX = 64;
/** Schemas that become rules of one grammar. */
const NODES_MAX = 10_000;

const KEYWORDS: Readonly<Record<string, readonly string[]>> = {
  object: [
    ...['properties', 'required', 'additionalProperties', 'minProperties', 'maxProperties', 'propertyNames'],
    'patternProperties',
  ],
  array: ['items', 'prefixItems', 'minItems', 'maxItems', 'uniqueItems'],
  string: ['minLength', 'maxLength', 'pattern', 'format'],
  number: ['minimum', 'maximum', 'exclusiveMinimum', 'exclusiveMaximum', 'multipleOf'],
  integer: ['minimum', 'maximum', 'exclusiveMinimum', 'exclusiveMaximum', 'multipleOf'],
  boolean: [],
  null: [],
};
const TYPES = Object.keys(KEYWORDS);
/** What stands beside these is said of the same value. */
const CONSTRAINTS = new Set([
  ...Object.values(KEYWORDS).flat(),
  ...['type', 'const', 'enum', 'unevaluatedProperties', 'unevaluatedItems', 'additionalItems'],
]);
const COMBINING = ['$ref', 'allOf', 'anyOf', 'oneOf'] as const;
/**
 * Keywords of validation that nothing here follows. Those that are no keywords of validation say nothing about the
 * answer.
 */
const REFUSED = [
  ...['not', 'if', 'then', 'else', 'dependentRequired', 'dependentSchemas', 'dependencies', 'contains'],
  ...['minContains', 'maxContains', '$dynamicRef', '$recursiveRef'],
];

/** What a schema comes to. */
export interface FollowedSchema {
  /** An expression of the grammar. */
  readonly expression: string;
  /** What the grammar leaves to be looked at when the value is complete; null: it says all. */
  readonly fulfils: ((value: unknown) => boolean) | null;
}

/** A grammar, and whether a text that is complete is right; null: it is. */
export interface FollowedText {
  readonly text: string;
  readonly fulfils: ((text: string) => boolean) | null;
}

/**
 * A grammar of the texts that fulfil a schema. Throws 'bad-argument' for what is no schema or allows nothing,
 * 'unsupported' for what cannot be followed.
 */
export function schemaGrammar(schema: JsonSchema): FollowedText {
  const rules = new Rules();
  const { expression, fulfils: isRight } = schemaExpression(schema, rules, new Repetitions());
  return {
    text: rules.grammar(expression),
    fulfils:
      isRight === null
        ? null
        : (text) => {
            const value = jsonOf(text);
            return value !== undefined && isRight(value);
          },
  };
}

/** The same as one expression among the rules of a larger grammar. */
export const schemaExpression = (schema: JsonSchema, rules: Rules, repetitions: Repetitions): FollowedSchema =>
  new Translation(schema, rules, repetitions).followed();

/** True if it is seen that a schema allows objects alone. Throws what schemaGrammar throws. */
export function allowsObjectsAlone(schema: JsonSchema): boolean {
  const how = { references: new References(schema), leave: () => undefined };
  return plainAlternatives(schema, '#', how).every((node) => {
    const values = valuesOf(node);
    return values === null ? node['type'] === 'object' || isOnly(node['type']) : values.every((one) => asRecord(one));
  });
}

const isOnly = (type: unknown): boolean => Array.isArray(type) && type.every((one) => one === 'object');

/** Each method gives an expression of the grammar. */
class Translation implements Writing {
  readonly rules: Rules;
  readonly repetitions: Repetitions;
  readonly #root: JsonSchema;
  readonly #references: References;
  /** Rules of schemas that a $ref names, by what they are, in the order in which they are met. */
  readonly #named = new Map<unknown, { readonly rule: string; readonly where: string }>();
  #nodes = 0;
  #leaves = false;

  constructor(root: JsonSchema, rules: Rules, repetitions: Repetitions) {
    this.#root = root;
    this.#references = new References(root);
    this.rules = rules;
    this.repetitions = repetitions;
  }

  followed(): FollowedSchema {
    const expression = this.node(this.#root, '#', 0);
    // The map grows while it is walked.
    for (const [schema, { rule, where }] of this.#named) this.rules.named(rule, this.node(schema, where, 0));
    return { expression, fulfils: this.#leaves ? (value) => this.#isFulfilled(value) : null };
  }

  /** What cannot be seen in time is not so. */
  #isFulfilled(value: unknown): boolean {
    try {
      return this.fulfils(value, this.#root);
    } catch (error) {
      if (error instanceof KvError && error.code === 'unsupported') return false;
      throw error;
    }
  }

  leave(): void {
    this.#leaves = true;
  }

  fulfils(value: unknown, schema: unknown): boolean {
    return fulfils(value, schema, this.#references);
  }

  values = (schema: unknown, where: string): readonly unknown[] | null => {
    const all: unknown[] = [];
    for (const node of this.#plain(schema, where)) {
      const values = valuesOf(node) ?? VALUES[String(node['type'])] ?? null;
      if (values === null) return null;
      all.push(...values.filter((value) => this.fulfils(value, schema)));
    }
    return all;
  };

  node(schema: unknown, where: string, depth: number): string {
    if (schema === true) return 'value';
    const node = asRecord(schema);
    if (node === undefined || isNothing(schema))
      throw new KvError('bad-argument', `the schema at ${where} ${isNothing(schema) ? 'allows nothing' : 'is none'}`, {
        values: { schema: show(schema).slice(0, 80), where },
      });
    if (depth > NESTING_MAX || ++this.#nodes > NODES_MAX)
      throw new KvError('unsupported', `the schema ${depth > NESTING_MAX ? 'nests' : 'grows'} too far at ${where}`, {
        values: { where, nestingMax: NESTING_MAX, nodesMax: NODES_MAX },
        hint: 'give what is inside a name in $defs, and a $ref to it',
      });
    const refused = REFUSED.find((keyword) => node[keyword] !== undefined);
    if (refused !== undefined) throw cannot(`'${refused}'`, where);
    const combining = COMBINING.filter((keyword) => node[keyword] !== undefined);
    if (combining.length === 0) return this.#typed(modern(node), where, depth);
    const isAlone = combining.length === 1 && !Object.keys(node).some((name) => CONSTRAINTS.has(name));
    if (isAlone && combining[0] === '$ref') return this.#reference(node, where);
    if (isAlone && combining[0] !== 'allOf') return this.#alternatives(node, combining[0] as 'anyOf', where, depth);
    const alternatives = this.#plain(node, where);
    if (alternatives.length === 0)
      throw new KvError('bad-argument', `the schema at ${where} allows nothing`, { values: { where } });
    return this.#any(alternatives.map((plain) => this.node(plain, where, depth + 1)));
  }

  #plain(schema: unknown, where: string): readonly Node[] {
    return plainAlternatives(schema, where, { references: this.#references, leave: () => this.leave() });
  }

  #reference(node: Node, where: string): string {
    const schema = this.#references.find(node['$ref'], node, where);
    if (typeof schema === 'boolean') return this.node(schema, where, 0);
    const named = this.#named.get(schema) ?? { rule: this.rules.reserve(), where: String(node['$ref']) };
    this.#named.set(schema, named);
    return named.rule;
  }

  #alternatives(node: Node, keyword: 'anyOf' | 'oneOf', where: string, depth: number): string {
    const list = listOf(node[keyword], keyword, where).filter((schema) => !isNothing(schema));
    if (list.length === 0)
      throw new KvError('bad-argument', `the schema at ${where} allows nothing`, { values: { where } });
    if (keyword === 'oneOf' && !disjoint(list, (ref) => this.#references.find(ref, node, where)))
      throw cannot("'oneOf' of alternatives that may both hold", where);
    return this.#any(list.map((schema, index) => this.node(schema, `${where}/${keyword}/${index}`, depth + 1)));
  }

  /** The values that the rest of the schema allows. */
  #listed(values: readonly unknown[], node: Node, where: string): string {
    const { enum: _, const: __, ...others } = node;
    typesOf(node, where);
    const allowed = values.filter((value) => this.fulfils(value, others));
    if (allowed.length > 0)
      return this.rules.add(allowed.map((value) => this.rules.notation.value(value, where)).join(' | '));
    throw new KvError('bad-argument', `the schema at ${where} lists no value that it allows`, { values: { where } });
  }

  #typed(node: Node, where: string, depth: number): string {
    if (node['enum'] !== undefined || node['const'] !== undefined)
      return this.#listed(valuesOf(node) ?? [], node, where);
    const given = Object.keys(node).filter((name) => CONSTRAINTS.has(name));
    // Without a type it would allow any value of the others as well.
    const types = typesOf(node, where) ?? TYPES.filter((type) => KEYWORDS[type]!.some((name) => given.includes(name)));
    if (types.length === 0) return 'value';
    // Where whole numbers may be any numbers, they are.
    const wide = types.includes('number') ? types.filter((type) => type !== 'integer') : types;
    return this.#any(wide.map((type) => this.#ofType(type, node, where, depth)));
  }

  #any(expressions: readonly string[]): string {
    return expressions.length === 1 ? expressions[0]! : this.rules.add(expressions.join(' | '));
  }

  #ofType(type: string, node: Node, where: string, depth: number): string {
    if (type === 'object') return objectExpression(node, where, depth, this);
    if (type === 'array') return listExpression(node, where, depth, this);
    if (type === 'string') return textExpression(node, where, this);
    if (type === 'number' || type === 'integer') return numberExpression(type, node, where, this);
    return type === 'boolean' ? '("true" | "false")' : '"null"';
  }
}

/** Types that have few values. */
const VALUES: Readonly<Record<string, readonly unknown[]>> = { boolean: [true, false], null: [null] };

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
