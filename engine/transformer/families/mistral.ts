/** Mistral: Llama with a window in all layers. Its GGUF files say that they are Llama. */
import { perLayer, windowsByType } from '../hf-keys.ts';
import type { Family } from './family.ts';

export const mistral: Family = {
  name: 'mistral',
  title: 'Mistral',
  modelTypes: ['mistral'],
  architectures: [],
  hf: (given) => ({
    slidingWindow: windowsByType(given) ?? perLayer(given.num_hidden_layers, () => given.sliding_window ?? null),
  }),
  gguf: () => ({}),
};
