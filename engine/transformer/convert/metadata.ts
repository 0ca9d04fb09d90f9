/** ModelConfig → the keys of a GGUF file, which config-gguf.ts reads, and the small tensors that belong to them. */
import { unsupportedConfig } from '../config.ts';
import { FAMILIES, familyOfArchitecture } from '../families/index.ts';
import { bool, f32, type GgufEntry, text, u32 } from '../gguf-entries.ts';
import { HF_SOURCE } from '../hf-keys.ts';
import { ropeFrequencies } from '../rope.ts';
import type { ModelConfig } from '../types.ts';

/** What a family is called in GGUF files; those that have no name of their own are files of Llama. */
export function architectureOf({ architecture }: Pick<ModelConfig, 'architecture'>): string {
  return FAMILIES.find(({ name }) => name === architecture)?.architectures[0] ?? 'llama';
}

/** Keys without the name of the architecture that stands before them. */
export function modelKeys(config: ModelConfig): Map<string, GgufEntry> {
  const { experts, headDim, slidingWindow } = config;
  const windows = new Set(slidingWindow);
  const [window] = windows.size === 1 ? windows : [null];
  return new Map(
    Object.entries({
      block_count: u32(config.layers),
      context_length: u32(config.contextLength),
      embedding_length: u32(config.hiddenSize),
      feed_forward_length: u32(config.intermediateSize),
      'attention.head_count': u32(config.queryHeads),
      'attention.head_count_kv': u32(config.kvHeads),
      'attention.key_length': u32(headDim),
      'attention.value_length': u32(headDim),
      'attention.layer_norm_rms_epsilon': f32(config.normEpsilon),
      'rope.freq_base': f32(config.ropeTheta),
      'rope.dimension_count': u32(config.rotaryDim),
      vocab_size: u32(config.vocabSize),
      ...(window !== null && { 'attention.sliding_window': u32(window!) }),
      ...(experts !== null && {
        expert_count: u32(experts.count),
        expert_used_count: u32(experts.used),
        expert_feed_forward_length: u32(config.intermediateSize),
        expert_weights_norm: bool(experts.shareAmongChosen),
      }),
      ...ropeKeys(config),
      ...familyOfArchitecture(architectureOf(config)).ggufKeys?.(config),
    } satisfies Record<string, GgufEntry>),
  );
}

function ropeKeys({ ropeScaling: scaling }: ModelConfig): Record<string, GgufEntry> {
  const key = (name: string): string => `rope.scaling.${name}`;
  switch (scaling.kind) {
    case 'none':
    case 'llama3':
      return {};
    case 'linear':
      return { [key('type')]: text('linear'), [key('factor')]: f32(scaling.factor) };
    case 'yarn': {
      const usual = 0.1 * Math.log(scaling.factor) + 1;
      return {
        [key('type')]: text('yarn'),
        [key('factor')]: f32(scaling.factor),
        [key('original_context_length')]: u32(scaling.originalContext),
        [key('yarn_beta_fast')]: f32(scaling.betaFast),
        [key('yarn_beta_slow')]: f32(scaling.betaSlow),
        ...(scaling.attentionFactor !== null && { [key('attn_factor')]: f32(scaling.attentionFactor / usual) }),
      };
    }
    case 'longrope':
      return {
        [key('original_context_length')]: u32(scaling.originalContext),
        [key('attn_factor')]: f32(scaling.attentionFactor),
      };
    default:
      throw unsupportedConfig(HF_SOURCE, 'rope_scaling.rope_type, which GGUF has no name for,', scaling.kind);
  }
}

/** Frequencies that are stored as tensors: their divisors, by the name of the tensor. */
export function ropeTensors(config: ModelConfig): Map<string, Float32Array> {
  const { ropeScaling: scaling } = config;
  if (scaling.kind === 'longrope')
    return new Map([
      ['rope_factors_short.weight', Float32Array.from(scaling.shortFactors)],
      ['rope_factors_long.weight', Float32Array.from(scaling.longFactors)],
    ]);
  if (scaling.kind !== 'llama3') return new Map();
  const plain = ropeFrequencies({ ...config, ropeScaling: { kind: 'none' } }, config.contextLength).radians;
  const own = ropeFrequencies(config, config.contextLength).radians;
  return new Map([['rope_freqs.weight', Float32Array.from(plain, (radians, pair) => radians / own[pair]!)]]);
}
