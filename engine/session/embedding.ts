/**
 * Texts as vectors: the mean of what a language model makes of their tokens, behind its last layer and its final norm,
 * scaled to length 1. No model was trained for that here, so it orders texts less well than an embedder does.
 */
import type { LoadedModel } from '../transformer/types.ts';

/** Vectors of texts, and what they took. */
export interface Embeddings {
  /** One for each text, [hiddenSize], of length 1. */
  readonly vectors: readonly Float32Array[];
  /** Tokens of all texts together. */
  readonly tokens: number;
}

/** Adds up the states of a text as they come. */
export class MeanState {
  readonly #gains: Float32Array;
  readonly #epsilon: number;
  readonly #sum: Float64Array;

  constructor({ config, weights }: Pick<LoadedModel, 'config' | 'weights'>) {
    this.#gains = weights.tensor('norm').readFloat32();
    this.#epsilon = config.normEpsilon;
    this.#sum = new Float64Array(config.hiddenSize);
  }

  /** Rows of the residual stream behind the last layer, [T, m]. */
  add(hidden: Float32Array): void {
    const width = this.#sum.length;
    for (let at = 0; at < hidden.length; at += width) {
      let square = 0;
      for (let i = 0; i < width; i++) square += hidden[at + i]! ** 2;
      const inverse = 1 / Math.sqrt(square / width + this.#epsilon);
      for (let i = 0; i < width; i++) this.#sum[i]! += hidden[at + i]! * inverse * this.#gains[i]!;
    }
  }

  /** The mean of all rows, of length 1. */
  vector(): Float32Array {
    let square = 0;
    for (const value of this.#sum) square += value * value;
    // A sum and a mean have the same direction.
    const length = Math.sqrt(square);
    return Float32Array.from(this.#sum, (value) => (length === 0 ? 0 : value / length));
  }
}
