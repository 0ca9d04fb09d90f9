/**
 * Lists and counts of one log, answered by its tables. The conditions are those that are put to rows read from the log.
 */
import { getTableName } from 'drizzle-orm';
import type { PgTable } from 'drizzle-orm/pg-core';
import { decisions, sessions } from '../../migrations/schema.ts';
import { checkLimit, conditionsOf } from '../condition.ts';
import { checkCountKey, HOUR_MS, inOrder } from '../count.ts';
import { SERIES_ENTRIES } from '../series.ts';
import type { CountKey, CountRow, DecisionFilter, DecisionRow, SessionFilter, SessionRow } from '../types.ts';
import type { SqlConnection } from './connection.ts';
import { columnsOf } from './database.ts';

type Ask = SqlConnection['ask'];

/** Values by place, and the text that names the place of each. */
class Values {
  readonly list: unknown[] = [];

  /** The type says what the server is to take it for. */
  add(value: unknown, type: 'text' | 'bigint' | 'float8' | 'boolean'): string {
    this.list.push(value);
    return `$${this.list.length}::${type}`;
  }
}

const columnBy = (table: PgTable): ReadonlyMap<string, string> =>
  new Map(columnsOf(table).map(({ field, column }) => [field, column]));
const DECISION = columnBy(decisions);
const WHOLE = new Set(
  columnsOf(decisions)
    .filter(({ type }) => type !== 'double precision')
    .map(({ field }) => field),
);

const typeOf = (value: string | number | boolean): 'text' | 'bigint' | 'boolean' =>
  typeof value === 'string' ? 'text' : typeof value === 'number' ? 'bigint' : 'boolean';

/** The part of a statement behind `where` that lets through what the filter does. */
function whereOf(filter: DecisionFilter, logId: string, values: Values): string {
  const parts = [`log_id = ${values.add(logId, 'text')}`];
  for (const condition of conditionsOf(filter)) {
    if ('anyOf' in condition) {
      const place = values.add(condition.equals, typeOf(condition.equals));
      parts.push(`(${condition.anyOf.map((field) => `${DECISION.get(field)} = ${place}`).join(' or ')})`);
      continue;
    }
    const { field, range } = condition;
    const column = DECISION.get(field);
    // Between whole numbers lie no rows, and a bound of the column's own type can use its index.
    const bound = (value: number, round: (value: number) => number): string =>
      WHOLE.has(field) ? values.add(round(value), 'bigint') : values.add(value, 'float8');
    if (range.min !== undefined) parts.push(`${column} >= ${bound(range.min, Math.ceil)}`);
    if (range.max !== undefined) parts.push(`${column} <= ${bound(range.max, Math.floor)}`);
  }
  if (filter.model !== undefined) {
    const model = values.add(filter.model, 'text');
    parts.push(
      `session in (select s.session from ${getTableName(sessions)} s where s.log_id = $1 and (s.model = ${model} or s.model_digest = ${model}))`,
    );
  }
  return parts.join(' and ');
}

/** Rows as objects by the fields of their table. */
function objects<T>(columns: readonly string[], rows: readonly (readonly unknown[])[], table: PgTable): T[] {
  const fields = columnsOf(table);
  const names = columns.map((column) => fields.find((one) => one.column === column)!.field);
  return rows.map((row) => Object.fromEntries(names.map((name, at) => [name, row[at]])) as T);
}

const listOf = (table: PgTable): string =>
  columnsOf(table)
    .slice(1)
    .map(({ column }) => column)
    .join(', ');

/** Answers as DecisionQuery says. Throws 'bad-argument', 'database'. */
export async function askDecisions(ask: Ask, logId: string, filter: DecisionFilter): Promise<DecisionRow[]> {
  const values = new Values();
  const limit = checkLimit(filter.limit);
  const parts = [whereOf(filter, logId, values)];
  if (filter.beforeSeq !== undefined) {
    const from = filter.beforeSeq;
    const to = (Math.floor(from / SERIES_ENTRIES) + 1) * SERIES_ENTRIES;
    const { rows } = await ask(
      `select time_ms, seq from ${getTableName(decisions)} where log_id = $1 and seq >= $2::bigint and seq < $3::bigint order by seq limit 1`,
      [logId, from, to],
    );
    const [cut] = rows;
    if (cut !== undefined)
      parts.push(`(time_ms, seq) < (${values.add(cut[0], 'bigint')}, ${values.add(cut[1], 'bigint')})`);
  }
  const { columns, rows } = await ask(
    `select ${listOf(decisions)} from ${getTableName(decisions)} where ${parts.join(' and ')} order by time_ms desc, seq desc limit ${limit}`,
    values.list,
  );
  return objects<DecisionRow>(columns, rows, decisions);
}

/** Answers as DecisionQuery says. Throws 'bad-argument', 'database'. */
export async function askSessions(ask: Ask, logId: string, filter: SessionFilter): Promise<SessionRow[]> {
  const values = new Values();
  const { fromMs, toMs, model } = filter;
  const parts = [`log_id = ${values.add(logId, 'text')}`];
  if (fromMs !== undefined) parts.push(`opened_ms >= ${values.add(Math.ceil(fromMs), 'bigint')}`);
  if (toMs !== undefined) parts.push(`opened_ms <= ${values.add(Math.floor(toMs), 'bigint')}`);
  if (model !== undefined) {
    const place = values.add(model, 'text');
    parts.push(`(model = ${place} or model_digest = ${place})`);
  }
  const { columns, rows } = await ask(
    `select ${listOf(sessions)} from ${getTableName(sessions)} where ${parts.join(' and ')} order by opened_ms desc, seq desc limit ${checkLimit(filter.limit)}`,
    values.list,
  );
  return objects<SessionRow>(columns, rows, sessions);
}

/** The rows of these sessions, as far as there are any. Throws 'database'. */
export async function askSessionsNamed(
  connection: SqlConnection,
  logId: string,
  named: readonly string[],
): Promise<SessionRow[]> {
  const { columns, rows } = await connection.ask(
    `select ${listOf(sessions)} from ${getTableName(sessions)} where log_id = $1 and session in (select json_array_elements_text(($2::text)::json))`,
    [logId, JSON.stringify(named)],
  );
  return objects<SessionRow>(columns, rows, sessions);
}

/** What decisions are grouped by, as SQL over the table `d` and, for models, the table `s` of sessions. */
const KEYS: Readonly<Record<CountKey, string>> = {
  layer: 'd.layer',
  reason: 'case when d.accepted then d.because_rule else d.verdict_rule end',
  hour: `d.time_ms / ${HOUR_MS} * ${HOUR_MS}`,
  format: "d.format_from || '→' || d.format_to",
  session: 'd.session',
  model: "coalesce(s.model, 'unknown')",
};

/** Answers as DecisionQuery says. Throws 'bad-argument', 'database'. */
export async function askCounts(ask: Ask, logId: string, by: CountKey, filter: DecisionFilter): Promise<CountRow[]> {
  checkCountKey(by);
  const values = new Values();
  const where = whereOf(filter, logId, values);
  const tables = `(select * from ${getTableName(decisions)} where ${where}) d`;
  const joined = `${tables} left join ${getTableName(sessions)} s on s.log_id = d.log_id and s.session = d.session`;
  const { rows } = await ask(
    `select ${KEYS[by]}, count(*)::float8, count(*) filter (where not d.accepted)::float8, sum(d.bytes_before - d.bytes_after)::float8,
       avg(coalesce(d.epsilon_now, d.epsilon_to)), max(coalesce(d.epsilon_now, d.epsilon_to)), min(d.time_ms), max(d.time_ms)
     from ${by === 'model' ? joined : tables} group by 1`,
    values.list,
  );
  return inOrder(
    rows.map((row) => {
      const [key, moves, refused, bytesFreed, epsilonMean, epsilonMax, firstMs, lastMs] = row as [
        ...[string | number, number, number, number],
        ...[number | null, number | null, number, number],
      ];
      return { key, decisions: moves, refused, bytesFreed, epsilonMean, epsilonMax, firstMs, lastMs };
    }),
  );
}
