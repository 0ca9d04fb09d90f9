/** Entry of the worker thread that holds PGlite: it computes on the thread that calls it, and takes half a gigabyte. */
import { parentPort, workerData } from 'node:worker_threads';
import { PGlite } from '@electric-sql/pglite';
import { given } from '../../native/index.ts';
import type { Rows, SqlFault, SqlReply, SqlRequest } from './connection.ts';

const port = parentPort!;
const send = (reply: SqlReply): void => port.postMessage(reply);

try {
  const database = await PGlite.create((workerData as { dir: string }).dir);
  // One request after the other, in the order they came.
  let last: Promise<void> = Promise.resolve();
  port.on('message', (request: SqlRequest) => {
    last = last.then(() => serve(database, request));
  });
  send({ id: 0 });
} catch (error) {
  send({ id: 0, error: faultOf(error) });
}

/** What is told of a fault: errors lose their fields on the way between threads. */
function faultOf(error: unknown): SqlFault {
  const { message, code, position, hint } = error as SqlFault;
  return given<SqlFault>({ message, code, position, hint });
}

/** Whole numbers beyond 2^53 as text, in arrays too. */
function plain(cell: unknown): unknown {
  if (typeof cell === 'bigint') return String(cell);
  return Array.isArray(cell) ? cell.map(plain) : cell;
}

async function serve(database: PGlite, { id, statements, readOnly }: SqlRequest): Promise<void> {
  try {
    if (statements === null) {
      await database.close();
      send({ id });
      port.close();
      return;
    }
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
    send({ id, results });
  } catch (error) {
    send({ id, error: faultOf(error) });
  }
}
