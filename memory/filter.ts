/**
 * What a search may be narrowed to. A filter is data, so that the embedded indexes and a server are asked the same
 * question.
 */
import { KvError } from '../native/index.ts';

/** Names a vector wherever it was made: the log that tells of it, and the entry there. */
export interface VectorId {
  /** Id of the log. */
  readonly log: string;
  /** Sequence number of the entry. */
  readonly seq: number;
}

/**
 * Kinds of payload fields: texts and booleans are compared for equality, integers also by range, floats by range alone.
 */
export type FieldKind = 'keyword' | 'integer' | 'float' | 'bool';

/** Payload fields that filters may name, declared when an index is opened. */
export type Fields = Readonly<Record<string, FieldKind>>;

/** One demand on one field. A payload in which the field is null or missing meets none. */
export type Condition =
  | { readonly field: string; readonly equals: string | number | boolean }
  | { readonly field: string; readonly oneOf: readonly (string | number)[] }
  /** Inclusive bounds; one of them may be left out. */
  | { readonly field: string; readonly range: { readonly min?: number; readonly max?: number } };

/** What passes meets all of `must` and none of `mustNot`. */
export interface Filter {
  /** Default: none, so everything passes. */
  readonly must?: readonly Condition[];
  /** Default: none. */
  readonly mustNot?: readonly Condition[];
}

/** Fields of the id, which every index has. */
export const ID_FIELDS = { log: 'keyword', seq: 'integer' } as const satisfies Fields;
const CONDITIONS_MAX = 64;
const VALUES_MAX = 1024;

const refuse = (what: string, values: Readonly<Record<string, unknown>>): never => {
  throw new KvError('bad-argument', `the filter of a search cannot be used: ${what}`, { values });
};

/** Throws 'bad-argument' for names that a payload cannot have, and for those of the id. */
export function checkFields(fields: Fields): void {
  for (const [name, kind] of Object.entries(fields))
    if (!/^[A-Za-z][A-Za-z0-9_]{0,63}$/.test(name) || Object.hasOwn(ID_FIELDS, name) || !Object.hasOwn(FITS, kind))
      throw new KvError('bad-argument', `a vector index cannot have the field '${name}' of kind '${kind}'`, {
        values: { name, kind, kinds: Object.keys(FITS) },
      });
}

/** Whether a value is of a kind. */
const FITS: Readonly<Record<FieldKind, (value: unknown) => boolean>> = {
  keyword: (value) => typeof value === 'string',
  integer: Number.isSafeInteger,
  float: (value) => typeof value === 'number',
  bool: (value) => typeof value === 'boolean',
};

/**
 * Throws 'bad-argument' unless every condition names a declared field and compares it with what its kind can be
 * compared with.
 */
export function checkFilter(filter: Filter, fields: Fields): void {
  const { must = [], mustNot = [], ...others } = filter;
  if (!Array.isArray(must) || !Array.isArray(mustNot) || Object.keys(others).length > 0)
    refuse('it has must and mustNot', { unknown: Object.keys(others) });
  if (must.length + mustNot.length > CONDITIONS_MAX)
    refuse(`more than ${CONDITIONS_MAX} conditions`, { conditions: must.length + mustNot.length });
  for (const condition of [...must, ...mustNot]) checkCondition(condition, { ...fields, ...ID_FIELDS });
}

function checkCondition(condition: Condition, fields: Fields): void {
  const { field } = condition;
  const kind = Object.hasOwn(fields, field) ? fields[field]! : refuse('no such field', { field, fields });
  const keys = Object.keys(condition).filter((key) => key !== 'field');
  if (keys.length !== 1) refuse('a condition has a field and one of equals, oneOf, range', { condition });
  if ('range' in condition) {
    const { min, max, ...others } = condition.range;
    const bounds = [min, max].filter((bound) => bound !== undefined);
    const sound = bounds.length > 0 && bounds.every((bound) => typeof bound === 'number' && Number.isFinite(bound));
    if (!sound || Object.keys(others).length > 0 || (kind !== 'integer' && kind !== 'float'))
      refuse('a range has finite bounds on a field of numbers', { condition, kind });
    return;
  }
  const values = 'equals' in condition ? [condition.equals] : condition.oneOf;
  const isList = Array.isArray(values) && values.length > 0 && values.length <= VALUES_MAX;
  if (!isList || kind === 'float' || ('oneOf' in condition && kind === 'bool') || !values.every(FITS[kind]))
    refuse('the values are not of the kind of the field', { condition, kind });
}

function meets(condition: Condition): (value: unknown) => boolean {
  if ('equals' in condition) return (value) => value === condition.equals;
  if ('oneOf' in condition) {
    const values = new Set<unknown>(condition.oneOf);
    return (value) => values.has(value);
  }
  const { min = Number.NEGATIVE_INFINITY, max = Number.POSITIVE_INFINITY } = condition.range;
  return (value) => typeof value === 'number' && value >= min && value <= max;
}

/** A filter as a function. Throws 'bad-argument' as checkFilter does. */
export function matcher(filter: Filter, fields: Fields): (id: VectorId, payload: object) => boolean {
  checkFilter(filter, fields);
  const tests = [filter.must ?? [], filter.mustNot ?? []].map((conditions) =>
    conditions.map((condition) => ({ field: condition.field, test: meets(condition) })),
  );
  const [must, mustNot] = tests as [(typeof tests)[0], (typeof tests)[0]];
  const value = (field: string, id: VectorId, payload: object): unknown =>
    field === 'log' ? id.log : field === 'seq' ? id.seq : (payload as Record<string, unknown>)[field];
  return (id, payload) => {
    for (const { field, test } of must) if (!test(value(field, id, payload))) return false;
    for (const { field, test } of mustNot) if (test(value(field, id, payload))) return false;
    return true;
  };
}
