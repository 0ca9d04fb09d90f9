/** Logits for all who draw a token at the same time, in one pass over the output matrix. */
import type { DenseBackend } from '../transformer/types.ts';

/** Rows whose logits are computed at once: more take memory and save no time. */
const ROWS_MAX = 32;

interface Asked {
  readonly row: Float32Array;
  readonly out: Float32Array;
  readonly resolve: (logits: Float32Array) => void;
  readonly reject: (error: unknown) => void;
}

export class Logits {
  /** Several are about to ask. */
  areMany = false;
  readonly #asked = new Map<DenseBackend, Asked[]>();
  /** Of all rows of a pass: a vocabulary is large, and new memory for each pass would be most of what is collected. */
  #all = new Float32Array(0);

  /** Of the token behind a row of the residual stream [m]: [V], in `out` where the backend can. */
  of(dense: DenseBackend, row: Float32Array, out: Float32Array): Promise<Float32Array> {
    if (!this.areMany || !dense.isRowwise) return dense.logits(row, 1, out);
    return new Promise((resolve, reject) => {
      const asked = this.#asked.get(dense);
      if (asked !== undefined) {
        asked.push({ row, out, resolve, reject });
        return;
      }
      this.#asked.set(dense, [{ row, out, resolve, reject }]);
      setImmediate(() => void this.#answer(dense));
    });
  }

  async #answer(dense: DenseBackend): Promise<void> {
    const all = this.#asked.get(dense)!;
    this.#asked.delete(dense);
    for (let at = 0; at < all.length; at += ROWS_MAX) {
      const some = all.slice(at, at + ROWS_MAX);
      try {
        const rows = new Float32Array(some.length * some[0]!.row.length);
        for (const [index, { row }] of some.entries()) rows.set(row, index * row.length);
        const width = some[0]!.out.length;
        if (this.#all.length < some.length * width) this.#all = new Float32Array(some.length * width);
        const logits = await dense.logits(rows, some.length, this.#all.subarray(0, some.length * width));
        for (const [index, { out, resolve }] of some.entries()) {
          out.set(logits.subarray(index * width, (index + 1) * width));
          resolve(out);
        }
      } catch (error) {
        for (const { reject } of some) reject(error);
      }
    }
  }
}
