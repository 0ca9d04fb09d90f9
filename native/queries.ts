/** What attention is asked: queries, where its answers go, and what is to be kept of them. */
import { fail, floats, overlaps, record, shapeError, show } from './arguments.ts';
import { KvError } from './error.ts';
import type { AttendOptions, Beside, CacheShape } from './types.ts';

interface Queries {
  readonly tokens: number;
  readonly xNorms: Float32Array | undefined;
  readonly lse: Float32Array | undefined;
  readonly observe: boolean;
  readonly beside: Beside | undefined;
}

/** Checks the arrays of attention and fills in the defaults. → with the number of tokens that they are for */
export function checkedQueries(
  { queryHeads, headDim }: CacheShape,
  q: Float32Array,
  out: Float32Array,
  options: AttendOptions,
): Queries {
  const row = queryHeads * headDim;
  floats(q, 'q');
  floats(out, 'out');
  record(options, 'options');
  const { xNorms, lse, observe = true, beside } = options;
  if (xNorms !== undefined) floats(xNorms, 'xNorms');
  if (lse !== undefined) floats(lse, 'lse');
  if (typeof observe !== 'boolean') fail('observe must be true or false', { observe: show(observe) });
  const tokens = q.length / row;
  if (q.length === 0 || !Number.isInteger(tokens))
    shapeError(`q must hold T rows of ${row} numbers`, { q: q.length, row });
  if (out.length !== q.length) shapeError('out must be as long as q', { out: out.length, q: q.length });
  if (overlaps(q, out)) fail('out must not share memory with q', {});
  if (xNorms !== undefined && xNorms.length !== tokens)
    shapeError('xNorms must hold one number per token', { xNorms: xNorms.length, tokens });
  if (lse !== undefined) {
    if (lse.length !== tokens * queryHeads) {
      shapeError('lse must hold one number per token and head', { lse: lse.length, tokens, queryHeads });
    }
    if (overlaps(lse, out) || overlaps(lse, q)) fail('lse must not share memory with q or out', {});
  }
  if (beside !== undefined) {
    record(beside, 'beside');
    if (floats(beside.lse, 'beside.lse').length !== tokens * queryHeads)
      shapeError('beside.lse must hold one number per token and head', { lse: beside.lse.length, tokens, queryHeads });
    if (floats(beside.out, 'beside.out').length !== q.length)
      shapeError('beside.out must be as long as q', { out: beside.out.length, q: q.length });
    for (const array of [beside.lse, beside.out])
      if (overlaps(array, out) || (lse !== undefined && overlaps(array, lse)))
        fail('what is beside must not share memory with out or lse', {});
  }
  return { tokens, xNorms, lse, observe, beside };
}

/** The error for queries of more tokens than the layer holds. */
export const tooFew = (layer: number, tokens: number, held: number): KvError =>
  new KvError('bad-shape', `q has ${tokens} tokens, layer ${layer} holds ${held}`, {
    values: { tokens, held },
    hint: 'append the keys and values of these tokens first',
  });
