/** Entry of the worker thread that holds PGlite: it computes on the thread that calls it, and takes half a gigabyte. */
import { parentPort, workerData } from 'node:worker_threads';
import { PGlite, type PGliteOptions } from '@electric-sql/pglite';
import { given, KvError, ThreadServer } from '../../native/index.ts';
import type { Rows, SqlFault, Statement } from './connection.ts';

export interface Request {
  readonly statements: readonly Statement[];
  readonly readOnly: boolean;
}

/** What a database is made of: its code, compiled, and the files of an empty one, packed. */
export type PgliteProgram = Required<Pick<PGliteOptions, 'pgliteWasmModule' | 'fsBundle'>>;

/** What the thread can be asked. It throws 'database' with an SqlFault as values. */
export type PgliteCalls = ReturnType<typeof calls>;

const calls = (database: PGlite) => ({
  /** Answered when the database is open. */
  opened: async (): Promise<void> => {},
  /** All statements or none. */
  run: (request: Request): Promise<Rows[]> => run(database, request),
  close: (): Promise<void> => database.close(),
});

/** Whole numbers beyond 2^53 as text, in arrays too. */
function plain(cell: unknown): unknown {
  if (typeof cell === 'bigint') return String(cell);
  return Array.isArray(cell) ? cell.map(plain) : cell;
}

async function run(database: PGlite, { statements, readOnly }: Request): Promise<Rows[]> {
  const results: Rows[] = [];
  await database.transaction(async (transaction) => {
    if (readOnly) await transaction.query('set transaction read only');
    for (const { sql, params = [] } of statements) {
      const { fields, rows } = await transaction.query(sql, [...params], { rowMode: 'array' });
      results.push({
        columns: fields.map(({ name }) => name),
        rows: (rows as unknown[][]).map((row) => row.map(plain)),
      });
    }
  });
  return results;
}

/** A fault with what the database says of it: other fields of errors are lost on the way between threads. */
async function telling<T>(work: Promise<T>): Promise<T> {
  try {
    return await work;
  } catch (error) {
    const { message, code, position, hint } = error as SqlFault;
    throw new KvError('database', message, { values: { ...given<SqlFault>({ message, code, position, hint }) } });
  }
}

/** One call after the other, in the order they came. */
let last: Promise<unknown> = Promise.resolve();
function inTurn<T>(work: () => Promise<T>): Promise<T> {
  const result = last.then(() => telling(work()));
  last = result.catch(() => {});
  return result;
}

const { dir, program } = workerData as { dir: string; program: PgliteProgram };
const opening = telling(PGlite.create(dir, program));
new ThreadServer(parentPort).serve(opening.then(calls), { around: inTurn, last: 'close' });
