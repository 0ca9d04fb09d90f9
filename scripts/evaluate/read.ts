/** Reads tokens through a model whose attention is computed by a yardstick instead of a session. */
import type { RopeTable } from '../../engine/transformer/rope.ts';
import type { Runtime } from '../../engine/transformer/runtime/runtime.ts';
import type { LayerInput } from '../../engine/transformer/types.ts';
import { KvError, type KvErrorCode } from '../../native/index.ts';

/** A passage that was read by a method that no session has. */
export interface YardstickRead {
  /** The residual stream behind the last layer for the last `scored` tokens, [scored, m]. */
  readonly hidden: Float32Array;
  /** The most that was ever held, with all that belongs to it. */
  readonly bytes: number;
  /** What is held at the end. */
  readonly bytesAtRest: number;
  readonly bytesF16: number;
  /** Why nothing was read, such as 'budget-too-small'; null: all was. */
  readonly code: KvErrorCode | null;
}

export interface Reading {
  readonly ids: readonly number[];
  readonly rope: RopeTable;
  /** Tokens at the end whose residual stream is kept. */
  readonly scored: number;
  /** How many tokens are read at once behind `start` others. */
  readonly stride: (start: number) => number;
  /** Adds to `out` [tokens, H, d], which holds zeros, the attention of the queries of a layer. Queries and keys are rotated already. */
  readonly attend: (input: LayerInput, start: number, out: Float32Array) => void;
  /** Called before `tokens` are read behind `start` others. */
  readonly before: (start: number, tokens: number) => void;
}

/** → the residual stream behind the last layer for the last `scored` tokens, [scored, m]. Throws 'unsupported' for models whose scores have a cap, which yardsticks do not know. */
export async function readThrough(
  { dense, model: { config } }: Runtime,
  { ids, rope, scored, stride, attend, before }: Reading,
): Promise<Float32Array> {
  const { layers, kvHeads, queryHeads, headDim, hiddenSize, scoreCap, architecture } = config;
  if (scoreCap !== null)
    throw new KvError('unsupported', `yardsticks attend without a cap, and scores of ${architecture} models have one`, {
      values: { scoreCap },
    });
  const hidden = new Float32Array(scored * hiddenSize);
  const first = ids.length - scored;
  for (let start = 0; start < ids.length; ) {
    const tokens = Math.min(stride(start), ids.length - start);
    before(start, tokens);
    const out = new Float32Array(tokens * queryHeads * headDim);
    let input = await dense.first(dense.embed(Int32Array.from(ids.slice(start, start + tokens))), tokens);
    for (let layer = 0; ; layer++) {
      rope.apply(input.q, tokens, queryHeads, start);
      rope.apply(input.k, tokens, kvHeads, start);
      out.fill(0);
      attend(input, start, out);
      if (layer + 1 === layers) break;
      input = await dense.next(layer, out, input.x, tokens);
    }
    const rows = await dense.last(out, input.x, tokens);
    const skipped = Math.max(0, first - start);
    if (skipped < tokens)
      hidden.set(rows.subarray(skipped * hiddenSize, tokens * hiddenSize), (start + skipped - first) * hiddenSize);
    start += tokens;
  }
  return hidden;
}
