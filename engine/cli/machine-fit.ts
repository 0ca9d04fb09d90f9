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

/** How many sessions of one length fit, by the format that all their pages are in. */
export interface SessionsFit {
  readonly sessions: number;
  readonly tokens: number;
  /** Exact: the budget, or else an estimate: memory that is free beside the weights and the work. */
  readonly roomBytes: number;
  /** The budget that was asked for; null: none. */
  readonly budgetBytes: number | null;
  readonly pairs: readonly {
    readonly pair: string;
    /** Of one session, and of all. */
    readonly bytes: number;
    readonly bytesOfAll: number;
    readonly sessionsMost: number;
  }[];
}

export function sessionsFit(fit: Fit, sessions: number, budgetBytes: number | null): SessionsFit {
  const { tokens, cache, freeBytes, weightsBytes, loadingBytes, scratchBytes } = fit;
  const free = Math.max(0, freeBytes - weightsBytes - Math.max(loadingBytes, scratchBytes));
  const roomBytes = budgetBytes ?? free;
  const pairs = [{ pair: 'f16', bytes: cache.f16Bytes }, ...cache.pairs].map(({ pair, bytes }) => ({
    pair,
    bytes,
    bytesOfAll: sessions * bytes,
    sessionsMost: Math.floor(roomBytes / bytes),
  }));
  return { sessions, tokens, roomBytes, budgetBytes, pairs };
}
