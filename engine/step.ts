/**
 * One step, one straight line: project → append → attend, layer by layer. What follows (observe, schedule, trial, transcode,
 * witness) is the scheduler's, at the token boundary.
 */
import { type KvCache, PAGE_TOKENS, rope, TRIAL_QUERIES } from '../native/index.ts';
import type { RopeTable } from './model/rope.ts';
import type { Runtime } from './runtime.ts';

export interface StepTimes {
  denseMs: number;
  attentionMs: number;
}

/** Every how many tokens the native cache keeps a query for trials. */
const TRIAL_STRIDE = PAGE_TOKENS / TRIAL_QUERIES;

/**
 * Runs `tokenIds` (at most up to the next page boundary) through all layers. → residual stream after the last layer, [T, m].
 * The cache has them appended when this returns.
 */
export async function runStep(
  runtime: Runtime,
  cache: KvCache,
  ropeTable: RopeTable,
  tokenIds: Int32Array,
  times: StepTimes,
  observe: boolean,
): Promise<Float32Array> {
  const { dense, model } = runtime;
  const { layers, queryHeads, kvHeads, headDim, hiddenSize, rotaryDim, ropeInterleaved } = model.config;
  const tokens = tokenIds.length;
  const position = cache.length();
  const { cos, sin } = ropeTable.rows(position, tokens);
  const attention = new Float32Array(tokens * queryHeads * headDim);
  let mark = performance.now();
  const lap = (slot: keyof StepTimes): void => {
    const now = performance.now();
    times[slot] += now - mark;
    mark = now;
  };
  let input = await dense.first(dense.embed(tokenIds), tokens);
  for (let layer = 0; layer < layers; layer++) {
    const { q, k, v, x } = input;
    lap('denseMs');
    rope(q, tokens, queryHeads, headDim, rotaryDim, cos, sin, ropeInterleaved);
    rope(k, tokens, kvHeads, headDim, rotaryDim, cos, sin, ropeInterleaved);
    cache.append(layer, k, v);
    cache.attend(
      layer,
      q,
      attention,
      observe ? { xNorms: rowNorms(x, tokens, hiddenSize, position) } : { observe: false },
    );
    lap('attentionMs');
    if (layer + 1 < layers) input = await dense.next(layer, attention, x, tokens);
    else {
      const out = await dense.last(attention, x, tokens);
      lap('denseMs');
      return out;
    }
  }
  throw new Error('a model without layers');
}

/** ‖x‖ of the rows whose query the cache will keep for trials; 0 for the others, which nobody reads. [T] */
function rowNorms(x: Float32Array, tokens: number, width: number, position: number): Float32Array {
  const norms = new Float32Array(tokens);
  for (let t = 0; t < tokens; t++) {
    if ((position + t) % TRIAL_STRIDE !== TRIAL_STRIDE - 1) continue;
    norms[t] = rowNorm(x, t, width);
  }
  return norms;
}

/** ‖row t‖ of x [T, width]. */
export function rowNorm(x: Float32Array, t: number, width: number): number {
  let sum = 0;
  for (let i = t * width; i < (t + 1) * width; i++) sum += x[i]! * x[i]!;
  return Math.sqrt(sum);
}
