/** A connection with its tables: the same drizzle queries and the same migrations over either database. */
import { existsSync } from 'node:fs';
import { fileURLToPath } from 'node:url';
import { drizzle, type PgRemoteDatabase } from 'drizzle-orm/pg-proxy';
import { migrate } from 'drizzle-orm/pg-proxy/migrator';
import { assert, KvError } from '../../native/index.ts';
import type { SqlConnection, Statement } from './connection.ts';
import { openPglite } from './pglite.ts';
import { openPostgres } from './postgres.ts';

export interface Database {
  readonly connection: SqlConnection;
  /** Queries that answer at once. For several writes at once or not at all, collect `.toSQL()` and give them to `transaction`. */
  readonly orm: PgRemoteDatabase;
  transaction(queries: readonly { toSQL(): { sql: string; params: unknown[] } }[]): Promise<void>;
}

/** migrations/ stands beside the rooms in the source tree, and beside dist/ in the package. */
function migrationsDir(): string {
  const here = ['../../migrations', '../../../migrations'].map((path) => fileURLToPath(new URL(path, import.meta.url)));
  const found = here.find((path) => existsSync(`${path}/meta/_journal.json`));
  assert(found !== undefined, `no migrations at ${here.join(' or ')}`);
  return found;
}

/** Opens (PGlite in `where.dir`, or PostgreSQL at `where.url`) and brings the tables up to date. Throws 'database', 'locked', 'bad-config', 'io'. */
export async function openDatabase(where: { readonly url: string } | { readonly dir: string }): Promise<Database> {
  const connection = 'url' in where ? await openPostgres(where.url) : await openPglite(where.dir);
  const orm = drizzle(async (sql, params, method) => ({
    rows: await connection.query({ sql, params }, method === 'execute' ? 'object' : 'array'),
  }));
  try {
    await migrate(
      orm,
      async (queries) => {
        const statements = queries.filter((sql) => sql.trim() !== '').map((sql): Statement => ({ sql, params: [] }));
        await connection.transaction(statements);
      },
      { migrationsFolder: migrationsDir() },
    );
  } catch (cause) {
    await connection.close();
    throw rootCause(cause);
  }
  return {
    connection,
    orm,
    transaction: (queries) => connection.transaction(queries.map((query) => query.toSQL())),
  };
}

/** drizzle wraps what its driver throws; ours is inside. */
export function rootCause(error: unknown): unknown {
  for (let at = error; at instanceof Error; at = at.cause) if (at instanceof KvError) return at;
  return error;
}
