/**
 * Parses JSON from files that others made. Before the built-in parser sees the text, this refuses duplicate keys, about
 * which parsers disagree, keys that could change every object of the process, and texts so deep or with so many values
 * that they would exhaust it.
 */
import { KvError, type KvErrorCode } from './error.ts';
import { readRegular } from './file.ts';

/** Everything that this project writes, and every model file, is less deep than this. */
const DEPTH_MAX = 64;
/**
 * The most values of one file. A tokenizer with 262,144 words and 515,000 merges, each a list of two, has two million.
 */
export const JSON_VALUES_MAX = 2 ** 22;
const FORBIDDEN_KEYS: ReadonlySet<string> = new Set(['__proto__', 'constructor', 'prototype']);

export interface JsonRules {
  /** The file's name, for messages. */
  readonly what: string;
  readonly code: KvErrorCode;
  readonly hint?: string;
  /**
   * True if keys may be any words of a vocabulary, even '__proto__'. Such an object must be read with Object.entries.
   */
  readonly anyKey?: boolean;
}

/** Parses bytes, which must be valid UTF-8 without a byte order mark. Throws `rules.code`. */
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

/**
 * The value of a JSON text, or undefined where it is none: for texts of which the reader believes nothing else, and for
 * what a model has written.
 */
export function jsonOf(text: string): unknown {
  try {
    return JSON.parse(text);
  } catch {
    return undefined;
  }
}

/** An object that is not an array, else undefined. */
export function asRecord(value: unknown): Readonly<Record<string, unknown>> | undefined {
  return typeof value === 'object' && value !== null && !Array.isArray(value)
    ? (value as Record<string, unknown>)
    : undefined;
}

/**
 * Checks depth, number of values and keys. It looks at brackets and strings only, and leaves the rest to JSON.parse.
 */
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
            throw refused(rules, `has the key '${key}', which is not read: every object has something of that name`, {
              key,
            });
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

/** The position of the closing quote, or the end of the text if there is none. */
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
    return quoted; // It is not valid JSON, which parsing the whole text will report.
  }
}
