/** What a SQL database is to this room: statements in, rows out, and several statements at once or not at all. */

export interface Statement {
  readonly sql: string;
  readonly params?: readonly unknown[];
}

/** Rows as arrays in the order of columns. Whole numbers beyond 2^53 are text. */
export interface Rows {
  readonly columns: readonly string[];
  readonly rows: readonly (readonly unknown[])[];
}

export interface SqlConnection {
  readonly kind: 'pglite' | 'postgres';
  /** Folder or address, without credentials: for messages. */
  readonly where: string;
  /** One statement that cannot write. Throws 'database' (also when it takes too long), 'closed'. */
  ask(sql: string, params?: readonly unknown[]): Promise<Rows>;
  /** All or nothing. → the rows of each. Throws 'database', 'closed'. */
  transaction(statements: readonly Statement[]): Promise<Rows[]>;
  close(): Promise<void>;
}

/**
 * What a database says of a statement that it refuses, as PGlite and the driver of PostgreSQL both tell it: the cause
 * of a KvError 'database'.
 */
export interface SqlFault {
  readonly message: string;
  /** SQLSTATE; absent where the fault is not the database's. */
  readonly code?: string;
  /** Characters of the statement to the fault, from 1, as digits. */
  readonly position?: string;
  readonly hint?: string;
}
