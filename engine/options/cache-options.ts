/** What a cache is opened with. */
import type { CacheShape, PagePool } from '../../native/index.ts';
import type { Policy } from '../../policy/index.ts';
import type { LatentOptions } from './latent-options.ts';
import type { PolicyModule, Ready } from './policy-module.ts';
import type { GoverningOptions, StateOptions } from './types.ts';

/** Options of openCache. Only the shape is needed. */
export interface OpenCacheOptions extends CacheShape, GoverningOptions, StateOptions {
  /**
   * What moves pages: 'price' (default with a budget), 'uniform', 'age', 'tiers' (default with tiers), 'fixed' (default
   * with one pair of cacheTypes and no budget), 'table' (with one pair for every layer), 'none' (default otherwise);
   * those that let whole pages go: 'streaming-pages', 'h2o-pages', 'snapkv-pages', 'pyramidkv-pages',
   * 'scissorhands-pages'; or a policy of your own: itself, or its module.
   */
  readonly policy?: string | Policy | PolicyModule;
  /** Factor on q·k, default 1/sqrt(headDim). */
  readonly scale?: number;
  /**
   * A scaled score s becomes scoreCap · tanh(s / scoreCap), before ALiBi: from 1e-20 to 1e20. Null, the default: it
   * stays as it is.
   */
  readonly scoreCap?: number | null;
  /**
   * Tokens that a query may look back, itself included, one entry per layer; null: all. Pages that no later query sees
   * are freed. Default: all.
   */
  readonly slidingWindow?: readonly (number | null)[];
  /** ALiBi slopes, [queryHeads]: score −= slope · distance. Default: none. */
  readonly alibiSlopes?: Float32Array;
  /**
   * A pool (openPool) whose bytes several caches share, each within its kvBudget or all within the pool's. Default: one
   * of its own. Close it last.
   */
  readonly pool?: PagePool;
  /** Threads of attention and trials. Default 1. */
  readonly threads?: number;
  /**
   * Keeps the inputs of every layer, coded, beside each sealed page, so that its keys and values can be made again
   * (restore) after they went to lower formats. append then needs `x`; the latents count against the budget. Left out:
   * `x` serves trials only.
   */
  readonly latents?: LatentOptions;
  /** S·W_o per layer, [32, H·d] each: prices are then relative to the residual stream (pass `x` to append as well). */
  readonly outputSketch?: readonly Float32Array[];
  /**
   * Folder for the witness log and what earlier caches of the same `modelDigest` taught; left out: nothing is written.
   */
  readonly stateDir?: string;
  /**
   * Identifies the model in log and threshold files, e.g. a SHA-256 of the weights. Without it nothing is learned from
   * earlier caches.
   */
  readonly modelDigest?: string;
}

export const shapeOf = ({ layers, queryHeads, kvHeads, headDim }: CacheShape): CacheShape => ({
  layers,
  queryHeads,
  kvHeads,
  headDim,
});

/** A pool that bounds several caches is the budget of one that has none of its own. */
export const requestOf = (options: Ready<OpenCacheOptions>): Ready<OpenCacheOptions> => {
  const kvBudget = options.kvBudget ?? options.pool?.budgetBytes;
  return kvBudget === undefined ? options : { ...options, kvBudget };
};
