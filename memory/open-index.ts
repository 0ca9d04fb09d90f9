/**
 * The vector index that this thread can have: hnsw where its library is and nobody ends the thread in the middle of it,
 * else the exact one over the same files. hnswlib-node is compiled when it is installed, and npm leaves it out where
 * there is no compiler. A thread that is ended while it is inside takes the whole process along, because the library
 * asks Node for something and does not expect to be refused. An exact search of some thousand sessions takes
 * milliseconds.
 */
import { isMainThread } from 'node:worker_threads';
import { KvError } from '../native/index.ts';
import { createExactIndex } from './exact-index.ts';
import { type HnswOptions, type OpenedIndex, openOrRebuildHnswIndex, removeSaved, savedEntries } from './hnsw-index.ts';
import type { VectorIndex } from './vector.ts';

/** The main thread ends between two calls, or with its process. Of other threads only their owner knows. */
let endsBetweenCalls = isMainThread;

/** Says of this thread that whoever ends it waits for the call that is under way. */
export function guardThread(): void {
  endsBetweenCalls = true;
}

/**
 * Opens the saved index of `options.dir`, or fills an empty one by `rebuild`. → the index, and why it had to be filled.
 * Throws what `rebuild` throws.
 */
export async function openVectorIndex<T extends object>(
  options: HnswOptions<T>,
  rebuild: (index: VectorIndex<T>) => Promise<void>,
): Promise<OpenedIndex<T>> {
  if (!endsBetweenCalls) return openExact<T>(options, rebuild, 'there was no saved vector index');
  try {
    return await openOrRebuildHnswIndex<T>(options, rebuild);
  } catch (error) {
    if (!(error instanceof KvError) || error.code !== 'missing-dependency') throw error;
    return openExact<T>(options, rebuild, error.message);
  }
}

/** unsaved: why the index is filled where nothing was saved. */
async function openExact<T extends object>(
  options: HnswOptions<T>,
  rebuild: (index: VectorIndex<T>) => Promise<void>,
  unsaved: string,
): Promise<OpenedIndex<T>> {
  const index = createExactIndex<T>(options.dim, options.fields);
  let rebuilt: string | null = unsaved;
  try {
    const saved = savedEntries(options);
    if (saved !== null) {
      await index.add(saved);
      rebuilt = null;
    }
  } catch (error) {
    if (!(error instanceof KvError) || error.code !== 'bad-index') throw error;
    rebuilt = error.message;
  }
  if (rebuilt !== null) await rebuild(index);
  return { index: forgetting(index, options), rebuilt };
}

/**
 * The same index, which saves nothing: whoever opens the folder next reads in the log what the files lack. What was
 * removed would stand in the files still, so these go.
 */
function forgetting<T extends object>(
  index: VectorIndex<T>,
  { dir, readOnly = false }: HnswOptions<T>,
): VectorIndex<T> {
  if (dir === null || readOnly) return index;
  let removed = false;
  return {
    kind: index.kind,
    dim: index.dim,
    fields: index.fields,
    add: (entries, limits) => index.add(entries, limits),
    search: (vector, k, options) => index.search(vector, k, options),
    list: (options) => index.list(options),
    count: (options) => index.count(options),
    remove: async (filter, limits) => {
      await index.remove(filter, limits);
      removed = true;
    },
    save: async () => {
      if (removed) removeSaved(dir);
      removed = false;
    },
    close: () => index.close(),
  };
}
