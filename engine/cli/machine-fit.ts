/**
 * Whether a model fits this machine, said before it is loaded: what its weights, its cache and its work would take,
 * against memory that is free.
 */
import type { CacheShape } from '../../native/index.ts';
import { type Forecast, forecast, memoryBytes } from '../cache/budget.ts';
import type { MemoryNeed } from '../transformer/memory.ts';
import type { ModelConfig } from '../transformer/types.ts';

export interface Fit extends MemoryNeed {
  /** Context length that is reckoned with, and the longest that the model was trained for. */
  readonly tokens: number;
  readonly contextLength: number;
  /** Exact: bytes of the cache at this length by format, and of a plain f16 cache. */
  readonly cache: Forecast;
  /** Memory that programs can have now, and all of it: of the machine, or what its container allows. */
  readonly freeBytes: number;
  readonly memoryBytes: number;
  /** What would be left beside the f16 cache, and beside the smallest; negative: so much is missing. */
  readonly spareF16Bytes: number;
  readonly spareLeastBytes: number;
  /** 'yes' with an f16 cache, 'with a smaller cache', or 'no'. */
  readonly fits: 'yes' | 'with a smaller cache' | 'no';
}

/** tokens: default the context length of the model. freeBytes: default as the system says. */
export function fitOf(
  { layers, queryHeads, kvHeads, headDim, contextLength }: ModelConfig,
  need: MemoryNeed,
  { tokens = contextLength, freeBytes = freeMemory() }: { tokens?: number | undefined; freeBytes?: number } = {},
): Fit {
  const shape: CacheShape = { layers, queryHeads, kvHeads, headDim };
  const cache = forecast(shape, tokens);
  const spare = (cacheBytes: number): number =>
    freeBytes - need.weightsBytes - Math.max(need.loadingBytes, need.scratchBytes + cacheBytes);
  const spareF16Bytes = spare(cache.f16Bytes);
  const spareLeastBytes = spare(Math.min(...cache.pairs.map(({ bytes }) => bytes)));
  const cannot = need.unreadable.length > 0 || spareLeastBytes < 0;
  const fits = cannot ? 'no' : spareF16Bytes >= 0 ? 'yes' : 'with a smaller cache';
  return {
    ...need,
    tokens,
    contextLength,
    cache,
    freeBytes,
    memoryBytes: memoryBytes(),
    spareF16Bytes,
    spareLeastBytes,
    fits,
  };
}

/** What the system would give to programs now, and no more than the container allows. */
const freeMemory = (): number => Math.min(process.availableMemory(), memoryBytes());
