/**
 * The SQL index of one log: opened, compared with the log, asked. Loaded only by `openAuditIndex`, for it brings a
 * database along.
 */
import { KvError, plural } from '../../native/index.ts';
import { nodeFiles } from '../files.ts';
import type { CountKey, CountRow, DecisionFilter, DecisionRow, SessionFilter, SessionRow } from '../types.ts';
import { logIdOf, walkAll } from '../walk.ts';
import { askCounts, askDecisions, askSessions } from './ask.ts';
import type { SqlConnection } from './connection.ts';
import { openDatabase } from './database.ts';
import { discardPglite } from './pglite.ts';
import { faultOfQuestion, questionText } from './question.ts';
import { endsOf, syncLog } from './sync.ts';
import type { AuditIndex, AuditIndexOptions, IndexReport, SqlAnswer } from './types.ts';

const STATEMENT_MS_MAX = 60_000;
const ROWS_MAX = 1000;

export async function open(options: AuditIndexOptions): Promise<AuditIndex> {
  const { logDir, url, dir = null, rebuild = false, onNote, statementMsMax = STATEMENT_MS_MAX } = options;
  // Report a damaged log before paying for a database start: reading the log takes a fraction of that time.
  if (options.check === 'head') endsOf(logDir);
  else for (const _ of walkAll(nodeFiles, logDir));
  const start = async (rebuilt: string | null): Promise<AuditIndex> => {
    const connection = await openDatabase(url === undefined ? { dir } : { url }, statementMsMax);
    try {
      const sync = async (rebuild?: boolean): Promise<IndexReport> => ({
        ...(await syncLog(connection, { ...options, rebuild: rebuild ?? false })),
        rebuilt,
      });
      return new Index(connection, logDir, sync, await sync(rebuild));
    } catch (error) {
      await connection.close();
      throw error;
    }
  };
  let index: AuditIndex;
  try {
    index = await start(null);
  } catch (error) {
    // Whatever is wrong with an embedded database, it is made again; a server belongs to somebody else.
    if (url !== undefined || dir === null || !(error instanceof KvError) || error.code !== 'database') throw error;
    discardPglite(dir);
    index = await start(error.message);
  }
  const { rebuilt, wrong } = index.report;
  if (rebuilt !== null) onNote?.(`The SQL index was built again: ${rebuilt}`);
  if (wrong > 0)
    onNote?.(
      `The SQL index held ${plural(wrong, 'row')} that the log does not; ${wrong === 1 ? 'it was' : 'they were'} deleted.`,
    );
  return index;
}

class Index implements AuditIndex {
  report: IndexReport;
  readonly #connection: SqlConnection;
  readonly #logDir: string;
  readonly #sync: () => Promise<IndexReport>;

  constructor(connection: SqlConnection, logDir: string, sync: () => Promise<IndexReport>, report: IndexReport) {
    this.#connection = connection;
    this.#logDir = logDir;
    this.#sync = sync;
    this.report = report;
  }

  get kind(): AuditIndex['kind'] {
    return this.#connection.kind;
  }

  get where(): string {
    return this.#connection.where;
  }

  async query(sql: string, rowsMax = ROWS_MAX): Promise<SqlAnswer> {
    if (!Number.isSafeInteger(rowsMax) || rowsMax < 1)
      throw new KvError('bad-argument', `a limit of ${rowsMax} rows is not possible`, { values: { rowsMax } });
    const { columns, rows } = await this.#connection.ask(questionText(sql, rowsMax + 1)).catch((error: unknown) => {
      throw faultOfQuestion(error, sql);
    });
    return { columns, rows: rows.slice(0, rowsMax), more: rows.length > rowsMax };
  }

  get #logId(): string {
    return logIdOf(nodeFiles, this.#logDir) ?? '';
  }

  readonly #ask: SqlConnection['ask'] = (sql, params) => this.#connection.ask(sql, params);

  async decisions(filter: DecisionFilter = {}): Promise<DecisionRow[]> {
    return askDecisions(this.#ask, this.#logId, filter);
  }

  async sessions(filter: SessionFilter = {}): Promise<SessionRow[]> {
    return askSessions(this.#ask, this.#logId, filter);
  }

  async counts(by: CountKey, filter: DecisionFilter = {}): Promise<CountRow[]> {
    return askCounts(this.#ask, this.#logId, by, filter);
  }

  async sync(): Promise<IndexReport> {
    this.report = await this.#sync();
    return this.report;
  }

  close(): Promise<void> {
    return this.#connection.close();
  }
}
