/** A PostgreSQL server (15 or later) by URL, over one connection. */
import postgres from 'postgres';
import { KvError } from '../../native/index.ts';
import type { RowMode, SqlConnection, Statement } from './connection.ts';

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

  query({ sql, params }: Statement, mode: RowMode): Promise<unknown[]> {
    return this.#run(async () => {
      const pending = this.#sql.unsafe(sql, [...params] as UnsafeParameters);
      return [...(mode === 'array' ? await pending.values() : await pending)];
    });
  }

  transaction(statements: readonly Statement[]): Promise<void> {
    return this.#run(async () => {
      await this.#sql.begin(async (transaction) => {
        for (const { sql, params } of statements) await transaction.unsafe(sql, [...params] as UnsafeParameters);
      });
    });
  }

  async close(): Promise<void> {
    if (this.#closed) return;
    this.#closed = true;
    await this.#sql.end({ timeout: 5 });
  }
}

function refusal(where: string, cause: unknown): KvError {
  const { message, code } = cause as { message?: string; code?: string };
  // A refused connection to several addresses has no message of its own.
  return new KvError('database', `the SQL database at ${where} refused: ${message || code || String(cause)}`, {
    values: { where, ...(code === undefined ? {} : { code }) },
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
export async function openPostgres(url: string): Promise<SqlConnection> {
  const where = addressOf(url);
  const sql = postgres(url, {
    max: 1,
    connect_timeout: CONNECT_SECONDS_MAX,
    idle_timeout: 0,
    max_lifetime: null,
    onnotice: () => {},
    connection: { application_name: 'palimpsest' },
  });
  try {
    await sql.unsafe('select 1');
  } catch (cause) {
    await sql.end({ timeout: 0 }).catch(() => {});
    throw refusal(where, cause);
  }
  return new PostgresConnection(where, sql);
}
