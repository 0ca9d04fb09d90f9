/** The SQL index over the log. Importing this loads no database; opening an index does. */
import type { Experience } from '../../memory/index.ts';
import type { DecisionQuery } from '../types.ts';
import type { IndexReport } from './indexer.ts';

export type { IndexReport };

export interface AuditIndexOptions {
  /** Folder of the log that is indexed. */
  readonly logDir: string;
  /** Folder of the embedded database (PGlite), created when missing. One process at a time. */
  readonly dir?: string;
  /** postgres://…: a PostgreSQL server instead, shared by any number of logs and machines. */
  readonly url?: string;
  /** Throw away what is indexed and read the whole log again. */
  readonly rebuild?: boolean;
  /** Told, in one line, what a person should know: that the index was built again, and why. */
  readonly onNote?: (line: string) => void;
}

/** A log as tables. Rows are as fresh as the last `catchUp`. */
export interface AuditIndex extends DecisionQuery {
  readonly kind: 'pglite' | 'postgres';
  /** Folder or address, without credentials. */
  readonly where: string;
  /** Entries of the log that the index covers. */
  readonly entries: number;
  /** What the last run of the indexer did; `rebuilt` says why it began again, for the person to be told. */
  readonly report: IndexReport;
  /** Experiences in the order in which their sessions ended, of one model or of all. */
  experiences(modelDigest?: string): Promise<Experience[]>;
  /** Takes in what the log has got since. Throws 'bad-log', 'database'. */
  catchUp(): Promise<IndexReport>;
  /** Throws the log's rows away and reads it again. */
  reindex(): Promise<IndexReport>;
  close(): Promise<void>;
}

/**
 * Opens the index and brings it up to date with the log. A broken embedded database is deleted and built again
 * (`report.rebuilt` says so). Throws 'not-found' (no log), 'bad-log', 'locked', 'database', 'bad-config', 'io'.
 */
export async function openAuditIndex(options: AuditIndexOptions): Promise<AuditIndex> {
  const { open } = await import('./audit-index.ts');
  return open(options);
}
