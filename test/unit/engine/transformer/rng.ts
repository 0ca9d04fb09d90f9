/** Seeded numbers for tests of this folder, and a weight source made of them. */

import { RandomNumbers } from '../../../../engine/transformer/sampling/random.ts';
import type { Tensor, WeightSource } from '../../../../engine/transformer/types.ts';

export class Rng {
  private readonly random: RandomNumbers;

  constructor(seed: number) {
    this.random = new RandomNumbers(seed);
  }

  /** Normal numbers (Box, Muller) times `scale`. */
  normal(count: number, scale = 1): Float32Array {
    return Float32Array.from({ length: count }, () => {
      const radius = Math.sqrt(-2 * Math.log(1 - this.random.uniform()));
      return scale * radius * Math.cos(2 * Math.PI * this.random.uniform());
    });
  }
}

/** A source over arrays in memory; rows are the first axis. */
export function weightsOf(
  tensors: ReadonlyMap<string, { shape: readonly number[]; data: Float32Array }>,
): WeightSource {
  return {
    has: (name) => tensors.has(name),
    tensor(name): Tensor {
      const found = tensors.get(name);
      if (found === undefined) throw new Error(`the graph asked for ${name}, which this model does not have`);
      const { shape, data } = found;
      const row = data.length / shape[0]!;
      const readFloat32 = (from = 0, to = shape[0]!): Float32Array => data.slice(from * row, to * row);
      return { name, shape, storedType: 'F32', readFloat32 };
    },
    close() {},
  };
}
