/** Operators as Python has them: ints divide to a float, `//` and `%` round down, texts and lists add and repeat. */
import type { Bounds } from './bounds.ts';
import { TemplateFault } from './fault.ts';
import { formatPercent } from './formats.ts';
import type { Operator } from './nodes.ts';
import { sameKind, Text } from './text.ts';
import { numberOf, Tuple, typeName, Undefined, type Value } from './values.ts';

/** Ints beyond it have no text in Python either. */
const INT_BITS_MAX = 14_000;

export function operate(sign: Operator, left: Value, right: Value, bounds: Bounds): Value {
  if (left instanceof Undefined) left.fail();
  if (sign === '%' && left instanceof Text) return formatPercent(left, right, bounds);
  if (right instanceof Undefined) right.fail();
  const [a, b] = [numberOf(left), numberOf(right)];
  if (a !== undefined && b !== undefined) return calculate(sign, a, b);
  const result = sign === '+' ? added(left, right, bounds) : sign === '*' ? repeated(left, right, bounds) : undefined;
  if (result !== undefined) return result;
  throw new TemplateFault(`${typeName(left)} ${sign} ${typeName(right)} does not work`);
}

function added(left: Value, right: Value, bounds: Bounds): Value | undefined {
  if (left instanceof Text && right instanceof Text) {
    bounds.letters(left.value.length + right.value.length);
    if (left.isMarkup || right.isMarkup) return Text.join([left.escaped, right.escaped]).markup;
    return Text.join([left, right]);
  }
  if (Array.isArray(left) && Array.isArray(right)) {
    bounds.step(left.length + right.length);
    return [...left, ...right];
  }
  return left instanceof Tuple && right instanceof Tuple ? new Tuple([...left.items, ...right.items]) : undefined;
}

function repeated(left: Value, right: Value, bounds: Bounds): Value | undefined {
  const [times, what] = numberOf(left) === undefined ? [numberOf(right), left] : [numberOf(left), right];
  if (typeof times !== 'bigint') return undefined;
  const count = Math.max(0, Number(times));
  if (what instanceof Text) {
    bounds.letters(count * what.value.length);
    return sameKind(what, Text.from(what.value.repeat(count), what));
  }
  const items = what instanceof Tuple ? what.items : Array.isArray(what) ? what : undefined;
  if (items === undefined) return undefined;
  bounds.step(count * items.length);
  const all = Array.from({ length: count }, () => items).flat() as Value[];
  return what instanceof Tuple ? new Tuple(all) : all;
}

function calculate(sign: Operator, a: bigint | number, b: bigint | number): bigint | number {
  if (['/', '//', '%'].includes(sign) && Number(b) === 0) throw new TemplateFault('something is divided by zero');
  if (sign === '/') return Number(a) / Number(b);
  if (typeof a !== 'bigint' || typeof b !== 'bigint') return ofFloats(sign, Number(a), Number(b));
  if (sign === '**') return power(a, b);
  const result = ofInts(sign, a, b);
  if (BigInt.asIntN(INT_BITS_MAX, result) !== result) throw new TemplateFault('a number has too many digits');
  return result;
}

function ofFloats(sign: Operator, a: number, b: number): number {
  switch (sign) {
    case '+':
      return a + b;
    case '-':
      return a - b;
    case '*':
      return a * b;
    case '//':
      return Math.floor(a / b);
    case '%':
      return a - b * Math.floor(a / b);
    default:
      return a ** b;
  }
}

function ofInts(sign: Operator, a: bigint, b: bigint): bigint {
  const rest = sign === '//' || sign === '%' ? a % b : 0n;
  const isBelow = rest !== 0n && rest < 0n !== b < 0n;
  switch (sign) {
    case '+':
      return a + b;
    case '-':
      return a - b;
    case '*':
      return a * b;
    case '//':
      return a / b - (isBelow ? 1n : 0n);
    default:
      return isBelow ? rest + b : rest;
  }
}

function power(a: bigint, b: bigint): bigint | number {
  if (b < 0n) return Number(a) ** Number(b);
  if (BigInt(a.toString(2).length) * b > BigInt(INT_BITS_MAX)) throw new TemplateFault('a number has too many digits');
  return a ** b;
}

export function signed(sign: '-' | '+', value: Value): Value {
  if (value instanceof Undefined) value.fail();
  const number = numberOf(value);
  if (number === undefined) throw new TemplateFault(`${sign}${typeName(value)} does not work`);
  return sign === '-' ? -number : number;
}
