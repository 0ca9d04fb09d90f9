/**
 * config.json and generation_config.json of a Hugging Face folder → ModelConfig. A key means what the
 * `transformers` classes Llama, Mistral, Qwen2 and Qwen3 make of it; a value that they honour and we do not is refused by name.
 */

import { existsSync } from 'node:fs';
import { join } from 'node:path';
import { z } from 'zod';
import { readJson } from '../../native/index.ts';
import { badConfig, checkConfig, issues, unsupportedConfig } from './config.ts';
import { CONFIG_BYTES_MAX } from './limits.ts';
import type { ModelConfig, RopeScaling } from './types.ts';

const number = z.number().nullish();
const whole = z.int().nullish();
const flag = z.boolean().nullish();
const ids = z.union([z.int(), z.array(z.int())]).nullish();

/** Rope keys are under `rope_scaling`, or `rope_parameters` in newer files; the kind is `rope_type`, or `type` in older ones. */
const ropeSchema = z.looseObject({
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
});

const schema = z.looseObject({
  model_type: z.string(),
  hidden_size: z.int(),
  intermediate_size: z.int(),
  num_hidden_layers: z.int(),
  num_attention_heads: z.int().positive(),
  num_key_value_heads: whole,
  head_dim: whole,
  vocab_size: z.int(),
  max_position_embeddings: z.int(),
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
  attention_bias: flag,
  mlp_bias: flag,
  tie_word_embeddings: flag,
  bos_token_id: ids,
  eos_token_id: ids,
  quantization_config: z.unknown().optional(),
  is_decoder: flag,
});

type HfConfig = z.infer<typeof schema>;

const ARCHITECTURES = ['llama', 'mistral', 'qwen2', 'qwen3'] as const;
/** What the classes assume for keys that a file leaves out. */
const DEFAULT_NORM_EPSILON = 1e-6;
const DEFAULT_ROPE_THETA = 10000;
const DEFAULT_WINDOW_LAYERS = 28;

/** Throws KvError 'not-found', 'bad-model' (broken, out of range) or 'unsupported' (naming the key). */
export function readHfConfig(dir: string): ModelConfig {
  const generation = join(dir, 'generation_config.json');
  const read = (path: string): unknown => readJson(path, { code: 'bad-model', bytesMax: CONFIG_BYTES_MAX });
  return hfConfig(read(join(dir, 'config.json')), existsSync(generation) ? read(generation) : {});
}

export function hfConfig(config: unknown, generationConfig: unknown = {}): ModelConfig {
  const given = parse(schema, config, 'config.json');
  const generation = parse(
    z.looseObject({ bos_token_id: ids, eos_token_id: ids }),
    generationConfig,
    'generation_config.json',
  );
  const architecture = ARCHITECTURES.find((name) => name === given.model_type);
  if (architecture === undefined) throw unsupported('model_type', given.model_type);
  if (!['silu', 'swish'].includes(given.hidden_act ?? 'silu')) throw unsupported('hidden_act', given.hidden_act);
  if (given.quantization_config != null) throw unsupported('quantization_config', given.quantization_config);
  const headDim = given.head_dim ?? given.hidden_size / given.num_attention_heads;
  const { scaling, theta, contextLength } = rope(given);
  // Only these classes read the flag; the others ignore it.
  const attentionBias = (architecture === 'llama' || architecture === 'qwen3') && given.attention_bias === true;
  const first = (value: number | number[] | null | undefined): number | null =>
    Array.isArray(value) ? (value[0] ?? null) : (value ?? null);
  return checkConfig(
    {
      architecture,
      layers: given.num_hidden_layers,
      hiddenSize: given.hidden_size,
      intermediateSize: given.intermediate_size,
      queryHeads: given.num_attention_heads,
      kvHeads: given.num_key_value_heads ?? given.num_attention_heads,
      headDim,
      vocabSize: given.vocab_size,
      contextLength,
      normEpsilon: given.rms_norm_eps ?? DEFAULT_NORM_EPSILON,
      ropeTheta: theta,
      ropeScaling: scaling,
      rotaryDim: Math.floor(headDim * (given.partial_rotary_factor ?? 1)),
      ropeInterleaved: false,
      slidingWindow: windows(given, architecture),
      qkvBias: architecture === 'qwen2' || attentionBias,
      outputBias: attentionBias,
      mlpBias: architecture === 'llama' && given.mlp_bias === true,
      qkNorm: architecture === 'qwen3',
      tiedEmbeddings: given.tie_word_embeddings ?? false,
      bosId: first(generation.bos_token_id) ?? first(given.bos_token_id),
      eosIds: [...new Set([generation.eos_token_id ?? [], given.eos_token_id ?? []].flat())],
    },
    'config.json',
  );
}

function parse<T>(type: z.ZodType<T>, value: unknown, source: string): T {
  const checked = type.safeParse(value);
  if (!checked.success) throw badConfig(source, issues(checked.error));
  return checked.data;
}

const unsupported = (key: string, value: unknown) => unsupportedConfig('config.json', key, value);

/** Frequencies and context length. Scalings that stretch an original context multiply its length by their factor. */
function rope(given: HfConfig): { scaling: RopeScaling; theta: number; contextLength: number } {
  const settings = given.rope_parameters ?? given.rope_scaling;
  const positions = given.max_position_embeddings;
  const theta = settings?.rope_theta ?? given.rope_theta ?? DEFAULT_ROPE_THETA;
  const kind = settings?.rope_type ?? settings?.type ?? 'default';
  if (settings == null || kind === 'default') return { scaling: { kind: 'none' }, theta, contextLength: positions };
  const need = (key: 'factor' | 'low_freq_factor' | 'high_freq_factor'): number => {
    const value = settings[key];
    if (value == null) throw badConfig('config.json', [`rope_scaling of type ${kind} has no ${key}`]);
    return value;
  };
  const factor = need('factor');
  const original = settings.original_max_position_embeddings;
  const originalContext = original ?? positions;
  const stretched = Math.max(positions, Math.floor(factor * originalContext));
  switch (kind) {
    case 'linear':
      return { scaling: { kind, factor }, theta, contextLength: positions };
    case 'dynamic':
      return { scaling: { kind: 'ntk', factor, originalContext }, theta, contextLength: stretched };
    case 'llama3': {
      const [lowFreqFactor, highFreqFactor] = [need('low_freq_factor'), need('high_freq_factor')];
      return {
        scaling: { kind, factor, lowFreqFactor, highFreqFactor, originalContext },
        theta,
        contextLength: positions,
      };
    }
    case 'yarn': {
      for (const key of ['mscale', 'mscale_all_dim'] as const)
        if (settings[key] != null) throw unsupported(`rope_scaling.${key}`, settings[key]);
      if (settings.truncate === false) throw unsupported('rope_scaling.truncate', false);
      const attentionFactor = settings.attention_factor ?? null;
      const [betaFast, betaSlow] = [settings.beta_fast ?? 32, settings.beta_slow ?? 1];
      return {
        scaling: { kind, factor, originalContext, betaFast, betaSlow, attentionFactor },
        theta,
        contextLength: stretched,
      };
    }
    default:
      throw unsupported('rope_scaling.rope_type', kind);
  }
}

function windows(given: HfConfig, architecture: (typeof ARCHITECTURES)[number]): (number | null)[] {
  const size = given.sliding_window ?? null;
  const layers = Array.from({ length: Math.min(Math.max(given.num_hidden_layers, 0), 1024) }, (_, layer) => layer);
  const qwen = architecture === 'qwen2' || architecture === 'qwen3';
  if (architecture === 'llama') {
    if (size !== null) throw unsupported('sliding_window', size);
    return layers.map(() => null);
  }
  if (qwen && given.use_sliding_window !== true) return layers.map(() => null);
  if (given.layer_types != null) {
    if (given.layer_types.length !== layers.length)
      throw badConfig('config.json', [`${given.layer_types.length} layer_types for ${layers.length} layers`]);
    return given.layer_types.map((type) => {
      if (type !== 'full_attention' && type !== 'sliding_attention') throw unsupported('layer_types', type);
      return type === 'sliding_attention' ? size : null;
    });
  }
  const firstLayer = qwen ? (given.max_window_layers ?? DEFAULT_WINDOW_LAYERS) : 0;
  return layers.map((layer) => (layer >= firstLayer ? size : null));
}
