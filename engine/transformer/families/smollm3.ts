/** SmolLM3: Llama with layers that have no rotary embedding, every fourth unless a file says which. */
import { z } from 'zod';
import { biases, parseKeys, perLayer, windowsByType } from '../hf-keys.ts';
import type { Family } from './family.ts';

const EVERY = 4;
const schema = z.looseObject({
  no_rope_layers: z.array(z.int()).max(4096).nullish(),
  no_rope_layer_interval: z.int().positive().nullish(),
});

export const smollm3: Family = {
  name: 'smollm3',
  title: 'SmolLM3',
  modelTypes: ['smollm3'],
  architectures: ['smollm3'],
  defaults: { ropeTheta: 2e6, tiedEmbeddings: true },
  ggufInterleaved: true,
  hf(given) {
    const { no_rope_layers: listed, no_rope_layer_interval } = parseKeys(schema, given);
    const every = no_rope_layer_interval ?? EVERY;
    // In the list, 1 stands for a layer that has the embedding.
    const hasRope = (layer: number): boolean => (listed == null ? (layer + 1) % every !== 0 : listed[layer] === 1);
    const { num_hidden_layers: layers, sliding_window: size } = given;
    const isWindowed = given.use_sliding_window === true && size != null;
    const windows = windowsByType(given) ?? perLayer(layers, (layer) => (hasRope(layer) ? null : (size ?? null)));
    return {
      ...biases(given),
      layerRope: perLayer(layers, (layer) => (hasRope(layer) ? 'main' : 'none')),
      slidingWindow: isWindowed ? windows : perLayer(layers, () => null),
    };
  },
  gguf: (_, { layers }) => ({ layerRope: perLayer(layers, (layer) => ((layer + 1) % EVERY === 0 ? 'none' : 'main')) }),
};
