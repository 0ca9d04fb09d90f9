/** How Python writes values: `str`, `repr` and `json.dumps`. */
import { type Bounds, DEPTH_MAX } from './bounds.ts';
import { TemplateFault } from './fault.ts';
import { Text } from './text.ts';
import { Dict, Namespace, Range, Tuple, typeName, Undefined, type Value, View } from './values.ts';

/** A value that is written, with its brackets and commas, takes the time of so many steps. */
const STEPS_WRITTEN = 8;

/** The shortest digits that give the number again, as JavaScript finds them; with an exponent where Python has one. */
export function floatText(value: number): string {
  if (Number.isNaN(value)) return 'nan';
  if (!Number.isFinite(value)) return value > 0 ? 'inf' : '-inf';
  const [digits = '', power = ''] = value.toExponential().split('e');
  const exponent = Number(power);
  if (exponent >= -4 && exponent < 16) {
    const plain = Object.is(value, -0) ? '-0' : String(value);
    return plain.includes('.') ? plain : `${plain}.0`;
  }
  const places = String(Math.abs(exponent)).padStart(2, '0');
  return `${digits}e${exponent < 0 ? '-' : '+'}${places}`;
}

/** What `str` gives, and what a template writes. */
export function textOf(value: Value, bounds: Bounds): Text {
  if (value instanceof Text) return value;
  return value instanceof Undefined ? Text.empty : represented(value, bounds);
}

/** What `repr` gives. */
export function represented(value: Value, bounds: Bounds): Text {
  const parts: Text[] = [];
  represent(value, { bounds, add: (part) => parts.push(typeof part === 'string' ? Text.own(part) : part) }, 0);
  return Text.join(parts);
}

interface Writer {
  readonly bounds: Bounds;
  add(part: string | Text): void;
}

function represent(value: Value, to: Writer, depth: number): void {
  to.bounds.step(STEPS_WRITTEN);
  if (depth > DEPTH_MAX) throw new TemplateFault('data lies too deep in data');
  const list = (open: string, items: readonly Value[], close: string): void => {
    to.add(open);
    for (const [index, item] of items.entries()) {
      if (index > 0) to.add(', ');
      represent(item, to, depth + 1);
    }
    to.add(close);
  };
  if (value instanceof Text && value.isMarkup)
    for (const part of ['Markup(', quoted(value, to.bounds), ')']) to.add(part);
  else if (value instanceof Text) to.add(quoted(value, to.bounds));
  else if (Array.isArray(value)) list('[', value, ']');
  else if (value instanceof Tuple) list('(', value.items, value.items.length === 1 ? ',)' : ')');
  else if (value instanceof View) list(`${value.typeName}([`, value.items, '])');
  else if (value instanceof Dict) representFields(value.entries(), ['{', '}'], to, depth);
  else if (value instanceof Namespace) {
    const fields = [...value.fields].map(([name, one]) => [Text.own(name), one] as const);
    representFields(fields, ['<Namespace {', '}>'], to, depth);
  } else to.add(plainText(value));
}

function representFields(
  fields: readonly (readonly [Value, Value])[],
  [open, close]: readonly [string, string],
  to: Writer,
  depth: number,
): void {
  to.add(open);
  for (const [index, [key, value]] of fields.entries()) {
    if (index > 0) to.add(', ');
    represent(key, to, depth + 1);
    to.add(': ');
    represent(value, to, depth + 1);
  }
  to.add(close);
}

function plainText(value: Value): string {
  if (value === null) return 'None';
  if (typeof value === 'boolean') return value ? 'True' : 'False';
  if (typeof value === 'bigint') return String(value);
  if (typeof value === 'number') return floatText(value);
  if (value instanceof Undefined) return 'Undefined';
  if (value instanceof Range) return `range(${value.from}, ${value.to}${value.by === 1 ? '' : `, ${value.by}`})`;
  throw new TemplateFault(`a ${typeName(value)} has no text`);
}

const QUOTE_ESCAPES: Readonly<Record<string, string>> = { '\\': '\\\\', '\n': '\\n', '\r': '\\r', '\t': '\\t' };

/** A text in quotes as `repr` has it: what cannot be seen is escaped. */
function quoted(text: Text, bounds: Bounds): Text {
  const { value } = text;
  bounds.letters(value.length);
  const quote = value.includes("'") && !value.includes('"') ? '"' : "'";
  const escaped = value.replace(/[\\'"\n\r\t]|(?! )[\p{C}\p{Z}]/gu, (letter) => {
    if (letter === "'" || letter === '"') return letter === quote ? `\\${letter}` : letter;
    const code = letter.codePointAt(0)!;
    if (QUOTE_ESCAPES[letter] !== undefined) return QUOTE_ESCAPES[letter];
    if (code < 0x100) return `\\x${code.toString(16).padStart(2, '0')}`;
    return code < 0x10000 ? `\\u${code.toString(16).padStart(4, '0')}` : `\\U${code.toString(16).padStart(8, '0')}`;
  });
  return Text.from(quote + escaped + quote, text);
}

export interface JsonStyle {
  readonly ascii: boolean;
  /** null: all in one line. */
  readonly indent: string | null;
  readonly separators: readonly [string, string];
  readonly sorted: boolean;
}

/** What `json.dumps` gives. */
export function jsonText(value: Value, style: JsonStyle, bounds: Bounds): Text {
  const parts: Text[] = [];
  const to: Writer = { bounds, add: (part) => parts.push(typeof part === 'string' ? Text.own(part) : part) };
  writeJson(value, style, to, 0);
  return Text.join(parts);
}

function writeJson(value: Value, style: JsonStyle, to: Writer, depth: number): void {
  to.bounds.step(STEPS_WRITTEN);
  if (depth > DEPTH_MAX) throw new TemplateFault('data lies too deep in data');
  const items = value instanceof Tuple ? value.items : value;
  if (value instanceof Text) to.add(jsonString(value, style.ascii, to.bounds));
  else if (Array.isArray(items)) {
    writeAll(items as readonly Value[], '[]', style, to, depth, (item) => writeJson(item, style, to, depth + 1));
  } else if (value instanceof Dict) {
    const fields = value.entries().map(([key, one]) => [jsonKey(key), one] as const);
    if (style.sorted) fields.sort(([one], [other]) => comparePoints(one.value, other.value));
    writeAll(fields, '{}', style, to, depth, ([key, one]) => {
      to.add(jsonString(key, style.ascii, to.bounds));
      to.add(style.separators[1]);
      writeJson(one, style, to, depth + 1);
    });
  } else to.add(jsonPlain(value));
}

function writeAll<T>(
  items: readonly T[],
  brackets: string,
  { indent, separators }: JsonStyle,
  to: Writer,
  depth: number,
  write: (item: T) => void,
): void {
  if (items.length === 0) {
    to.add(brackets);
    return;
  }
  const line = (level: number): string => (indent === null ? '' : `\n${indent.repeat(level)}`);
  to.add(brackets[0]! + line(depth + 1));
  for (const [index, item] of items.entries()) {
    if (index > 0) to.add(separators[0] + line(depth + 1));
    write(item);
  }
  to.add(line(depth) + brackets[1]!);
}

function jsonPlain(value: Value): string {
  if (value === null) return 'null';
  if (typeof value === 'boolean') return String(value);
  if (typeof value === 'bigint') return String(value);
  if (typeof value !== 'number') throw new TemplateFault(`a ${typeName(value)} cannot be written as JSON`);
  if (Number.isNaN(value)) return 'NaN';
  return Number.isFinite(value) ? floatText(value) : value > 0 ? 'Infinity' : '-Infinity';
}

const jsonKey = (key: Value): Text => (key instanceof Text ? key : Text.own(jsonPlain(key)));

const JSON_ESCAPES: Readonly<Record<string, string>> = {
  '"': '\\"',
  '\\': '\\\\',
  '\n': '\\n',
  '\r': '\\r',
  '\t': '\\t',
  '\f': '\\f',
  '\b': '\\b',
};

function jsonString(text: Text, ascii: boolean, bounds: Bounds): Text {
  bounds.letters(text.value.length);
  const pattern = new RegExp(ascii ? '["\\\\]|[^ -~]' : '["\\\\\\x00-\\x1f]', 'g');
  const escaped = (unit: string): string =>
    JSON_ESCAPES[unit] ?? `\\u${unit.charCodeAt(0).toString(16).padStart(4, '0')}`;
  return Text.from(`"${text.value.replace(pattern, escaped)}"`, text);
}

/** Order by code points, which is Python's; JavaScript compares units of UTF-16. */
export function comparePoints(one: string, other: string): number {
  const length = Math.min(one.length, other.length);
  for (let at = 0; at < length; at++) {
    const [a, b] = [one.charCodeAt(at), other.charCodeAt(at)];
    if (a === b) continue;
    const isSurrogate = (unit: number): boolean => unit >= 0xd800 && unit < 0xe000;
    if (isSurrogate(a) === isSurrogate(b)) return a - b;
    return isSurrogate(a) ? 1 : -1;
  }
  return one.length - other.length;
}
