/**
 * JSON as it was written, for a template. `JSON.parse` makes the same number of 2 and 2.0, rounds whole numbers beyond
 * 2^53, and puts names that are numbers first; Python does none of that, and so templates write what was written.
 */
import { jsonOf } from '../../../native/index.ts';
import { Bounds } from './bounds.ts';
import { givenValue } from './given.ts';
import { Text } from './text.ts';
import { Dict, type Value } from './values.ts';
import { jsonText } from './written.ts';

/** Objects and lists in one another: schemas have ten or so. */
export const JSON_DEPTH_MAX = 64;
/** Python reads no whole number of more digits. */
const DIGITS_MAX = 4300;
const COMPACT = { ascii: false, indent: null, separators: [',', ':'], sorted: false } as const;
const WORDS: Readonly<Record<string, Value>> = { true: true, false: false, null: null };

/** The value of a JSON text, whose texts count as given; undefined: it is none, or lies too deep. */
export function spelledValue(text: string): Value | undefined {
  return jsonOf(text) === undefined ? undefined : new Reader(text).value(0);
}

/** A number as Python reads it from JSON. */
export const numberIn = (word: string): bigint | number =>
  /[.eE]/.test(word) || word.length > DIGITS_MAX ? Number(word) : BigInt(word);

/** The same as plain data, as JSON.parse gives it. */
export function plainOf(value: Value): unknown {
  if (value instanceof Text) return value.value;
  if (typeof value === 'bigint') return Number(value);
  if (Array.isArray(value)) return value.map(plainOf);
  if (!(value instanceof Dict)) return value;
  return Object.fromEntries(value.entries().map(([name, one]) => [(name as Text).value, plainOf(one)]));
}

/** JSON of a value; undefined: its plain data says all of it. */
export function spellingOf(value: Value): string | undefined {
  const [spelled, plain] = [compact(value), compact(givenValue(plainOf(value)))];
  return spelled === plain ? undefined : spelled;
}

/** JSON without spaces, as JSON.stringify writes it. */
export const compact = (value: Value): string => jsonText(value, COMPACT, new Bounds(Number.POSITIVE_INFINITY)).value;

/** Reads a text that is JSON. */
class Reader {
  readonly #text: string;
  #at = 0;

  constructor(text: string) {
    this.#text = text;
  }

  value(depth: number): Value | undefined {
    const letter = this.#letter();
    if (letter === '{' || letter === '[') {
      if (depth === JSON_DEPTH_MAX) return undefined;
      return letter === '{' ? this.#dict(depth) : this.#list(depth);
    }
    if (letter === '"') return Text.given(this.#string());
    const word = /[\w.+-]+/y;
    word.lastIndex = this.#at;
    const [found] = word.exec(this.#text)!;
    this.#at += found.length;
    const constant = WORDS[found];
    return constant === undefined ? numberIn(found) : constant;
  }

  /** The next letter that is no white space. */
  #letter(): string {
    while (/[ \t\r\n]/.test(this.#text[this.#at]!)) this.#at++;
    return this.#text[this.#at]!;
  }

  /** Steps over a bracket or a comma; true where a value follows. */
  #follows(close: string): boolean {
    this.#at++;
    if (this.#letter() !== close) return true;
    this.#at++;
    return false;
  }

  #dict(depth: number): Value | undefined {
    const dict = new Dict();
    for (let follows = this.#follows('}'); follows; follows = this.#isAnother('}')) {
      this.#letter();
      const name = Text.given(this.#string());
      this.#letter();
      this.#at++;
      const value = this.value(depth + 1);
      if (value === undefined) return undefined;
      dict.set(name, value);
    }
    return dict;
  }

  #list(depth: number): Value | undefined {
    const all: Value[] = [];
    for (let follows = this.#follows(']'); follows; follows = this.#isAnother(']')) {
      const value = this.value(depth + 1);
      if (value === undefined) return undefined;
      all.push(value);
    }
    return all;
  }

  /** Steps over the comma or the bracket behind a value. */
  #isAnother(close: string): boolean {
    const isAnother = this.#letter() !== close;
    this.#at++;
    return isAnother;
  }

  #string(): string {
    const from = this.#at;
    for (this.#at++; this.#text[this.#at] !== '"'; this.#at++) if (this.#text[this.#at] === '\\') this.#at++;
    this.#at++;
    return JSON.parse(this.#text.slice(from, this.#at)) as string;
  }
}
