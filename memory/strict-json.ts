/**
 * JSON from strangers. The built-in parser accepts duplicate keys, `__proto__` and 1e999; parsers disagree about the
 * first, the second can change every object of the process, the third is Infinity. Here all are refused, with the path.
 */
import { KvError, type KvErrorCode } from '../native/index.ts';

const FORBIDDEN_KEYS = new Set(['__proto__', 'constructor', 'prototype']);
/** Deeper than anything this project writes; keeps recursion far from the stack's end. */
const DEPTH_MAX = 32;
const NUMBER = /-?(?:0|[1-9]\d*)(?:\.\d+)?(?:[eE][+-]?\d+)?/y;

export interface StrictJsonOptions {
  /** Code of the error thrown. */
  readonly code: KvErrorCode;
  /** What the text is, for messages: a path or a name. */
  readonly name: string;
  readonly hint?: string;
}

/** Bytes → value. UTF-8 must be valid and without a byte order mark; objects have no prototype. Throws `options.code`. */
export function parseStrictJson(bytes: Uint8Array, options: StrictJsonOptions): unknown {
  let text: string;
  try {
    text = new TextDecoder('utf-8', { fatal: true, ignoreBOM: true }).decode(bytes);
  } catch (cause) {
    throw new KvError(options.code, `${options.name} is not UTF-8 text`, { cause, values: { name: options.name } });
  }
  let at = 0;
  const path: (string | number)[] = [];

  const where = (): string => (path.length === 0 ? 'top level' : path.join('.'));
  const refuse = (what: string): never => {
    throw new KvError(options.code, `${options.name}: ${what} at ${where()} (character ${at})`, {
      values: { name: options.name, path: where(), offset: at },
      ...(options.hint === undefined ? {} : { hint: options.hint }),
    });
  };
  const space = (): void => {
    for (;;) {
      const c = text.charCodeAt(at);
      if (c !== 0x20 && c !== 0x0a && c !== 0x0d && c !== 0x09) return;
      at += 1;
    }
  };
  const string = (): string => {
    const start = at;
    at += 1;
    for (;;) {
      if (at >= text.length) refuse('a string without end');
      const c = text.charCodeAt(at);
      if (c === 0x22) break;
      if (c < 0x20) refuse('a control character in a string');
      at += c === 0x5c ? 2 : 1;
    }
    at += 1;
    try {
      return JSON.parse(text.slice(start, at)) as string;
    } catch {
      return refuse('a broken escape in a string');
    }
  };
  const number = (): number => {
    NUMBER.lastIndex = at;
    const match = NUMBER.exec(text);
    if (match === null) return refuse('not a JSON value');
    at += match[0].length;
    const value = Number(match[0]);
    if (!Number.isFinite(value)) refuse('a number beyond the range of a double');
    return value;
  };
  const word = (literal: string, value: true | false | null): true | false | null => {
    if (!text.startsWith(literal, at)) refuse('not a JSON value');
    at += literal.length;
    return value;
  };
  const object = (depth: number): Record<string, unknown> => {
    const result = Object.create(null) as Record<string, unknown>;
    at += 1;
    space();
    if (text[at] === '}') {
      at += 1;
      return result;
    }
    for (;;) {
      space();
      if (text[at] !== '"') refuse('a key is missing');
      const key = string();
      if (FORBIDDEN_KEYS.has(key)) refuse(`the key ${key} is not allowed`);
      if (key in result) refuse(`the key ${JSON.stringify(key)} twice`);
      space();
      if (text[at] !== ':') refuse('a colon is missing');
      at += 1;
      path.push(key);
      result[key] = value(depth + 1);
      path.pop();
      space();
      const next = text[at];
      if (next !== ',' && next !== '}') refuse('a comma or brace is missing');
      at += 1;
      if (next === '}') return result;
    }
  };
  const array = (depth: number): unknown[] => {
    const result: unknown[] = [];
    at += 1;
    space();
    if (text[at] === ']') {
      at += 1;
      return result;
    }
    for (;;) {
      path.push(result.length);
      result.push(value(depth + 1));
      path.pop();
      space();
      const next = text[at];
      if (next !== ',' && next !== ']') refuse('a comma or bracket is missing');
      at += 1;
      if (next === ']') return result;
    }
  };
  const value = (depth: number): unknown => {
    if (depth > DEPTH_MAX) refuse(`nesting deeper than ${DEPTH_MAX}`);
    space();
    switch (text[at]) {
      case '{':
        return object(depth);
      case '[':
        return array(depth);
      case '"':
        return string();
      case 't':
        return word('true', true);
      case 'f':
        return word('false', false);
      case 'n':
        return word('null', null);
      default:
        return number();
    }
  };

  const result = value(0);
  space();
  if (at !== text.length) refuse('something follows the value');
  return result;
}
