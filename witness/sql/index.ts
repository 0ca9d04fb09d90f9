/**
 * The log as SQL tables, for questions that only SQL can ask. Importing this loads no database; opening an index does.
 */
import { existsSync } from 'node:fs';
import type { SqlConnection } from './connection.ts';
import { missingPackages } from './missing.ts';
import type { AuditIndex, AuditIndexOptions } from './types.ts';

export type { Rows as SqlRows, SqlConnection, Statement } from './connection.ts';
export { TABLE_PACKAGE } from './missing.ts';
export type * from './types.ts';

/** Chosen: a MiB is written or read in less, and nobody who asks waits longer. */
const SERVER_STATEMENT_MS_MAX = 10_000;

/** Tables take packages that come only where somebody wants tables. Throws 'missing-dependency'. */
async function loaded<Module>(load: () => Promise<Module>): Promise<Module> {
  try {
    return await load();
  } catch (cause) {
    if ((cause as NodeJS.ErrnoException).code !== 'ERR_MODULE_NOT_FOUND') throw cause;
    throw missingPackages(cause);
  }
}

/**
 * Opens the tables of a log and compares every row with the log's entries, so that nothing is answered that the log
 * does not say. An embedded database that is broken, slow without end or has other tables than ours is deleted and made
 * again (`report.rebuilt`). Throws 'not-found' (no log), 'bad-log', 'locked', 'database', 'bad-config', 'io',
 * 'missing-dependency' without drizzle-orm or, for an embedded database, @electric-sql/pglite.
 */
export async function openAuditIndex(options: AuditIndexOptions): Promise<AuditIndex> {
  const { open } = await loaded(() => import('./audit-index.ts'));
  return open(options);
}

/**
 * Removes the embedded database in `dir`, whose files would keep deleted rows. It is made again when it is next asked.
 * Throws 'locked', 'io'.
 */
export async function forgetEmbedded(dir: string): Promise<void> {
  if (!existsSync(dir)) return;
  const { discardLocked } = await import('./pglite.ts');
  discardLocked(dir);
}

/**
 * Deletes the rows of a session of a log on a PostgreSQL server, and writes the tables that had them anew, so that
 * their files do not keep the deleted rows. `fromMs` and `toMs`: times of its first and last entry. → rows that there
 * were. The same call finishes what broke off. Throws 'database', 'bad-config'.
 */
export async function forgetOnServer(
  url: string,
  session: { readonly logId: string; readonly session: string; readonly fromMs: number; readonly toMs: number },
): Promise<number> {
  const { forget } = await loaded(() => import('./forget.ts'));
  return forget(url, session);
}

/** Connects to a PostgreSQL server and makes its tables. Throws 'database', 'bad-config', 'missing-dependency'. */
export async function openServerTables(url: string): Promise<SqlConnection> {
  const { openDatabase } = await loaded(() => import('./database.ts'));
  return openDatabase({ url }, SERVER_STATEMENT_MS_MAX);
}
