/**
 * MPT: scores lose a slope times the distance instead of a rotary embedding (ALiBi), norms that take the mean out, most
 * often without biases, no gate, and one matrix of all queries, all keys and all values.
 */
import { z } from 'zod';
import { badConfig } from '../config.ts';
import { f32 } from '../gguf-entries.ts';
import { GGUF_SOURCE } from '../gguf-keys.ts';
import { HF_SOURCE, parseKeys, perLayer, unsupportedKey } from '../hf-keys.ts';
import type { ModelConfig } from '../types.ts';
import type { Family } from './family.ts';
import { layerNormKeys, NEOX_GGUF_PARTS } from './gpt-neox.ts';

const number = z.number().nullish();
const flag = z.boolean().nullish();
const word = z.string().nullish();
const schema = z.looseObject({
  d_model: z.int().nullish(),
  n_heads: z.int().nullish(),
  n_layers: z.int().nullish(),
  expansion_ratio: number,
  max_seq_len: z.int().nullish(),
  layer_norm_epsilon: number,
  logit_scale: z.unknown(),
  no_bias: flag,
  norm_type: word,
  attn_config: z
    .looseObject({
      alibi: flag,
      alibi_bias_max: number,
      attn_type: word,
      clip_qkv: number,
      kv_n_heads: z.int().nullish(),
      prefix_lm: flag,
      qk_ln: flag,
      qk_gn: flag,
      softmax_scale: number,
      sliding_window_size: number,
    })
    .nullish(),
});
/** What the class assumes. */
const [WIDTH, HEADS, LAYERS, WIDENING, CONTEXT, EPSILON, BIAS_MAX] = [2048, 16, 24, 4, 2048, 1e-5, 8];
/** A norm whose name says in which precision it is trained. */
const NORMS: readonly string[] = ['low_precision_layernorm', 'layernorm'];

const features = (layers: number, alibiMax: number): Partial<ModelConfig> => ({
  ...{ layerNorms: true, gated: false, alibiMax },
  layerRope: perLayer(layers, () => 'none' as const),
});

/** Throws 'unsupported' naming the key that asks for another computation. */
function refuseOthers({ attn_config: attention, logit_scale: scale, norm_type: norm }: z.infer<typeof schema>): void {
  const refuse = (key: string, value: unknown, isServed: boolean): void => {
    if (value != null && !isServed) throw unsupportedKey(key, value);
  };
  refuse('logit_scale', scale, false);
  refuse('norm_type', norm, NORMS.includes(norm ?? ''));
  const { alibi = null, attn_type = null, clip_qkv = null, kv_n_heads = null, ...rest } = attention ?? {};
  if (alibi !== true) throw unsupportedKey('attn_config.alibi', alibi);
  refuse('attn_config.attn_type', attn_type, attn_type === 'multihead_attention');
  refuse('attn_config.clip_qkv', clip_qkv, false);
  refuse('attn_config.kv_n_heads', kv_n_heads, false);
  refuse('attn_config.softmax_scale', rest.softmax_scale, false);
  refuse('attn_config.sliding_window_size', rest.sliding_window_size, rest.sliding_window_size === -1);
  for (const key of ['prefix_lm', 'qk_ln', 'qk_gn'] as const)
    refuse(`attn_config.${key}`, rest[key], rest[key] === false);
}

export const mpt: Family = {
  name: 'mpt',
  title: 'MPT',
  modelTypes: ['mpt'],
  architectures: ['mpt'],
  defaults: { normEpsilon: EPSILON, activation: 'gelu', tiedEmbeddings: true },
  ggufActivation: 'gelu',
  ggufReads: ['attention.max_alibi_bias'],
  hfPrefix: /^transformer\./,
  hfTop: {
    'wte.weight': 'embed',
    'lm_head.weight': 'head',
    'norm_f.weight': 'norm',
    'norm_f.bias': 'norm.bias',
  },
  hfParts: {
    'norm_1.weight': 'attnNorm',
    'norm_1.bias': 'attnNorm.bias',
    'norm_2.weight': 'mlpNorm',
    'norm_2.bias': 'mlpNorm.bias',
    'attn.Wqkv.weight': 'qkv',
    'attn.Wqkv.bias': 'qkv.bias',
    'attn.out_proj.weight': 'o',
    'attn.out_proj.bias': 'o.bias',
    'ffn.up_proj.weight': 'up',
    'ffn.up_proj.bias': 'up.bias',
    'ffn.down_proj.weight': 'down',
    'ffn.down_proj.bias': 'down.bias',
  },
  ggufParts: NEOX_GGUF_PARTS,
  hfText(given) {
    const keys = parseKeys(schema, given);
    const width = keys.d_model ?? WIDTH;
    return {
      hidden_size: width,
      intermediate_size: (keys.expansion_ratio ?? WIDENING) * width,
      num_attention_heads: keys.n_heads ?? HEADS,
      num_hidden_layers: keys.n_layers ?? LAYERS,
      max_position_embeddings: keys.max_seq_len ?? CONTEXT,
      rms_norm_eps: keys.layer_norm_epsilon ?? EPSILON,
      ...given,
    };
  },
  hf(given, { layers }) {
    const keys = parseKeys(schema, given);
    refuseOthers(keys);
    const alibiMax = keys.attn_config?.alibi_bias_max ?? BIAS_MAX;
    if (!(alibiMax > 0)) throw badConfig(HF_SOURCE, [`attn_config.alibi_bias_max is ${alibiMax}`]);
    const isBiased = keys.no_bias === false;
    return {
      ...features(layers, alibiMax),
      ...{ normBias: isBiased, qkvBias: isBiased, outputBias: isBiased, mlpBias: isBiased },
    };
  },
  gguf(keys, { layers }, hasTensor) {
    const alibiMax = keys.optional('attention.max_alibi_bias') ?? 0;
    if (!(alibiMax > 0)) throw badConfig(GGUF_SOURCE, [`${keys.architecture}.attention.max_alibi_bias is ${alibiMax}`]);
    return { ...features(layers, alibiMax), normBias: hasTensor('output_norm.bias') };
  },
  ggufKeys: (config) => ({ ...layerNormKeys(config), 'attention.max_alibi_bias': f32(config.alibiMax ?? 0) }),
};
