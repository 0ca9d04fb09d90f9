/** Reads tokens through a model whose attention is computed by a method instead of a session. */
import { KvError, type LayerInput, type RopeTable, type Runtime } from 'palimpsest/lab';

export interface Reading {
  readonly ids: readonly number[];
  readonly rope: RopeTable;
  /** Tokens at the end whose residual stream is kept. */
  readonly scored: number;
  /** How many tokens are read at once behind `start` others. */
  readonly stride: (start: number) => number;
  /**
   * Adds to `out` [tokens, H, d], which holds zeros, the attention of the queries of a layer. Queries and keys are
   * rotated already.
   */
  readonly attend: (input: LayerInput, start: number, out: Float32Array) => void;
  readonly signal?: AbortSignal | undefined;
  /** Called before `tokens` are read behind `start` others. */
  readonly before: (start: number, tokens: number) => void;
  /**
   * Called when `tokens` behind `start` others have been read. True: they are read once more, and what that gives is
   * kept.
   */
  readonly after?: (start: number, tokens: number) => boolean;
}

/**
 * → the residual stream behind the last layer for the last `scored` tokens, [scored, m]. Throws 'aborted', and
 * 'unsupported' for models whose scores have a cap or a bias by distance, which no method knows.
 */
export async function readThrough(
  { dense, model: { config } }: Runtime,
  { ids, rope, scored, stride, attend, before, after, signal }: Reading,
): Promise<Float32Array> {
  const { layers, kvHeads, queryHeads, headDim, hiddenSize, scoreCap, alibiMax, architecture } = config;
  if (scoreCap !== null || alibiMax !== null)
    throw new KvError(
      'unsupported',
      `methods of the lab attend without caps and biases by distance, and scores of ${architecture} models have one`,
      {
        values: { scoreCap, alibiMax },
      },
    );
  const hidden = new Float32Array(scored * hiddenSize);
  const first = ids.length - scored;
  const rowsOf = async (start: number, tokens: number): Promise<Float32Array> => {
    const out = new Float32Array(tokens * queryHeads * headDim);
    let input = await dense.first(dense.embed(Int32Array.from(ids.slice(start, start + tokens))), tokens);
    for (let layer = 0; ; layer++) {
      rope.apply(input.q, tokens, queryHeads, start);
      rope.apply(input.k, tokens, kvHeads, start);
      out.fill(0);
      attend(input, start, out);
      if (layer + 1 === layers) return dense.last(out, input.x, tokens);
      input = await dense.next(layer, out, input.x, tokens);
    }
  };
  for (let start = 0; start < ids.length; ) {
    if (signal?.aborted === true) throw new KvError('aborted', 'aborted while a method read its tokens');
    const tokens = Math.min(stride(start), ids.length - start);
    before(start, tokens);
    let rows = await rowsOf(start, tokens);
    if (after?.(start, tokens) === true) rows = await rowsOf(start, tokens);
    const skipped = Math.max(0, first - start);
    if (skipped < tokens)
      hidden.set(rows.subarray(skipped * hiddenSize, tokens * hiddenSize), (start + skipped - first) * hiddenSize);
    start += tokens;
  }
  return hidden;
}
