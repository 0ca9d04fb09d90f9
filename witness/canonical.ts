/**
 * One spelling for every entry: no spaces, keys sorted by UTF-16 code units, numbers as JavaScript prints them. Two
 * programs that record the same fact write the same bytes, and a changed byte that still parses is no longer canonical.
 */
import { KvError } from '../native/index.ts';

/** Deepest nesting written or accepted; far above any body, far below the stack. */
export const DEPTH_MAX = 32;

/**
 * Throws 'bad-value' for NaN and infinities, 'bad-argument' for what is not plain data. `undefined` fields are left
 * out, −0 is 0.
 */
export function canonicalJson(value: unknown): string {
  return spell(value, 0);
}

const PLAIN = /^[\w .,:;%/=<>()+-]*$/;

/** Names of rules, units and the session come again with every entry. The cache is bounded, and short. */
const QUOTED_MAX = 256;
const QUOTED_CHARS_MAX = 64;
const quoted = new Map<string, string>();

/** One string. Most strings need no escape, and those are quoted faster by hand. */
export function canonicalText(value: string): string {
  const known = quoted.get(value);
  if (known !== undefined) return known;
  const text = PLAIN.test(value) ? `"${value}"` : JSON.stringify(value);
  if (quoted.size < QUOTED_MAX && value.length <= QUOTED_CHARS_MAX) quoted.set(value, text);
  return text;
}

/** A number alone. Throws 'bad-value' for NaN and infinities. */
export function canonicalNumber(value: number): string {
  if (!Number.isFinite(value))
    throw new KvError('bad-value', `the log cannot hold the number ${value}`, { values: { value: String(value) } });
  return value === 0 ? '0' : `${value}`;
}

function spell(value: unknown, depth: number): string {
  switch (typeof value) {
    case 'string':
      return canonicalText(value);
    case 'number':
      return canonicalNumber(value);
    case 'boolean':
      return value ? 'true' : 'false';
    case 'object':
      break;
    default:
      throw new KvError('bad-argument', `the log cannot hold a ${typeof value}`, { hint: 'log bodies are plain data' });
  }
  if (value === null) return 'null';
  if (depth >= DEPTH_MAX)
    throw new KvError('bad-argument', `data nested deeper than ${DEPTH_MAX}`, { values: { depthMax: DEPTH_MAX } });
  if (Array.isArray(value)) {
    let text = '[';
    for (let index = 0; index < value.length; index++)
      text += (index === 0 ? '' : ',') + spell(value[index], depth + 1);
    return `${text}]`;
  }
  const prototype: unknown = Object.getPrototypeOf(value);
  if (prototype !== Object.prototype && prototype !== null) {
    throw new KvError('bad-argument', `the log cannot hold a ${value.constructor?.name ?? 'class instance'}`, {
      hint: 'copy it into plain arrays and objects',
    });
  }
  const record = value as Record<string, unknown>;
  let text = '{';
  for (const { key, start } of fieldsOf(record)) {
    const field = record[key];
    if (field === undefined) continue;
    text += text === '{' ? start : `,${start}`;
    text += spell(field, depth + 1);
  }
  return `${text}}`;
}

/**
 * True if all keys of parsed JSON stand in order. `JSON.stringify`, which is faster, then spells it as `canonicalJson`
 * does.
 */
export function isInOrder(value: unknown, depth = 0): boolean {
  if (typeof value !== 'object' || value === null) return true;
  if (depth >= DEPTH_MAX) return false;
  if (Array.isArray(value)) return value.every((item) => isInOrder(item, depth + 1));
  let last = '';
  for (const key of Object.keys(value)) {
    if (key < last || !isInOrder((value as Record<string, unknown>)[key], depth + 1)) return false;
    last = key;
  }
  return true;
}

interface Field {
  readonly key: string;
  /** `"key":` */
  readonly start: string;
}

/**
 * Bodies of one kind have the same keys in the same order, so their keys are sorted and quoted once. The cache is
 * bounded, so data of other shapes does not stay for ever.
 */
const KNOWN_MAX = 256;
const known = new Map<string, { readonly keys: readonly string[]; readonly fields: readonly Field[] }>();

function fieldsOf(record: Record<string, unknown>): readonly Field[] {
  const keys = Object.keys(record);
  const name = keys.join();
  const found = known.get(name);
  // Keys with commas in them may share a name.
  if (found !== undefined && found.keys.length === keys.length && found.keys.every((key, i) => key === keys[i]))
    return found.fields;
  const fields = keys
    .slice()
    .sort()
    .map((key) => ({ key, start: `${JSON.stringify(key)}:` }));
  if (known.size < KNOWN_MAX) known.set(name, { keys, fields });
  return fields;
}
