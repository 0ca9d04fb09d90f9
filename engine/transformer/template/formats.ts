/** `%` on a text, and `format`. */
import type { Bounds } from './bounds.ts';
import { TemplateFault } from './fault.ts';
import { sameKind, Text } from './text.ts';
import { Dict, lengthOf, numberOf, Range, Tuple, typeName, Undefined, type Value } from './values.ts';
import { floatText, represented, textOf } from './written.ts';

/** Widths and digits beyond it are no prompt's. */
const WIDTH_MAX = 1000;

interface Spec {
  readonly fill: string;
  /** '' : texts to the left, numbers to the right. */
  readonly align: string;
  readonly sign: string;
  readonly alternate: boolean;
  readonly width: number;
  readonly grouped: boolean;
  readonly precision: number | null;
  readonly type: string;
}

const PERCENT = /%(?:\(([^)]*)\))?([-+ 0#]*)(\d*)(?:\.(\d+))?([diouxXeEfFgGcrsa%])|%/g;

export function formatPercent(pattern: Text, right: Value, bounds: Bounds): Text {
  const escaped = (value: Value): Value =>
    pattern.isMarkup && numberOf(value) === undefined ? textOf(value, bounds).escaped : value;
  const values = right instanceof Tuple ? right.items : [right];
  const parts: Text[] = [];
  let [from, used] = [0, 0];
  for (const found of pattern.value.matchAll(PERCENT)) {
    const [whole, key, flags = '', width = '', precision, type] = found;
    parts.push(pattern.slice(from, found.index));
    from = found.index + whole.length;
    if (type === undefined) throw new TemplateFault('a % of a format says nothing');
    if (type === '%') {
      parts.push(Text.own('%'));
      continue;
    }
    const value = key === undefined ? values[used++] : right instanceof Dict ? right.named(key) : undefined;
    if (value === undefined) throw new TemplateFault('a format has too few values');
    parts.push(formatted(escaped(value), percentSpec(flags, width, precision, type), bounds));
  }
  const isMapping =
    right instanceof Dict || right instanceof Range || right instanceof Undefined || Array.isArray(right);
  if (used < values.length && !isMapping) throw new TemplateFault('a format has too many values');
  parts.push(pattern.slice(from));
  return sameKind(pattern, Text.join(parts));
}

function percentSpec(flags: string, width: string, precision: string | undefined, type: string): Spec {
  return {
    fill: flags.includes('0') && !flags.includes('-') && !'rsac'.includes(type) ? '0' : ' ',
    align: flags.includes('-') ? '<' : flags.includes('0') && !'rsac'.includes(type) ? '=' : '>',
    sign: flags.includes('+') ? '+' : flags.includes(' ') ? ' ' : '-',
    alternate: flags.includes('#'),
    width: Number(width),
    grouped: false,
    precision: precision === undefined ? null : Number(precision),
    type: 'iu'.includes(type) ? 'd' : type,
  };
}

const FIELD = /\{\{|\}\}|\{([^{}!:]*)(?:!([rs]))?(?::([^{}]*))?\}|[{}]/g;
const SPEC = /^(?:([\s\S]?)([<>=^]))?([-+ ]?)(#?)(0?)(\d*)([,_]?)(?:\.(\d+))?([a-zA-Z%]?)$/u;

/** get: the value of a field such as `0`, `name` or `name[key].attribute`. */
export function formatBraces(pattern: Text, get: (field: string) => Value, bounds: Bounds): Text {
  const parts: Text[] = [];
  let [from, automatic] = [0, 0];
  for (const found of pattern.value.matchAll(FIELD)) {
    const [whole, field, conversion, spec = ''] = found;
    parts.push(pattern.slice(from, found.index));
    from = found.index + whole.length;
    if (field === undefined) {
      if (whole.length === 1) throw new TemplateFault(`a ${whole} of a format stands alone`);
      parts.push(Text.own(whole[0]!));
      continue;
    }
    const value = get(/^\w/.test(field) ? field : `${automatic++}${field}`);
    const shown = conversion === 'r' ? represented(value, bounds) : conversion === 's' ? textOf(value, bounds) : value;
    parts.push(formatted(shown, bracesSpec(spec, shown), bounds));
  }
  parts.push(pattern.slice(from));
  return Text.join(parts);
}

function bracesSpec(text: string, value: Value): Spec {
  const found = SPEC.exec(text);
  if (found === null) throw new TemplateFault(`${JSON.stringify(text)} is no format`);
  const [, fill, align, sign, alternate, zero, width, grouping, precision, type] = found;
  const isNumber = numberOf(value) !== undefined && typeof value !== 'boolean';
  if (text !== '' && !isNumber && !(value instanceof Text) && typeof value !== 'boolean')
    throw new TemplateFault(`a ${typeName(value)} has no format`);
  return {
    fill: (fill === '' ? undefined : fill) ?? (zero === '0' ? '0' : ' '),
    align: align ?? (zero === '0' && isNumber ? '=' : isNumber ? '>' : '<'),
    sign: sign === '' ? '-' : sign!,
    alternate: alternate !== '',
    width: Number(width),
    grouped: grouping !== '',
    precision: precision === undefined ? null : Number(precision),
    type:
      type === '' ? (typeof value === 'bigint' ? 'd' : isNumber ? (precision === undefined ? '' : 'g') : 's') : type!,
  };
}

function formatted(value: Value, spec: Spec, bounds: Bounds): Text {
  if (spec.width > WIDTH_MAX || (spec.precision ?? 0) > WIDTH_MAX) throw new TemplateFault('a format is too wide');
  if ('sra'.includes(spec.type) && spec.type !== '') {
    const text = spec.type === 's' ? textOf(value, bounds) : represented(value, bounds);
    return padded(
      spec.precision === null ? text : text.slice(0, text.unitOf(Math.min(text.length, spec.precision))),
      spec,
    );
  }
  if (spec.type === 'c') return padded(letterOf(value), spec);
  const number = numberOf(value);
  if (number === undefined) throw new TemplateFault(`a ${typeName(value)} is formatted as a number`);
  const digits = digitsOf(number, spec);
  const sign = number < 0 || Object.is(number, -0) ? '-' : spec.sign === '-' ? '' : spec.sign;
  const grouped = spec.grouped ? digits.replace(/^\d+/, (whole) => whole.replace(/\B(?=(?:\d{3})+$)/g, ',')) : digits;
  if (spec.align !== '=') return padded(Text.own(sign + grouped), spec);
  return Text.own(sign + grouped.padStart(spec.width - sign.length, spec.fill));
}

function letterOf(value: Value): Text {
  if (value instanceof Text && value.length === 1) return value;
  const code = numberOf(value);
  if (typeof code === 'bigint' && code >= 0n && code < 0x110000n) return Text.own(String.fromCodePoint(Number(code)));
  throw new TemplateFault('%c takes a letter');
}

function padded(text: Text, { fill, align, width }: Spec): Text {
  return pad(text, width, fill, align);
}

/** align: '<', '>' or '^'. */
export function pad(text: Text, width: number, fill: string, align: string): Text {
  const missing = width - lengthOf(text)!;
  if (missing <= 0) return text;
  const before = align === '<' ? 0 : align === '^' ? Math.floor(missing / 2) : missing;
  return Text.join([Text.own(fill.repeat(before)), text, Text.own(fill.repeat(missing - before))]);
}

/** As `str.center`: of an odd number of letters, the one more goes left if the width is odd. */
export function centered(text: Text, width: number, fill: string): Text {
  const missing = Math.max(0, width - text.length);
  const before = Math.floor(missing / 2) + (missing & width & 1);
  return pad(pad(text, text.length + before, fill, '>'), width, fill, '<');
}

const RADIX: Readonly<Record<string, readonly [number, string]>> = { x: [16, '0x'], o: [8, '0o'], b: [2, '0b'] };

/** Without a sign. */
function digitsOf(number: bigint | number, { type, precision, alternate }: Spec): string {
  const size = number < 0 ? -number : number;
  const radix = RADIX[type.toLowerCase()];
  if (radix !== undefined && typeof size === 'bigint') {
    const digits = (alternate ? radix[1] : '') + size.toString(radix[0]);
    return type === 'X' ? digits.toUpperCase() : digits;
  }
  const float = Math.abs(Number(size));
  switch (type) {
    case 'd':
      return String(typeof size === 'bigint' ? size : BigInt(Math.trunc(size)));
    case 'f':
    case 'F':
      return fixed(float, precision ?? 6);
    case '%':
      return `${fixed(float * 100, precision ?? 6)}%`;
    case 'e':
    case 'E':
      return scientific(float, precision ?? 6, type);
    case 'g':
    case 'G':
      return general(float, precision ?? 6, type);
    case '':
      return floatText(float);
    default:
      throw new TemplateFault(`${type} is no format of numbers`);
  }
}

/** JavaScript writes no more of them. Numbers whose halves are met here have fewer. */
const DIGITS_MAX = 100;

/** So many digits behind the point; an exact half goes to the even digit, as in C. */
export const fixed = (float: number, precision: number): string =>
  Number.isFinite(float) && float < 1e21
    ? toEven(float.toFixed(Math.min(DIGITS_MAX, precision)), float.toFixed(DIGITS_MAX))
    : floatText(float);

/** rounded: digits in which an exact half went up, as JavaScript rounds; exact: all digits of the same number. */
function toEven(rounded: string, exact: string): string {
  const kept = exact.slice(0, rounded.length);
  const isHalf = /^\.?50*$/.test(exact.slice(rounded.length));
  return isHalf && /[13579]$/.test(rounded) ? kept : rounded;
}

function scientific(float: number, precision: number, type: string): string {
  const [short = '', power = ''] = float.toExponential(Math.min(DIGITS_MAX, precision)).split('e');
  const [exact = '', same = ''] = float.toExponential(DIGITS_MAX).split('e');
  const digits = power === same ? toEven(short, exact) : short;
  const text = `${digits}e${power[0]}${power.slice(1).padStart(2, '0')}`;
  return type === 'E' ? text.toUpperCase() : text;
}

function general(float: number, precision: number, type: string): string {
  const places = Math.max(1, Math.min(DIGITS_MAX, precision));
  const exponent = float === 0 ? 0 : Number(float.toExponential(places - 1).split('e')[1]);
  const isPlain = exponent >= -4 && exponent < places;
  const text = isPlain ? fixed(float, places - 1 - exponent) : scientific(float, places - 1, 'e');
  const short = text.includes('.') ? text.replace(/\.?0+(?=e|$)/, '') : text;
  return type === 'G' ? short.toUpperCase() : short;
}
