/** A PostgreSQL server (15 or later) by URL, over one connection. */
import postgres from 'postgres';
import { given, KvError } from '../../native/index.ts';
import type { Rows, SqlConnection, Statement } from './connection.ts';

const CONNECT_SECONDS_MAX = 15;

type UnsafeParameters = NonNullable<Parameters<postgres.Sql['unsafe']>[1]>;

class PostgresConnection implements SqlConnection {
  readonly kind = 'postgres';
  readonly where: string;
  readonly #sql: postgres.Sql;
  #closed = false;

  constructor(where: string, sql: postgres.Sql) {
    this.where = where;
    this.#sql = sql;
  }

  async #run<T>(work: () => Promise<T>): Promise<T> {
    if (this.#closed) throw new KvError('closed', 'the SQL index was closed');
    try {
      return await work();
    } catch (cause) {
      throw refusal(this.where, cause);
    }
  }

  ask(sql: string, params: readonly unknown[] = []): Promise<Rows> {
    return this.#run(() => this.#sql.begin('read only', (transaction) => answer(transaction, { sql, params })));
  }

  transaction(statements: readonly Statement[]): Promise<Rows[]> {
    return this.#run(() =>
      this.#sql.begin(async (transaction) => {
        const results: Rows[] = [];
        for (const statement of statements) results.push(await answer(transaction, statement));
        return results;
      }),
    );
  }

  async close(): Promise<void> {
    if (this.#closed) return;
    this.#closed = true;
    await this.#sql.end({ timeout: 5 });
  }
}

/** Never the simple protocol, which would take several statements for one. */
async function answer(transaction: postgres.TransactionSql, { sql, params = [] }: Statement): Promise<Rows> {
  const options = { simple: false } as postgres.UnsafeQueryOptions;
  const rows = await transaction.unsafe(sql, [...params] as UnsafeParameters, options).values();
  return { columns: (rows.columns ?? []).map(({ name }) => String(name)), rows: [...rows] };
}

/** Whole numbers of 64 bits as numbers, as text beyond 2^53. */
const INT8 = {
  to: 20,
  from: [20],
  serialize: String,
  parse: (text: string): number | string => (Number.isSafeInteger(Number(text)) ? Number(text) : text),
};

function refusal(where: string, cause: unknown): KvError {
  const { message, code } = cause as { message?: string; code?: string };
  // A refused connection to several addresses has no message of its own.
  return new KvError('database', `the SQL database at ${where} refused: ${message || code || String(cause)}`, {
    values: given({ where, code }),
    hint: 'check the URL, the server and the rights of its user',
    cause,
  });
}

/** 'postgres://user:secret@host/base' → 'host/base'. Throws 'bad-config'. */
function addressOf(url: string): string {
  try {
    const { protocol, host, pathname } = new URL(url);
    if (protocol === 'postgres:' || protocol === 'postgresql:') return `${host}${pathname}`;
  } catch {
    // Said below.
  }
  throw new KvError('bad-config', 'the database URL is not of the form postgres://user@host:5432/base');
}

/** Connects. Throws 'bad-config' for a URL that is none, 'database' when the server refuses or cannot be reached. */
export async function openPostgres(url: string, statementMsMax: number): Promise<SqlConnection> {
  const where = addressOf(url);
  const sql = postgres(url, {
    max: 1,
    connect_timeout: CONNECT_SECONDS_MAX,
    idle_timeout: 0,
    max_lifetime: null,
    onnotice: () => {},
    types: { bigint: INT8 },
    connection: { application_name: 'palimpsest', statement_timeout: statementMsMax },
  });
  try {
    await sql.unsafe('select 1');
  } catch (cause) {
    await sql.end({ timeout: 0 }).catch(() => {});
    throw refusal(where, cause);
  }
  return new PostgresConnection(where, sql);
}
