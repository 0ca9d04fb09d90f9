/** The shape of a cache and its windows, checked. */
import { fail, integer, record, shapeError, show } from './arguments.ts';
import { PAGE_TOKENS } from './format.ts';
import type { CacheShape } from './types.ts';

const MAX_LAYERS = 4096;
const MAX_HEADS = 1024;
const MAX_HEAD_DIM = 256;

/** Bytes of open pages and sinks. */
export function openBytesOf(shape: CacheShape): number {
  return shape.layers * shape.kvHeads * shape.headDim * (PAGE_TOKENS + 4) * 4;
}

export function checkedShape(shape: CacheShape): CacheShape {
  record(shape, 'shape');
  const layers = integer(shape.layers, 'layers', 1, MAX_LAYERS);
  const queryHeads = integer(shape.queryHeads, 'queryHeads', 1, MAX_HEADS);
  const kvHeads = integer(shape.kvHeads, 'kvHeads', 1, MAX_HEADS);
  const headDim = integer(shape.headDim, 'headDim', 8, MAX_HEAD_DIM);
  if (queryHeads % kvHeads !== 0) fail('queryHeads must be a multiple of kvHeads', { queryHeads, kvHeads });
  if (headDim % 8 !== 0) fail('headDim must be a multiple of 8', { headDim });
  return Object.freeze({ layers, queryHeads, kvHeads, headDim });
}

/** Tokens that each layer looks back, 0 for all. */
export function checkedWindows(given: readonly (number | null)[] | undefined, layers: number): Int32Array {
  const windows = new Int32Array(layers);
  if (given === undefined) return windows;
  if (!Array.isArray(given)) fail('slidingWindow must be an array', { slidingWindow: show(given) });
  if (given.length !== layers)
    shapeError('slidingWindow must have one entry per layer', { slidingWindow: given.length, layers });
  for (let layer = 0; layer < layers; layer++) {
    const window: unknown = given[layer];
    windows[layer] = window === null ? 0 : integer(window, 'slidingWindow', 1, 2 ** 30);
  }
  return windows;
}
