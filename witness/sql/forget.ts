/** Taking a session out of the tables. */
import { existsSync } from 'node:fs';
import { getTableName } from 'drizzle-orm';
import { TABLES } from '../../migrations/schema.ts';
import { openDatabase } from './database.ts';
import { discardLocked } from './pglite.ts';

const STATEMENT_MS_MAX = 60_000;

export async function forget(
  where: { readonly url: string } | { readonly dir: string },
  logId: string,
  session: string,
): Promise<void> {
  if ('dir' in where) {
    if (existsSync(where.dir)) discardLocked(where.dir);
    return;
  }
  const connection = await openDatabase(where, STATEMENT_MS_MAX);
  try {
    await connection.transaction(
      TABLES.map((table) => ({
        sql: `delete from ${getTableName(table)} where log_id = $1 and session = $2`,
        params: [logId, session],
      })),
    );
  } finally {
    await connection.close();
  }
}
