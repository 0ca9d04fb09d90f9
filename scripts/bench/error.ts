/** How far attention is from the exact result, which is computed in float64 from the rows that the cache decodes. */
import { type KvCache, PAGE_TOKENS } from '../../native/index.ts';

/** The query heads that are compared: the first of the first group and the last of the last group. */
const headsOf = (queryHeads: number): number[] => [...new Set([0, queryHeads - 1])];

/**
 * The relative L2 error of `out` [H, d], the result for one query of a layer, over some of the query heads.
 * Pages are decoded one at a time, so a long history needs no more memory than a short one.
 */
export function attentionError(cache: KvCache, layer: number, q: Float32Array, out: Float32Array): number {
  const { queryHeads, kvHeads, headDim: d } = cache.shape;
  const scale = 1 / Math.sqrt(d);
  const heads = headsOf(queryHeads).map((head) => ({
    at: head * d,
    kv: Math.floor(head / (queryHeads / kvHeads)),
    max: Number.NEGATIVE_INFINITY,
    sum: 0,
    mixed: new Float64Array(d),
  }));
  const { pages } = cache.table(layer);
  const score = new Float64Array(PAGE_TOKENS);
  for (let page = 0; page <= pages; page++) {
    const k = cache.decode(layer, page, 'k');
    const v = cache.decode(layer, page, 'v');
    const rows = k.length / (kvHeads * d);
    for (const head of heads) {
      let max = head.max;
      for (let t = 0; t < rows; t++) {
        const from = (t * kvHeads + head.kv) * d;
        let dot = 0;
        for (let c = 0; c < d; c++) dot += q[head.at + c]! * k[from + c]!;
        score[t] = dot * scale;
        max = Math.max(max, score[t]!);
      }
      const rescale = Math.exp(head.max - max);
      head.sum *= rescale;
      for (let c = 0; c < d; c++) head.mixed[c]! *= rescale;
      head.max = max;
      for (let t = 0; t < rows; t++) {
        const p = Math.exp(score[t]! - max);
        const from = (t * kvHeads + head.kv) * d;
        head.sum += p;
        for (let c = 0; c < d; c++) head.mixed[c]! += p * v[from + c]!;
      }
    }
  }
  let wrong = 0;
  let whole = 0;
  for (const { at, sum, mixed } of heads) {
    for (let c = 0; c < d; c++) {
      const exact = mixed[c]! / sum;
      wrong += (out[at + c]! - exact) ** 2;
      whole += exact ** 2;
    }
  }
  return Math.sqrt(wrong / whole);
}
