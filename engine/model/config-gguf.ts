/**
 * Metadata of a GGUF file → ModelConfig. Keys are those of the GGUF specification. Biases, QK-norm and tied embeddings
 * are recognised by their tensors, since the metadata does not mention them. Files of the `llama` architecture hold q and
 * k with rows permuted for rotary pairs (2i, 2i + 1); those of `qwen2` and `qwen3` do not.
 */
import { KvError } from '../../native/index.ts';
import { badConfig, checkConfig, unsupportedConfig } from './config.ts';
import type { GgufFile, GgufValue } from './gguf.ts';
import type { ModelConfig, RopeScaling } from './types.ts';

type Metadata = ReadonlyMap<string, GgufValue>;

const SOURCE = 'GGUF metadata';
const DEFAULT_ROPE_THETA = 10000;
/** YaRN's constants, for files that give none. */
const BETA_FAST = 32;
const BETA_SLOW = 1;

/** Throws KvError 'bad-model' (missing, out of range) or 'unsupported' (naming the key). */
export function ggufConfig({ metadata, tensors }: Pick<GgufFile, 'metadata' | 'tensors'>): ModelConfig {
  const architecture = ARCHITECTURES.find((name) => name === metadata.get('general.architecture'));
  if (architecture === undefined)
    throw unsupportedConfig(SOURCE, 'general.architecture', metadata.get('general.architecture') ?? null);
  const keys = new Keys(metadata, architecture);
  for (const key of ['expert_count', 'rope.scaling.yarn_log_multiplier']) {
    const value = keys.optional(key);
    if (value !== null && value !== 0) throw unsupportedConfig(SOURCE, `${architecture}.${key}`, value);
  }
  const [layers, hiddenSize, queryHeads] = [
    keys.number('block_count'),
    keys.number('embedding_length'),
    keys.number('attention.head_count'),
  ];
  const headDim = keys.optional('attention.key_length') ?? hiddenSize / queryHeads;
  const valueDim = keys.optional('attention.value_length') ?? headDim;
  if (valueDim !== headDim) throw unsupportedConfig(SOURCE, `${architecture}.attention.value_length`, valueDim);
  const embed = tensors.get('token_embd.weight');
  if (embed === undefined)
    throw badConfig(SOURCE, ['the file has no token_embd.weight: it is a vocabulary without a model']);
  const ropeTheta = keys.optional('rope.freq_base') ?? DEFAULT_ROPE_THETA;
  const rotaryDim = keys.optional('rope.dimension_count') ?? headDim;
  const contextLength = keys.number('context_length');
  const window = keys.optional('attention.sliding_window') || null;
  const token = (name: string): number | null => numberOf(metadata, `tokenizer.ggml.${name}_token_id`);
  return checkConfig(
    {
      architecture,
      layers,
      hiddenSize,
      intermediateSize: keys.number('feed_forward_length'),
      queryHeads,
      kvHeads: keys.optional('attention.head_count_kv') ?? queryHeads,
      headDim,
      vocabSize: embed.shape[0]!,
      contextLength,
      normEpsilon: keys.number('attention.layer_norm_rms_epsilon'),
      ropeTheta,
      ropeScaling: ropeScaling(keys, contextLength, tensors, { ropeTheta, rotaryDim }),
      rotaryDim,
      ropeInterleaved: architecture === 'llama',
      slidingWindow: Array.from({ length: Math.min(layers, 1024) }, () => window),
      qkvBias: tensors.has('blk.0.attn_q.bias'),
      outputBias: tensors.has('blk.0.attn_output.bias'),
      mlpBias: tensors.has('blk.0.ffn_up.bias'),
      qkNorm: tensors.has('blk.0.attn_q_norm.weight'),
      tiedEmbeddings: !tensors.has('output.weight'),
      bosId: token('bos'),
      eosIds: [...new Set(['eos', 'eot', 'eom'].map(token).filter((id) => id !== null))],
    },
    SOURCE,
  );
}

const ARCHITECTURES = ['llama', 'qwen2', 'qwen3'] as const;

/** The number under a key, or null if there is none. A list counts as one number if all its elements are equal. */
function numberOf(metadata: Metadata, key: string): number | null {
  const value = metadata.get(key);
  if (value === undefined) return null;
  if (typeof value === 'number') return value;
  if (typeof value === 'object' && value.length > 0 && typeof value[0] === 'number') {
    if ((value as ArrayLike<number> & { every(test: (n: number) => boolean): boolean }).every((n) => n === value[0]))
      return value[0];
    throw new KvError('unsupported', `${SOURCE}: ${key} differs between layers`, { values: { key } });
  }
  throw badConfig(SOURCE, [`${key} is not a number`]);
}

class Keys {
  readonly #metadata: Metadata;
  readonly #architecture: string;

  constructor(metadata: Metadata, architecture: string) {
    this.#metadata = metadata;
    this.#architecture = architecture;
  }

  optional(key: string): number | null {
    return numberOf(this.#metadata, `${this.#architecture}.${key}`);
  }

  number(key: string): number {
    const value = this.optional(key);
    if (value === null) throw badConfig(SOURCE, [`${this.#architecture}.${key} is missing`]);
    return value;
  }

  text(key: string): string | null {
    const value = this.#metadata.get(`${this.#architecture}.${key}`);
    if (value === undefined) return null;
    if (typeof value !== 'string') throw badConfig(SOURCE, [`${this.#architecture}.${key} is not a text`]);
    return value;
  }
}

function ropeScaling(
  keys: Keys,
  contextLength: number,
  tensors: GgufFile['tensors'],
  rope: { ropeTheta: number; rotaryDim: number },
): RopeScaling {
  const factors = tensors.get('rope_freqs.weight');
  const type = keys.text('rope.scaling.type') ?? (keys.optional('rope.scale_linear') === null ? 'none' : 'linear');
  if (factors !== undefined) {
    if (type !== 'none') throw unsupportedConfig(SOURCE, 'rope_freqs.weight together with rope.scaling.type', type);
    return llama3Scaling(factors.readFloat32(), rope);
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
      throw unsupportedConfig(SOURCE, 'rope.scaling.type', type);
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
  if (!fits) throw unsupportedConfig(SOURCE, 'rope_freqs.weight', [...divisors.slice(0, 8)]);
  return factor === 1 ? { kind: 'none' } : { kind: 'llama3', factor, lowFreqFactor, highFreqFactor, originalContext };
}
