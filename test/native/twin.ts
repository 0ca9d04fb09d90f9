/**
 * A cache of its own with the same content as another: unlike a fork it shares nothing, so that either may be changed
 * alone.
 */
import {
  type KvCache,
  type KvCacheOptions,
  type LatentLayerWeights,
  openKvCache,
  openPool,
} from '../../native/index.ts';

/**
 * Pages as they are stored, then the rows of the open page, which f16 holds exactly and 8 bits code alike. Kept queries
 * and mass are not copied; `weights`: of the latents of each layer.
 */
export function twinOf(
  cache: KvCache,
  options: Partial<Omit<KvCacheOptions, 'shape'>> = {},
  weights: readonly LatentLayerWeights[] = [],
): KvCache {
  const twin = openKvCache({ pool: openPool(2 ** 40), ...options, shape: cache.shape });
  for (const [layer, given] of weights.entries()) twin.setLatentWeights(layer, given);
  for (let layer = 0; layer < cache.shape.layers; layer++) {
    const { pages } = cache.table(layer);
    for (let page = 0; page < pages; page++) twin.importPage(layer, cache.exportPage(layer, page));
    const [k, v] = [cache.decode(layer, pages, 'k'), cache.decode(layer, pages, 'v')];
    if (k.length > 0) twin.append(layer, k, v);
  }
  return twin;
}
