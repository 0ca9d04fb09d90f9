/** Attributes, items, slices and methods, as Jinja's sandbox has them: nothing that was given can be changed. */
import type { Bounds } from './bounds.ts';
import { equal } from './compare.ts';
import { TemplateFault } from './fault.ts';
import { sameKind, Text } from './text.ts';
import { TEXT_METHODS } from './text-methods.ts';
import {
  argumentsOf,
  type Call,
  Callable,
  Dict,
  itemsOf,
  lengthOf,
  numberOf,
  Range,
  Thing,
  Tuple,
  typeName,
  Undefined,
  type Value,
  View,
} from './values.ts';
import { textOf } from './written.ts';

type Method<T> = (of: T, call: Call) => Value;

const DICT_METHODS: ReadonlyMap<string, Method<Dict>> = new Map<string, Method<Dict>>([
  ['copy', (dict) => new Dict(dict.entries())],
  [
    'get',
    (dict, call) => {
      const [key, otherwise = null] = argumentsOf(call, 'get', 'key', 'default');
      if (key === undefined) throw new TemplateFault('get takes a key');
      const found = dict.get(key);
      return found === undefined ? otherwise : found;
    },
  ],
  [
    'items',
    (dict) =>
      new View(
        'dict_items',
        dict.entries().map((entry) => new Tuple(entry)),
      ),
  ],
  ['keys', (dict) => new View('dict_keys', dict.keys())],
  ['values', (dict) => new View('dict_values', dict.values())],
]);

const LIST_METHODS: ReadonlyMap<string, Method<readonly Value[]>> = new Map<string, Method<readonly Value[]>>([
  ['copy', (list) => [...list]],
  [
    'count',
    (list, { args: [sought = null], machine }) =>
      BigInt(list.filter((one) => equal(one, sought, machine.bounds)).length),
  ],
  [
    'index',
    (list, { args: [sought = null], machine }) => {
      const at = list.findIndex((one) => equal(one, sought, machine.bounds));
      if (at < 0) throw new TemplateFault('index finds nothing');
      return BigInt(at);
    },
  ],
]);

const CHANGING: readonly string[] = [
  'append',
  'clear',
  'extend',
  'insert',
  'pop',
  'popitem',
  'remove',
  'reverse',
  'setdefault',
  'sort',
  'update',
];

/** undefined: there is none of this name. */
function methodOf(of: Value, name: string): Callable | undefined {
  const bound = <T>(methods: ReadonlyMap<string, Method<T>>, to: T): Callable | undefined => {
    const method = methods.get(name);
    return method === undefined ? undefined : new Callable(name, (call) => method(to, call));
  };
  if (of instanceof Text) return of.isMarkup ? markupMethod(name, of) : bound(TEXT_METHODS, of);
  if ((Array.isArray(of) || of instanceof Dict) && CHANGING.includes(name))
    return new Callable(name, () => {
      throw new TemplateFault(`${name} would change what the template was given`);
    });
  if (of instanceof Dict) return bound(DICT_METHODS, of);
  if (Array.isArray(of)) return bound(LIST_METHODS, of);
  return of instanceof Tuple || of instanceof Range ? bound(LIST_METHODS, of.items) : undefined;
}

/** Methods of markup escape what they are given, and give markup. */
function markupMethod(name: string, of: Text): Callable | undefined {
  const method = TEXT_METHODS.get(name);
  if (method === undefined) return undefined;
  const markup = (value: Value): Value => {
    if (value instanceof Text) return value.markup;
    if (value instanceof Tuple) return new Tuple(value.items.map(markup));
    return Array.isArray(value) ? value.map(markup) : value;
  };
  return new Callable(name, (call) => {
    const escaped = (value: Value): Value => textOf(value, call.machine.bounds).escaped;
    const { args, named } = call;
    if (name === 'join')
      return markup(method(of, { ...call, args: args.map((one) => itemsOf(one, call.machine.bounds).map(escaped)) }));
    if (name === 'format') {
      const names = [...named].map(([field, value]) => [field, escaped(value)] as const);
      return markup(method(of, { ...call, args: args.map(escaped), named: new Map(names) }));
    }
    const isFilled = ['replace', 'center', 'ljust', 'rjust'].includes(name);
    const [first, second, ...rest] = args;
    if (!isFilled || second === undefined) return markup(method(of, call));
    return markup(method(of, { ...call, args: [first!, escaped(second), ...rest] }));
  });
}

function ownOf(of: Value, name: string): Value | undefined {
  const named = of instanceof Thing || of instanceof Tuple ? of.attribute(name) : undefined;
  return named === undefined ? methodOf(of, name) : named;
}

/** `of.name`: a method or an attribute before an item. */
export function attributeOf(of: Value, name: string): Value {
  if (of instanceof Undefined) return of.fail();
  const own = ownOf(of, name);
  return own === undefined && of instanceof Dict ? orMissing(of.named(name), of, name) : orMissing(own, of, name);
}

const missing = (of: Value, name: string): Undefined => new Undefined(`${name} of a ${typeName(of)}`);

const orMissing = (found: Value | undefined, of: Value, name: string): Value =>
  found === undefined ? missing(of, name) : found;

/** How many items can be had by their place; undefined: it has no places. */
const placesOf = (of: Value): number | undefined =>
  of instanceof Dict || of instanceof View ? undefined : lengthOf(of);

/** `of[at]`: an item before an attribute. */
export function itemOf(of: Value, at: Value): Value {
  if (of instanceof Undefined) return of.fail();
  if (of instanceof Dict && !Array.isArray(at) && !(at instanceof Dict)) {
    const found = of.get(at);
    if (found !== undefined) return found;
  }
  const index = numberOf(at);
  const length = placesOf(of);
  if (typeof index === 'bigint' && length !== undefined) {
    const place = Number(index) + (index < 0n ? length : 0);
    if (place < 0 || place >= length) return missing(of, `item ${index}`);
    if (of instanceof Text) return of.letterAt(place);
    return (of instanceof Tuple || of instanceof Range ? of.items : (of as Value[]))[place]!;
  }
  if (!(at instanceof Text)) return missing(of, 'an item');
  return orMissing(ownOf(of, at.value), of, at.value);
}

/** `of[from:to:step]` */
export function sliceOf(of: Value, [first = null, last = null, by = null]: readonly Value[], bounds: Bounds): Value {
  if (of instanceof Undefined) return of.fail();
  const length = placesOf(of);
  if (length === undefined) throw new TemplateFault(`a ${typeName(of)} has no slices`);
  const step = by === null ? 1 : placeOf(by);
  if (step === 0) throw new TemplateFault('a slice has no step');
  const limit = (value: Value, otherwise: number): number => {
    if (value === null) return otherwise;
    const at = placeOf(value);
    const place = at < 0 ? at + length : at;
    return step > 0 ? Math.min(length, Math.max(0, place)) : Math.min(length - 1, Math.max(-1, place));
  };
  const [from, to] = [limit(first, step > 0 ? 0 : length - 1), limit(last, step > 0 ? length : -1)];
  if (of instanceof Text && step === 1) {
    bounds.letters(Math.max(0, to - from));
    return from >= to ? of.slice(0, 0) : of.slice(of.unitOf(from), of.unitOf(to));
  }
  if (of instanceof Range) return new Range(of.from + from * of.by, of.from + to * of.by, of.by * step);
  const places: number[] = [];
  for (let at = from; step > 0 ? at < to : at > to; at += step) places.push(at);
  bounds.step(places.length);
  if (of instanceof Text) return sameKind(of, Text.join(places.map((at) => of.letterAt(at))));
  if (of instanceof Tuple) return new Tuple(places.map((at) => of.items[at]!));
  return places.map((at) => (of as Value[])[at]!);
}

function placeOf(value: Value): number {
  const number = numberOf(value);
  if (typeof number === 'bigint') return Number(number);
  throw new TemplateFault(`a slice by ${typeName(value)}`);
}
