/**
 * What a template computes with, as Python has it: None is null, an int a bigint, a float a number, a list an array.
 * Texts know where they come from (`text.ts`).
 */
import { type Bounds, DEPTH_MAX } from './bounds.ts';
import { TemplateFault } from './fault.ts';
import { Text } from './text.ts';

export type Value = null | boolean | bigint | number | Text | Value[] | Tuple | Dict | Lazy | Undefined | Thing;

/** Something that is not there. It is empty as a text and as a list, and anything else that is done with it fails. */
export class Undefined {
  readonly what: string;

  constructor(what: string) {
    this.what = what;
  }

  fail(): never {
    throw new TemplateFault(`${this.what} is undefined`);
  }
}

export class Tuple {
  readonly items: readonly Value[];

  constructor(items: readonly Value[]) {
    this.items = items;
  }

  /** Of a pair that `groupby` gives, whose items have names. */
  attribute(_name: string): Value | undefined {
    return undefined;
  }
}

/** What is run through once: what `map`, `select` and the like give. */
export class Lazy implements Iterable<Value> {
  readonly #iterator: Iterator<Value>;
  /** How many are run through for it. */
  readonly depth: number;

  /** of: what it is made of. */
  constructor(values: Iterable<Value>, of: Value = null) {
    this.#iterator = values[Symbol.iterator]();
    this.depth = of instanceof Lazy ? of.depth + 1 : 1;
    if (this.depth > DEPTH_MAX) throw new TemplateFault('filters lie too deep in filters');
  }

  [Symbol.iterator](): Iterator<Value> {
    return { next: () => this.#iterator.next() };
  }
}

/** An object with attributes: a loop, a namespace, a function. */
export class Thing {
  readonly typeName: string;

  constructor(typeName: string) {
    this.typeName = typeName;
  }

  attribute(_name: string): Value | undefined {
    return undefined;
  }
}

/** What `keys`, `values` and `items` of a dict give: it is run through and counted, and has no places. */
export class View extends Thing {
  readonly items: readonly Value[];

  constructor(typeName: 'dict_keys' | 'dict_values' | 'dict_items', items: readonly Value[]) {
    super(typeName);
    this.items = items;
  }
}

/** What `range` gives: it has places, and is written as it was called. */
export class Range extends Thing {
  readonly from: number;
  readonly to: number;
  readonly by: number;
  readonly items: readonly bigint[];

  /** By steps other than 0. */
  constructor(from: number, to: number, by: number) {
    super('range');
    this.from = from;
    this.to = to;
    this.by = by;
    const count = Math.max(0, Math.ceil((to - from) / by));
    this.items = Array.from({ length: count }, (_, index) => BigInt(from + index * by));
  }

  override attribute(name: string): Value | undefined {
    const ends: Readonly<Record<string, number>> = { start: this.from, stop: this.to, step: this.by };
    return Object.hasOwn(ends, name) ? BigInt(ends[name]!) : undefined;
  }
}

/** `namespace()`, the only thing whose attributes a template sets. */
export class Namespace extends Thing {
  readonly fields = new Map<string, Value>();

  constructor() {
    super('Namespace');
  }

  override attribute(name: string): Value | undefined {
    return this.fields.get(name);
  }
}

/** What a function, a filter or a test is given. */
export interface Call {
  readonly args: readonly Value[];
  readonly named: ReadonlyMap<string, Value>;
  readonly machine: Machine;
}

export type Filter = (value: Value, call: Call) => Value;

/** What functions need of the interpreter. */
export interface Machine {
  readonly bounds: Bounds;
  filter(name: string, value: Value, args: readonly Value[], named?: ReadonlyMap<string, Value>): Value;
  test(name: string, value: Value, args: readonly Value[]): boolean;
}

export class Callable extends Thing {
  readonly name: string;
  readonly call: (call: Call) => Value;

  constructor(name: string, call: (call: Call) => Value) {
    super('function');
    this.name = name;
    this.call = call;
  }

  override attribute(name: string): Value | undefined {
    return name === 'name' || name === '__name__' ? Text.own(this.name) : undefined;
  }
}

/** Letters of a tuple that is a key. */
const KEY_LETTERS_MAX = 1 << 16;

/** What tells keys of a dict apart; 1, 1.0 and true are the same key. */
function keyOf(key: Value): string {
  if (key instanceof Text) return `t${key.value}`;
  if (key === null) return 'none';
  if (typeof key === 'boolean') return key ? 'n1' : 'n0';
  if (typeof key === 'bigint') return `n${key}`;
  if (typeof key === 'number') return Number.isInteger(key) ? `n${BigInt(key)}` : `n${key}`;
  if (key instanceof Tuple) return tupleKey(key);
  if (key instanceof Undefined) return 'undefined';
  if (key instanceof Range) return `r${key.items.join()}`;
  if (key instanceof Lazy || (key instanceof Thing && !(key instanceof View && key.typeName !== 'dict_values')))
    return identityOf(key);
  throw new TemplateFault(`${typeName(key)} cannot be the key of a dict`);
}

const identities = new WeakMap<object, string>();
let identitiesMade = 0;

/** What tells an object from all others. */
function identityOf(thing: object): string {
  const known = identities.get(thing) ?? `o${++identitiesMade}`;
  identities.set(thing, known);
  return known;
}

function tupleKey({ items }: Tuple): string {
  const key = `(${items.map((item) => JSON.stringify(keyOf(item))).join()})`;
  if (key.length > KEY_LETTERS_MAX) throw new TemplateFault('a key of a dict is too long');
  return key;
}

export class Dict {
  readonly #entries = new Map<string, readonly [Value, Value]>();

  constructor(entries: Iterable<readonly [Value, Value]> = []) {
    for (const [key, value] of entries) this.set(key, value);
  }

  get size(): number {
    return this.#entries.size;
  }

  get(key: Value): Value | undefined {
    return this.#entries.get(keyOf(key))?.[1];
  }

  named(name: string): Value | undefined {
    return this.#entries.get(`t${name}`)?.[1];
  }

  /** A key that is there stays as it is. */
  set(key: Value, value: Value): void {
    const id = keyOf(key);
    this.#entries.set(id, [this.#entries.get(id)?.[0] ?? key, value]);
  }

  entries(): (readonly [Value, Value])[] {
    return [...this.#entries.values()];
  }

  keys(): Value[] {
    return this.entries().map(([key]) => key);
  }

  values(): Value[] {
    return this.entries().map(([, value]) => value);
  }
}

/** The name of Python's type, for messages. */
export function typeName(value: Value): string {
  if (value === null) return 'None';
  if (typeof value === 'boolean') return 'bool';
  if (typeof value === 'bigint') return 'int';
  if (typeof value === 'number') return 'float';
  if (value instanceof Text) return 'str';
  if (Array.isArray(value)) return 'list';
  if (value instanceof Tuple) return 'tuple';
  if (value instanceof Dict) return 'dict';
  if (value instanceof Lazy) return 'generator';
  return value instanceof Undefined ? 'Undefined' : value.typeName;
}

export function isTrue(value: Value): boolean {
  if (value instanceof Text) return value.value !== '';
  if (value instanceof Dict) return value.size > 0;
  if (isListed(value)) return value.items.length > 0;
  if (Array.isArray(value)) return value.length > 0;
  if (value instanceof Undefined) return false;
  return typeof value === 'object' ? value !== null : Boolean(value);
}

const isListed = (value: Value): value is Tuple | View | Range =>
  value instanceof Tuple || value instanceof View || value instanceof Range;

/** A bool counts as a number; undefined: it is none. */
export function numberOf(value: Value): bigint | number | undefined {
  if (typeof value === 'boolean') return value ? 1n : 0n;
  return typeof value === 'bigint' || typeof value === 'number' ? value : undefined;
}

/** The items of what can be run through. */
export function itemsOf(value: Value, bounds: Bounds): readonly Value[] {
  if (value instanceof Text) bounds.step(value.length);
  const items = iterable(value);
  if (items === undefined) throw new TemplateFault(`${typeName(value)} cannot be run through`);
  if (Array.isArray(items)) {
    bounds.step(items.length);
    return items;
  }
  const all: Value[] = [];
  for (const item of items) {
    bounds.step();
    all.push(item);
  }
  return all;
}

/** undefined: it cannot be run through. */
export function iterable(value: Value): Iterable<Value> | undefined {
  if (Array.isArray(value) || value instanceof Lazy) return value;
  if (value instanceof Text) return value.letters();
  if (isListed(value)) return value.items;
  if (value instanceof Dict) return value.keys();
  return value instanceof Undefined ? [] : undefined;
}

/** How many items or letters something has; undefined: it cannot be counted. */
export function lengthOf(value: Value): number | undefined {
  if (value instanceof Text) return value.length;
  if (Array.isArray(value)) return value.length;
  if (isListed(value)) return value.items.length;
  if (value instanceof Dict) return value.size;
  return value instanceof Undefined ? 0 : undefined;
}

/** The arguments of a call by the names of its parameters; undefined where one is not given. */
export function argumentsOf({ args, named }: Call, what: string, ...names: readonly string[]): (Value | undefined)[] {
  if (args.length > names.length) throw new TemplateFault(`${what} takes ${names.length} arguments`);
  for (const name of named.keys()) {
    if (!names.includes(name)) throw new TemplateFault(`${what} takes no argument ${name}`);
    if (names.indexOf(name) < args.length) throw new TemplateFault(`${what} was given ${name} twice`);
  }
  return names.map((name, index) => (index < args.length ? args[index] : named.get(name)));
}
