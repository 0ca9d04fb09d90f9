/**
 * JSON from files that others made. Parsers disagree about a key that stands twice, some keys can change every object of the
 * process, and depth or sheer number of values exhaust it: all are refused before the built-in parser sees the text.
 */
import { KvError, type KvErrorCode } from './error.ts';
import { readRegular } from './file.ts';

/** Deeper than anything this project writes and model files have. */
const DEPTH_MAX = 64;
/** Values of one JSON file: 262,144 words and 515,000 merges, each a pair in a list of its own, are two million. */
export const JSON_VALUES_MAX = 2 ** 22;
const FORBIDDEN_KEYS: ReadonlySet<string> = new Set(['__proto__', 'constructor', 'prototype']);

export interface JsonRules {
  /** For messages: a file name. */
  readonly what: string;
  readonly code: KvErrorCode;
  readonly hint?: string;
  /** Keys are words of a vocabulary: '__proto__' is one of them. Such an object must be read with Object.entries. */
  readonly anyKey?: boolean;
}

/** Bytes → value. UTF-8 must be valid and without a byte order mark. Throws `rules.code`. */
export function parseJson(bytes: Uint8Array, rules: JsonRules): unknown {
  let text: string;
  try {
    text = new TextDecoder('utf-8', { fatal: true, ignoreBOM: true }).decode(bytes);
  } catch (cause) {
    throw refused(rules, 'is not UTF-8', {}, cause);
  }
  checkKeys(text, rules);
  try {
    return JSON.parse(text);
  } catch (cause) {
    throw refused(rules, `is not JSON: ${(cause as Error).message.slice(0, 200)}`, {}, cause);
  }
}

function refused({ what, code, hint }: JsonRules, why: string, values: object = {}, cause?: unknown): KvError {
  return new KvError(code, `${what} ${why}`, { values: { file: what, ...values }, hint, cause });
}

/** Reads and parses a file of at most `bytesMax`. */
export function readJson(path: string, rules: Omit<JsonRules, 'what'> & { readonly bytesMax: number }): unknown {
  return parseJson(readRegular(path, rules), { ...rules, what: path });
}

/** An object that is not an array, else undefined. */
export function asRecord(value: unknown): Readonly<Record<string, unknown>> | undefined {
  return typeof value === 'object' && value !== null && !Array.isArray(value)
    ? (value as Record<string, unknown>)
    : undefined;
}

/** Follows brackets and strings only; whether the rest is JSON is for JSON.parse to say. */
function checkKeys(text: string, rules: JsonRules): void {
  const open: (Set<string> | null)[] = [];
  let keyNext = false;
  let values = 0;
  for (let at = 0; at < text.length; at++) {
    switch (text.charCodeAt(at)) {
      case 0x7b: // {
        open.push(new Set());
        keyNext = true;
        break;
      case 0x5b: // [
        open.push(null);
        keyNext = false;
        break;
      case 0x7d: // }
      case 0x5d: // ]
        open.pop();
        keyNext = false;
        break;
      case 0x2c: // ,
        if (++values > JSON_VALUES_MAX)
          throw refused(rules, `holds more than ${JSON_VALUES_MAX} values`, { valuesMax: JSON_VALUES_MAX });
        keyNext = open.length > 0 && open[open.length - 1] !== null;
        break;
      case 0x22: {
        const end = stringEnd(text, at);
        const keys = open[open.length - 1];
        if (keyNext && keys) {
          const key = unescaped(text.slice(at, end + 1));
          if (keys.has(key)) throw refused(rules, `has the key '${key.slice(0, 80)}' twice`, { key });
          if (rules.anyKey !== true && FORBIDDEN_KEYS.has(key))
            throw refused(rules, `has the key '${key}', which no such file needs`);
          keys.add(key);
          keyNext = false;
        }
        at = end;
        break;
      }
    }
    if (open.length > DEPTH_MAX) throw refused(rules, `nests deeper than ${DEPTH_MAX} levels`, { depthMax: DEPTH_MAX });
  }
}

/** Position of the closing quote, or the end of the text. */
function stringEnd(text: string, start: number): number {
  for (let end = text.indexOf('"', start + 1); end !== -1; end = text.indexOf('"', end + 1)) {
    let backslashes = 0;
    while (text.charCodeAt(end - 1 - backslashes) === 0x5c) backslashes++;
    if (backslashes % 2 === 0) return end;
  }
  return text.length;
}

function unescaped(quoted: string): string {
  if (!quoted.includes('\\')) return quoted.slice(1, -1);
  try {
    return JSON.parse(quoted) as string;
  } catch {
    return quoted; // JSON.parse of the whole text reports it.
  }
}
