/** Which rows adapters add to, and a dense half for those who run rows of one session by themselves. */
import type { AdaptedRows, DenseBackend, ScaledAdapter } from './types.ts';

/** Rows of a text that follow one another, `row` among those of a call. */
export interface TextRows {
  readonly row: number;
  readonly tokens: number;
  /** Of the first of them in the text. */
  readonly position: number;
}

/** What these adapters add to. */
export function adaptedRows(adapters: readonly ScaledAdapter[], { row, tokens, position }: TextRows): AdaptedRows[] {
  return adapters.flatMap(({ adapter, scale, since = 0 }) => {
    const before = Math.max(0, since - position);
    return before < tokens ? [{ adapter, scale, from: row + before, rows: tokens - before }] : [];
  });
}

/**
 * A dense half whose rows have these adapters: those of the same `tokens` tokens of a text from `position` on, as often
 * as a call has them; left out: of a text from its beginning. The same dense half where there are no adapters.
 */
export function adaptedDense(
  dense: DenseBackend,
  adapters: readonly ScaledAdapter[],
  span: Omit<TextRows, 'row'> | null = null,
): DenseBackend {
  if (adapters.length === 0) return dense;
  const all = (rows: number): AdaptedRows[] => {
    const { tokens, position } = span ?? { tokens: rows, position: 0 };
    const runs = Array.from({ length: rows / tokens }, (_, run) => ({ row: run * tokens, tokens, position }));
    return adapters.flatMap((one) => runs.flatMap((run) => adaptedRows([one], run)));
  };
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
