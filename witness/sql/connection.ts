/** What a SQL database is to this room: statements in, rows out, and several statements at once or not at all. */

export interface Statement {
  readonly sql: string;
  readonly params: readonly unknown[];
}

/** Rows as arrays in the order of columns, or as objects by column name. */
export type RowMode = 'array' | 'object';

export interface SqlConnection {
  readonly kind: 'pglite' | 'postgres';
  /** Folder or address, without credentials: for messages. */
  readonly where: string;
  /** Throws 'database', 'closed'. */
  query(statement: Statement, mode: RowMode): Promise<unknown[]>;
  /** All or nothing. Throws 'database', 'closed'. */
  transaction(statements: readonly Statement[]): Promise<void>;
  close(): Promise<void>;
}

/** Message from a worker that holds a database, or to it. */
export interface SqlRequest {
  readonly id: number;
  readonly mode: RowMode | 'transaction' | 'close';
  readonly statements: readonly Statement[];
}
export interface SqlReply {
  readonly id: number;
  readonly rows?: unknown[];
  readonly error?: string;
}
