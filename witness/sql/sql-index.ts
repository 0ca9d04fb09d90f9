/** The SQL index of one log: opened, brought up to date, asked. Loaded only by `openSqlIndex`, for it brings a database along. */
import { KvError } from '../../native/index.ts';
import { type Database, openDatabase, rootCause } from './database.ts';
import type { SqlIndex, SqlIndexOptions } from './index.ts';
import { firstLogId, type IndexReport, indexLog, reindexLog } from './indexer.ts';
import { discardPglite } from './pglite.ts';
import { selectDecisions, selectExperiences, selectSessions } from './queries.ts';

export async function open(options: SqlIndexOptions): Promise<SqlIndex> {
  const { logDir, url, dir } = options;
  if (url === undefined && dir === undefined) {
    throw new KvError('bad-argument', 'a SQL index needs a folder or a database URL');
  }
  // Said before a database is started for nothing.
  firstLogId(logDir);
  const connect = (): Promise<Database> => openDatabase(url === undefined ? { dir: dir! } : { url });
  let database: Database | null = null;
  try {
    database = await connect();
    const report = await indexLog(database, logDir);
    return sqlIndex(database, logDir, report);
  } catch (error) {
    const cause = rootCause(error);
    await database?.connection.close();
    // Whatever is wrong with an embedded database, it is made again; a server belongs to somebody else.
    if (url !== undefined || !(cause instanceof KvError) || cause.code !== 'database') throw cause;
    discardPglite(dir!);
    database = await connect();
    try {
      const report = await indexLog(database, logDir);
      return sqlIndex(database, logDir, { ...report, rebuilt: `the database was broken: ${cause.message}` });
    } catch (again) {
      await database.connection.close();
      throw rootCause(again);
    }
  }
}

function sqlIndex(database: Database, logDir: string, first: IndexReport): SqlIndex {
  let report = first;
  const ask = async <T>(question: (logId: string) => Promise<T[]>): Promise<T[]> => {
    try {
      return report.logId === null ? [] : await question(report.logId);
    } catch (error) {
      throw rootCause(error);
    }
  };
  const update = async (run: typeof indexLog): Promise<IndexReport> => {
    try {
      report = await run(database, logDir);
      return report;
    } catch (error) {
      throw rootCause(error);
    }
  };
  return {
    kind: database.connection.kind,
    where: database.connection.where,
    get report() {
      return report;
    },
    decisions: (filter = {}) => ask((logId) => selectDecisions(database, logId, filter)),
    sessions: (filter = {}) => ask((logId) => selectSessions(database, logId, filter)),
    experiences: (modelDigest) => ask((logId) => selectExperiences(database, logId, modelDigest)),
    catchUp: () => update(indexLog),
    reindex: () => update(reindexLog),
    close: () => database.connection.close(),
  };
}
