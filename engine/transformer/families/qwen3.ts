/** Qwen3: each head of queries and keys is normalised by itself. */
import { biases } from '../hf-keys.ts';
import type { Family } from './family.ts';
import { qwenWindows } from './qwen2.ts';

export const qwen3: Family = {
  name: 'qwen3',
  title: 'Qwen3',
  modelTypes: ['qwen3'],
  architectures: ['qwen3'],
  hf: (given) => ({ ...biases(given), mlpBias: false, qkNorm: 'head', slidingWindow: qwenWindows(given) }),
  gguf: () => ({}),
};
