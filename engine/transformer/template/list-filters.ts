/** Filters of lists. */
import { itemOf } from './access.ts';
import { operate } from './arithmetic.ts';
import { equal, order } from './compare.ts';
import { TemplateFault } from './fault.ts';
import { sameKind, Text } from './text.ts';
import { intOf, textOfArgument } from './text-methods.ts';
import {
  argumentsOf,
  type Call,
  Dict,
  type Filter,
  isTrue,
  itemsOf,
  iterable,
  Lazy,
  Tuple,
  typeName,
  Undefined,
  type Value,
} from './values.ts';
import { textOf } from './written.ts';

/** An attribute by its path, `a.b.0`; where it is missing, the default. */
function lookedUp(value: Value, path: Value, otherwise?: Value): Value {
  const parts = path instanceof Text ? path.value.split('.') : [path];
  let found = value;
  for (const part of parts) {
    const at = typeof part !== 'string' ? part : /^\d+$/.test(part) ? BigInt(part) : Text.own(part);
    found = itemOf(found, at);
    if (found instanceof Undefined && otherwise !== undefined) return otherwise;
  }
  return found;
}

const lowered = (value: Value): Value => (value instanceof Text ? Text.from(value.value.toLowerCase(), value) : value);

/** What items are ordered by. */
function keyBy(attribute: Value | undefined, isCased: Value | undefined): (item: Value) => Value {
  const paths =
    attribute instanceof Text && attribute.value.includes(',') ? attribute.value.split(',').map(Text.own) : null;
  const fold = (value: Value): Value => (isCased !== undefined && isTrue(isCased) ? value : lowered(value));
  if (paths !== null) return (item) => new Tuple(paths.map((path) => fold(lookedUp(item, path))));
  return (item) => fold(attribute == null ? item : lookedUp(item, attribute));
}

function sortedBy(items: readonly Value[], key: (item: Value) => Value, isReversed: boolean, call: Call): Value[] {
  const keyed = items.map((item) => [key(item), item] as const);
  const sign = isReversed ? -1 : 1;
  return keyed.sort(([one], [other]) => sign * order(one, other, call.machine.bounds)).map(([, item]) => item);
}

function sort(value: Value, call: Call): Value {
  const [reverse = false, isCased, attribute] = argumentsOf(call, 'sort', 'reverse', 'case_sensitive', 'attribute');
  return sortedBy(itemsOf(value, call.machine.bounds), keyBy(attribute, isCased), isTrue(reverse), call);
}

function dictsort(value: Value, call: Call): Value {
  const [isCased, by = Text.own('key'), reverse = false] = argumentsOf(
    call,
    'dictsort',
    'case_sensitive',
    'by',
    'reverse',
  );
  if (!(value instanceof Dict)) throw new TemplateFault(`dictsort of a ${typeName(value)}`);
  const side = textOfArgument(by, 'dictsort').value;
  if (side !== 'key' && side !== 'value') throw new TemplateFault('dictsort by what is neither key nor value');
  const at = side === 'value' ? 1n : 0n;
  return sortedBy(
    value.entries().map((entry) => new Tuple(entry)),
    keyBy(at, isCased),
    isTrue(reverse),
    call,
  );
}

const extreme =
  (name: string, sign: number): Filter =>
  (value, call) => {
    const [isCased, attribute] = argumentsOf(call, name, 'case_sensitive', 'attribute');
    const key = keyBy(attribute, isCased);
    const items = itemsOf(value, call.machine.bounds);
    if (items.length === 0) return new Undefined(`${name} of nothing`);
    return items.reduce((best, item) => (sign * order(key(item), key(best), call.machine.bounds) > 0 ? item : best));
  };

function sum(value: Value, call: Call): Value {
  const [attribute, start = 0n] = argumentsOf(call, 'sum', 'attribute', 'start');
  const { bounds } = call.machine;
  if (start instanceof Text) throw new TemplateFault('sum of texts');
  return itemsOf(value, bounds).reduce<Value>(
    (total, item) => operate('+', total, attribute == null ? item : lookedUp(item, attribute), bounds),
    start,
  );
}

function join(value: Value, call: Call): Value {
  const [between = Text.empty, attribute] = argumentsOf(call, 'join', 'd', 'attribute');
  const { bounds } = call.machine;
  const items = itemsOf(value, bounds).map((item) =>
    textOf(attribute == null ? item : lookedUp(item, attribute), bounds),
  );
  const gap = textOf(between, bounds);
  bounds.letters(items.reduce((letters, item) => letters + item.value.length + gap.value.length, 0));
  return Text.join(items, gap);
}

function unique(value: Value, call: Call): Value {
  const [isCased, attribute] = argumentsOf(call, 'unique', 'case_sensitive', 'attribute');
  const key = keyBy(attribute, isCased);
  const seen = new Dict();
  const kept = itemsOf(value, call.machine.bounds).filter((item) => {
    const one = key(item);
    const isNew = seen.get(one) === undefined;
    seen.set(one, true);
    return isNew;
  });
  return new Lazy(kept);
}

/** The pair that `groupby` gives: a tuple whose items have names. */
class Group extends Tuple {
  override attribute(name: string): Value | undefined {
    return name === 'grouper' ? this.items[0] : name === 'list' ? this.items[1] : undefined;
  }
}

function groupby(value: Value, call: Call): Value {
  const [attribute, otherwise, isCased] = argumentsOf(call, 'groupby', 'attribute', 'default', 'case_sensitive');
  if (attribute === undefined) throw new TemplateFault('groupby takes an attribute');
  const { bounds } = call.machine;
  const read = (item: Value): Value => lookedUp(item, attribute, otherwise);
  const key = (item: Value): Value => (isTrue(isCased ?? false) ? read(item) : lowered(read(item)));
  const groups: Value[][] = [];
  for (const item of sortedBy(itemsOf(value, bounds), key, false, call)) {
    const last = groups.at(-1);
    if (last !== undefined && equal(key(last[0]!), key(item), bounds)) last.push(item);
    else groups.push([item]);
  }
  return groups.map((items) => new Group([read(items[0]!), items]));
}

function batch(value: Value, call: Call): Value {
  const [size, fill] = argumentsOf(call, 'batch', 'linecount', 'fill_with');
  const wide = intOf(size, 1, 'batch');
  const items = itemsOf(value, call.machine.bounds);
  if (wide < 1) return new Lazy(items.length === 0 ? [] : wide === 0 ? [[], [...items]] : [[...items]]);
  const rows = Array.from({ length: Math.ceil(items.length / wide) }, (_, row) =>
    items.slice(row * wide, row * wide + wide),
  );
  const last = rows.at(-1);
  if (fill != null && last !== undefined) {
    call.machine.bounds.step(wide);
    rows[rows.length - 1] = [...last, ...Array.from({ length: wide - last.length }, () => fill)];
  }
  return new Lazy(rows);
}

function slice(value: Value, call: Call): Value {
  const [count, fill] = argumentsOf(call, 'slice', 'slices', 'fill_with');
  const columns = intOf(count, 1, 'slice');
  if (columns === 0) throw new TemplateFault('slice into nothing');
  const items = itemsOf(value, call.machine.bounds);
  if (columns < 0) return new Lazy([]);
  call.machine.bounds.step(columns);
  const [each, more] = [Math.floor(items.length / columns), items.length % columns];
  const slices = Array.from({ length: columns }, (_, at): Value => {
    const from = at * each + Math.min(at, more);
    const part = items.slice(from, from + each + (at < more ? 1 : 0));
    return fill != null && at >= more ? [...part, fill] : part;
  });
  return new Lazy(slices);
}

function* each(value: Value, call: Call, work: (item: Value) => Iterable<Value>): Generator<Value> {
  for (const item of iterable(value) ?? itemsOf(value, call.machine.bounds)) {
    call.machine.bounds.step();
    yield* work(item);
  }
}

function map(value: Value, call: Call): Value {
  const { args, named, machine } = call;
  const attribute = named.get('attribute');
  if (value instanceof Undefined || !isTrue(value)) return new Lazy([]);
  if (args.length === 0 && attribute !== undefined) {
    const otherwise = named.get('default');
    return new Lazy(
      each(value, call, (item) => [lookedUp(item, attribute, otherwise)]),
      value,
    );
  }
  const [name, ...rest] = args;
  const filter = textOfArgument(name, 'map').value;
  return new Lazy(
    each(value, call, (item) => [machine.filter(filter, item, rest, named)]),
    value,
  );
}

/** select, reject, selectattr, rejectattr */
const selecting =
  (isKept: boolean, byAttribute: boolean): Filter =>
  (value, call) => {
    const { args, machine } = call;
    if (!isTrue(value)) return new Lazy([]);
    const [attribute, tests] = byAttribute ? [args[0], args.slice(1)] : [undefined, args];
    if (byAttribute && attribute === undefined) throw new TemplateFault('an attribute is missing');
    const [test, ...rest] = tests;
    const passes = (item: Value): boolean => {
      const tried = attribute === undefined ? item : lookedUp(item, attribute);
      return test === undefined ? isTrue(tried) : machine.test(textOfArgument(test, 'select').value, tried, rest);
    };
    return new Lazy(
      each(value, call, (item) => (passes(item) === isKept ? [item] : [])),
      value,
    );
  };

function first(value: Value, call: Call): Value {
  for (const item of iterable(value) ?? itemsOf(value, call.machine.bounds)) return item;
  return new Undefined('the first of nothing');
}

function last(value: Value, call: Call): Value {
  if (value instanceof Lazy) throw new TemplateFault('a generator has no last item');
  const items = itemsOf(value, call.machine.bounds);
  if (items.length === 0) return new Undefined('the last of nothing');
  return value instanceof Text ? sameKind(value, items.at(-1) as Text) : items.at(-1)!;
}

function reverse(value: Value, call: Call): Value {
  const items = [...itemsOf(value, call.machine.bounds)].reverse();
  if (value instanceof Text) return sameKind(value, Text.join(items as Text[]));
  return value instanceof Lazy ? items : new Lazy(items);
}

function items(value: Value): Value {
  if (value instanceof Undefined) return new Lazy([]);
  if (!(value instanceof Dict)) throw new TemplateFault(`items of a ${typeName(value)}`);
  return new Lazy(value.entries().map((entry) => new Tuple(entry)));
}

/** Nothing is done, and nothing fails, before something is taken from it. */
const lazily =
  (filter: Filter): Filter =>
  (value, call) => {
    function* items(): Generator<Value> {
      yield* filter(value, call) as Lazy;
    }
    return new Lazy(items(), value);
  };

export const LIST_FILTERS: readonly (readonly [string, Filter])[] = [
  ['batch', lazily(batch)],
  ['dictsort', dictsort],
  ['first', first],
  ['groupby', groupby],
  ['items', lazily(items)],
  ['join', join],
  ['last', last],
  ['list', (value, call) => [...itemsOf(value, call.machine.bounds)]],
  ['map', lazily(map)],
  ['max', extreme('max', 1)],
  ['min', extreme('min', -1)],
  ['reject', lazily(selecting(false, false))],
  ['rejectattr', lazily(selecting(false, true))],
  ['reverse', reverse],
  ['select', lazily(selecting(true, false))],
  ['selectattr', lazily(selecting(true, true))],
  ['slice', lazily(slice)],
  ['sort', sort],
  ['sum', sum],
  ['unique', lazily(unique)],
];
