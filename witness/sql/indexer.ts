/**
 * Log → SQL. Rows go in by batches, each in one transaction together with how far the index now is, so it may be killed
 * anywhere and goes on from there. The chain hash of the last entry indexed says whether it is still the same log.
 */
import { and, eq, inArray, ne, sql } from 'drizzle-orm';
import { experienceOf, type LoggedEntry } from '../../memory/index.ts';
import { decisions, experiences, indexState, sessions, situations } from '../../migrations/schema.ts';
import { parsePayload } from '../entry.ts';
import { nodeFiles } from '../files.ts';
import { decisionRow, openedSession } from '../query.ts';
import { badLog } from '../scan.ts';
import type { Entry } from '../types.ts';
import { type RawEntry, walkLog } from '../walk.ts';
import type { Database } from './database.ts';

/** Rows per insert: above a few hundred the database is no longer what takes the time (measured), and 1,000 × 30 columns stay under PostgreSQL's 65,535 parameters. */
const ROWS_PER_INSERT = 1000;
/** Entries per transaction. */
const ENTRIES_PER_BATCH = 2000;

type SessionValues = typeof sessions.$inferInsert;
type Query = { toSQL(): { sql: string; params: unknown[] } };

export interface IndexReport {
  readonly logId: string | null;
  /** Entries read in this run. */
  readonly entries: number;
  /** Seq that the next run starts at. */
  readonly nextSeq: number;
  /** Why everything was read again; null when the index was only continued. */
  readonly rebuilt: string | null;
}

/** Brings the index up to date with the log in `logDir`. Throws 'not-found', 'bad-log', 'database'. */
export async function indexLog(database: Database, logDir: string): Promise<IndexReport> {
  const logId = firstLogId(logDir);
  if (logId === null) return { logId, entries: 0, nextSeq: 0, rebuilt: null };
  const { orm, connection } = database;
  // Two indexers of one log (a shared server) would see each other's half-deleted rows; the second waits.
  const lock = sql`pg_advisory_lock(hashtext(${`palimpsest ${logId}`}))`;
  const unlock = sql`pg_advisory_unlock(hashtext(${`palimpsest ${logId}`}))`;
  await orm.execute(sql`select ${lock}`);
  try {
    let rebuilt: string | null = null;
    if (connection.kind === 'pglite') {
      const others = await orm.select().from(indexState).where(ne(indexState.logId, logId));
      for (const other of others) await forget(database, other.logId);
      if (others.length > 0) rebuilt = `the index was made from log ${others[0]!.logId}`;
    }
    const [state] = await orm.select().from(indexState).where(eq(indexState.logId, logId));
    let from = 0;
    if (state !== undefined && hasHead(logDir, state.nextSeq, state.headHash)) from = state.nextSeq;
    else if (state !== undefined) {
      rebuilt = `entry ${state.nextSeq - 1} of the log is not the one that was indexed`;
      await forget(database, logId);
    }
    const entries = await new LogIndexer(database, logDir, logId).run(from);
    return { logId, entries, nextSeq: from + entries, rebuilt };
  } finally {
    await orm.execute(sql`select ${unlock}`).catch(() => {});
  }
}

/** Deletes what is known of the log in `logDir` and reads it again. */
export async function reindexLog(database: Database, logDir: string): Promise<IndexReport> {
  const logId = firstLogId(logDir);
  if (logId !== null) await forget(database, logId);
  const report = await indexLog(database, logDir);
  return { ...report, rebuilt: 'it was asked for' };
}

/** Forgetting the state first in one transaction with the rows: a kill leaves all or nothing. */
async function forget({ orm, transaction }: Database, logId: string): Promise<void> {
  const tables = [decisions, situations, experiences, sessions, indexState];
  await transaction(tables.map((table) => orm.delete(table).where(eq(table.logId, logId))));
}

/** Identity of the log, null while it has no entry. Throws 'not-found', 'bad-log'. */
export function firstLogId(logDir: string): string | null {
  const walk = walkLog(nodeFiles, logDir);
  try {
    const first = walk.next();
    return first.done ? null : first.value.logId;
  } finally {
    walk.return(undefined as never);
  }
}

function hasHead(logDir: string, nextSeq: number, headHash: string): boolean {
  if (nextSeq === 0) return true;
  for (const raw of walkLog(nodeFiles, logDir, nextSeq - 1)) {
    if (raw.seq === nextSeq - 1) return Buffer.from(raw.hash).toString('hex') === headHash;
  }
  return false;
}

class LogIndexer {
  readonly #database: Database;
  readonly #logDir: string;
  readonly #logId: string;
  /** Rows of sessions that this run has touched, and which of them changed in this batch. */
  readonly #sessions = new Map<string, SessionValues>();
  readonly #changed = new Set<string>();
  /** 'open' entries of sessions that are still open: an experience needs both ends. */
  readonly #opened = new Map<string, LoggedEntry>();

  constructor(database: Database, logDir: string, logId: string) {
    this.#database = database;
    this.#logDir = logDir;
    this.#logId = logId;
  }

  /** → entries read */
  async run(from: number): Promise<number> {
    let batch: Entry[] = [];
    let head: Pick<RawEntry, 'seq' | 'hash'> | null = null;
    let count = 0;
    for (const raw of walkLog(nodeFiles, this.#logDir, from)) {
      if (raw.seq < from) continue;
      const entry = parsePayload(raw.payload);
      if (entry.seq !== raw.seq) throw badLog(raw.segment, raw.offset, raw.seq, `the entry says it is ${entry.seq}`);
      batch.push(entry);
      head = raw;
      if (batch.length < ENTRIES_PER_BATCH) continue;
      await this.#write(batch, head);
      count += batch.length;
      batch = [];
    }
    if (head !== null && batch.length > 0) await this.#write(batch, head);
    return count + batch.length;
  }

  async #write(batch: readonly Entry[], head: Pick<RawEntry, 'seq' | 'hash'>): Promise<void> {
    const { orm, transaction } = this.#database;
    const logId = this.#logId;
    const headHash = Buffer.from(head.hash).toString('hex');
    await this.#loadSessions(batch);
    const moves: (typeof decisions.$inferInsert)[] = [];
    const points: (typeof situations.$inferInsert)[] = [];
    const lessons: (typeof experiences.$inferInsert)[] = [];
    for (const entry of batch) {
      this.#fold(entry);
      if (is(entry, 'decision')) moves.push({ logId, ...decisionRow(entry) });
      else if (is(entry, 'situation')) points.push(this.#situation(entry));
      else if (is(entry, 'close')) lessons.push(...(await this.#lesson(entry)));
    }
    const touched = [...this.#changed].map((session) => this.#sessions.get(session)!);
    const queries: Query[] = [
      ...chunks(moves).map((rows) => orm.insert(decisions).values(rows).onConflictDoNothing()),
      ...chunks(points).map((rows) => orm.insert(situations).values(rows).onConflictDoNothing()),
      ...chunks(lessons).map((rows) => orm.insert(experiences).values(rows).onConflictDoNothing()),
      ...touched.map((row) =>
        orm
          .insert(sessions)
          .values(row)
          .onConflictDoUpdate({ target: [sessions.logId, sessions.session], set: row }),
      ),
      orm
        .insert(indexState)
        .values({ logId, nextSeq: head.seq + 1, headHash })
        .onConflictDoUpdate({ target: indexState.logId, set: { nextSeq: head.seq + 1, headHash } }),
    ];
    await transaction(queries);
    this.#changed.clear();
  }

  async #loadSessions(batch: readonly Entry[]): Promise<void> {
    const unknown = new Set(batch.map((entry) => entry.session).filter((session) => !this.#sessions.has(session)));
    if (unknown.size === 0) return;
    const { orm } = this.#database;
    const rows = await orm
      .select()
      .from(sessions)
      .where(and(eq(sessions.logId, this.#logId), inArray(sessions.session, [...unknown])));
    for (const row of rows) this.#sessions.set(row.session, row);
  }

  /** The same story that `sessionRows` tells from the log, entry by entry. */
  #fold(entry: Entry): void {
    if (is(entry, 'open')) {
      const { end, ...row } = openedSession(entry);
      this.#opened.set(entry.session, entry);
      this.#sessions.set(entry.session, { logId: this.#logId, ...row, ending: end });
      this.#changed.add(entry.session);
      return;
    }
    const row = this.#sessions.get(entry.session);
    if (row === undefined) return;
    if (is(entry, 'situation')) {
      row.tokens = entry.body.situation.tokens;
      row.kvBytes = entry.body.situation.bytes;
    } else if (is(entry, 'decision')) {
      row.decisions += 1;
      if (!entry.body.verdict.accepted) row.refused += 1;
    } else if (is(entry, 'close')) {
      const { tokens, kvBytes, kvBytesF16, meanKld, reason } = entry.body;
      Object.assign(row, { closedMs: entry.timeMs, tokens, kvBytes, kvBytesF16, meanKld, ending: reason });
    } else {
      return;
    }
    this.#changed.add(entry.session);
  }

  #situation({ seq, timeMs, session, body }: Entry<'situation'>): typeof situations.$inferInsert {
    const { index, tokens, bytes, budgetBytes, kldBudget, urgent, lowMemory, trials, outcomes } = body.situation;
    return {
      logId: this.#logId,
      seq,
      timeMs,
      session,
      situation: index,
      tokens,
      bytes,
      budgetBytes,
      kldBudget,
      urgent,
      lowMemory,
      trials: trials.length,
      outcomes: outcomes.length,
    };
  }

  async #lesson(close: Entry<'close'>): Promise<(typeof experiences.$inferInsert)[]> {
    const open = this.#opened.get(close.session) ?? this.#findOpen(close.session);
    this.#opened.delete(close.session);
    const lesson = open === null ? null : experienceOf(open, close);
    if (lesson === null) return [];
    const { gains, fingerprint, ...rest } = lesson;
    return [{ logId: this.#logId, ...rest, fingerprint: [...fingerprint], gainsK: [...gains.k], gainsV: [...gains.v] }];
  }

  /** The session began before this run: its 'open' entry is read once more from the log. */
  #findOpen(session: string): LoggedEntry | null {
    const seq = this.#sessions.get(session)?.seq;
    if (seq === undefined) return null;
    for (const raw of walkLog(nodeFiles, this.#logDir, seq)) {
      if (raw.seq === seq) return parsePayload(raw.payload);
    }
    return null;
  }
}

function is<K extends Entry['kind']>(entry: Entry, kind: K): entry is Entry<K> {
  return entry.kind === kind;
}

function chunks<T>(rows: readonly T[]): T[][] {
  const result: T[][] = [];
  for (let at = 0; at < rows.length; at += ROWS_PER_INSERT) result.push(rows.slice(at, at + ROWS_PER_INSERT));
  return result;
}
