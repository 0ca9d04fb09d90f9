/**
 * config.json and generation_config.json of a Hugging Face folder → ModelConfig. A key means what the class of
 * `transformers` makes of it; a value that it honours and we do not is refused by name. What families differ in is in
 * families/.
 */

import { existsSync } from 'node:fs';
import { join } from 'node:path';
import { z } from 'zod';
import { readJson } from '../../native/index.ts';
import { badConfig, checkConfig, plainFeatures } from './config.ts';
import type { Family } from './families/family.ts';
import { familyOfType } from './families/index.ts';
import { HF_SOURCE, type HfConfig, hfSchema, parseKeys, type RopeKeys, tokenIds, unsupportedKey } from './hf-keys.ts';
import { CONFIG_BYTES_MAX } from './limits.ts';
import type { ModelConfig, RopeScaling } from './types.ts';

const DEFAULT_NORM_EPSILON = 1e-6;
const DEFAULT_ROPE_THETA = 10000;

export interface HfModel {
  readonly family: Family;
  readonly config: ModelConfig;
}

/** Throws KvError 'not-found', 'bad-model' (broken, out of range) or 'unsupported' (naming the key). */
export function readHfConfig(dir: string): HfModel {
  const generation = join(dir, 'generation_config.json');
  const read = (path: string): unknown => readJson(path, { code: 'bad-model', bytesMax: CONFIG_BYTES_MAX });
  return hfModel(read(join(dir, 'config.json')), existsSync(generation) ? read(generation) : {});
}

export function hfModel(config: unknown, generationConfig: unknown = {}): HfModel {
  const whole = parseKeys(z.looseObject({ model_type: z.string() }), config);
  const family = familyOfType(whole.model_type);
  const given = parseKeys(hfSchema, family.hfText?.(whole) ?? whole);
  const generation = parseKeys(
    z.looseObject({ bos_token_id: tokenIds, eos_token_id: tokenIds }),
    generationConfig,
    'generation_config.json',
  );
  if (given.quantization_config != null) throw unsupportedKey('quantization_config', given.quantization_config);
  const { defaults = {} } = family;
  const headDim = given.head_dim ?? defaults.headDim ?? given.hidden_size / given.num_attention_heads;
  const keys = family.hfRope?.(given) ?? given.rope_parameters ?? given.rope_scaling ?? null;
  const first = (value: number | number[] | null | undefined): number | null =>
    Array.isArray(value) ? (value[0] ?? null) : (value ?? null);
  const base: ModelConfig = {
    architecture: family.name,
    layers: given.num_hidden_layers,
    hiddenSize: given.hidden_size,
    intermediateSize: given.intermediate_size,
    queryHeads: given.num_attention_heads,
    kvHeads: given.num_key_value_heads ?? given.num_attention_heads,
    headDim,
    vocabSize: given.vocab_size,
    normEpsilon: given.rms_norm_eps ?? defaults.normEpsilon ?? DEFAULT_NORM_EPSILON,
    ropeTheta: keys?.rope_theta ?? given.rope_theta ?? defaults.ropeTheta ?? DEFAULT_ROPE_THETA,
    ...rope(given, keys),
    rotaryDim: Math.floor(headDim * (keys?.partial_rotary_factor ?? given.partial_rotary_factor ?? 1)),
    ropeInterleaved: false,
    ...plainFeatures(given.num_hidden_layers),
    activation: activation(given, defaults.activation ?? 'silu'),
    tiedEmbeddings: given.tie_word_embeddings ?? defaults.tiedEmbeddings ?? false,
    bosId: first(generation.bos_token_id) ?? first(given.bos_token_id),
    eosIds: [...new Set([generation.eos_token_id ?? [], given.eos_token_id ?? []].flat())],
  };
  return { family, config: checkConfig({ ...base, ...family.hf(given, base) }, HF_SOURCE) };
}

/** Several names are one and the same function. The last one is the exact form with an error function. */
const ACTIVATIONS = new Map<string, ModelConfig['activation']>([
  ['silu', 'silu'],
  ['swish', 'silu'],
  ['gelu_pytorch_tanh', 'gelu-tanh'],
  ['gelu_new', 'gelu-tanh'],
  ['gelu_fast', 'gelu-tanh'],
  ['gelu', 'gelu'],
]);

function activation({ hidden_activation, hidden_act }: HfConfig, otherwise: string): ModelConfig['activation'] {
  const given = hidden_activation ?? hidden_act ?? otherwise;
  const found = ACTIVATIONS.get(given);
  if (found === undefined) throw unsupportedKey(hidden_activation == null ? 'hidden_act' : 'hidden_activation', given);
  return found;
}

/** Frequencies and context length. Scalings that stretch an original context multiply its length by their factor. */
function rope(given: HfConfig, keys: RopeKeys | null): { ropeScaling: RopeScaling; contextLength: number } {
  const positions = given.max_position_embeddings;
  const kind = keys?.rope_type ?? keys?.type ?? 'default';
  if (keys === null || kind === 'default') return { ropeScaling: { kind: 'none' }, contextLength: positions };
  const original = keys.original_max_position_embeddings ?? given.original_max_position_embeddings;
  // Files of Phi-3 have called it by three names.
  if (kind === 'longrope' || kind === 'su' || keys.long_factor != null)
    return { ropeScaling: longRope(keys, positions, original ?? positions), contextLength: positions };
  const need = (key: 'factor' | 'low_freq_factor' | 'high_freq_factor'): number => {
    const value = keys[key];
    if (value == null) throw badConfig(HF_SOURCE, [`rope_scaling of type ${kind} has no ${key}`]);
    return value;
  };
  const factor = need('factor');
  const originalContext = keys.original_max_position_embeddings ?? positions;
  const stretched = Math.max(positions, Math.floor(factor * originalContext));
  switch (kind) {
    case 'linear':
      return { ropeScaling: { kind, factor }, contextLength: positions };
    case 'dynamic':
      return { ropeScaling: { kind: 'ntk', factor, originalContext }, contextLength: stretched };
    case 'llama3': {
      const [lowFreqFactor, highFreqFactor] = [need('low_freq_factor'), need('high_freq_factor')];
      return {
        ropeScaling: { kind, factor, lowFreqFactor, highFreqFactor, originalContext },
        contextLength: positions,
      };
    }
    case 'yarn': {
      for (const key of ['mscale', 'mscale_all_dim'] as const)
        if (keys[key] != null) throw unsupportedKey(`rope_scaling.${key}`, keys[key]);
      if (keys.truncate === false) throw unsupportedKey('rope_scaling.truncate', false);
      const attentionFactor = keys.attention_factor ?? null;
      const [betaFast, betaSlow] = [keys.beta_fast ?? 32, keys.beta_slow ?? 1];
      return {
        ropeScaling: { kind, factor, originalContext, betaFast, betaSlow, attentionFactor },
        contextLength: stretched,
      };
    }
    default:
      throw unsupportedKey('rope_scaling.rope_type', kind);
  }
}

function longRope(keys: RopeKeys, positions: number, originalContext: number): RopeScaling {
  const { short_factor: shortFactors, long_factor: longFactors } = keys;
  if (shortFactors == null || longFactors == null)
    throw badConfig(HF_SOURCE, ['rope_scaling of type longrope has no short_factor or no long_factor']);
  const factor = keys.factor ?? positions / originalContext;
  const attentionFactor =
    keys.attention_factor ?? (factor <= 1 ? 1 : Math.sqrt(1 + Math.log(factor) / Math.log(originalContext)));
  return { kind: 'longrope', shortFactors, longFactors, originalContext, attentionFactor };
}
