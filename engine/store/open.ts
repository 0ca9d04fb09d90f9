/** Opens a store by its name: the URL of a PostgreSQL server, or a folder. */
import { openServerTables } from '../../witness/index.ts';
import { FolderStore } from './folder-store.ts';
import { PostgresStore } from './postgres-store.ts';
import type { Store } from './store.ts';

/** Throws 'database', 'bad-config', 'io', 'missing-dependency'. */
export async function openStore(place: string): Promise<Store> {
  if (!/^postgres(ql)?:/.test(place)) return new FolderStore(place);
  const connection = await openServerTables(place);
  try {
    return new PostgresStore(connection, await openServerTables(place));
  } catch (error) {
    await connection.close();
    throw error;
  }
}
