/** What an index over a log is asked for and answers. */
import type { DecisionQuery } from '../types.ts';

/** Which log, and where its tables stand. */
export interface AuditIndexOptions {
  /** Folder of the log that is indexed. */
  readonly logDir: string;
  /**
   * Folder of the embedded database (PGlite), created when missing, for one process at a time; without it, it is made
   * in memory.
   */
  readonly dir?: string;
  /** postgres://…: a PostgreSQL server instead, shared by any number of logs and machines. */
  readonly url?: string;
  /**
   * How the tables are compared with the log before they answer. 'rows', the default: every row with its entry. 'head':
   * where they hold the log to an entry whose hash is still that of the log's chain, only what follows is read, so that
   * a log of any length answers at once; what somebody edited in the tables is then not noticed. Every row is compared
   * all the same where the hash is another.
   */
  readonly check?: 'rows' | 'head';
  /** Throw away what is indexed and write every row again. */
  readonly rebuild?: boolean;
  /**
   * Told, in one line, what a person should know: that rows were not the log's, or that the database was made again,
   * and why.
   */
  readonly onNote?: (line: string) => void;
  /** Told after every batch how many of the log's entries were gone through. */
  readonly onProgress?: (entries: number, entriesTotal: number) => void;
  /** Longest time that one statement may take, default 60 s; then 'database'. */
  readonly statementMsMax?: number;
}

/** What comparing the tables with the log did. */
export interface IndexReport {
  /**
   * Entries of the log that were compared with the tables: all of them, or with `check: 'head'` those that were not
   * known yet.
   */
  readonly entries: number;
  /** Every row was compared; false: the head of the log alone, and what is behind it. */
  readonly isComplete: boolean;
  /** Rows that were not there yet. */
  readonly written: number;
  /**
   * Rows that were there and said something else than the log; they were deleted, and written again where the log has
   * them.
   */
  readonly wrong: number;
  /** Why the database was made anew; null when it was not. */
  readonly rebuilt: string | null;
}

/** What a SELECT answered. */
export interface SqlAnswer {
  /** Names of the columns. */
  readonly columns: readonly string[];
  /** One array a row, in the order of the columns. */
  readonly rows: readonly (readonly unknown[])[];
  /** There were more rows than were asked for. */
  readonly more: boolean;
}

/**
 * A log as tables (migrations/schema.ts): `sessions`, `decisions`, `situations`, `experiences`. Lists and counts are
 * those of `openLogQuery`.
 */
export interface AuditIndex extends DecisionQuery {
  /** Which database holds the tables. */
  readonly kind: 'pglite' | 'postgres';
  /** Folder or address, without credentials. */
  readonly where: string;
  /** What the last comparison with the log did. */
  readonly report: IndexReport;
  /**
   * The answer to one SELECT, at most `rowsMax` rows of it (default 1000). Nothing can be written. Throws 'database',
   * with the place in the question where that is to blame.
   */
  query(sql: string, rowsMax?: number): Promise<SqlAnswer>;
  /**
   * Compares with the log again, as `check` says, and takes in what the log has got since. Throws 'bad-log',
   * 'database'.
   */
  sync(): Promise<IndexReport>;
  /** Ends the connection; the tables stay. */
  close(): Promise<void>;
}
