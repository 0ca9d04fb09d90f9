/** What a filter of decisions means, as data: the same conditions are put to rows read from the log and to a database. */
import { KvError } from '../native/index.ts';
import type { DecisionFilter, DecisionRow, Range } from './types.ts';

/** One demand on a row of decisions. A null in the row meets no range. */
export type RowCondition =
  | { readonly anyOf: readonly (keyof DecisionRow)[]; readonly equals: string | number | boolean }
  | { readonly field: keyof DecisionRow; readonly range: Range };

const THRESHOLDS = ['threshold', 'verdictThreshold'] as const;
const REASONS = ['rule', 'verdictRule', ...THRESHOLDS] as const;

/** Filter fields that must equal fields of a row. */
const EQUAL = {
  session: ['session'],
  layer: ['layer'],
  page: ['page'],
  side: ['side'],
  from: ['from'],
  to: ['to'],
  accepted: ['accepted'],
  reason: REASONS,
  threshold: THRESHOLDS,
} as const satisfies Partial<Record<keyof DecisionFilter, readonly (keyof DecisionRow)[]>>;

/** Filter fields that bound a field of a row. */
const BETWEEN = ['epsilonFrom', 'epsilonTo', 'epsilonNow', 'bytesFreed'] as const;

/**
 * Everything that a filter demands of a row alone; `model`, `beforeSeq` and `limit`, which ask for more than a row, are left to the caller.
 * Throws 'bad-argument' for a bound that is no number.
 */
export function conditionsOf(filter: DecisionFilter): RowCondition[] {
  const conditions: RowCondition[] = [];
  for (const [name, anyOf] of Object.entries(EQUAL)) {
    const equals = filter[name as keyof typeof EQUAL];
    if (equals !== undefined) conditions.push({ anyOf, equals });
  }
  const bound = (field: keyof DecisionRow, min: number | undefined, max: number | undefined): void => {
    for (const value of [min, max])
      if (value !== undefined && !Number.isFinite(value))
        throw new KvError('bad-argument', `a bound of ${field} is no number`, { values: { field, value } });
    const range = { ...(min === undefined ? {} : { min }), ...(max === undefined ? {} : { max }) };
    if (min !== undefined || max !== undefined) conditions.push({ field, range });
  };
  bound('timeMs', filter.fromMs, filter.toMs);
  bound('tokens', filter.tokensMin, filter.tokensMax);
  for (const field of BETWEEN) bound(field, filter[field]?.min, filter[field]?.max);
  return conditions;
}

/** Whether a row meets all of the conditions. */
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
    throw new KvError('bad-argument', `a limit of ${limit} rows is not possible`, {
      values: { limit },
      hint: 'give a whole number of 1 or more',
    });
  return limit;
}
