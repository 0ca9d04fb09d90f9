/**
 * One spelling for every entry: no spaces, keys sorted by UTF-16 code units, numbers as JavaScript prints them. Two
 * programs that record the same fact write the same bytes, and a changed byte that still parses is no longer canonical.
 */
import { KvError } from '../native/index.ts';

/** Deepest nesting written or accepted; far above any body, far below the stack. */
export const DEPTH_MAX = 32;

/** Throws 'bad-value' for NaN and infinities, 'bad-argument' for what is not plain data. `undefined` fields are left out, −0 is 0. */
export function canonicalJson(value: unknown): string {
  return spell(value, 0);
}

function spell(value: unknown, depth: number): string {
  switch (typeof value) {
    case 'string':
      return JSON.stringify(value);
    case 'number':
      if (!Number.isFinite(value))
        throw new KvError('bad-value', `the log cannot hold the number ${value}`, { values: { value: String(value) } });
      return value === 0 ? '0' : String(value);
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
  for (const key of Object.keys(record).sort()) {
    const field = record[key];
    if (field === undefined) continue;
    text += `${text === '{' ? '' : ','}${JSON.stringify(key)}:${spell(field, depth + 1)}`;
  }
  return `${text}}`;
}
