/**
 * Log → SQL. The tables are derived data and are not believed: every row of every range of entries is compared with what the
 * log's entries say, what differs is deleted, and what is missing is written. So one way serves the first filling, the
 * next entries, a process killed in between, and a database that somebody edited; memory is bounded by one batch.
 */
import { getTableName } from 'drizzle-orm';
import type { PgTable } from 'drizzle-orm/pg-core';
import { ExperienceReader } from '../../memory/index.ts';
import { decisions, experiences, sessions, situations, TABLES } from '../../migrations/schema.ts';
import { parseEnvelope } from '../entry.ts';
import { nodeFiles } from '../files.ts';
import { SessionKeys } from '../keys.ts';
import { decisionRow, SessionTotals } from '../query.ts';
import { badLog } from '../scan.ts';
import type { Entry } from '../types.ts';
import { walkAll } from '../walk.ts';
import type { SqlConnection, Statement } from './connection.ts';
import { columnsOf } from './database.ts';
import type { AuditIndexOptions, IndexReport } from './types.ts';

/** Entries per transaction: a megabyte of JSON, and a few hundred milliseconds. */
const ENTRIES_PER_BATCH = 2000;

/** A row by the fields of its table in migrations/schema.ts. */
type Row = Readonly<Record<string, unknown>> & { readonly seq: number };

/** Text that a database of UTF-8 cannot hold. */
const UNSTORABLE = /[\0\p{Cs}]/gu;

class Table {
  readonly name: string;
  readonly #columns: readonly (readonly [field: string, column: string])[];

  constructor(table: PgTable) {
    this.name = getTableName(table);
    this.#columns = columnsOf(table).map(({ field, column }) => [field, column]);
  }

  /** Statements that leave exactly `rows` among the rows of a log with from ≤ seq < to. The first returns what was wrong, the second what was missing. */
  replace(logId: string, from: number, to: number | null, rows: readonly Row[]): Statement[] {
    const { name } = this;
    const told = JSON.stringify(
      rows.map((row) =>
        Object.fromEntries([
          ['log_id', logId],
          ...this.#columns.slice(1).map(([field, column]) => [column, row[field] ?? null]),
        ]),
      ),
      (_, value: unknown) => (typeof value === 'string' ? value.replace(UNSTORABLE, '\ufffd') : value),
    );
    const source = `json_populate_recordset(null::${name}, ($1::text)::json) told`;
    return [
      {
        sql: `delete from ${name} held where log_id = $2 and seq >= $3 and ($4::bigint is null or seq < $4)
              and not exists (select from ${source} where told.seq = held.seq and told is not distinct from held) returning 1`,
        params: [told, logId, from, to],
      },
      {
        sql: `insert into ${name} select told.* from ${source}
              where not exists (select from ${name} held where held.log_id = told.log_id and held.seq = told.seq)
              on conflict do nothing returning 1`,
        params: [told],
      },
    ];
  }
}

/** Makes the tables say what the log in `logDir` says, no more and no less. Throws 'not-found', 'bad-log', 'database'. */
export async function syncLog(
  connection: SqlConnection,
  { logDir, rebuild = false, onProgress }: AuditIndexOptions,
): Promise<Omit<IndexReport, 'rebuilt'>> {
  const [logId, total] = identify(logDir);
  const log = new LogTables(connection, logId ?? '', (entries) => onProgress?.(entries, total));
  // Two indexers of one log on a server would see each other's half-written rows; the second waits.
  const lock = (verb: string): Statement => ({
    sql: `select pg_advisory_${verb}(hashtext($1))`,
    params: [`palimpsest ${logId}`],
  });
  await connection.transaction([lock('lock')]);
  try {
    const forget = (which: '=' | '<>'): Promise<unknown> =>
      connection.transaction(
        TABLES.map((table) => ({
          sql: `delete from ${getTableName(table)} where log_id ${which} $1`,
          params: [log.id],
        })),
      );
    // An embedded database belongs to one log.
    if (connection.kind === 'pglite') await forget('<>');
    if (rebuild) await forget('=');
    const keys = new SessionKeys(nodeFiles, logDir);
    for (const { segment, offset, seq, payload } of walkAll(nodeFiles, logDir)) {
      const envelope = parseEnvelope(payload);
      if (envelope.seq !== seq) throw badLog(segment, offset, seq, `the entry says it is ${envelope.seq}`);
      const entry = keys.open(envelope);
      // What cannot be opened has no rows: those of a session that was erased are deleted here.
      if (entry !== null) await log.add(entry);
    }
    await log.end();
  } finally {
    await connection.transaction([lock('unlock')]).catch(() => {});
  }
  return { entries: log.entries, written: log.written, wrong: log.wrong };
}

/** Identity of the log (null while it has no entry) and its number of entries. */
function identify(logDir: string): [logId: string | null, entries: number] {
  let logId: string | null = null;
  let entries = 0;
  for (const raw of walkAll(nodeFiles, logDir)) {
    logId = raw.logId;
    entries++;
  }
  return [logId, entries];
}

class LogTables {
  readonly id: string;
  entries = 0;
  written = 0;
  wrong = 0;
  readonly #connection: SqlConnection;
  readonly #onBatch: (entries: number) => void;
  readonly #decisions = new Table(decisions);
  readonly #situations = new Table(situations);
  readonly #experiences = new Table(experiences);
  readonly #sessions = new Table(sessions);
  readonly #totals = new SessionTotals();
  readonly #lessons = new ExperienceReader();
  #batch: Entry[] = [];
  /** Rows below this seq are as the log says. Seqs leap from one writer's series to the next. */
  #from = 0;

  constructor(connection: SqlConnection, logId: string, onBatch: (entries: number) => void) {
    this.#connection = connection;
    this.id = logId;
    this.#onBatch = onBatch;
  }

  async add(entry: Entry): Promise<void> {
    this.#totals.add(entry);
    if (this.#batch.length === ENTRIES_PER_BATCH) await this.#write(entry.seq);
    this.#batch.push(entry);
  }

  /** What is left of the last batch, whatever stands behind the log's end, and the sessions, which are known only now. */
  async end(): Promise<void> {
    await this.#write(null);
    const rows = this.#totals.rows().sort((a, b) => a.seq - b.seq);
    for (let at = 0; at === 0 || at < rows.length; at += ENTRIES_PER_BATCH) {
      const part = rows.slice(at, at + ENTRIES_PER_BATCH).map(({ end, ...row }) => ({ ...row, ending: end }));
      const next = rows[at + ENTRIES_PER_BATCH]?.seq ?? null;
      await this.#run(this.#sessions.replace(this.id, at === 0 ? 0 : part[0]!.seq, next, part), true);
    }
  }

  async #write(to: number | null): Promise<void> {
    const [moves, points, lessons]: Row[][] = [[], [], []];
    for (const entry of this.#batch) {
      if (entry.kind === 'decision') moves!.push({ ...decisionRow(entry as Entry<'decision'>) });
      if (entry.kind === 'situation') points!.push(situationRow(entry as Entry<'situation'>));
      const lesson = this.#lessons.add(entry);
      if (lesson !== null) lessons!.push({ ...lesson, gainsK: lesson.gains.k, gainsV: lesson.gains.v });
    }
    const range = [this.id, this.#from, to] as const;
    await this.#run([
      ...this.#decisions.replace(...range, moves!),
      ...this.#situations.replace(...range, points!),
      ...this.#experiences.replace(...range, lessons!),
    ]);
    this.entries += this.#batch.length;
    this.#from = to ?? this.#from;
    this.#batch = [];
    this.#onBatch(this.entries);
  }

  /** Rows that grow with the log, as a session's do, were not wrong when they are replaced. */
  async #run(statements: readonly Statement[], mayGrow = false): Promise<void> {
    const results = await this.#connection.transaction(statements);
    results.forEach(({ rows }, at) => {
      if (at % 2 === 1) this.written += rows.length;
      else if (!mayGrow) this.wrong += rows.length;
    });
  }
}

function situationRow({ seq, timeMs, session, body }: Entry<'situation'>): Row {
  const { index, trials, outcomes, ...numbers } = body.situation;
  return { ...numbers, seq, timeMs, session, situation: index, trials: trials.length, outcomes: outcomes.length };
}
