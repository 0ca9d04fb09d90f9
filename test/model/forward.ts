/** Token ids → logits by the engine's own path, driven layer by layer, with an attention of the caller's choice. */
import { alibiSlopes, attentionTerms } from '../../engine/transformer/attention.ts';
import type { Rotary } from '../../engine/transformer/rotary.ts';
import type { DenseBackend, ModelConfig } from '../../engine/transformer/types.ts';
import { type KvCache, openKvCache, openPool, type PagePool } from '../../native/index.ts';

/** Takes k (after RoPE) and v of some tokens of a layer, and answers their queries: out [T, H, d]. */
export interface Attention {
  length(layer: number): number;
  step(layer: number, q: Float32Array, k: Float32Array, v: Float32Array, out: Float32Array): void;
  close(): void;
}

type Shape = Pick<
  ModelConfig,
  'layers' | 'queryHeads' | 'kvHeads' | 'headDim' | 'slidingWindow' | 'scoreCap' | 'alibiMax'
>;

/** The native cache with f16 pages throughout. */
export function nativeAttention(config: Shape): Attention {
  const { layers, queryHeads, kvHeads, headDim } = config;
  const pool: PagePool = openPool(2 ** 28);
  const cache: KvCache = openKvCache({
    shape: { layers, queryHeads, kvHeads, headDim },
    pool,
    windowFormat: 'f16',
    ...attentionTerms(config),
  });
  return {
    length: (layer) => cache.length(layer),
    step(layer, q, k, v, out) {
      cache.append(layer, k, v);
      cache.attend(layer, q, out);
    },
    close() {
      cache.close();
      pool.close();
    },
  };
}

/** The textbook formula in float64 over unrounded keys and values. */
export function plainAttention(config: Shape): Attention {
  const { layers, queryHeads, kvHeads, headDim, slidingWindow, scoreCap } = config;
  const slopes = alibiSlopes(config);
  const keys: Float32Array[][] = Array.from({ length: layers }, () => []);
  const values: Float32Array[][] = Array.from({ length: layers }, () => []);
  const row = kvHeads * headDim;
  return {
    length: (layer) => keys[layer]!.length,
    step(layer, q, k, v, out) {
      const tokens = k.length / row;
      for (let t = 0; t < tokens; t++) {
        keys[layer]!.push(k.slice(t * row, (t + 1) * row));
        values[layer]!.push(v.slice(t * row, (t + 1) * row));
        const seen = -(slidingWindow[layer] ?? keys[layer]!.length);
        const [kept, mixed] = [keys[layer]!.slice(seen), values[layer]!.slice(seen)];
        for (let head = 0; head < queryHeads; head++) {
          const at = (t * queryHeads + head) * headDim;
          const shared = Math.floor(head / (queryHeads / kvHeads)) * headDim;
          const query = q.subarray(at, at + headDim);
          attendPlainly(
            query,
            kept,
            mixed,
            shared,
            { scoreCap, slope: slopes?.[head] ?? 0 },
            out.subarray(at, at + headDim),
          );
        }
      }
    },
    close() {},
  };
}

function attendPlainly(
  q: Float32Array,
  keys: Float32Array[],
  values: Float32Array[],
  from: number,
  { scoreCap, slope }: { readonly scoreCap: number | null; readonly slope: number },
  out: Float32Array,
): void {
  const scores = keys.map((key, t) => {
    let dot = 0;
    for (let c = 0; c < q.length; c++) dot += q[c]! * key[from + c]!;
    const score = dot / Math.sqrt(q.length);
    const capped = scoreCap === null ? score : scoreCap * Math.tanh(score / scoreCap);
    return capped - slope * (keys.length - 1 - t);
  });
  const largest = scores.reduce((a, b) => Math.max(a, b), -Infinity);
  const weights = scores.map((score) => Math.exp(score - largest));
  const total = weights.reduce((a, b) => a + b, 0);
  const sum = new Float64Array(q.length);
  for (const [t, weight] of weights.entries()) {
    for (let c = 0; c < q.length; c++) sum[c]! += (weight / total) * values[t]![from + c]!;
  }
  out.set(sum);
}

/** Runs the tokens in chunks of the given size and returns the logits after each position that is asked for. */
export async function logitsAt(
  dense: DenseBackend,
  config: ModelConfig,
  rotary: Rotary,
  attention: Attention,
  ids: readonly number[],
  chunkTokens: number,
  positions: readonly number[],
): Promise<Float32Array[]> {
  const { layers, queryHeads, headDim, hiddenSize } = config;
  const found: Float32Array[] = [];
  for (let start = 0; start < ids.length; start += chunkTokens) {
    const chunk = Int32Array.from(ids.slice(start, start + chunkTokens));
    const tokens = chunk.length;
    const mixed = new Float32Array(tokens * queryHeads * headDim);
    let input = await dense.first(dense.embed(chunk), tokens);
    let hidden: Float32Array | undefined;
    for (let layer = 0; layer < layers; layer++) {
      const { q, k, v, x } = input;
      rotary.apply(layer, q, k, tokens, start);
      attention.step(layer, q, k, v, mixed);
      if (layer + 1 < layers) input = await dense.next(layer, mixed, x, tokens);
      else hidden = await dense.last(mixed, x, tokens);
    }
    for (const position of positions) {
      const row = position - start;
      if (row < 0 || row >= tokens) continue;
      found.push(await dense.logits(hidden!.slice(row * hiddenSize, (row + 1) * hiddenSize), 1));
    }
  }
  return found;
}
