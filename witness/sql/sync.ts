/**
 * Log → SQL. The tables are derived data and are not believed: every row of every range of entries is compared with
 * what the log's entries say, what differs is deleted, and what is missing is written. So one way serves the first
 * filling, the next entries, a process killed in between, and a database that somebody edited; memory is bounded by one
 * batch.
 */
import { getTableName } from 'drizzle-orm';
import type { PgTable } from 'drizzle-orm/pg-core';
import { ExperienceReader } from '../../memory/index.ts';
import { decisions, experiences, heads, OF_SESSIONS, sessions, situations, TABLES } from '../../migrations/schema.ts';
import { KvError } from '../../native/index.ts';
import { SenselessBody } from '../body.ts';
import { decisionRow, situationRow } from '../entries/rows.gen.ts';
import { type Envelope, parseEnvelope } from '../entry.ts';
import { nodeFiles } from '../files.ts';
import { SessionKeys } from '../keys.ts';
import { SessionTotals } from '../query.ts';
import { readEntry } from '../read.ts';
import { badLog } from '../scan.ts';
import { firstSeqOf, listSeries } from '../series.ts';
import { type Entry, NO_SESSION } from '../types.ts';
import { type LogEnd, walkSeries } from '../walk.ts';
import { askSessionsNamed } from './ask.ts';
import type { SqlConnection, Statement } from './connection.ts';
import { columnsOf } from './database.ts';
import { Partitions } from './partitions.ts';
import type { AuditIndexOptions, IndexReport } from './types.ts';

/** Entries per transaction: a megabyte of JSON, and a few hundred milliseconds. */
const ENTRIES_PER_BATCH = 2000;

/** So many new rows may change how a server goes about a question. */
const ANALYZE_ROWS = 10_000;

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

  /** The rows of a log as JSON, and as a table `told` that is made of the first value of a statement. */
  #source(logId: string, rows: readonly Readonly<Record<string, unknown>>[]): { told: string; source: string } {
    const told = JSON.stringify(
      rows.map((row) =>
        Object.fromEntries([
          ['log_id', logId],
          ...this.#columns.slice(1).map(([field, column]) => [column, row[field] ?? null]),
        ]),
      ),
      (_, value: unknown) => (typeof value === 'string' ? value.replace(UNSTORABLE, '\ufffd') : value),
    );
    return { told, source: `json_populate_recordset(null::${this.name}, ($1::text)::json) told` };
  }

  /**
   * Statements that leave exactly `rows` among the rows of a log with from ≤ seq < to. The first returns what was
   * wrong, the second what was missing.
   */
  replace(logId: string, from: number, to: number | null, rows: readonly Row[]): Statement[] {
    const { told, source } = this.#source(logId, rows);
    const wrong = {
      sql: `delete from ${this.name} held where log_id = $2 and seq >= $3 and ($4::bigint is null or seq < $4)
            and not exists (select from ${source} where told.seq = held.seq and told is not distinct from held) returning 1`,
      params: [told, logId, from, to],
    };
    return [wrong, this.#insert(told, source)];
  }

  /** Statements that make the rows with these seqs say this, and leave all others. */
  put(logId: string, rows: readonly Row[]): Statement[] {
    const { told, source } = this.#source(logId, rows);
    const wrong = {
      sql: `delete from ${this.name} held where log_id = $2
            and exists (select from ${source} where told.seq = held.seq and told is distinct from held) returning 1`,
      params: [told, logId],
    };
    return [wrong, this.#insert(told, source)];
  }

  /** Statements that leave these rows of a log and no others. */
  fill(logId: string, rows: readonly Readonly<Record<string, unknown>>[]): Statement[] {
    const { told, source } = this.#source(logId, rows);
    return [
      { sql: `delete from ${this.name} where log_id = $1`, params: [logId] },
      { sql: `insert into ${this.name} select told.* from ${source}`, params: [told] },
    ];
  }

  /**
   * Inserts what is not there. In a partitioned table a row is looked for in the one partition that its time belongs
   * to.
   */
  #insert(told: string, source: string): Statement {
    const sameTime = this.#columns.some(([, column]) => column === 'time_ms') ? ' and held.time_ms = told.time_ms' : '';
    return {
      sql: `insert into ${this.name} select told.* from ${source}
            where not exists (select from ${this.name} held where held.log_id = told.log_id and held.seq = told.seq${sameTime})
            on conflict do nothing returning 1`,
      params: [told],
    };
  }
}

/**
 * Makes the tables say what the log in `logDir` says, no more and no less. Throws 'not-found', 'bad-log', 'database'.
 */
export async function syncLog(
  connection: SqlConnection,
  { logDir, rebuild = false, check = 'rows', onProgress }: AuditIndexOptions,
): Promise<Omit<IndexReport, 'rebuilt'>> {
  const ends = endsOf(logDir);
  const logId = [...ends.values()].find((end) => end.logId !== null)?.logId ?? '';
  const total = [...ends].reduce((sum, [series, { nextSeq }]) => sum + nextSeq - firstSeqOf(series), 0);
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
          params: [logId],
        })),
      );
    // An embedded database belongs to one log.
    if (connection.kind === 'pglite') await forget('<>');
    if (rebuild) await forget('=');
    const open = (): LogTables =>
      new LogTables(connection, logId, logDir, (entries) => onProgress?.(entries, Math.max(total, entries)));
    const known = rebuild || check === 'rows' ? null : await headsOf(connection, logId);
    const added = known === null ? null : await open().follow([...ends.keys()], known);
    return added ?? (await open().compare([...ends.keys()]));
  } finally {
    await connection.transaction([lock('unlock')]).catch(() => {});
  }
}

/** Where each series ends that has a segment; only the last segments are read. Throws 'not-found', 'bad-log'. */
export function endsOf(logDir: string): ReadonlyMap<number, LogEnd> {
  const ends = new Map<number, LogEnd>();
  for (const series of listSeries(nodeFiles, logDir)) {
    const walk = walkSeries(nodeFiles, logDir, series, Number.POSITIVE_INFINITY);
    let step = walk.next();
    while (step.done !== true) step = walk.next();
    if (step.value !== null) ends.set(series, step.value);
  }
  return ends;
}

/** How far a series was indexed: the seq behind its last entry there, and the hash of that entry, in hex. */
interface Head {
  readonly nextSeq: number;
  readonly headHash: string;
}

async function headsOf(connection: SqlConnection, logId: string): Promise<ReadonlyMap<number, Head>> {
  const { rows } = await connection.ask('select series, next_seq, head_hash from heads where log_id = $1', [logId]);
  return new Map(
    rows.map(([series, nextSeq, headHash]) => [
      Number(series),
      { nextSeq: Number(nextSeq), headHash: String(headHash) },
    ]),
  );
}

class LogTables {
  readonly #connection: SqlConnection;
  readonly #id: string;
  readonly #logDir: string;
  readonly #onBatch: (entries: number) => void;
  readonly #tables = {
    decisions: new Table(decisions),
    situations: new Table(situations),
    experiences: new Table(experiences),
    sessions: new Table(sessions),
    heads: new Table(heads),
  };
  readonly #parts = new Partitions();
  readonly #keys: SessionKeys;
  readonly #totals = new SessionTotals();
  readonly #lessons = new ExperienceReader();
  readonly #heads = new Map<number, Head>();
  #report = { entries: 0, written: 0, wrong: 0 };
  #batch: Entry[] = [];
  /** Rows below this seq are as the log says. Seqs leap from one writer's series to the next. */
  #from = 0;
  /** What is not in the tables yet continues what is there. */
  #isFollowing = false;

  constructor(connection: SqlConnection, logId: string, logDir: string, onBatch: (entries: number) => void) {
    this.#connection = connection;
    this.#id = logId;
    this.#logDir = logDir;
    this.#keys = new SessionKeys(nodeFiles, logDir);
    this.#onBatch = onBatch;
  }

  /** Compares all rows with all entries. */
  async compare(series: readonly number[]): Promise<Omit<IndexReport, 'rebuilt'>> {
    for (const [at, number] of series.entries()) await this.#take(number, series[at + 1], null);
    if (series.length === 0) await this.#write(null);
    const rows = this.#sessionRows();
    for (let at = 0; at === 0 || at < rows.length; at += ENTRIES_PER_BATCH) {
      const part = rows.slice(at, at + ENTRIES_PER_BATCH);
      const next = rows[at + ENTRIES_PER_BATCH]?.seq ?? null;
      await this.#run(this.#tables.sessions.replace(this.#id, at === 0 ? 0 : part[0]!.seq, next, part), true);
    }
    return this.#finish(true);
  }

  /**
   * Takes in what follows the heads that are known; null: the log's chain is another there, or one of them is not of
   * this log.
   */
  async follow(
    series: readonly number[],
    known: ReadonlyMap<number, Head>,
  ): Promise<Omit<IndexReport, 'rebuilt'> | null> {
    if ([...known.keys()].some((number) => !series.includes(number))) return null;
    this.#isFollowing = true;
    for (const [at, number] of series.entries()) {
      const head = known.get(number) ?? null;
      this.#from = head?.nextSeq ?? firstSeqOf(number);
      if (!(await this.#take(number, series[at + 1], head))) return null;
    }
    const rows = this.#sessionRows();
    if (rows.length > 0) await this.#run(this.#tables.sessions.put(this.#id, rows), true);
    return this.#finish(false);
  }

  /** Entries of one series behind a head. → false: the head is not the log's. */
  async #take(series: number, next: number | undefined, head: Head | null): Promise<boolean> {
    const from = head?.nextSeq ?? firstSeqOf(series);
    let isOurs = head === null;
    for (const { segment, offset, seq, payload, hash, logId } of walkSeries(
      nodeFiles,
      this.#logDir,
      series,
      head === null ? from : from - 1,
    )) {
      if (logId !== this.#id) throw badLog(segment, 16, null, `it belongs to log ${logId}, the folder to ${this.#id}`);
      // The walk begins with the segment that holds the head.
      if (seq < from - 1) continue;
      const headHash = Buffer.from(hash).toString('hex');
      if (head !== null && seq === from - 1) isOurs = headHash === head.headHash;
      if (!isOurs) return false;
      this.#heads.set(series, { nextSeq: seq + 1, headHash });
      if (seq < from) continue;
      const envelope = parseEnvelope(payload);
      if (envelope.seq !== seq) throw badLog(segment, offset, seq, `the entry says it is ${envelope.seq}`);
      // What retention removed has rows that only comparing all of them finds.
      if (this.#isFollowing && envelope.kind === 'retention') return false;
      const entry = this.#open(envelope);
      // What cannot be opened or makes no sense has no rows: those of a session that was erased are deleted.
      if (entry === null) continue;
      if (this.#batch.length === ENTRIES_PER_BATCH) await this.#write(seq);
      this.#batch.push(entry);
    }
    if (isOurs) await this.#write(next === undefined ? null : firstSeqOf(next));
    return isOurs;
  }

  #open(envelope: Envelope): Entry | null {
    try {
      return this.#keys.open(envelope);
    } catch (error) {
      if (error instanceof SenselessBody) return null;
      throw error;
    }
  }

  async #write(to: number | null): Promise<void> {
    if (this.#isFollowing) {
      await this.#forgetErased();
      await this.#recall();
    }
    const [moves, points, lessons]: Row[][] = [[], [], []];
    for (const entry of this.#batch) {
      this.#totals.add(entry);
      if (entry.kind === 'decision') moves!.push({ ...decisionRow(entry as Entry<'decision'>) });
      if (entry.kind === 'situation') points!.push({ ...situationRow(entry as Entry<'situation'>) });
      const lesson = this.#lessons.add(entry);
      if (lesson !== null) lessons!.push({ ...lesson, gainsK: lesson.gains.k, gainsV: lesson.gains.v });
    }
    const missing = this.#parts.missing(this.#batch.map(({ timeMs }) => timeMs));
    if (missing.length > 0) await this.#connection.transaction(missing);
    const range = [this.#id, this.#from, to] as const;
    await this.#run([
      ...this.#tables.decisions.replace(...range, moves!),
      ...this.#tables.situations.replace(...range, points!),
      ...this.#tables.experiences.replace(...range, lessons!),
    ]);
    this.#report.entries += this.#batch.length;
    this.#from = to ?? this.#from;
    this.#batch = [];
    this.#onBatch(this.#report.entries);
  }

  /** Rows of sessions that were erased since. */
  async #forgetErased(): Promise<void> {
    const erased = this.#batch.filter(({ kind }) => kind === 'erase').map(({ session }) => session);
    if (erased.length === 0) return;
    await this.#connection.transaction(
      OF_SESSIONS.map((table) => ({
        sql: `delete from ${getTableName(table)} where log_id = $1 and session in (select json_array_elements_text(($2::text)::json))`,
        params: [this.#id, JSON.stringify(erased)],
      })),
    );
  }

  /**
   * Sessions that began before what is read now: their rows are continued, and their beginning is read again for what
   * they taught.
   */
  async #recall(): Promise<void> {
    const unknown = new Set(this.#batch.map(({ session }) => session).filter((id) => !this.#totals.has(id)));
    for (const { kind, session } of this.#batch) if (kind === 'open') unknown.delete(session);
    unknown.delete(NO_SESSION);
    if (unknown.size === 0) return;
    for (const row of await askSessionsNamed(this.#connection, this.#id, [...unknown])) {
      this.#totals.restore(row);
      const begun = row.closedMs === null ? this.#readable(row.seq) : null;
      if (begun !== null) this.#lessons.add(begun);
    }
  }

  /** null: the key of its session is not there any more. */
  #readable(seq: number): Entry | null {
    try {
      return readEntry(this.#logDir, seq);
    } catch (error) {
      if (error instanceof KvError && error.code === 'sealed') return null;
      throw error;
    }
  }

  #sessionRows(): Row[] {
    return this.#totals
      .rows()
      .sort((a, b) => a.seq - b.seq)
      .map((row) => ({ ...row }));
  }

  /** Says how far the tables hold the log, and lets the server look at what they hold now. */
  async #finish(isComplete: boolean): Promise<Omit<IndexReport, 'rebuilt'>> {
    const rows = [...this.#heads].map(([series, head]) => ({ series, ...head }));
    await this.#connection.transaction(this.#tables.heads.fill(this.#id, rows));
    if (this.#report.written >= ANALYZE_ROWS)
      await this.#connection.transaction(TABLES.map((table) => ({ sql: `analyze ${getTableName(table)}` })));
    return { ...this.#report, isComplete };
  }

  /** Rows that grow with the log, as a session's do, were not wrong when they are replaced. */
  async #run(statements: readonly Statement[], mayGrow = false): Promise<void> {
    const results = await this.#connection.transaction(statements);
    results.forEach(({ rows }, at) => {
      if (at % 2 === 1) this.#report.written += rows.length;
      else if (!mayGrow) this.#report.wrong += rows.length;
    });
  }
}
