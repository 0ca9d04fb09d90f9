/** Llama 2, 3 and later, SmolLM and SmolLM2, and whatever else is stored as Llama: in GGUF, also Mixtral. */
import { ggufExperts } from '../gguf-keys.ts';
import { biases, refuseWindow } from '../hf-keys.ts';
import type { Family } from './family.ts';

export const llama: Family = {
  name: 'llama',
  title: 'Llama 2 and 3, SmolLM 1 and 2',
  modelTypes: ['llama'],
  architectures: ['llama'],
  ggufInterleaved: true,
  ggufReads: ['expert_count'],
  hf(given) {
    refuseWindow(given);
    return biases(given);
  },
  gguf: (keys) => ({ experts: ggufExperts(keys) }),
};
