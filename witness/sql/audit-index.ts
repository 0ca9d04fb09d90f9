/** The SQL index of one log: opened, brought up to date, asked. Loaded only by `openAuditIndex`, for it brings a database along. */
import { KvError } from '../../native/index.ts';
import { nodeFiles } from '../files.ts';
import { walkLog } from '../walk.ts';
import { type Database, openDatabase, rootCause } from './database.ts';
import type { AuditIndex, AuditIndexOptions } from './index.ts';
import { type IndexReport, indexLog, reindexLog } from './indexer.ts';
import { discardPglite } from './pglite.ts';
import { selectDecisions, selectExperiences, selectSessions } from './queries.ts';

export async function open(options: AuditIndexOptions): Promise<AuditIndex> {
  const { logDir, url, dir, rebuild = false, onNote } = options;
  if (url === undefined && dir === undefined) {
    throw new KvError('bad-argument', 'a SQL index needs a folder or a database URL');
  }
  // Said before a database is started for nothing: reading the whole log takes a fraction of the time that this takes.
  for (const _ of walkLog(nodeFiles, logDir));
  const run = async (broken: string | null): Promise<AuditIndex> => {
    const database = await openDatabase(url === undefined ? { dir: dir! } : { url });
    try {
      const report = await (rebuild && broken === null ? reindexLog : indexLog)(database, logDir);
      return auditIndex(database, logDir, broken === null ? report : { ...report, rebuilt: broken });
    } catch (error) {
      await database.connection.close();
      throw rootCause(error);
    }
  };
  let index: AuditIndex;
  try {
    index = await run(null);
  } catch (error) {
    // Whatever is wrong with an embedded database, it is made again; a server belongs to somebody else.
    if (url !== undefined || !(error instanceof KvError) || error.code !== 'database') throw error;
    discardPglite(dir!);
    index = await run(`the database was broken: ${error.message}`);
  }
  if (index.report.rebuilt !== null && !rebuild) onNote?.(`The SQL index was built again: ${index.report.rebuilt}`);
  return index;
}

function auditIndex(database: Database, logDir: string, first: IndexReport): AuditIndex {
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
    get entries() {
      return report.nextSeq;
    },
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
