/** The log as SQL tables, for questions that only SQL can ask. Importing this loads no database; opening an index does. */
import type { AuditIndex, AuditIndexOptions } from './types.ts';

export type * from './types.ts';

/**
 * Opens the tables of a log and compares every row with the log's entries, so that nothing is answered that the log does not say.
 * An embedded database that is broken, slow without end or has other tables than ours is deleted and made again
 * (`report.rebuilt`). Throws 'not-found' (no log), 'bad-log', 'locked', 'database', 'bad-config', 'io'.
 */
export async function openAuditIndex(options: AuditIndexOptions): Promise<AuditIndex> {
  const { open } = await import('./audit-index.ts');
  return open(options);
}

/**
 * Removes what the tables hold of a session: its rows from a server, or the whole embedded database in `dir`, whose files would keep deleted rows. It is
 * made again when it is next asked. Throws 'locked', 'database', 'bad-config', 'io'.
 */
export async function forgetInSql(
  where: { readonly url: string } | { readonly dir: string },
  logId: string,
  session: string,
): Promise<void> {
  const { forget } = await import('./forget.ts');
  await forget(where, logId, session);
}
