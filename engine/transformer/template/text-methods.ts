/** The methods of Python's texts. */
import type { Bounds } from './bounds.ts';
import { TemplateFault } from './fault.ts';
import { centered, formatBraces, pad } from './formats.ts';
import { isSpace, LINE_ENDS } from './space.ts';
import { Text } from './text.ts';
import { argumentsOf, type Call, itemsOf, numberOf, Tuple, typeName, type Value } from './values.ts';

type Method = (text: Text, call: Call) => Value;

export function textOfArgument(value: Value | undefined, what: string): Text {
  if (value instanceof Text) return value;
  throw new TemplateFault(`${what} takes a text, not ${value === undefined ? 'nothing' : typeName(value)}`);
}

export function intOf(value: Value | undefined, otherwise: number, what: string): number {
  if (value === undefined || value === null) return otherwise;
  const number = numberOf(value);
  if (typeof number === 'bigint') return Number(number);
  throw new TemplateFault(`${what} takes a whole number, not ${typeName(value)}`);
}

/** Cuts white space, or these letters, from the ends of a text. */
export function stripped(
  text: Text,
  letters: Value | undefined,
  ends: 'both' | 'left' | 'right',
  bounds: Bounds,
): Text {
  const { value } = text;
  bounds.letters(value.length);
  const set = letters == null ? null : new Set(textOfArgument(letters, 'strip').value);
  const isCut = (letter: string): boolean => (set === null ? isSpace(letter) : set.has(letter));
  let [from, to] = [0, value.length];
  if (ends !== 'right')
    while (from < to) {
      const letter = String.fromCodePoint(value.codePointAt(from)!);
      if (!isCut(letter)) break;
      from += letter.length;
    }
  if (ends !== 'left')
    while (to > from) {
      const low = /[\udc00-\udfff]/.test(value[to - 1]!) && /[\ud800-\udbff]/.test(value[to - 2] ?? '');
      const letter = value.slice(low && to - 2 >= from ? to - 2 : to - 1, to);
      if (!isCut(letter)) break;
      to -= letter.length;
    }
  return text.slice(from, to);
}

/** Pieces between separators; null: runs of white space. times: how often at most, from the left or the right. */
function split(text: Text, separator: Value | undefined, times: number, fromRight: boolean, bounds: Bounds): Text[] {
  bounds.letters(text.value.length);
  const gaps =
    separator == null ? spaceGaps(text, times, fromRight) : textGaps(text, separator, times, fromRight, bounds);
  const pieces: Text[] = [];
  let at = 0;
  for (const [from, to] of gaps) {
    pieces.push(text.slice(at, from));
    at = to;
  }
  pieces.push(text.slice(at));
  bounds.step(pieces.length);
  return separator == null ? pieces.filter((piece) => piece.value !== '') : pieces;
}

type Gap = readonly [number, number];

function spaceGaps(text: Text, times: number, fromRight: boolean): Gap[] {
  const { value } = text;
  const gaps: Gap[] = [];
  for (let at = 0; at < value.length; at++) {
    if (!isSpace(value[at]!)) continue;
    const from = at;
    while (at < value.length && isSpace(value[at]!)) at++;
    gaps.push([from, at]);
  }
  const inner = gaps.filter(([from, to]) => from > 0 && to < value.length);
  if (times < 0 || inner.length < times) return gaps;
  // What is left over keeps the white space at its end.
  const ends = gaps.filter(([from, to]) => (fromRight ? to === value.length : from === 0));
  const kept = fromRight ? inner.slice(inner.length - times) : inner.slice(0, times);
  return [...kept, ...ends].sort(([one], [other]) => one - other);
}

function textGaps(text: Text, separator: Value, times: number, fromRight: boolean, bounds: Bounds): Gap[] {
  const { value } = text;
  const between = textOfArgument(separator, 'split').value;
  if (between === '') throw new TemplateFault('a text is split by nothing');
  bounds.search(value.length, between.length);
  const gaps: Gap[] = [];
  let at = fromRight ? value.lastIndexOf(between) : value.indexOf(between);
  while (at >= 0 && (times < 0 || gaps.length < times)) {
    gaps.push([at, at + between.length]);
    if (fromRight) at = at < between.length ? -1 : value.lastIndexOf(between, at - between.length);
    else at = value.indexOf(between, at + between.length);
  }
  return fromRight ? gaps.reverse() : gaps;
}

export function replaced(text: Text, old: Text, now: Text, times: number, bounds: Bounds): Text {
  bounds.search(text.value.length, old.value.length);
  const places: Gap[] =
    old.value === ''
      ? Array.from({ length: text.length + 1 }, (_, point) => [text.unitOf(point), text.unitOf(point)] as const)
      : textGaps(text, old, times, false, bounds);
  const parts: Text[] = [];
  let at = 0;
  for (const [from, to] of times < 0 ? places : places.slice(0, times)) {
    parts.push(text.slice(at, from), now);
    at = to;
  }
  parts.push(text.slice(at));
  bounds.step(parts.length);
  bounds.letters(parts.reduce((sum, part) => sum + part.value.length, 0));
  return Text.join(parts);
}

/** True if a text begins or ends with one of these; from and to are counted as slices count. */
function hasEnd(text: Text, call: Call, what: 'startswith' | 'endswith'): boolean {
  const [sought, first, last] = argumentsOf(call, what, 'prefix', 'start', 'end');
  if (isBeyond(text, first)) return false;
  const { value } = part(text, first, last);
  const texts = sought instanceof Tuple ? sought.items : [sought];
  return texts.some((one) => {
    const end = textOfArgument(one, what).value;
    call.machine.bounds.letters(end.length);
    return what === 'startswith' ? value.startsWith(end) : value.endsWith(end);
  });
}

/** True if a part begins behind the end of a text, where not even nothing is found. */
const isBeyond = (text: Text, first: Value | undefined): boolean => intOf(first, 0, 'a place in a text') > text.length;

/** The part of a text that slices with these ends name. */
function part(text: Text, first: Value | undefined, last: Value | undefined): Text {
  if (first === undefined && last === undefined) return text;
  const { length } = text;
  const place = (value: Value | undefined, otherwise: number): number => {
    const at = intOf(value, otherwise, 'a place in a text');
    return Math.min(length, Math.max(0, at < 0 ? at + length : at));
  };
  const [from, to] = [place(first, 0), place(last, length)];
  return from >= to ? Text.empty : text.slice(text.unitOf(from), text.unitOf(to));
}

/** Where a text is found, by code points; −1: nowhere. */
function found(text: Text, call: Call, what: string, fromRight: boolean): number {
  const [sought, first, last] = argumentsOf(call, what, 'sub', 'start', 'end');
  const { value } = textOfArgument(sought, what);
  if (isBeyond(text, first)) return -1;
  const among = part(text, first, last);
  call.machine.bounds.search(among.value.length, value.length);
  const unit = fromRight ? among.value.lastIndexOf(value) : among.value.indexOf(value);
  if (unit < 0) return -1;
  const from = intOf(first, 0, what);
  return among.pointAt(unit) + Math.max(0, from < 0 ? from + text.length : from);
}

function count(text: Text, call: Call): bigint {
  const [sought, first, last] = argumentsOf(call, 'count', 'sub', 'start', 'end');
  const among = part(text, first, last);
  const what = textOfArgument(sought, 'count');
  if (isBeyond(text, first)) return 0n;
  return BigInt(what.value === '' ? among.length + 1 : textGaps(among, what, -1, false, call.machine.bounds).length);
}

/** A text in three: before a separator, it, and behind it. */
function partition(text: Text, call: Call, fromRight: boolean): Tuple {
  const [separator] = argumentsOf(call, 'partition', 'sep');
  const [gap] = textGaps(text, textOfArgument(separator, 'partition'), 1, fromRight, call.machine.bounds);
  if (gap === undefined) return new Tuple(fromRight ? [Text.empty, Text.empty, text] : [text, Text.empty, Text.empty]);
  return new Tuple([text.slice(0, gap[0]), text.slice(gap[0], gap[1]), text.slice(gap[1])]);
}

function lines(text: Text, call: Call): Text[] {
  const [keepEnds = false] = argumentsOf(call, 'splitlines', 'keepends');
  const pieces: Text[] = [];
  let at = 0;
  for (const end of text.value.matchAll(LINE_ENDS)) {
    const behind = end.index + end[0].length;
    pieces.push(text.slice(at, keepEnds === true ? behind : end.index));
    at = behind;
  }
  if (at < text.value.length) pieces.push(text.slice(at));
  call.machine.bounds.letters(text.value.length);
  call.machine.bounds.step(pieces.length);
  return pieces;
}

const upper = (text: string): string => text.toUpperCase();
const lower = (text: string): string => text.toLowerCase();

/** Another case for a text, whose letters keep their origin. */
export function recased(text: Text, change: (value: string) => string, bounds: Bounds): Text {
  bounds.letters(text.value.length);
  return text.withLetters(change(text.value));
}

export const capitalized = (value: string): string => {
  const first = value === '' ? '' : String.fromCodePoint(value.codePointAt(0)!);
  return upper(first) + lower(value.slice(first.length));
};

const titled = (value: string): string => value.replace(/\p{L}+/gu, capitalized);
const swapped = (value: string): string =>
  value.replace(/\p{L}/gu, (letter) => (letter === upper(letter) ? lower(letter) : upper(letter)));

const casing =
  (name: string, change: (value: string) => string): Method =>
  (text, call) => {
    argumentsOf(call, name);
    return recased(text, change, call.machine.bounds);
  };

const all =
  (name: string, pattern: RegExp): Method =>
  (text, call) => {
    argumentsOf(call, name);
    call.machine.bounds.letters(text.value.length);
    return pattern.test(text.value);
  };

const splitting =
  (name: string, fromRight: boolean): Method =>
  (text, call) => {
    const [separator, times] = argumentsOf(call, name, 'sep', 'maxsplit');
    return split(text, separator, intOf(times, -1, name), fromRight, call.machine.bounds);
  };

const stripping =
  (name: string, ends: 'both' | 'left' | 'right'): Method =>
  (text, call) => {
    const [letters] = argumentsOf(call, name, 'chars');
    return stripped(text, letters, ends, call.machine.bounds);
  };

const aligning =
  (name: string, align: string): Method =>
  (text, call) => {
    const [width, fill] = argumentsOf(call, name, 'width', 'fillchar');
    const wide = intOf(width, 0, name);
    call.machine.bounds.letters(Math.max(0, wide));
    const filling = fill === undefined ? ' ' : textOfArgument(fill, name).value;
    if ([...filling].length !== 1) throw new TemplateFault(`${name} fills with one letter`);
    return align === '^' ? centered(text, wide, filling) : pad(text, wide, filling, align);
  };

function joined(between: Text, call: Call): Text {
  const [values] = argumentsOf(call, 'join', 'iterable');
  const parts = itemsOf(values ?? null, call.machine.bounds).map((one) => textOfArgument(one, 'join'));
  const letters = parts.reduce((sum, one) => sum + one.value.length + between.value.length, 0);
  call.machine.bounds.letters(letters);
  return Text.join(parts, between);
}

function formatMethod(text: Text, { args, named, machine }: Call): Text {
  const get = (field: string): Value => {
    const [, head = '', rest = ''] = /^(\w+)(.*)$/s.exec(field) ?? [];
    const value = /^\d+$/.test(head) ? args[Number(head)] : named.get(head);
    if (value === undefined) throw new TemplateFault(`a format has no value for ${JSON.stringify(field.slice(0, 40))}`);
    if (rest !== '') throw new TemplateFault('a format that looks into its values');
    return value;
  };
  return formatBraces(text, get, machine.bounds);
}

export const TEXT_METHODS: ReadonlyMap<string, Method> = new Map<string, Method>([
  ['capitalize', casing('capitalize', capitalized)],
  ['casefold', casing('casefold', lower)],
  ['center', aligning('center', '^')],
  ['count', count],
  ['endswith', (text, call) => hasEnd(text, call, 'endswith')],
  ['expandtabs', withoutTabs],
  ['find', (text, call) => BigInt(found(text, call, 'find', false))],
  ['format', formatMethod],
  ['index', (text, call) => foundOrFault(text, call, 'index', false)],
  ['isalnum', all('isalnum', /^[\p{L}\p{N}]+$/u)],
  ['isalpha', all('isalpha', /^\p{L}+$/u)],
  ['isascii', all('isascii', /^\p{ASCII}*$/u)],
  ['isdecimal', all('isdecimal', /^\p{Nd}+$/u)],
  ['isdigit', all('isdigit', /^[\p{Nd}\u00b2\u00b3\u00b9\u2070-\u2089\u2460-\u2468]+$/u)],
  ['isidentifier', all('isidentifier', /^[\p{XIDS}_]\p{XIDC}*$/u)],
  ['islower', all('islower', /^(?=[\s\S]*\p{Ll})[^\p{Lu}\p{Lt}]+$/u)],
  ['isnumeric', all('isnumeric', /^\p{N}+$/u)],
  ['isprintable', all('isprintable', /^(?:(?! )[^\p{C}\p{Z}]| )*$/u)],
  ['isspace', (text, call) => text.value !== '' && stripped(text, undefined, 'both', call.machine.bounds).value === ''],
  ['istitle', (text, call) => isTitle(text.value, call)],
  ['isupper', all('isupper', /^(?=[\s\S]*\p{Lu})[^\p{Ll}\p{Lt}]+$/u)],
  ['join', joined],
  ['ljust', aligning('ljust', '<')],
  ['lower', casing('lower', lower)],
  ['lstrip', stripping('lstrip', 'left')],
  ['partition', (text, call) => partition(text, call, false)],
  ['removeprefix', (text, call) => withoutEnd(text, call, 'removeprefix')],
  ['removesuffix', (text, call) => withoutEnd(text, call, 'removesuffix')],
  ['replace', replaceMethod],
  ['rfind', (text, call) => BigInt(found(text, call, 'rfind', true))],
  ['rindex', (text, call) => foundOrFault(text, call, 'rindex', true)],
  ['rjust', aligning('rjust', '>')],
  ['rpartition', (text, call) => partition(text, call, true)],
  ['rsplit', splitting('rsplit', true)],
  ['rstrip', stripping('rstrip', 'right')],
  ['split', splitting('split', false)],
  ['splitlines', lines],
  ['startswith', (text, call) => hasEnd(text, call, 'startswith')],
  ['strip', stripping('strip', 'both')],
  ['swapcase', casing('swapcase', swapped)],
  ['title', casing('title', titled)],
  ['upper', casing('upper', upper)],
  ['zfill', zeroFilled],
]);

/** Tabulators as spaces up to the next column. */
function withoutTabs(text: Text, call: Call): Text {
  const [size] = argumentsOf(call, 'expandtabs', 'tabsize');
  const wide = intOf(size, 8, 'expandtabs');
  call.machine.bounds.letters(text.value.length);
  const parts: Text[] = [];
  let [from, column] = [0, 0];
  for (let at = 0; at < text.value.length; at++) {
    const letter = text.value[at]!;
    if (letter === '\t') {
      const spaces = wide > 0 ? wide - (column % wide) : 0;
      call.machine.bounds.letters(spaces);
      parts.push(text.slice(from, at), Text.own(' '.repeat(spaces)));
      from = at + 1;
      column += spaces;
    } else if (letter === '\n' || letter === '\r') column = 0;
    else if (!/[\udc00-\udfff]/.test(letter)) column++;
  }
  return Text.join([...parts, text.slice(from)]);
}

/** True if each word begins with a capital letter, and has no other. */
function isTitle(text: string, call: Call): boolean {
  argumentsOf(call, 'istitle');
  call.machine.bounds.letters(text.length);
  let [isInWord, hasLetters] = [false, false];
  for (const letter of text) {
    const isCapital = /[\p{Lu}\p{Lt}]/u.test(letter);
    const isCased = isCapital || /\p{Lowercase}/u.test(letter);
    if (isCased && isCapital === isInWord) return false;
    isInWord = isCased;
    hasLetters ||= isCased;
  }
  return hasLetters;
}

function foundOrFault(text: Text, call: Call, what: string, fromRight: boolean): bigint {
  const at = found(text, call, what, fromRight);
  if (at < 0) throw new TemplateFault(`${what} finds nothing`);
  return BigInt(at);
}

function withoutEnd(text: Text, call: Call, what: 'removeprefix' | 'removesuffix'): Text {
  const [end] = argumentsOf(call, what, 'end');
  const { value } = textOfArgument(end, what);
  if (what === 'removeprefix') return text.value.startsWith(value) ? text.slice(value.length) : text;
  return text.value.endsWith(value) ? text.slice(0, text.value.length - value.length) : text;
}

function replaceMethod(text: Text, call: Call): Text {
  const [old, now, times] = argumentsOf(call, 'replace', 'old', 'new', 'count');
  const [from, to] = [textOfArgument(old, 'replace'), textOfArgument(now, 'replace')];
  return replaced(text, from, to, intOf(times, -1, 'replace'), call.machine.bounds);
}

function zeroFilled(text: Text, call: Call): Text {
  const [width] = argumentsOf(call, 'zfill', 'width');
  const wide = intOf(width, 0, 'zfill');
  call.machine.bounds.letters(Math.max(0, wide));
  const sign = /^[-+]/.test(text.value) ? 1 : 0;
  return Text.join([text.slice(0, sign), pad(text.slice(sign), wide - sign, '0', '>')]);
}
