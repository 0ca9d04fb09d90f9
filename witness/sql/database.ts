/**
 * A connection with our tables and nothing in their place: checked before and after the migrations, the same over
 * either database.
 */
import { existsSync } from 'node:fs';
import { fileURLToPath } from 'node:url';
import { getTableConfig, type PgTable } from 'drizzle-orm/pg-core';
import { drizzle } from 'drizzle-orm/pg-proxy';
import { migrate } from 'drizzle-orm/pg-proxy/migrator';
import { KEPT, PARTITIONED, TABLES } from '../../migrations/schema.ts';
import { assert, KvError, show } from '../../native/index.ts';
import type { SqlConnection } from './connection.ts';
import { openPglite } from './pglite.ts';
import { openPostgres } from './postgres.ts';

/** migrations/ stands beside the rooms in the source tree, and beside dist/ in the package. */
function migrationsDir(): string {
  const here = ['../../migrations', '../../../migrations'].map((path) => fileURLToPath(new URL(path, import.meta.url)));
  const found = here.find((path) => existsSync(`${path}/meta/_journal.json`));
  assert(found !== undefined, `no migrations at ${here.join(' or ')}`);
  return found;
}

/**
 * Opens (PostgreSQL at `url`, else PGlite in `dir` or in memory) and brings the tables up to date. Throws 'database',
 * 'locked', 'bad-config', 'io'.
 */
export async function openDatabase(
  where: { readonly url: string } | { readonly dir: string | null },
  statementMsMax: number,
): Promise<SqlConnection> {
  const connection =
    'url' in where ? await openPostgres(where.url, statementMsMax) : await openPglite(where.dir, statementMsMax);
  const lock = (sql: string): Promise<unknown> =>
    connection.kind === 'postgres' ? connection.transaction([{ sql, params: [LOCK] }]) : Promise.resolve();
  try {
    // Of servers that start at once one makes the tables. The lock is of the connection, and goes with it.
    await lock('select pg_advisory_lock(hashtext($1))');
    await checkKinds(connection);
    const orm = drizzle(async (sql, params) => {
      const [result] = await connection.transaction([{ sql, params }]);
      return { rows: result!.rows as unknown[][] };
    });
    await migrate(
      orm,
      async (queries) => {
        const statements = queries.filter((sql) => sql.trim() !== '').map((sql) => ({ sql }));
        await connection.transaction(statements);
      },
      { migrationsFolder: migrationsDir() },
    );
    await checkColumns(connection);
    await lock('select pg_advisory_unlock(hashtext($1))');
    return connection;
  } catch (error) {
    await connection.close();
    throw rootCause(error);
  }
}

/** drizzle wraps what its driver throws; ours is inside. */
function rootCause(error: unknown): unknown {
  for (let at = error; at instanceof Error; at = at.cause) if (at instanceof KvError) return at;
  return error;
}

const LOCK = 'palimpsest tables';
const MIGRATIONS_TABLE = 'drizzle.__drizzle_migrations';
const ALL = [...TABLES, ...KEPT];
const namesOf = (): string[] => ALL.map((table) => getTableConfig(table).name);

const refused = (connection: SqlConnection, what: string): KvError =>
  new KvError('database', `the SQL database in ${connection.where} is not ours: ${what}`, {
    values: { where: connection.where },
    hint: 'name another, or drop it where no server keeps conversations in it; the index can be read again from the log',
  });

/**
 * What stands under the name of one of our tables is a table, or one partitioned into tables where ours is, and nothing
 * acts when it is read: a view may never end, a rule may lie.
 */
async function checkKinds(connection: SqlConnection): Promise<void> {
  const { rows } = await connection.ask(
    `with own as (
       select name, to_regclass(name)::oid as oid, name = any(string_to_array($2, ',')) as may_have_parts from unnest(string_to_array($1, ',')) name
     ), parts as (
       select c.relname::text as name, c.oid, false as may_have_parts from own join pg_inherits on inhparent = own.oid join pg_class c on c.oid = inhrelid
       where own.may_have_parts
     )
     select name from (select * from own union all select * from parts) t join pg_class c on c.oid = t.oid
     where c.relhasrules or c.relhastriggers or c.relrowsecurity or (c.relispartition and t.oid not in (select oid from parts))
       or (c.relkind <> 'r' and not (may_have_parts and c.relkind = 'p')) or (c.relhassubclass and c.relkind <> 'p')`,
    [[...namesOf(), MIGRATIONS_TABLE].join(), PARTITIONED.map((table) => getTableConfig(table).name).join()],
  );
  if (rows.length > 0) throw refused(connection, `${show(rows[0]![0])} is no plain table`);
}

/** The columns are those of migrations/schema.ts, in order. */
async function checkColumns(connection: SqlConnection): Promise<void> {
  const { rows } = await connection.ask(
    `select name, attname, format_type(atttypid, atttypmod), attnotnull, atthasdef
     from unnest(string_to_array($1, ',')) name join pg_attribute on attrelid = to_regclass(name)
     where attnum > 0 and not attisdropped order by name, attnum`,
    [namesOf().join()],
  );
  for (const table of ALL) {
    const { name } = getTableConfig(table);
    const found = rows.filter((row) => row[0] === name).map((row) => row.slice(1).join(' '));
    const expected = columnsOf(table).map(({ column, type, notNull }) => `${column} ${type} ${notNull} false`);
    if (found.join() !== expected.join())
      throw refused(connection, `the table ${name} has other columns than it should`);
  }
}

export interface TableColumn {
  /** Field of a row in TypeScript. */
  readonly field: string;
  readonly column: string;
  readonly type: string;
  readonly notNull: boolean;
}

/** Columns of a table of the schema, with the fields that fill them. */
export function columnsOf(table: PgTable): TableColumn[] {
  const fields = Object.entries(table as unknown as Readonly<Record<string, unknown>>);
  return getTableConfig(table).columns.map((column) => ({
    field: fields.find(([, value]) => value === column)![0],
    column: column.name,
    type: column.getSQLType(),
    notNull: column.notNull,
  }));
}
