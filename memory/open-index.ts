/**
 * The vector index that this machine can have: hnsw where its library is, else the exact one. hnswlib-node is compiled
 * when it is installed, and npm leaves it out where there is no compiler; an exact search of some thousand sessions
 * takes milliseconds.
 */
import { KvError } from '../native/index.ts';
import { createExactIndex } from './exact-index.ts';
import { type HnswOptions, type OpenedIndex, openOrRebuildHnswIndex } from './hnsw-index.ts';
import type { VectorIndex } from './vector.ts';

/**
 * Opens the saved index of `options.dir`, or fills an empty one by `rebuild`. → the index, and why it had to be filled.
 * Without the library it is filled every time, since an exact index saves nothing. Throws what `rebuild` throws.
 */
export async function openVectorIndex<T extends object>(
  options: HnswOptions<T>,
  rebuild: (index: VectorIndex<T>) => Promise<void>,
): Promise<OpenedIndex<T>> {
  try {
    return await openOrRebuildHnswIndex<T>(options, rebuild);
  } catch (error) {
    if (!(error instanceof KvError) || error.code !== 'missing-dependency') throw error;
    const index = createExactIndex<T>(options.dim, options.fields);
    await rebuild(index);
    return { index, rebuilt: error.message };
  }
}
