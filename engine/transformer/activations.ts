/** What activations are rounded to in a dense half, matrix by matrix: where a choice of it is carried out. */
import type { DenseSlot } from '../../native/index.ts';
import { type ActivationChoice, isEightBit, matricesOf } from '../../policy/index.ts';
import type { DenseBackend, ModelConfig } from './types.ts';

/** A dense half in which activations have 8 or 16 bits. */
export type PlanedDense = DenseBackend & Required<Pick<DenseBackend, 'setPlanes'>>;

/** True if a dense half has that choice: our own has. */
export const hasPlanes = (dense: DenseBackend): dense is PlanedDense => dense.setPlanes !== undefined;

/** Rounds to 8 bits what a choice says, and all else to 16; null: everything. */
export function applyActivations(dense: PlanedDense, choice: ActivationChoice | null, layers: number): void {
  for (const { layer, slot } of matricesOf(layers))
    dense.setPlanes(layer, slot, choice !== null && isEightBit(choice, layer, slot) ? 1 : 2);
}

/** Products of one token with the weights of a matrix; of experts, with those of all that answer it. */
export function productsOf(config: ModelConfig): (layer: number, slot: DenseSlot) => number {
  const { layers, hiddenSize, intermediateSize, queryHeads, kvHeads, headDim, vocabSize, experts } = config;
  const { gated } = config;
  const feedForward = hiddenSize * intermediateSize * (experts?.used ?? 1);
  const products: Readonly<Record<DenseSlot, number>> = {
    q: hiddenSize * queryHeads * headDim,
    k: hiddenSize * kvHeads * headDim,
    v: hiddenSize * kvHeads * headDim,
    o: hiddenSize * queryHeads * headDim,
    gate: gated ? feedForward : 0,
    up: feedForward,
    down: feedForward,
  };
  return (layer, slot) => (layer === layers ? vocabSize * hiddenSize : products[slot]);
}
