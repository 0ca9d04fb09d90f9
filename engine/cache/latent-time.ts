/** How long this machine takes to compute keys and values of a page again, as attention over latents does it. */
import {
  type CacheShape,
  encodeLatent,
  type LatentName,
  openKvCache,
  openPool,
  PAGE_TOKENS,
  SINK_TOKENS,
} from '../../native/index.ts';
import type { LatentOptions } from '../options/latent-options.ts';

/** Pages that one pass computes again, and passes of which the fastest counts: others may be at work beside it. */
const PAGES = 2;
const PASSES = 3;

/**
 * Milliseconds for one page of one layer, by the weights of the first. A cache of that layer alone holds pages of zeros
 * as latents: the time depends on the shape, not on what is in them.
 */
export function latentPageMs(shape: CacheShape, options: LatentOptions, threads: number | undefined): number {
  const { width, layers, rotary, format } = options;
  const { norm: _norm, ...weights } = layers[0]!;
  const one: CacheShape = { ...shape, layers: 1 };
  const pool = openPool(Number.MAX_SAFE_INTEGER);
  const cache = openKvCache({
    shape: one,
    pool,
    latentScratchBytes: 0,
    ...(threads === undefined ? {} : { threads }),
  });
  try {
    cache.setLatentWeights(0, { ...weights, width });
    if (rotary !== undefined) cache.setRotary(rotary);
    const row = shape.kvHeads * shape.headDim;
    const tokens = SINK_TOKENS + PAGES * PAGE_TOKENS;
    cache.append(0, new Float32Array(tokens * row), new Float32Array(tokens * row));
    hold(cache, format, width);
    const q = new Float32Array(shape.queryHeads * shape.headDim);
    const attention = new Float32Array(q.length);
    let least = Number.POSITIVE_INFINITY;
    for (let pass = 0; pass < PASSES; pass++) {
      cache.append(0, new Float32Array(row), new Float32Array(row));
      const start = performance.now();
      cache.attend(0, q, attention);
      least = Math.min(least, performance.now() - start);
    }
    return least / PAGES;
  } finally {
    cache.close();
    pool.close();
  }
}

function hold(cache: ReturnType<typeof openKvCache>, format: LatentName, width: number): void {
  const x = new Float32Array(PAGE_TOKENS * width);
  for (let page = 0; page < PAGES; page++)
    cache.holdLatent(0, page, format, encodeLatent(format, x, width, page === 0 ? SINK_TOKENS : 0));
}
