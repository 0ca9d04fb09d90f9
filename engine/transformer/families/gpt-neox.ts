/**
 * GPT-NeoX and Pythia: norms that take the mean out, a feed-forward half without a gate that reads the stream beside
 * attention, biases everywhere, a part of each head rotated, and one matrix in which each head has its query, key and
 * value together.
 */
import { z } from 'zod';
import { bool, f32, type GgufEntry } from '../gguf-entries.ts';
import { type HfConfig, parseKeys } from '../hf-keys.ts';
import type { ModelConfig } from '../types.ts';
import type { Family } from './family.ts';

const number = z.number().nullish();
const schema = z.looseObject({
  rotary_pct: number,
  rotary_emb_base: number,
  layer_norm_eps: number,
  use_parallel_residual: z.boolean().nullish(),
});
/** What the class assumes. */
const ROTARY_PART = 0.25;
const EPSILON = 1e-5;

/** Layers of this family, and of those that were made like it. */
export const NEOX_LAYERS = { layerNorms: true, normBias: true, gated: false } as const;

/** A GGUF file has all queries, then all keys, then all values. */
export const NEOX_GGUF_PARTS = {
  'attn_norm.bias': 'attnNorm.bias',
  'ffn_norm.bias': 'mlpNorm.bias',
  'attn_qkv.weight': 'qkv',
  'attn_qkv.bias': 'qkv.bias',
} as const;

/** The epsilon of norms that take the mean out has a name of its own. */
export const layerNormKeys = ({ normEpsilon }: ModelConfig): Record<string, GgufEntry> => ({
  'attention.layer_norm_epsilon': f32(normEpsilon),
});

export const gptNeox: Family = {
  name: 'gpt-neox',
  title: 'GPT-NeoX and Pythia',
  modelTypes: ['gpt_neox'],
  architectures: ['gptneox'],
  defaults: { normEpsilon: EPSILON, activation: 'gelu' },
  ggufActivation: 'gelu',
  hfPrefix: /^gpt_neox\./,
  hfIgnored: /\.attention\.(bias|masked_bias)$/,
  hfTop: {
    'embed_in.weight': 'embed',
    'embed_out.weight': 'head',
    'final_layer_norm.weight': 'norm',
    'final_layer_norm.bias': 'norm.bias',
  },
  hfParts: {
    'input_layernorm.bias': 'attnNorm.bias',
    'post_attention_layernorm.bias': 'mlpNorm.bias',
    'attention.query_key_value.weight': 'qkvGroups',
    'attention.query_key_value.bias': 'qkvGroups.bias',
    'attention.dense.weight': 'o',
    'attention.dense.bias': 'o.bias',
    'mlp.dense_h_to_4h.weight': 'up',
    'mlp.dense_h_to_4h.bias': 'up.bias',
    'mlp.dense_4h_to_h.weight': 'down',
    'mlp.dense_4h_to_h.bias': 'down.bias',
  },
  ggufParts: NEOX_GGUF_PARTS,
  hfText(given) {
    const keys = parseKeys(schema, given);
    return {
      partial_rotary_factor: keys.rotary_pct ?? ROTARY_PART,
      rms_norm_eps: keys.layer_norm_eps ?? EPSILON,
      ...(keys.rotary_emb_base != null && { rope_theta: keys.rotary_emb_base }),
      ...given,
    };
  },
  hf(given: HfConfig) {
    const isBiased = given.attention_bias ?? true;
    const parallel = parseKeys(schema, given).use_parallel_residual ?? true;
    return { ...NEOX_LAYERS, parallel, qkvBias: isBiased, outputBias: isBiased, mlpBias: true };
  },
  gguf: (keys) => ({ ...NEOX_LAYERS, parallel: keys.flag('use_parallel_residual') ?? true }),
  ggufKeys: (config) => ({ ...layerNormKeys(config), use_parallel_residual: bool(config.parallel) }),
};
