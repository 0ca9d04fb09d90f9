/** Opens the native cache of a governed one, empty. */
import { type KvCache, latentBytes, openKvCache, type PagePool } from '../native/index.ts';
import type { GovernedOptions } from './governed.ts';

/** An empty cache in the pool. Its owner closes it. */
export function openNative(
  { shape, plan, native, sketches, latents }: GovernedOptions,
  pool: PagePool,
  budgetBytes: number | null,
): KvCache {
  const kv = openKvCache({
    shape,
    pool,
    ...(budgetBytes === null ? {} : { budgetBytes }),
    ...native,
    windowFormat: plan.context.windowFormat,
    openFormat: plan.context.openFormat ?? 'f16',
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
