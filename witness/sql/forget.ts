/**
 * Taking a session off a PostgreSQL server. Deleted rows stay in the files of their tables until a vacuum, and their
 * bytes until something else is written there, so the tables that had them are written anew, and the samples that the
 * server keeps for its planner are taken again.
 */
import { getTableName } from 'drizzle-orm';
import { experiences, OF_SESSIONS, sessions } from '../../migrations/schema.ts';
import { KvError } from '../../native/index.ts';
import type { SqlConnection } from './connection.ts';
import { openDatabase } from './database.ts';
import { partitionsOf } from './partitions.ts';
import { runAlone } from './postgres.ts';

const STATEMENT_MS_MAX = 60_000;
/** How long others may take to end what began before the rows were deleted. Chosen. */
const OTHERS_MS_MAX = 10_000;
const PAUSE_MS = 100;

export async function forget(
  url: string,
  { logId, session, fromMs, toMs }: { logId: string; session: string; fromMs: number; toMs: number },
): Promise<number> {
  const connection = await openDatabase({ url }, STATEMENT_MS_MAX);
  try {
    const [, ...deleted] = await connection.transaction([
      // An indexer that is at work may have read the session before its key was destroyed: it comes first.
      { sql: 'select pg_advisory_xact_lock(hashtext($1)), pg_current_xact_id()', params: [`palimpsest ${logId}`] },
      ...OF_SESSIONS.map((table) => ({
        sql: `delete from ${getTableName(table)} where log_id = $1 and session = $2 returning 1`,
        params: [logId, session],
      })),
    ]);
    const names = [getTableName(sessions), getTableName(experiences), ...partitionsOf(fromMs, toMs)];
    const before = await filesOf(connection, names);
    await othersEnded(connection);
    await runAlone(url, [
      ...[...before.keys()].map((name) => `vacuum (full) ${name}`),
      ...OF_SESSIONS.map((table) => `analyze ${getTableName(table)}`),
      // Only who owns the database may do this; elsewhere the server warns, and does it in its own time.
      'vacuum (full) pg_catalog.pg_statistic',
    ]);
    // A server answers who may not do it with a warning.
    const after = await filesOf(connection, names);
    const same = [...before].filter(([name, file]) => after.get(name) === file).map(([name]) => name);
    if (same.length > 0)
      throw unfinished(
        connection,
        `this user may not write ${same.join(', ')} anew`,
        'do it as the owner of the tables',
      );
    return deleted.reduce((sum, { rows }) => sum + rows.length, 0);
  } finally {
    await connection.close();
  }
}

const unfinished = (connection: SqlConnection, why: string, hint: string): KvError =>
  new KvError(
    'database',
    `the rows are deleted in ${connection.where}, but their bytes are still in its files: ${why}`,
    {
      values: { where: connection.where },
      hint,
    },
  );

/** The file of each of these tables that is there. */
async function filesOf(connection: SqlConnection, names: readonly string[]): Promise<ReadonlyMap<string, unknown>> {
  const { rows } = await connection.ask(
    "select name, pg_relation_filenode(to_regclass(name)) from unnest(string_to_array($1, ',')) name where to_regclass(name) is not null",
    [names.join()],
  );
  return new Map(rows.map(([name, file]) => [String(name), file]));
}

/**
 * Waits until no other transaction can see the rows that were deleted: those that can are kept when a table is written
 * anew.
 */
async function othersEnded(connection: SqlConnection): Promise<void> {
  const [now] = await connection.transaction([{ sql: 'select pg_current_xact_id()::xid::text' }]);
  const xid = now!.rows[0]![0];
  for (let waitedMs = 0; ; waitedMs += PAUSE_MS) {
    const { rows } = await connection.ask(
      `select 1 from pg_stat_activity where datname = current_database() and pid <> pg_backend_pid() and age(backend_xmin) > age($1::xid)
       union all select 1 from pg_prepared_xacts where database = current_database() and age(transaction) > age($1::xid)
       union all select 1 from pg_replication_slots where age(xmin) > age($1::xid)`,
      [xid],
    );
    if (rows.length === 0) return;
    if (waitedMs >= OTHERS_MS_MAX)
      throw unfinished(
        connection,
        'a transaction that began before still sees them',
        'do the same again when it has ended',
      );
    await new Promise((resolve) => setTimeout(resolve, PAUSE_MS));
  }
}
