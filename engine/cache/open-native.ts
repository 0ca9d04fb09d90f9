/** Opens the native cache of a governed one, empty. */
import {
  type CacheShape,
  type KvCache,
  type KvCacheOptions,
  latentBytes,
  openKvCache,
  type PagePool,
} from '../../native/index.ts';
import type { LatentOptions } from '../options/latent-options.ts';
import type { Terms } from './terms.ts';

export interface NativeOptions {
  readonly shape: CacheShape;
  readonly terms: Terms;
  readonly native: Pick<KvCacheOptions, 'scale' | 'scoreCap' | 'slidingWindow' | 'alibiSlopes' | 'threads'>;
  /** S·W_o of every layer, or none. */
  readonly sketches: readonly Float32Array[];
  readonly latents?: LatentOptions | undefined;
}

/** An empty cache in the pool. Its owner closes it. */
export function openNative(
  { shape, terms, native, sketches, latents }: NativeOptions,
  pool: PagePool,
  budgetBytes: number | null,
): KvCache {
  const kv = openKvCache({
    shape,
    pool,
    ...(budgetBytes === null ? {} : { budgetBytes }),
    ...native,
    windowFormat: terms.context.windowFormat,
    openFormat: terms.context.openFormat ?? 'f16',
    ...(latents === undefined ? {} : { sealLatentBytes: latentBytes(latents.format, latents.width) }),
  });
  try {
    for (const [layer, sketch] of sketches.entries()) kv.setOutputSketch(layer, sketch);
    return kv;
  } catch (error) {
    kv.close();
    throw error;
  }
}
