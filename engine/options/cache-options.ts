/** What a cache is opened with, and its sizes checked before anything is computed from them. */
import type { QdrantOptions } from '../../memory/index.ts';
import { type CacheShape, KvError, type PagePool, show, type WindowName } from '../../native/index.ts';
import type { Policy, Priority, ThresholdSet } from '../../policy/index.ts';
import type { AnchorOptions, FailureMode, LogRule } from '../../witness/index.ts';
import type { LatentOptions } from './latent-options.ts';
import type { Names } from './names.ts';
import type { CacheTypes, KvBudget } from './types.ts';

/** Options of openCache. Only the shape is needed. */
export interface OpenCacheOptions {
  /** Layers that attend, 1 to 4096. */
  readonly layers: number;
  /** Query heads of a layer: a multiple of kvHeads. */
  readonly queryHeads: number;
  /** Key and value heads of a layer. */
  readonly kvHeads: number;
  /** 64, 80, 96, 128 or 256 for coded formats. */
  readonly headDim: number;
  /** Most bytes of the cache. Default: no budget, so sealed pages are 8-bit and nothing moves further. */
  readonly kvBudget?: KvBudget;
  /** Mean KLD against the exact cache, in nats, that may be spent instead of a byte budget. Default: none. */
  readonly kldBudget?: number;
  /** Which budget is kept where both are given and cannot be. Default 'bytes'. */
  readonly priority?: Priority;
  /** Tokens planned for; needed by a budget in percent. */
  readonly tokensExpected?: number;
  /**
   * What moves pages: 'price' (default with a budget), 'uniform', 'age', 'fixed' (default with one pair of cacheTypes and no budget), 'table'
   * (with one pair for every layer), 'none' (default otherwise), or a policy of your own.
   */
  readonly policy?: string | Policy;
  /** Wanted 95th percentile of the time of a step that writes one token. Above it, pages move only when they must. Default: none. */
  readonly stepLatencyBudgetMs?: number;
  /** Formats of keys and values. Without a budget one pair is what every page gets; with a budget it is the lowest that a policy may use. One pair for every layer means policy 'table'. */
  readonly cacheTypes?: CacheTypes;
  /** Layers that stay in the window format. Default: none. */
  readonly skipLayers?: readonly number[];
  /** Format of the page that tokens are appended to: 'q8', in which rows are coded as they come, or 'f16'. Default q8 under a budget of bytes, else f16. */
  readonly openFormat?: WindowName;
  /** Newer tokens that keep a sealed page in the window, where it may not move: 128 or 64. Default 128, or 64 where such a page takes more than a twelfth of the budget. */
  readonly windowTokens?: number;
  /** Factor on q·k, default 1/sqrt(headDim). */
  readonly scale?: number;
  /** A scaled score s becomes scoreCap · tanh(s / scoreCap), before ALiBi: from 1e-20 to 1e20. Null, the default: it stays as it is. */
  readonly scoreCap?: number | null;
  /** Tokens that a query may look back, itself included, one entry per layer; null: all. Default: all. */
  readonly slidingWindow?: readonly (number | null)[];
  /** ALiBi slopes, [queryHeads]: score −= slope · distance. Default: none. */
  readonly alibiSlopes?: Float32Array;
  /** A pool (openPool) whose bytes several caches share, each within its kvBudget or all within the pool's. Default: one of its own. Close it last. */
  readonly pool?: PagePool;
  /** Threads of attention and trials. Default 1. */
  readonly threads?: number;
  /**
   * Keeps the inputs of every layer, coded, beside each sealed page, so that its keys and values can be made again (restore) after they went to
   * lower formats. append then needs `x`; the latents count against the budget. Left out: `x` serves trials only.
   */
  readonly latents?: LatentOptions;
  /** S·W_o per layer, [32, H·d] each: prices are then relative to the residual stream (pass `x` to append as well). */
  readonly outputSketch?: readonly Float32Array[];
  /** Folder for the witness log and what earlier caches of the same `modelDigest` taught; left out: nothing is written. */
  readonly stateDir?: string;
  /** What to do when the log cannot be written. Default 'block'. */
  readonly onLogFailure?: FailureMode;
  /** What must not be written to the log. An entry to which a rule cannot be applied is left out and counted. Default: nothing is left out. */
  readonly logRules?: readonly LogRule[];
  /** Where signed checkpoints of the log go while it is written. Default: nowhere. */
  readonly anchor?: AnchorOptions;
  /** A Qdrant server where caches of the same `modelDigest` on other machines share what they learned. Needs stateDir. Default: none. */
  readonly qdrant?: QdrantOptions;
  /** Thresholds and gains to start from, for example those that adaptThresholds returned. Default: what was learned, else the built-in ones. */
  readonly thresholds?: ThresholdSet;
  /** Likewise a file of them, that saveThresholds wrote. */
  readonly thresholdsPath?: string;
  /** Identifies the model in log and threshold files, e.g. a SHA-256 of the weights. Without it nothing is learned from earlier caches. */
  readonly modelDigest?: string;
}

export const CACHE_OPTIONS: Names<OpenCacheOptions> = {
  layers: true,
  queryHeads: true,
  kvHeads: true,
  headDim: true,
  kvBudget: true,
  kldBudget: true,
  priority: true,
  tokensExpected: true,
  policy: true,
  cacheTypes: true,
  skipLayers: true,
  stepLatencyBudgetMs: true,
  openFormat: true,
  windowTokens: true,
  scale: true,
  scoreCap: true,
  slidingWindow: true,
  alibiSlopes: true,
  threads: true,
  pool: true,
  latents: true,
  outputSketch: true,
  stateDir: true,
  onLogFailure: true,
  logRules: true,
  anchor: true,
  qdrant: true,
  thresholds: true,
  thresholdsPath: true,
  modelDigest: true,
};

export const shapeOf = ({ layers, queryHeads, kvHeads, headDim }: OpenCacheOptions): CacheShape => ({
  layers,
  queryHeads,
  kvHeads,
  headDim,
});

/** A pool that bounds several caches is the budget of one that has none of its own. */
export const requestOf = (options: OpenCacheOptions): OpenCacheOptions => {
  const kvBudget = options.kvBudget ?? options.pool?.budgetBytes;
  return kvBudget === undefined ? options : { ...options, kvBudget };
};

/** Checks the sizes that are used in computations before the native cache sees them. */
export function checkShape({ layers, queryHeads, kvHeads, headDim }: CacheShape): void {
  for (const [name, value] of Object.entries({ layers, queryHeads, kvHeads, headDim })) {
    if (!Number.isInteger(value) || value < 1 || value > 4096)
      throw new KvError('bad-argument', `${name} must be a whole number from 1 to 4096`, {
        values: { [name]: show(value) },
      });
  }
}
