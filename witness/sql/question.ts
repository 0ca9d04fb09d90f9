/**
 * A question that a person asks the tables: put so that only a SELECT is legal, and what a database finds wrong with
 * it, at its place in what was typed.
 */

import { getTableName } from 'drizzle-orm';
import { TABLES } from '../../migrations/schema.ts';
import { given, KvError } from '../../native/index.ts';
import type { SqlFault } from './connection.ts';
import { columnsOf } from './database.ts';

const OPENING = 'select * from (';

/**
 * One SELECT and at most so many of its rows. Inside brackets nothing else is legal; the line break ends a comment that
 * the question may close with.
 */
export const questionText = (sql: string, rowsMax: number): string =>
  `${OPENING}${sql.trim().replace(/;$/, '')}\n) as answer limit ${rowsMax}`;

/**
 * Classes of SQLSTATE for which the question is to blame: cardinality, data, transaction state (it writes), syntax and
 * names, what is not supported.
 */
const TO_BLAME = /^(0A|21|22|25|42)/;
/** Rights belong to the server. */
const NO_RIGHT = '42501';
/** Characters of the question that are shown from the fault on. */
const SHOWN_CHARACTERS = 40;

/**
 * The same error, or where the question is to blame, one that says what is wrong with it, where, and what may be asked.
 */
export function faultOfQuestion(error: unknown, sql: string): unknown {
  if (!(error instanceof KvError) || error.code !== 'database') return error;
  const { code = '', message, position, hint } = error.cause as SqlFault;
  if (!TO_BLAME.test(code) || code === NO_RIGHT) return error;
  const [typed, shift] = [[...sql], [...OPENING].length - (sql.length - sql.trimStart().length)];
  // Databases count characters from 1, and those of the brackets too.
  const at = position === undefined ? -1 : Number(position) - 1 - shift;
  const rest = typed
    .slice(at, at + SHOWN_CHARACTERS)
    .join('')
    .trim();
  const place = at < 0 ? '' : rest === '' ? ', at its end' : `, at character ${at + 1}: ${rest}`;
  return new KvError('database', `the question is refused: ${message}${place}`, {
    values: given({ sqlState: code, position: at < 0 ? undefined : Math.min(at, typed.length) + 1 }),
    hint: [...(hint === undefined ? [] : [`${hint.replace(/\.$/, '')};`]), advice(sql)].join(' '),
    cause: error.cause,
  });
}

/** What may be asked: the columns of the tables that were named, or else the tables. */
function advice(sql: string): string {
  const named = TABLES.filter((table) => new RegExp(`\\b${getTableName(table)}\\b`, 'i').test(sql));
  const columns = named.map((table) => {
    const names = columnsOf(table).map(({ column }) => column);
    return `${getTableName(table)} has ${names.join(', ')}`;
  });
  return `ask one SELECT; ${columns.length > 0 ? columns.join('; ') : `the tables are ${TABLES.map(getTableName).join(', ')}`}`;
}
