/** What attention of a model takes beside queries, keys and values, and what the native cache is opened with. */
import type { KvCacheOptions } from '../../native/index.ts';
import type { ModelConfig } from './types.ts';

type Attended = Pick<ModelConfig, 'queryHeads' | 'slidingWindow' | 'scoreCap' | 'alibiMax'>;

export type AttentionTerms = Required<Pick<KvCacheOptions, 'slidingWindow' | 'scoreCap'>> &
  Pick<KvCacheOptions, 'alibiSlopes'>;

/** Of all layers, or of one. */
export function attentionTerms(config: Attended, layer?: number): AttentionTerms {
  const { slidingWindow, scoreCap } = config;
  const slopes = alibiSlopes(config);
  return {
    slidingWindow: layer === undefined ? slidingWindow : [slidingWindow[layer] ?? null],
    scoreCap,
    ...(slopes !== null && { alibiSlopes: slopes }),
  };
}

/**
 * The slopes of attention with linear biases (arXiv 2108.12409), by query head: 2^(-alibiMax · i / n) for i from 1 to
 * the number of heads n. Where that is no power of two, n is the next one, and heads have every second slope, then the
 * others from the first on. Null: the model has none.
 */
export function alibiSlopes({
  queryHeads,
  alibiMax,
}: Pick<ModelConfig, 'queryHeads' | 'alibiMax'>): Float32Array | null {
  if (alibiMax === null) return null;
  const count = 2 ** Math.ceil(Math.log2(queryHeads));
  const all = Array.from({ length: count }, (_, i) => 2 ** ((-alibiMax * (i + 1)) / count));
  if (count === queryHeads) return Float32Array.from(all);
  const second = all.filter((_, i) => i % 2 === 1);
  return Float32Array.from([...second, ...all.filter((_, i) => i % 2 === 0)].slice(0, queryHeads));
}
