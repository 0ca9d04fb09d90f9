/**
 * Metadata of a GGUF file → ModelConfig. Keys are those of the GGUF specification. Biases, norms of queries and keys
 * and tied embeddings are recognised by their tensors, since the metadata does not mention them. What families differ
 * in is in families/.
 */
import { badConfig, checkConfig, plainFeatures, unsupportedConfig } from './config.ts';
import type { Family } from './families/family.ts';
import { familyOfArchitecture } from './families/index.ts';
import type { GgufFile } from './gguf.ts';
import { GGUF_SOURCE, GgufKeys, numberOf } from './gguf-keys.ts';
import type { ModelConfig, RopeScaling } from './types.ts';

const DEFAULT_ROPE_THETA = 10000;
/** YaRN's constants, for files that give none. */
const BETA_FAST = 32;
const BETA_SLOW = 1;

/** Keys that change what a model computes unless they are 0. A family that does not read one refuses it. */
const CHANGING: readonly string[] = [
  'expert_count',
  'expert_shared_count',
  'leading_dense_block_count',
  'rope.scaling.yarn_log_multiplier',
  'attn_logit_softcapping',
  'final_logit_softcapping',
  'attention.clamp_kqv',
  'attention.max_alibi_bias',
  'attention.sliding_window_pattern',
  'attention.temperature_scale',
  'attention.scale',
  'embedding_scale',
  'residual_scale',
  'logit_scale',
];

export interface GgufModel {
  readonly family: Family;
  readonly config: ModelConfig;
}

/** Throws KvError 'bad-model' (missing, out of range) or 'unsupported' (naming the key). */
export function ggufModel({ metadata, tensors }: Pick<GgufFile, 'metadata' | 'tensors'>): GgufModel {
  const family = familyOfArchitecture(metadata.get('general.architecture'));
  const architecture = String(metadata.get('general.architecture'));
  const keys = new GgufKeys(metadata, architecture);
  for (const key of CHANGING.filter((one) => !family.ggufReads?.includes(one))) keys.refuse(key);
  if (keys.flag('attention.causal') === false)
    throw unsupportedConfig(GGUF_SOURCE, `${architecture}.attention.causal`, false);
  const [layers, hiddenSize, queryHeads] = [
    keys.number('block_count'),
    keys.number('embedding_length'),
    keys.number('attention.head_count'),
  ];
  const headDim = keys.optional('attention.key_length') ?? hiddenSize / queryHeads;
  const valueDim = keys.optional('attention.value_length') ?? headDim;
  if (valueDim !== headDim) throw unsupportedConfig(GGUF_SOURCE, `${architecture}.attention.value_length`, valueDim);
  const embed = tensors.get('token_embd.weight');
  if (embed === undefined)
    throw badConfig(GGUF_SOURCE, ['the file has no token_embd.weight: it is a vocabulary without a model']);
  const ropeTheta = keys.optional('rope.freq_base') ?? DEFAULT_ROPE_THETA;
  const rotaryDim = keys.optional('rope.dimension_count') ?? headDim;
  const contextLength = keys.number('context_length');
  const window = keys.optional('attention.sliding_window') || null;
  const token = (name: string): number | null => {
    const key = `tokenizer.ggml.${name}_token_id`;
    const id = numberOf(metadata, key);
    if (id !== null && !Number.isInteger(id)) throw badConfig(GGUF_SOURCE, [`${key} is ${id}`]);
    return id;
  };
  const plain = plainFeatures(layers);
  const base: ModelConfig = {
    architecture: family.name,
    layers,
    hiddenSize,
    intermediateSize: keys.number('feed_forward_length'),
    queryHeads,
    kvHeads: keys.optional('attention.head_count_kv') ?? queryHeads,
    headDim,
    vocabSize: embed.shape[0]!,
    contextLength,
    normEpsilon:
      keys.optional('attention.layer_norm_rms_epsilon') ??
      keys.optional('attention.layer_norm_epsilon') ??
      family.ggufNormEpsilon ??
      keys.number('attention.layer_norm_rms_epsilon'),
    ropeTheta,
    ropeScaling: ropeScaling(keys, contextLength, tensors, { ropeTheta, rotaryDim }),
    rotaryDim,
    ropeInterleaved: family.ggufInterleaved ?? false,
    ...plain,
    activation: family.ggufActivation ?? 'silu',
    slidingWindow: plain.slidingWindow.map(() => window),
    qkvBias: tensors.has('blk.0.attn_q.bias') || tensors.has('blk.0.attn_qkv.bias'),
    outputBias: tensors.has('blk.0.attn_output.bias'),
    mlpBias: tensors.has('blk.0.ffn_up.bias'),
    qkNorm: tensors.has('blk.0.attn_q_norm.weight') ? 'head' : 'none',
    tiedEmbeddings: !tensors.has('output.weight'),
    bosId: token('bos'),
    eosIds: [...new Set(['eos', 'eot', 'eom'].map(token).filter((id) => id !== null))],
  };
  const hasTensor = (name: string): boolean => tensors.has(name);
  return { family, config: checkConfig({ ...base, ...family.gguf(keys, base, hasTensor) }, GGUF_SOURCE) };
}

function ropeScaling(
  keys: GgufKeys,
  contextLength: number,
  tensors: GgufFile['tensors'],
  rope: { ropeTheta: number; rotaryDim: number },
): RopeScaling {
  const factors = tensors.get('rope_freqs.weight');
  const type = keys.text('rope.scaling.type') ?? (keys.optional('rope.scale_linear') === null ? 'none' : 'linear');
  if (factors !== undefined) {
    if (type !== 'none')
      throw unsupportedConfig(GGUF_SOURCE, 'rope_freqs.weight together with rope.scaling.type', type);
    return llama3Scaling(factors.readFloat32(), rope);
  }
  const [short, long] = ['short', 'long'].map((name) => tensors.get(`rope_factors_${name}.weight`));
  if (short !== undefined && long !== undefined) {
    if (type !== 'none' && type !== 'longrope')
      throw unsupportedConfig(GGUF_SOURCE, 'rope_factors_long.weight together with rope.scaling.type', type);
    return {
      kind: 'longrope',
      shortFactors: [...short.readFloat32()],
      longFactors: [...long.readFloat32()],
      originalContext: keys.optional('rope.scaling.original_context_length') ?? contextLength,
      attentionFactor: keys.optional('rope.scaling.attn_factor') ?? 1,
    };
  }
  const factor = keys.optional('rope.scaling.factor') ?? keys.optional('rope.scale_linear') ?? 1;
  switch (type) {
    case 'none':
      return { kind: 'none' };
    case 'linear':
      return factor === 1 ? { kind: 'none' } : { kind: 'linear', factor };
    case 'yarn': {
      const amplitude = keys.optional('rope.scaling.attn_factor');
      return {
        kind: 'yarn',
        factor,
        originalContext: keys.optional('rope.scaling.original_context_length') ?? contextLength,
        betaFast: keys.optional('rope.scaling.yarn_beta_fast') ?? BETA_FAST,
        betaSlow: keys.optional('rope.scaling.yarn_beta_slow') ?? BETA_SLOW,
        // The value under this key multiplies YaRN's own amplitude.
        attentionFactor: amplitude === null || amplitude === 1 ? null : amplitude * (0.1 * Math.log(factor) + 1),
      };
    }
    default:
      throw unsupportedConfig(GGUF_SOURCE, 'rope.scaling.type', type);
  }
}

/** The same for all published sizes of Llama 3.1 and later. */
const LLAMA3 = { lowFreqFactor: 1, highFreqFactor: 4, originalContext: 8192 } as const;
const FACTOR_TOLERANCE = 1e-4;

/**
 * Llama 3's frequency bands are stored as one divisor per rotary pair. The largest divisor is the factor; the
 * others must be those of the published bands, so that anything else is refused rather than approximated.
 */
function llama3Scaling(
  divisors: Float32Array,
  { ropeTheta, rotaryDim }: { ropeTheta: number; rotaryDim: number },
): RopeScaling {
  const factor = Math.round(divisors.reduce((a, b) => Math.max(a, b), 1));
  const { lowFreqFactor, highFreqFactor, originalContext } = LLAMA3;
  const fits =
    divisors.length === rotaryDim / 2 &&
    divisors.every((divisor, pair) => {
      const turns = (originalContext * ropeTheta ** ((-2 * pair) / rotaryDim)) / (2 * Math.PI);
      const kept = Math.min(1, Math.max(0, (turns - lowFreqFactor) / (highFreqFactor - lowFreqFactor)));
      const expected = 1 / (kept + (1 - kept) / factor);
      return Math.abs(divisor - expected) <= FACTOR_TOLERANCE * expected;
    });
  if (!fits) throw unsupportedConfig(GGUF_SOURCE, 'rope_freqs.weight', [...divisors.slice(0, 8)]);
  return factor === 1 ? { kind: 'none' } : { kind: 'llama3', factor, lowFreqFactor, highFreqFactor, originalContext };
}
