/** A dense half whose rows all have the same adapters, for those who run rows of one session by themselves. */
import type { AdaptedRows, DenseBackend, ScaledAdapter } from './types.ts';

/** The same dense half where there are no adapters. */
export function adaptedDense(dense: DenseBackend, adapters: readonly ScaledAdapter[]): DenseBackend {
  if (adapters.length === 0) return dense;
  const all = (rows: number): AdaptedRows[] => adapters.map((one) => ({ ...one, from: 0, rows }));
  return {
    name: dense.name,
    weightTypes: dense.weightTypes,
    bytes: dense.bytes,
    isRowwise: dense.isRowwise,
    embed: (ids) => dense.embed(ids),
    first: (x, tokens) => dense.first(x, tokens, all(tokens)),
    next: (layer, attention, x, tokens) => dense.next(layer, attention, x, tokens, all(tokens)),
    last: (attention, x, tokens) => dense.last(attention, x, tokens, all(tokens)),
    logits: (x, rows) => dense.logits(x, rows),
    outputSketch: (layer, sketch) => dense.outputSketch(layer, sketch),
    close: () => dense.close(),
  };
}
