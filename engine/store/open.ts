/** Opens a store by its name: the URL of a PostgreSQL server, or a folder. */
import { KvError } from '../../native/index.ts';
import { openServerTables, TABLE_PACKAGE } from '../../witness/index.ts';
import { FolderStore } from './folder-store.ts';
import { PostgresStore } from './postgres-store.ts';
import type { Store } from './store.ts';

/** Throws 'database', 'bad-config', 'io', 'missing-dependency'. */
export async function openStore(place: string): Promise<Store> {
  if (!/^postgres(ql)?:/.test(place)) return new FolderStore(place);
  const connection = await connected(place);
  try {
    return new PostgresStore(connection, await connected(place));
  } catch (error) {
    await connection.close();
    throw error;
  }
}

/** What is missing is said of a store: it takes less than the tables of a log, which are asked elsewhere. */
async function connected(place: string): ReturnType<typeof openServerTables> {
  try {
    return await openServerTables(place);
  } catch (error) {
    if (!(error instanceof KvError) || error.code !== 'missing-dependency') throw error;
    throw new KvError('missing-dependency', 'a store in PostgreSQL is kept with drizzle-orm', {
      hint: `npm install ${TABLE_PACKAGE}, or name a folder as the store`,
      cause: error,
    });
  }
}
