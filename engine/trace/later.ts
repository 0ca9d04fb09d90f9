/**
 * The queries at the end of a trace that caches are judged by: what attention really gave them, and how far another
 * cache is from that.
 */
import { KvError, PAGE_TOKENS, pageOf, SKETCH_ROWS } from '../../native/index.ts';
import type { Trace } from './reader.ts';
import { LATER_TOKENS } from './record.ts';

/** Errors of attention, collected query by query. */
export class Errors {
  readonly #sketches: readonly Float32Array[];
  readonly #sums: Float64Array;
  readonly #squares: Float64Array;
  readonly #counts: Float64Array;

  constructor(sketches: readonly Float32Array[]) {
    this.#sketches = sketches;
    this.#sums = new Float64Array(sketches.length);
    this.#squares = new Float64Array(sketches.length);
    this.#counts = new Float64Array(sketches.length);
  }

  /** Adds ‖S·W_o(o′−o)‖/‖x‖ of one query. o, o′: [H, d]. A query whose residual stream is 0 says nothing. */
  add(layer: number, exact: Float32Array, ours: Float32Array, norm: number): void {
    if (norm === 0) return;
    const sketch = this.#sketches[layer]!;
    const width = exact.length;
    let square = 0;
    for (let row = 0; row < SKETCH_ROWS; row++) {
      let sum = 0;
      for (let i = 0; i < width; i++) sum += sketch[row * width + i]! * (ours[i]! - exact[i]!);
      square += sum * sum;
    }
    this.#sums[layer]! += Math.sqrt(square) / norm;
    this.#squares[layer]! += square / norm ** 2;
    this.#counts[layer]!++;
  }

  /** Mean square in each layer. */
  get squares(): number[] {
    return [...this.#squares].map((sum, layer) => sum / Math.max(1, this.#counts[layer]!));
  }

  /** Mean over layers and queries. */
  get mean(): number {
    const count = this.#counts.reduce((sum, one) => sum + one, 0);
    return this.#sums.reduce((sum, one) => sum + one, 0) / Math.max(1, count);
  }
}

/** The first page of later queries. A run that has no page before them cannot be judged. Throws 'bad-argument'. */
export function laterPage({ path, header }: Trace): number {
  const page = pageOf(header.tokens - LATER_TOKENS);
  if (page >= 2) return page;
  throw new KvError('bad-argument', `a run of ${header.tokens} tokens is too short to simulate`, {
    values: { path, tokens: header.tokens },
    hint: `record at least ${LATER_TOKENS + 2 * PAGE_TOKENS} tokens`,
  });
}
