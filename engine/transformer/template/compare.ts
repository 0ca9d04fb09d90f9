/** Equality, order and membership as Python has them. */
import { type Bounds, DEPTH_MAX } from './bounds.ts';
import { TemplateFault } from './fault.ts';
import type { Comparison } from './nodes.ts';
import { Text } from './text.ts';
import { Dict, itemsOf, iterable, numberOf, Range, Tuple, typeName, Undefined, type Value, View } from './values.ts';
import { comparePoints } from './written.ts';

export function equal(one: Value, other: Value, bounds: Bounds, depth = 0): boolean {
  bounds.step();
  if (depth > DEPTH_MAX) throw new TemplateFault('data lies too deep in data');
  if (one instanceof Text && other instanceof Text) {
    bounds.letters(Math.min(one.value.length, other.value.length));
    return one.value === other.value;
  }
  const [a, b] = [numberOf(one), numberOf(other)];
  if (a !== undefined && b !== undefined) return sameNumber(a, b);
  const lists = listsOf(one, other);
  if (lists !== null) {
    const [mine, yours] = lists;
    return mine.length === yours.length && mine.every((item, at) => equal(item, yours[at]!, bounds, depth + 1));
  }
  if (one instanceof Dict && other instanceof Dict) {
    if (one.size !== other.size) return false;
    return one.entries().every(([key, value]) => {
      const found = other.get(key);
      return found !== undefined && equal(value, found, bounds, depth + 1);
    });
  }
  if (one instanceof Range && other instanceof Range)
    return one.items.length === other.items.length && one.items.every((item, at) => item === other.items[at]);
  if (isSet(one) && isSet(other))
    return one.items.length === other.items.length && one.items.every((item) => contains(other, item, bounds));
  return one === other || (one instanceof Undefined && other instanceof Undefined);
}

/** Views of keys and pairs are compared as sets. */
const isSet = (value: Value): value is View => value instanceof View && value.typeName !== 'dict_values';

/** An int equals the float of the same value. */
function sameNumber(one: bigint | number, other: bigint | number): boolean {
  if (typeof one === typeof other) return one === other;
  const [int, float] = typeof one === 'bigint' ? [one, other] : [other, one];
  return Number.isInteger(float) && BigInt(float) === int;
}

/** Both as lists, where both are lists or both are tuples. */
function listsOf(one: Value, other: Value): readonly [readonly Value[], readonly Value[]] | null {
  if (Array.isArray(one) && Array.isArray(other)) return [one, other];
  return one instanceof Tuple && other instanceof Tuple ? [one.items, other.items] : null;
}

/** Below 0 where the first comes first. Throws where the two have no order. */
export function order(one: Value, other: Value, bounds: Bounds, depth = 0): number {
  bounds.step();
  if (depth > DEPTH_MAX) throw new TemplateFault('data lies too deep in data');
  if (one instanceof Undefined) one.fail();
  if (other instanceof Undefined) other.fail();
  if (one instanceof Text && other instanceof Text) {
    bounds.letters(Math.min(one.value.length, other.value.length));
    return comparePoints(one.value, other.value);
  }
  const [a, b] = [numberOf(one), numberOf(other)];
  if (a !== undefined && b !== undefined) return a < b ? -1 : a > b ? 1 : a >= b ? 0 : Number.NaN;
  const lists = listsOf(one, other);
  if (lists === null) throw new TemplateFault(`${typeName(one)} and ${typeName(other)} have no order`);
  const [mine, yours] = lists;
  const at = mine.findIndex((item, index) => index >= yours.length || !equal(item, yours[index]!, bounds, depth + 1));
  if (at < 0 || at >= yours.length) return mine.length - yours.length;
  return order(mine[at]!, yours[at]!, bounds, depth + 1);
}

export function contains(among: Value, sought: Value, bounds: Bounds): boolean {
  if (among instanceof Text) {
    if (!(sought instanceof Text)) throw new TemplateFault(`${typeName(sought)} is looked for in a text`);
    bounds.search(among.value.length, sought.value.length);
    return among.value.includes(sought.value);
  }
  if (among instanceof Dict) return among.get(sought) !== undefined;
  if (iterable(among) === undefined) throw new TemplateFault(`${typeName(among)} holds nothing`);
  return itemsOf(among, bounds).some((item) => equal(item, sought, bounds));
}

export function compared(sign: Comparison, one: Value, other: Value, bounds: Bounds): boolean {
  switch (sign) {
    case '==':
      return equal(one, other, bounds);
    case '!=':
      return !equal(one, other, bounds);
    case 'in':
      return contains(other, one, bounds);
    case 'not in':
      return !contains(other, one, bounds);
    default: {
      const found = order(one, other, bounds);
      if (sign === '<') return found < 0;
      if (sign === '<=') return found <= 0;
      return sign === '>' ? found > 0 : found >= 0;
    }
  }
}
