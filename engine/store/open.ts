/** Opens a store by its name: the URL of a PostgreSQL server, or a folder. */
import { openServerTables } from '../../witness/index.ts';
import { FolderStore } from './folder-store.ts';
import { PostgresStore } from './postgres-store.ts';
import type { Store } from './store.ts';

/** Throws 'database', 'bad-config', 'io', 'missing-dependency'. */
export async function openStore(place: string): Promise<Store> {
  return /^postgres(ql)?:/.test(place) ? new PostgresStore(await openServerTables(place)) : new FolderStore(place);
}
