/** A model whose keys, values or queries are made otherwise, while everything else is the model that was loaded. */

import type { Runtime } from '../../engine/transformer/runtime/runtime.ts';
import type { DenseBackend, LayerInput, LoadedModel, ModelConfig, Tensor } from '../../engine/transformer/types.ts';

export interface Rewiring {
  readonly name: string;
  readonly config?: Partial<ModelConfig>;
  /** What a layer is given instead. */
  readonly input: (input: LayerInput) => LayerInput;
  /** The tensors of the projections that make it so, for what computes keys and values from layer inputs. */
  readonly tensor: (name: string, stored: Tensor) => Tensor;
}

/** A runtime of the rewired model. It shares the weights of the one that it is made of, which is closed as before. */
export function rewired(runtime: Runtime, { name, config, input, tensor }: Rewiring): Runtime {
  const own = runtime.dense;
  const { model } = runtime;
  const dense: DenseBackend = Object.create(own, {
    name: { value: own.name },
    weightTypes: { value: own.weightTypes },
    bytes: { value: own.bytes },
    isRowwise: { value: own.isRowwise },
    embed: { value: own.embed.bind(own) },
    first: { value: async (x: Float32Array, tokens: number) => input(await own.first(x, tokens)) },
    next: {
      value: async (layer: number, attention: Float32Array, x: Float32Array, tokens: number) =>
        input(await own.next(layer, attention, x, tokens)),
    },
    last: { value: own.last.bind(own) },
    logits: { value: own.logits.bind(own) },
    outputSketch: { value: own.outputSketch.bind(own) },
  });
  const { weights } = model;
  const changed: LoadedModel = {
    ...model,
    name,
    config: { ...model.config, ...config },
    weights: Object.create(weights, {
      tensor: { value: (of: string) => tensor(of, weights.tensor(of)) },
      has: { value: weights.has.bind(weights) },
    }),
  };
  return Object.create(runtime, { model: { value: changed }, dense: { value: dense } });
}
