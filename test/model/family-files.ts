/**
 * The small models of test/golden/families as files: weights made from the names of tensors as
 * scripts/golden-families.py makes them, in a Hugging Face folder, and in GGUF under the names and in the order that
 * llama.cpp's converter gives them.
 */
import { readdirSync, readFileSync } from 'node:fs';
import { join } from 'node:path';
import {
  floats,
  type GgufParts,
  type RawGgufTensor,
  type RawValue,
  safetensors,
  tinyMerges,
  tinyTokenizerJson,
  tinyWords,
} from '../unit/engine/transformer/model-files.ts';
import type { Golden } from './golden.ts';

const FOLDER = join(import.meta.dirname, '..', 'golden', 'families');

/** Keys of config.json; numbers unless the key says otherwise. */
export type HfKeys = Readonly<Record<string, unknown>> & { readonly model_type: string };

export interface FamilyGolden extends Pick<Golden, 'rows'> {
  readonly config: HfKeys;
  /** What is taken from gains in the Hugging Face checkpoint. */
  readonly gainOffset: number;
  readonly tensors: readonly (readonly [name: string, shape: readonly number[]])[];
}

export const FAMILY_NAMES: readonly string[] = readdirSync(FOLDER).map((file) => file.replace('.json', ''));

export const readFamily = (name: string): FamilyGolden =>
  JSON.parse(readFileSync(join(FOLDER, `${name}.json`), 'utf8'));

/** The 24-bit numbers of scripts/golden-families.py. */
function hashes(name: string, count: number): Uint32Array {
  let seed = 2166136261;
  for (const byte of Buffer.from(name)) seed = Math.imul(seed ^ byte, 16777619);
  return Uint32Array.from({ length: count }, (_, i) => {
    let h = (Math.imul(i, 0x9e3779b1) + seed) >>> 0;
    h = Math.imul(h ^ (h >>> 16), 0x85ebca6b);
    h = Math.imul(h ^ (h >>> 13), 0xc2b2ae35);
    return (h ^ (h >>> 16)) >>> 8;
  });
}

/** The tokens that every model reads. */
export const familyTokens = (count: number): number[] => [...hashes('tokens', count)].map((hash) => hash % 256);

function weightsOf(name: string, shape: readonly number[], gainOffset: number): Float32Array {
  const isGain = name.includes('norm');
  const width =
    isGain || name.endsWith('.bias') ? 0.25 : name.includes('embed_tokens') ? 1 : 1.5 * Math.sqrt(3 / shape.at(-1)!);
  const count = shape.reduce((product, size) => product * size, 1);
  return Float32Array.from(hashes(name, count), (hash) => width * (hash / 2 ** 23 - 1) + (isGain ? gainOffset : 0));
}

interface Named {
  readonly name: string;
  readonly shape: readonly number[];
  readonly values: Float32Array;
}

/** The matrices of every expert, which the golden files have in one tensor [experts, rows, columns]. */
function expertsOf({ shape, values }: Named, each: readonly string[]): (Named & { readonly expert: number })[] {
  const [experts, rows, columns] = shape as [number, number, number];
  const own = [rows / each.length, columns] as const;
  return Array.from({ length: experts * each.length }, (_, i) => ({
    name: each[i % each.length]!,
    expert: Math.floor(i / each.length),
    shape: own,
    values: values.slice(i * own[0] * columns, (i + 1) * own[0] * columns),
  }));
}

const STACKED: Readonly<Record<string, readonly string[]>> = {
  'mlp.experts.gate_up_proj': ['gate', 'up'],
  'mlp.experts.down_proj': ['down'],
};
const LAYER = /^(model\.layers\.\d+\.)(.*)$/;
const MIXTRAL: Readonly<Record<string, string>> = { gate: 'w1', up: 'w3', down: 'w2' };

/** A tensor as checkpoints on the Hub have it. */
function onHub({ model_type: type }: HfKeys, tensor: Named): Named[] {
  const [, layer, part] = LAYER.exec(tensor.name) ?? [];
  const isMixtral = type === 'mixtral';
  const stacked = part === undefined ? undefined : STACKED[part];
  if (stacked !== undefined)
    return expertsOf(tensor, stacked).map(({ name, expert, ...rest }) => ({
      name: `${layer}${isMixtral ? `block_sparse_moe.experts.${expert}.${MIXTRAL[name]}` : `mlp.experts.${expert}.${name}_proj`}.weight`,
      ...rest,
    }));
  if (part === 'mlp.gate.weight' && isMixtral) return [{ ...tensor, name: `${layer}block_sparse_moe.gate.weight` }];
  return [tensor];
}

/** File name → content. experts: as on the Hub, or stacked as in the golden files. */
export function hfFiles(
  { config, tensors, gainOffset }: FamilyGolden,
  {
    nameOf = (name: string): string => name,
    more = {} as Readonly<Record<string, readonly number[]>>,
    experts = 'single' as 'single' | 'stacked',
  } = {},
): Record<string, string | Uint8Array> {
  const made = [...tensors, ...Object.entries(more)].map(
    ([name, shape]): Named => ({ name, shape, values: weightsOf(name, shape, gainOffset) }),
  );
  const raw = made
    .flatMap((tensor) => (experts === 'single' ? onHub(config, tensor) : [tensor]))
    .map(({ name, shape, values }) => {
      const bytes = new Uint8Array(values.buffer);
      return [Object.hasOwn(more, name) ? name : nameOf(name), { dtype: 'F32', shape, bytes }] as const;
    });
  return {
    'config.json': JSON.stringify(config),
    'tokenizer.json': JSON.stringify(tinyTokenizerJson),
    'model.safetensors': safetensors(Object.fromEntries(raw)),
  };
}

const TOP: Readonly<Record<string, string>> = {
  'model.embed_tokens': 'token_embd',
  'model.norm': 'output_norm',
  lm_head: 'output',
};
const PARTS: Readonly<Record<string, string>> = {
  input_layernorm: 'attn_norm',
  post_attention_layernorm: 'ffn_norm',
  'self_attn.q_proj': 'attn_q',
  'self_attn.k_proj': 'attn_k',
  'self_attn.v_proj': 'attn_v',
  'self_attn.o_proj': 'attn_output',
  'self_attn.qkv_proj': 'attn_qkv',
  'self_attn.q_norm': 'attn_q_norm',
  'self_attn.k_norm': 'attn_k_norm',
  'mlp.gate_proj': 'ffn_gate',
  'mlp.up_proj': 'ffn_up',
  'mlp.gate_up_proj': 'ffn_up',
  'mlp.down_proj': 'ffn_down',
  'mlp.gate': 'ffn_gate_inp',
};
/** Where the norm that Llama has before the feed-forward half is the one after attention. */
const POST_PARTS = {
  ...PARTS,
  post_attention_layernorm: 'post_attention_norm',
  pre_feedforward_layernorm: 'ffn_norm',
  post_feedforward_layernorm: 'post_ffw_norm',
};

interface Conversion {
  readonly architecture: string;
  readonly parts?: Readonly<Record<string, string>>;
  /** Rows of q and k are reordered for pairs (2i, 2i + 1). */
  readonly permuted?: boolean;
  /** What the converter adds to gains. */
  readonly gains?: number;
  metadata?(config: HfKeys): Record<string, RawValue>;
  tensors?(config: HfKeys): RawGgufTensor[];
}

const f32 = (value: unknown): RawValue => ({ type: 'f32', value: Number(value) });
const u32 = (value: unknown): RawValue => ({ type: 'u32', value: Number(value) });
const vector = (name: string, values: readonly number[]): RawGgufTensor => ({
  ...{ name, sizes: [values.length], type: 0, bytes: floats(values) },
});

interface Scaling {
  readonly factor: number;
  readonly low_freq_factor: number;
  readonly high_freq_factor: number;
  readonly original_max_position_embeddings: number;
  readonly short_factor: readonly number[];
  readonly long_factor: readonly number[];
}
const scalingOf = ({ rope_scaling }: HfKeys): Scaling => rope_scaling as Scaling;

/** Llama 3's bands as one divisor for each pair. */
function bands(config: HfKeys): number[] {
  const { factor, low_freq_factor: low, high_freq_factor: high, ...rest } = scalingOf(config);
  const dim = Number(config['head_dim']);
  return Array.from({ length: dim / 2 }, (_, pair) => {
    const wavelength = 2 * Math.PI * Number(config['rope_theta']) ** ((2 * pair) / dim);
    const turns = rest.original_max_position_embeddings / wavelength;
    if (turns > high) return 1;
    if (turns < low) return factor;
    const smooth = (turns - low) / (high - low);
    return 1 / ((1 - smooth) / factor + smooth);
  });
}

const phi3: Conversion = {
  architecture: 'phi3',
  metadata(config) {
    const [positions, original] = ['max_position_embeddings', 'original_max_position_embeddings'].map((key) =>
      Number(config[key]),
    );
    return {
      'rope.scaling.original_context_length': u32(original),
      'rope.scaling.attn_factor': f32(Math.sqrt(1 + Math.log(positions! / original!) / Math.log(original!))),
      'attention.sliding_window': u32(config['sliding_window'] ?? 0),
    };
  },
  tensors: (config) => [
    vector('rope_factors_long.weight', scalingOf(config).long_factor),
    vector('rope_factors_short.weight', scalingOf(config).short_factor),
  ],
};

const CONVERSIONS: Readonly<Record<string, Conversion>> = {
  llama: { architecture: 'llama', permuted: true, tensors: (config) => [vector('rope_freqs.weight', bands(config))] },
  mistral: {
    architecture: 'llama',
    permuted: true,
    metadata: (config) => ({ 'attention.sliding_window': u32(config['sliding_window']) }),
  },
  mixtral: {
    architecture: 'llama',
    permuted: true,
    metadata: (config) => ({
      'attention.sliding_window': u32(config['sliding_window']),
      expert_count: u32(config['num_local_experts']),
      expert_used_count: u32(config['num_experts_per_tok']),
    }),
  },
  qwen3_moe: {
    architecture: 'qwen3moe',
    metadata: (config) => ({
      expert_count: u32(config['num_experts']),
      expert_used_count: u32(config['num_experts_per_tok']),
      expert_feed_forward_length: u32(config['moe_intermediate_size']),
      ...(config['norm_topk_prob'] === true ? {} : { expert_weights_norm: { type: 'bool', value: 0 } as const }),
    }),
  },
  qwen2: { architecture: 'qwen2' },
  qwen3: { architecture: 'qwen3' },
  smollm3: { architecture: 'smollm3', permuted: true },
  phi3,
  granite: {
    architecture: 'granite',
    permuted: true,
    metadata: (config) => ({
      embedding_scale: f32(config['embedding_multiplier']),
      'attention.scale': f32(config['attention_multiplier']),
      residual_scale: f32(config['residual_multiplier']),
      logit_scale: f32(config['logits_scaling']),
    }),
  },
  olmo2: { architecture: 'olmo2', parts: POST_PARTS },
  gemma2: {
    architecture: 'gemma2',
    parts: POST_PARTS,
    gains: 1,
    metadata: (config) => ({
      'attention.sliding_window': u32(config['sliding_window']),
      attn_logit_softcapping: f32(config['attn_logit_softcapping']),
      final_logit_softcapping: f32(config['final_logit_softcapping']),
    }),
  },
  gemma3_text: {
    architecture: 'gemma3',
    parts: POST_PARTS,
    gains: 1,
    metadata: (config) => ({
      'attention.sliding_window': u32(config['sliding_window']),
      'attention.sliding_window_pattern': u32(config['sliding_window_pattern']),
      'rope.scaling.type': { type: 'string', value: 'linear' },
      'rope.scaling.factor': f32(scalingOf(config).factor),
    }),
  },
};

/** Row h·d + 2i + j of the result is row h·d + j·d/2 + i. */
function permute(values: Float32Array, headDim: number, columns: number): Float32Array {
  const permuted = new Float32Array(values.length);
  for (let row = 0; row * columns < values.length; row++) {
    const [head, at] = [Math.floor(row / headDim) * headDim, row % headDim];
    const from = head + (at % 2) * (headDim / 2) + Math.floor(at / 2);
    permuted.set(values.subarray(from * columns, (from + 1) * columns), row * columns);
  }
  return permuted;
}

/** A tensor for each expert, as older files have it, or one for all. */
function ggufExperts(layer: string, stacked: readonly string[], tensor: Named, isSingle: boolean): RawGgufTensor[] {
  const all = expertsOf(tensor, stacked);
  const bytesOf = (of: readonly Named[]): Uint8Array =>
    Buffer.concat(of.map(({ values }) => new Uint8Array(values.buffer)));
  const one = (name: string, sizes: readonly number[], of: readonly Named[]): RawGgufTensor => ({
    ...{ name: `blk.${layer}.${name}.weight`, sizes: [...sizes].reverse(), type: 0, bytes: bytesOf(of) },
  });
  if (isSingle) return all.map((matrix) => one(`ffn_${matrix.name}.${matrix.expert}`, matrix.shape, [matrix]));
  return stacked.map((name) => {
    const own = all.filter((matrix) => matrix.name === name);
    return one(`ffn_${name}_exps`, [own.length, ...own[0]!.shape], own);
  });
}

/** The low-rank factors of a matrix, by its name in a Hugging Face checkpoint: A [rank, inputs], B [outputs, rank]. */
export interface LowRank {
  readonly module: string;
  readonly rank: number;
  readonly a: Float32Array;
  readonly b: Float32Array;
}

/** An adapter as llama.cpp's converter writes it: rows of B in the order that it gives those of the matrix. */
export function ggufAdapterParts({ config }: FamilyGolden, factors: readonly LowRank[], alpha: number): GgufParts {
  const { architecture, parts = PARTS, permuted = false } = CONVERSIONS[config.model_type]!;
  const headDim = Number(config['head_dim'] ?? Number(config['hidden_size']) / Number(config['num_attention_heads']));
  return {
    metadata: [
      ['general.architecture', { type: 'string', value: architecture }],
      ['general.type', { type: 'string', value: 'adapter' }],
      ['adapter.type', { type: 'string', value: 'lora' }],
      ['adapter.lora.alpha', f32(alpha)],
    ],
    tensors: factors.flatMap(({ module, rank, a, b }): RawGgufTensor[] => {
      const [, layer, part] = /^model\.layers\.(\d+)\.(.*)$/.exec(module)!;
      const name = `blk.${layer}.${parts[part!]}.weight`;
      const rows = permuted && /[qk]_proj$/.test(module) ? permute(b, headDim, rank) : b;
      return [
        { name: `${name}.lora_a`, sizes: [a.length / rank, rank], type: 0, bytes: new Uint8Array(a.buffer) },
        { name: `${name}.lora_b`, sizes: [rank, b.length / rank], type: 0, bytes: new Uint8Array(rows.buffer) },
      ];
    }),
  };
}

/** What `gguf` writes. */
export function ggufParts(
  { config, tensors, gainOffset }: FamilyGolden,
  { experts = 'stacked' as 'single' | 'stacked' } = {},
): GgufParts {
  const conversion = CONVERSIONS[config.model_type]!;
  const { architecture, parts = PARTS, permuted = false, gains = 0 } = conversion;
  const [width, heads] = [Number(config['hidden_size']), Number(config['num_attention_heads'])];
  const headDim = Number(config['head_dim'] ?? width / heads);
  const own: Record<string, RawValue> = {
    block_count: u32(config['num_hidden_layers']),
    context_length: u32(config['max_position_embeddings']),
    embedding_length: u32(width),
    feed_forward_length: u32(config['intermediate_size']),
    'attention.head_count': u32(heads),
    'attention.head_count_kv': u32(config['num_key_value_heads']),
    'attention.layer_norm_rms_epsilon': f32(config['rms_norm_eps']),
    'attention.key_length': u32(headDim),
    'attention.value_length': u32(headDim),
    'rope.freq_base': f32(config['rope_theta']),
    'rope.dimension_count': u32(headDim * Number(config['partial_rotary_factor'] ?? 1)),
    ...conversion.metadata?.(config),
  };
  const metadata: [string, RawValue][] = [
    ['general.architecture', { type: 'string', value: architecture }],
    ...Object.entries(own).map(([key, value]): [string, RawValue] => [`${architecture}.${key}`, value]),
    ['tokenizer.ggml.model', { type: 'string', value: 'gpt2' }],
    ['tokenizer.ggml.pre', { type: 'string', value: 'gpt-2' }],
    ['tokenizer.ggml.tokens', { type: 'strings', value: tinyWords }],
    ['tokenizer.ggml.token_type', { type: 'i32s', value: tinyWords.map((_, id) => (id < 2 ? 3 : 1)) }],
    ['tokenizer.ggml.merges', { type: 'strings', value: tinyMerges }],
    ['tokenizer.ggml.bos_token_id', u32(0)],
    ['tokenizer.ggml.eos_token_id', u32(1)],
  ];
  const converted = tensors.flatMap(([name, shape]): RawGgufTensor | RawGgufTensor[] => {
    const [, stackedLayer, stacked] = /^model\.layers\.(\d+)\.(mlp\.experts\..*)$/.exec(name) ?? [];
    if (stackedLayer !== undefined) {
      const tensor = { name, shape, values: weightsOf(name, shape, gainOffset) };
      return ggufExperts(stackedLayer, STACKED[stacked!]!, tensor, experts === 'single');
    }
    const [, stem, kind] = /^(.*)\.(weight|bias)$/.exec(name)!;
    const [, layer, part] = /^model\.layers\.(\d+)\.(.*)$/.exec(stem!) ?? [];
    let values = weightsOf(name, shape, gainOffset);
    if (name.includes('norm')) values = values.map((value) => value + gains);
    if (permuted && /[qk]_proj$/.test(stem!)) values = permute(values, headDim, shape[1] ?? 1);
    return {
      name: `${part === undefined ? TOP[stem!] : `blk.${layer}.${parts[part]}`}.${kind}`,
      sizes: [...shape].reverse(),
      type: 0,
      bytes: new Uint8Array(values.buffer),
    };
  });
  return { metadata, tensors: [...converted, ...(conversion.tensors?.(config) ?? [])] };
}
