/**
 * Falcon with rotary embeddings: norms that take the mean out, no gate, and both halves of a layer beside each other,
 * which read one norm (7B) or two (40B). All heads share a key and a value, or groups of them do, and one matrix has
 * the queries, the key and the value of each group together.
 */
import { z } from 'zod';
import { badConfig } from '../config.ts';
import { HF_SOURCE, parseKeys, unsupportedKey } from '../hf-keys.ts';
import type { Family } from './family.ts';
import { layerNormKeys, NEOX_GGUF_PARTS, NEOX_LAYERS } from './gpt-neox.ts';

const flag = z.boolean().nullish();
const whole = z.int().positive().nullish();
const schema = z.looseObject({
  hidden_size: z.int(),
  num_attention_heads: z.int(),
  num_kv_heads: whole,
  ffn_hidden_size: whole,
  layer_norm_epsilon: z.number().nullish(),
  activation: z.string().nullish(),
  alibi: flag,
  bias: flag,
  multi_query: flag,
  parallel_attn: flag,
  new_decoder_architecture: flag,
  num_ln_in_parallel_attn: whole,
});
/** What the class assumes. */
const EPSILON = 1e-5;
const CONTEXT = 2048;
const WIDENING = 4;

export const falcon: Family = {
  name: 'falcon',
  title: 'Falcon',
  modelTypes: ['falcon'],
  architectures: ['falcon'],
  defaults: { normEpsilon: EPSILON, activation: 'gelu', tiedEmbeddings: true },
  ggufActivation: 'gelu',
  hfPrefix: /^transformer\./,
  hfTop: {
    'word_embeddings.weight': 'embed',
    'lm_head.weight': 'head',
    'ln_f.weight': 'norm',
    'ln_f.bias': 'norm.bias',
  },
  hfParts: {
    'input_layernorm.bias': 'attnNorm.bias',
    'post_attention_layernorm.bias': 'mlpNorm.bias',
    'ln_attn.weight': 'attnNorm',
    'ln_attn.bias': 'attnNorm.bias',
    'ln_mlp.weight': 'mlpNorm',
    'ln_mlp.bias': 'mlpNorm.bias',
    'self_attention.query_key_value.weight': 'qkvGroups',
    'self_attention.query_key_value.bias': 'qkvGroups.bias',
    'self_attention.dense.weight': 'o',
    'self_attention.dense.bias': 'o.bias',
    'mlp.dense_h_to_4h.weight': 'up',
    'mlp.dense_h_to_4h.bias': 'up.bias',
    'mlp.dense_4h_to_h.weight': 'down',
    'mlp.dense_4h_to_h.bias': 'down.bias',
  },
  ggufParts: NEOX_GGUF_PARTS,
  // Where there are two norms, the second one is that of attention.
  ggufPartsOf: ({ oneNorm }) => ({
    ...(!oneNorm && {
      'attn_norm.weight': 'mlpNorm',
      'attn_norm.bias': 'mlpNorm.bias',
      'attn_norm_2.weight': 'attnNorm',
      'attn_norm_2.bias': 'attnNorm.bias',
    }),
  }),
  hfText(given) {
    const keys = parseKeys(schema, given);
    if (keys.alibi === true) throw unsupportedKey('alibi', true);
    const isShared = keys.new_decoder_architecture !== true && keys.multi_query !== false;
    return {
      intermediate_size: keys.ffn_hidden_size ?? WIDENING * keys.hidden_size,
      max_position_embeddings: CONTEXT,
      rms_norm_eps: keys.layer_norm_epsilon ?? EPSILON,
      hidden_act: keys.activation ?? 'gelu',
      ...given,
      num_key_value_heads: isShared
        ? 1
        : keys.new_decoder_architecture === true
          ? (keys.num_kv_heads ?? keys.num_attention_heads)
          : keys.num_attention_heads,
    };
  },
  hf(given) {
    const keys = parseKeys(schema, given);
    const isNew = keys.new_decoder_architecture === true;
    if (!isNew && keys.parallel_attn === false) throw unsupportedKey('parallel_attn', false);
    const norms = isNew ? (keys.num_ln_in_parallel_attn ?? 2) : 1;
    if (norms > 2) throw badConfig(HF_SOURCE, [`num_ln_in_parallel_attn is ${norms}`]);
    const isBiased = keys.bias === true;
    return {
      ...NEOX_LAYERS,
      ...{ parallel: true, oneNorm: norms === 1 },
      ...{ qkvBias: isBiased, outputBias: isBiased, mlpBias: isBiased },
    };
  },
  gguf: (_, __, hasTensor) => ({
    ...NEOX_LAYERS,
    ...{ parallel: true, oneNorm: !hasTensor('blk.0.attn_norm_2.weight') },
  }),
  ggufKeys: layerNormKeys,
};
