/** The keys of a config.json, and what several families make of them in the same way. */
import { z } from 'zod';
import { badConfig, issues, unsupportedConfig } from './config.ts';

const number = z.number().nullish();
const whole = z.int().nullish();
const flag = z.boolean().nullish();
const factors = z.array(z.number()).max(512).nullish();
export const tokenIds = z.union([z.int(), z.array(z.int())]).nullish();

/**
 * Rope keys are under `rope_scaling`, or `rope_parameters` in newer files; the kind is `rope_type`, or `type` in older
 * ones.
 */
export const ropeSchema = z.looseObject({
  rope_type: z.string().nullish(),
  type: z.string().nullish(),
  rope_theta: number,
  factor: number,
  original_max_position_embeddings: whole,
  low_freq_factor: number,
  high_freq_factor: number,
  beta_fast: number,
  beta_slow: number,
  attention_factor: number,
  mscale: number,
  mscale_all_dim: number,
  truncate: flag,
  short_factor: factors,
  long_factor: factors,
  partial_rotary_factor: number,
});
export type RopeKeys = z.infer<typeof ropeSchema>;

export const hfSchema = z.looseObject({
  model_type: z.string(),
  hidden_size: z.int(),
  intermediate_size: z.int(),
  num_hidden_layers: z.int(),
  num_attention_heads: z.int().positive(),
  num_key_value_heads: whole,
  head_dim: whole,
  vocab_size: z.int(),
  max_position_embeddings: z.int(),
  original_max_position_embeddings: whole,
  rms_norm_eps: number,
  rope_theta: number,
  rope_scaling: ropeSchema.nullish(),
  rope_parameters: ropeSchema.nullish(),
  partial_rotary_factor: number,
  sliding_window: whole,
  use_sliding_window: flag,
  max_window_layers: whole,
  layer_types: z.array(z.string()).nullish(),
  hidden_act: z.string().nullish(),
  hidden_activation: z.string().nullish(),
  attention_bias: flag,
  mlp_bias: flag,
  tie_word_embeddings: flag,
  bos_token_id: tokenIds,
  eos_token_id: tokenIds,
  quantization_config: z.unknown().optional(),
  is_decoder: flag,
});
export type HfConfig = z.infer<typeof hfSchema>;

export const HF_SOURCE = 'config.json';

export const unsupportedKey = (key: string, value: unknown) => unsupportedConfig(HF_SOURCE, key, value);

/** Reads keys that only some families have. Throws 'bad-model' naming each that is not what the schema says. */
export function parseKeys<T>(type: z.ZodType<T>, value: unknown, source: string = HF_SOURCE): T {
  const checked = type.safeParse(value);
  if (!checked.success) throw badConfig(source, issues(checked.error));
  return checked.data;
}

/** For classes that know no window: they would ignore the key, but whoever wrote it meant something. */
export function refuseWindow({ sliding_window: size }: HfConfig): void {
  if (size != null) throw unsupportedKey('sliding_window', size);
}

/** A value for every layer, of which there are no more than any model has, whatever the file says. */
export function perLayer<T>(layers: number, value: (layer: number) => T): T[] {
  return Array.from({ length: Math.min(Math.max(Math.trunc(layers) || 0, 0), 1024) }, (_, layer) => value(layer));
}

/** Windows of layers by their type; null where the file does not list types. */
export function windowsByType(given: HfConfig): (number | null)[] | null {
  const { layer_types: types, num_hidden_layers: layers, sliding_window: size } = given;
  if (types == null) return null;
  if (types.length !== layers) throw badConfig(HF_SOURCE, [`${types.length} layer_types for ${layers} layers`]);
  return types.map((type) => {
    if (type !== 'full_attention' && type !== 'sliding_attention') throw unsupportedKey('layer_types', type);
    return type === 'sliding_attention' ? (size ?? null) : null;
  });
}

/** Biases of classes that read both flags. */
export const biases = ({ attention_bias, mlp_bias }: HfConfig) => ({
  qkvBias: attention_bias === true,
  outputBias: attention_bias === true,
  mlpBias: mlp_bias === true,
});
