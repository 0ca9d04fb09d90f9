/** Entry of the worker thread that holds PGlite: it computes on the thread that calls it, and takes half a gigabyte. */
import { parentPort, workerData } from 'node:worker_threads';
import { PGlite } from '@electric-sql/pglite';
import type { SqlReply, SqlRequest } from './connection.ts';

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
  send({ id: 0, error: (error as Error).message });
}

async function serve(database: PGlite, { id, mode, statements }: SqlRequest): Promise<void> {
  try {
    if (mode === 'close') {
      await database.close();
      send({ id });
      port.close();
      return;
    }
    if (mode === 'transaction') {
      await database.transaction(async (transaction) => {
        for (const { sql, params } of statements) await transaction.query(sql, [...params]);
      });
      send({ id });
      return;
    }
    const { sql, params } = statements[0]!;
    const { rows } = await database.query(sql, [...params], { rowMode: mode });
    send({ id, rows });
  } catch (error) {
    send({ id, error: (error as Error).message });
  }
}
