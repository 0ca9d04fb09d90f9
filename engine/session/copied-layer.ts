/** A layer of a cache as a cache of its own, in a pool of its own, so that what is tried with it touches no budget. */
import { type KvCache, type KvCacheOptions, openKvCache, type PagePool } from '../../native/index.ts';
import { attentionTerms } from '../transformer/attention.ts';
import type { Runtime } from '../transformer/runtime/runtime.ts';

export interface CopyTerms {
  readonly runtime: Runtime;
  readonly pool: PagePool;
  readonly formats: Required<Pick<KvCacheOptions, 'windowFormat' | 'openFormat'>>;
}

/**
 * The first pages of layer `at` of a cache, as that of layer `layer` of the model; the two differ where the cache is
 * such a copy itself. Throws 'unsupported' where pages are held as latents.
 */
export function copiedLayer(
  { runtime, pool, formats }: CopyTerms,
  {
    of,
    layer,
    at,
    pages,
  }: { readonly of: KvCache; readonly layer: number; readonly at: number; readonly pages: number },
): KvCache {
  const { shape, model, cacheThreads: threads } = runtime;
  const copy = openKvCache({
    shape: { ...shape, layers: 1 },
    pool,
    threads,
    ...formats,
    ...attentionTerms(model.config, layer),
  });
  try {
    for (let page = 0; page < pages; page++) copy.importPage(0, of.exportPage(at, page));
    return copy;
  } catch (error) {
    copy.close();
    throw error;
  }
}
