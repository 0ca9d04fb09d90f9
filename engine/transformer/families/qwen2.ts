/** Qwen2 and 2.5: biases of queries, keys and values; windows from a layer on, where they are asked for. */
import { type HfConfig, perLayer, windowsByType } from '../hf-keys.ts';
import type { Family } from './family.ts';

const DEFAULT_WINDOW_LAYERS = 28;

/** Windows of Qwen2 and of later families. */
export function qwenWindows(given: HfConfig): (number | null)[] {
  const { num_hidden_layers: layers, sliding_window: size } = given;
  if (given.use_sliding_window !== true) return perLayer(layers, () => null);
  const firstLayer = given.max_window_layers ?? DEFAULT_WINDOW_LAYERS;
  return windowsByType(given) ?? perLayer(layers, (layer) => (layer >= firstLayer ? (size ?? null) : null));
}

export const qwen2: Family = {
  name: 'qwen2',
  title: 'Qwen2 and 2.5',
  modelTypes: ['qwen2'],
  architectures: ['qwen2'],
  hf: (given) => ({ qkvBias: true, slidingWindow: qwenWindows(given) }),
  gguf: () => ({}),
};
