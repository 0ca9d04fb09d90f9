/**
 * OLMo 2: norms after attention and the feed-forward half instead of before, and queries and keys normalised over all
 * heads together.
 */
import { unsupportedConfig } from '../config.ts';
import { GGUF_SOURCE } from '../gguf-keys.ts';
import { biases, refuseWindow } from '../hf-keys.ts';
import type { Family } from './family.ts';

const FEATURES = { preNorms: false, postNorms: true, qkNorm: 'width' } as const;

export const olmo2: Family = {
  name: 'olmo2',
  title: 'OLMo 2',
  modelTypes: ['olmo2'],
  architectures: ['olmo2'],
  defaults: { normEpsilon: 1e-5 },
  hfParts: { 'post_attention_layernorm.weight': 'attnPost', 'post_feedforward_layernorm.weight': 'mlpPost' },
  ggufParts: { 'post_attention_norm.weight': 'attnPost', 'post_ffw_norm.weight': 'mlpPost' },
  hf(given) {
    refuseWindow(given);
    return { ...biases(given), mlpBias: false, ...FEATURES };
  },
  gguf(keys, { slidingWindow }) {
    // OLMo 3 says that it is of this architecture, and stretches the rotary embedding of some layers only.
    if (slidingWindow.some((size) => size !== null))
      throw unsupportedConfig(GGUF_SOURCE, 'olmo2.attention.sliding_window', keys.optional('attention.sliding_window'));
    return FEATURES;
  },
};
