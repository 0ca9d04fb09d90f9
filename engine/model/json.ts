/**
 * JSON from files that others made. Parsers disagree about a key that stands twice, so that is refused; so is nesting
 * that no model file has, and (except where keys are words of a vocabulary) the key `__proto__`.
 */
import { KvError, type KvErrorCode, readRegular } from '../../native/index.ts';
import { JSON_VALUES_MAX } from './limits.ts';

const DEPTH_MAX = 64;

export interface JsonRules {
  /** For messages: a file name. */
  readonly what: string;
  readonly code: KvErrorCode;
  /** Keys are words of a vocabulary: '__proto__' is one of them. Such an object must be read with Object.entries. */
  readonly anyKey?: boolean;
}

export function parseJson(bytes: Uint8Array, rules: JsonRules): unknown {
  const { what, code } = rules;
  let text: string;
  try {
    text = new TextDecoder('utf-8', { fatal: true }).decode(bytes);
  } catch (cause) {
    throw new KvError(code, `${what} is not UTF-8`, { values: { file: what }, cause });
  }
  checkKeys(text, rules);
  try {
    return JSON.parse(text);
  } catch (cause) {
    throw new KvError(code, `${what} is not JSON: ${(cause as Error).message.slice(0, 200)}`, {
      values: { file: what },
      cause,
    });
  }
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
function checkKeys(text: string, { what, code, anyKey }: JsonRules): void {
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
        if (++values > JSON_VALUES_MAX) {
          throw new KvError(code, `${what} holds more than ${JSON_VALUES_MAX} values`, {
            values: { file: what, valuesMax: JSON_VALUES_MAX },
          });
        }
        keyNext = open.length > 0 && open[open.length - 1] !== null;
        break;
      case 0x22: {
        const end = stringEnd(text, at);
        const keys = open[open.length - 1];
        if (keyNext && keys) {
          const key = unescaped(text.slice(at, end + 1));
          if (keys.has(key)) {
            throw new KvError(code, `${what} has the key '${key.slice(0, 80)}' twice`, { values: { file: what, key } });
          }
          if (key === '__proto__' && anyKey !== true) {
            throw new KvError(code, `${what} has the key '__proto__', which no model file needs`, {
              values: { file: what },
            });
          }
          keys.add(key);
          keyNext = false;
        }
        at = end;
        break;
      }
    }
    if (open.length > DEPTH_MAX) {
      throw new KvError(code, `${what} nests deeper than ${DEPTH_MAX} levels`, {
        values: { file: what, depthMax: DEPTH_MAX },
      });
    }
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
