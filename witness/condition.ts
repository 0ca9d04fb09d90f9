/**
 * What a filter of decisions means, as data: the same conditions are put to rows read from the log and to a database.
 */
import { KvError, show } from '../native/index.ts';
import type { DECISION } from './entries/decision.ts';
import type { AskedTogether, RowField } from './entries/field.ts';
import { DECISION_ROW } from './entries/index.ts';
import type { DecisionFilter, DecisionRow, Range } from './types.ts';

/** One demand on a row of decisions. A null in the row meets no range. */
export type RowCondition =
  | { readonly anyOf: readonly (keyof DecisionRow)[]; readonly equals: string | number | boolean }
  | { readonly field: keyof DecisionRow; readonly range: Range };

/** Names of the fields of a row by which lists are narrowed in this way. */
type Asked<How> = {
  [Path in keyof typeof DECISION]: (typeof DECISION)[Path] extends { readonly asked: How; readonly row: infer Name }
    ? Name
    : never;
}[keyof typeof DECISION];
type Equal = 'session' | Asked<'equal'> | AskedTogether;

/** The filters that a row has: those that must equal one of some fields, and the fields that they bound. */
export function filtersOf(row: readonly RowField[]): { equal: Map<string, string[]>; between: string[] } {
  const equal = new Map<string, string[]>();
  const between: string[] = [];
  for (const { name, asked = [] } of row) {
    if (asked === 'range') between.push(name);
    else
      for (const filter of asked === 'equal' ? [name] : asked) equal.set(filter, [...(equal.get(filter) ?? []), name]);
  }
  return { equal, between };
}

const FILTERS = filtersOf(DECISION_ROW);
const EQUAL = FILTERS.equal as Map<Equal, (keyof DecisionRow)[]>;
/** What a value must be to equal a field of a type. */
interface Kind {
  readonly says: string;
  readonly holds: (value: unknown) => boolean;
}
const KINDS: Readonly<Record<string, Kind>> = {
  integer: { says: 'a whole number', holds: Number.isInteger },
  flag: { says: 'true or false', holds: (value) => typeof value === 'boolean' },
};
const TEXT: Kind = { says: 'a text', holds: (value: unknown) => typeof value === 'string' };
const kindOf = (field: keyof DecisionRow): Kind =>
  KINDS[DECISION_ROW.find(({ name }) => name === field)!.source.is] ?? TEXT;
const BETWEEN = FILTERS.between as Asked<'range'>[];

/**
 * Everything that a filter demands of a row alone; `model`, `beforeSeq` and `limit`, which ask for more than a row, are
 * left to the caller. Throws 'bad-argument' for a bound that is no number, and for what no field can equal.
 */
export function conditionsOf(filter: DecisionFilter): RowCondition[] {
  const conditions: RowCondition[] = [];
  for (const [name, anyOf] of EQUAL) {
    const equals = filter[name];
    if (equals === undefined) continue;
    const { says, holds } = kindOf(anyOf[0]!);
    if (!holds(equals))
      throw new KvError('bad-argument', `${name} must be ${says}`, { values: { [name]: show(equals) } });
    conditions.push({ anyOf, equals });
  }
  const bound = (field: keyof DecisionRow, min: number | undefined, max: number | undefined): void => {
    checkBounds(field, [min, max]);
    const range = { ...(min === undefined ? {} : { min }), ...(max === undefined ? {} : { max }) };
    if (min !== undefined || max !== undefined) conditions.push({ field, range });
  };
  bound('timeMs', filter.fromMs, filter.toMs);
  bound('tokens', filter.tokensMin, filter.tokensMax);
  for (const field of BETWEEN) bound(field, filter[field]?.min, filter[field]?.max);
  return conditions;
}

/** Refuses bounds that are no numbers; one that is left out bounds nothing. */
export function checkBounds(field: string, bounds: readonly (number | undefined)[]): void {
  for (const value of bounds)
    if (value !== undefined && !Number.isFinite(value))
      throw new KvError('bad-argument', `a bound of ${field} is no number`, { values: { field, value: show(value) } });
}

/** True if a row meets all of the conditions. */
export function meets(row: DecisionRow, conditions: readonly RowCondition[]): boolean {
  return conditions.every((one) => {
    if ('anyOf' in one) return one.anyOf.some((field) => row[field] === one.equals);
    const value = row[one.field];
    const { min = Number.NEGATIVE_INFINITY, max = Number.POSITIVE_INFINITY } = one.range;
    return typeof value === 'number' && value >= min && value <= max;
  });
}

/** A limit of rows, or the default. Throws 'bad-argument'. */
export function checkLimit(limit: number | undefined): number {
  if (limit === undefined) return 100;
  if (!Number.isSafeInteger(limit) || limit < 1)
    throw new KvError('bad-argument', `a limit of ${show(limit)} rows is not possible`, {
      values: { limit: show(limit) },
      hint: 'give a whole number of 1 or more',
    });
  return limit;
}
