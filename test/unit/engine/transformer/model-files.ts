/** Writes small model files, byte by byte as their formats say, and knows where the test data may lie. */
import { existsSync, mkdirSync, mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { ELEMENT_TYPES } from '../../../../engine/transformer/dequant.ts';
import { fetchedPath } from '../../../../engine/transformer/fetch.ts';
import { toHalf } from '../../../../native/index.ts';
import { type QuantizedType, weightBlocks } from '../../../native/weight-blocks.ts';

const root = join(import.meta.dirname, '..', '..', '..', '..');
/** Test data beside the repository. */
export const sharedData = join(root, '..', 'shared', 'data');
export const hasSharedData = existsSync(sharedData);
export const referenceModel = join(root, 'models', 'reference');
export const smollmPath = fetchedPath('smollm2-135m', process.env.PALIMPSEST_CACHE ?? join(root, '.cache'));
export const hasSmollm = existsSync(smollmPath);

/** A folder that `remove` takes away again. */
export function temporaryFolder(): {
  dir: string;
  write(name: string, content: string | Uint8Array): string;
  remove(): void;
} {
  const dir = mkdtempSync(join(tmpdir(), 'palimpsest-model-'));
  return {
    dir,
    write(name, content) {
      const path = join(dir, name);
      mkdirSync(join(path, '..'), { recursive: true });
      writeFileSync(path, content);
      return path;
    },
    remove: () => rmSync(dir, { recursive: true, force: true }),
  };
}

export interface RawTensor {
  readonly dtype: string;
  readonly shape: readonly number[];
  readonly bytes: Uint8Array;
}

export const floats = (values: readonly number[]): Uint8Array => new Uint8Array(Float32Array.from(values).buffer);

/** header: replaces the true one, to lie in. */
export function safetensors(tensors: Readonly<Record<string, RawTensor>>, header?: string): Buffer {
  let at = 0;
  const entries = Object.entries(tensors).map(([name, { dtype, shape, bytes }]) => {
    const data_offsets = [at, (at += bytes.length)];
    return [name, { dtype, shape, data_offsets }];
  });
  const text = Buffer.from(header ?? JSON.stringify(Object.fromEntries(entries)));
  const length = Buffer.alloc(8);
  length.writeBigUInt64LE(BigInt(text.length));
  return Buffer.concat([length, text, ...Object.values(tensors).map(({ bytes }) => bytes)]);
}

/** Value with its GGUF type number. */
export type RawValue =
  | { readonly type: 'u32' | 'f32' | 'u64' | 'bool'; readonly value: number }
  | { readonly type: 'string'; readonly value: string }
  | { readonly type: 'strings'; readonly value: readonly string[] }
  | { readonly type: 'i32s' | 'f32s'; readonly value: readonly number[] }
  | { readonly type: 'raw'; readonly value: Buffer };

export interface RawGgufTensor {
  readonly name: string;
  /** In the file's order: columns first. */
  readonly sizes: readonly number[];
  readonly type: number;
  readonly bytes: Uint8Array;
  /** To lie with. */
  readonly offset?: number;
}

const u32 = (value: number): Buffer => {
  const bytes = Buffer.alloc(4);
  bytes.writeUInt32LE(value >>> 0);
  return bytes;
};
export const u64 = (value: number | bigint): Buffer => {
  const bytes = Buffer.alloc(8);
  bytes.writeBigUInt64LE(BigInt(value));
  return bytes;
};
const f32 = (value: number): Buffer => {
  const bytes = Buffer.alloc(4);
  bytes.writeFloatLE(value);
  return bytes;
};
const text = (value: string): Buffer => Buffer.concat([u64(Buffer.byteLength(value)), Buffer.from(value)]);

function ggufValue(given: RawValue): Buffer {
  switch (given.type) {
    case 'u32':
      return Buffer.concat([u32(4), u32(given.value)]);
    case 'f32':
      return Buffer.concat([u32(6), f32(given.value)]);
    case 'bool':
      return Buffer.concat([u32(7), Buffer.of(given.value)]);
    case 'u64':
      return Buffer.concat([u32(10), u64(given.value)]);
    case 'string':
      return Buffer.concat([u32(8), text(given.value)]);
    case 'strings':
      return Buffer.concat([u32(9), u32(8), u64(given.value.length), ...given.value.map(text)]);
    case 'i32s':
      return Buffer.concat([u32(9), u32(5), u64(given.value.length), ...given.value.map(u32)]);
    case 'f32s':
      return Buffer.concat([u32(9), u32(6), u64(given.value.length), ...given.value.map(f32)]);
    case 'raw':
      return given.value;
  }
}

export interface GgufParts {
  readonly magic?: string;
  readonly version?: number;
  readonly tensorCount?: number | bigint;
  readonly entryCount?: number | bigint;
  readonly metadata: readonly (readonly [string, RawValue])[];
  readonly tensors: readonly RawGgufTensor[];
  readonly alignment?: number;
  /** What tensors are padded to, where it is more than the alignment. */
  readonly spacing?: number;
}

export function gguf(parts: GgufParts): Buffer {
  const { metadata, tensors, alignment = 32, spacing = alignment } = parts;
  const padding = (bytes: number, to = spacing): Buffer => Buffer.alloc((to - (bytes % to)) % to);
  let offset = 0;
  const descriptions = tensors.map(({ name, sizes, type, bytes, offset: lie }) => {
    const start = lie ?? offset;
    offset += bytes.length + padding(bytes.length).length;
    return Buffer.concat([text(name), u32(sizes.length), ...sizes.map(u64), u32(type), u64(start)]);
  });
  const header = Buffer.concat([
    Buffer.from(parts.magic ?? 'GGUF'),
    u32(parts.version ?? 3),
    u64(parts.tensorCount ?? tensors.length),
    u64(parts.entryCount ?? metadata.length),
    ...metadata.map(([key, value]) => Buffer.concat([text(key), ggufValue(value)])),
    ...descriptions,
  ]);
  return Buffer.concat([
    header,
    padding(header.length, alignment),
    ...tensors.flatMap(({ bytes }) => [bytes, padding(bytes.length)]),
  ]);
}

/** Shape of the smallest model that has everything: 2 query heads on 1 key head of 4 channels, one layer. */
export const TINY = { width: 8, hidden: 16, vocab: 24, headDim: 4, queryHeads: 2, kvHeads: 1 } as const;

/** Seeded weights of the tiny model by Hugging Face name: shape and values. */
export function tinyWeights(
  random: () => number,
  { width: m, hidden: f, vocab, headDim: d, queryHeads, kvHeads }: Readonly<Record<keyof typeof TINY, number>> = TINY,
): Map<string, { shape: number[]; values: number[] }> {
  const layer = 'model.layers.0.';
  const shapes: [string, number[]][] = [
    ['model.embed_tokens.weight', [vocab, m]],
    ['model.norm.weight', [m]],
    ['lm_head.weight', [vocab, m]],
    [`${layer}input_layernorm.weight`, [m]],
    [`${layer}post_attention_layernorm.weight`, [m]],
    [`${layer}self_attn.q_proj.weight`, [queryHeads * d, m]],
    [`${layer}self_attn.k_proj.weight`, [kvHeads * d, m]],
    [`${layer}self_attn.v_proj.weight`, [kvHeads * d, m]],
    [`${layer}self_attn.o_proj.weight`, [m, queryHeads * d]],
    [`${layer}mlp.gate_proj.weight`, [f, m]],
    [`${layer}mlp.up_proj.weight`, [f, m]],
    [`${layer}mlp.down_proj.weight`, [m, f]],
  ];
  return new Map(
    shapes.map(([name, shape]) => {
      const values = Array.from({ length: shape.reduce((a, b) => a * b, 1) }, () => Math.fround(random() - 0.5));
      return [name, { shape, values }];
    }),
  );
}

export const tinyHfConfig: Readonly<Record<string, unknown>> = {
  model_type: 'llama',
  hidden_size: TINY.width,
  intermediate_size: TINY.hidden,
  num_hidden_layers: 1,
  num_attention_heads: TINY.queryHeads,
  num_key_value_heads: TINY.kvHeads,
  head_dim: TINY.headDim,
  vocab_size: TINY.vocab,
  max_position_embeddings: 64,
  rms_norm_eps: 1e-5,
  tie_word_embeddings: false,
  bos_token_id: 0,
  eos_token_id: 1,
};

const LETTERS = ['a', 'b', 'c', 'd', 'e', 'h', 'l', 'o', 'Ġ', '!', '<', '>', '/', 's'] as const;

export const tinyWords: readonly string[] = ['<s>', '</s>', ...LETTERS, 'he', 'll', 'hell', 'hello', 'Ġa'];
export const tinyMerges: readonly string[] = ['h e', 'l l', 'he ll', 'hell o', 'Ġ a'];

export const tinyTokenizerJson: Readonly<Record<string, unknown>> = {
  version: '1.0',
  added_tokens: ['<s>', '</s>'].map((content, id) => ({
    id,
    content,
    special: true,
    normalized: false,
    lstrip: false,
    rstrip: false,
    single_word: false,
  })),
  normalizer: null,
  pre_tokenizer: { type: 'ByteLevel', add_prefix_space: false, trim_offsets: true, use_regex: true },
  post_processor: null,
  decoder: { type: 'ByteLevel', add_prefix_space: false, trim_offsets: true, use_regex: true },
  model: { type: 'BPE', vocab: Object.fromEntries(tinyWords.map((word, id) => [word, id])), merges: tinyMerges },
};

export function tinySafetensors(random: () => number, header?: string): Buffer {
  const tensors = [...tinyWeights(random)].map(([name, { shape, values }]) => [
    name,
    { dtype: 'F32', shape, bytes: floats(values) },
  ]);
  return safetensors(Object.fromEntries(tensors), header);
}

const GGUF_NAMES: Readonly<Record<string, string>> = {
  'model.embed_tokens.weight': 'token_embd.weight',
  'model.norm.weight': 'output_norm.weight',
  'lm_head.weight': 'output.weight',
  'model.layers.0.input_layernorm.weight': 'blk.0.attn_norm.weight',
  'model.layers.0.post_attention_layernorm.weight': 'blk.0.ffn_norm.weight',
  'model.layers.0.self_attn.q_proj.weight': 'blk.0.attn_q.weight',
  'model.layers.0.self_attn.k_proj.weight': 'blk.0.attn_k.weight',
  'model.layers.0.self_attn.v_proj.weight': 'blk.0.attn_v.weight',
  'model.layers.0.self_attn.o_proj.weight': 'blk.0.attn_output.weight',
  'model.layers.0.mlp.gate_proj.weight': 'blk.0.ffn_gate.weight',
  'model.layers.0.mlp.up_proj.weight': 'blk.0.ffn_up.weight',
  'model.layers.0.mlp.down_proj.weight': 'blk.0.ffn_down.weight',
};

/** What the tiny model is as GGUF; `change` edits the metadata. */
export function tinyGgufParts(
  random: () => number,
  change: (metadata: Map<string, RawValue>) => void = () => {},
): GgufParts {
  const metadata = new Map<string, RawValue>([
    ['general.architecture', { type: 'string', value: 'llama' }],
    ['general.name', { type: 'string', value: 'tiny' }],
    ['llama.block_count', { type: 'u32', value: 1 }],
    ['llama.context_length', { type: 'u32', value: 64 }],
    ['llama.embedding_length', { type: 'u32', value: TINY.width }],
    ['llama.feed_forward_length', { type: 'u32', value: TINY.hidden }],
    ['llama.attention.head_count', { type: 'u32', value: TINY.queryHeads }],
    ['llama.attention.head_count_kv', { type: 'u32', value: TINY.kvHeads }],
    ['llama.attention.layer_norm_rms_epsilon', { type: 'f32', value: 1e-5 }],
    ['tokenizer.ggml.model', { type: 'string', value: 'gpt2' }],
    ['tokenizer.ggml.pre', { type: 'string', value: 'gpt-2' }],
    ['tokenizer.ggml.tokens', { type: 'strings', value: tinyWords }],
    ['tokenizer.ggml.token_type', { type: 'i32s', value: tinyWords.map((_, id) => (id < 2 ? 3 : 1)) }],
    ['tokenizer.ggml.merges', { type: 'strings', value: tinyMerges }],
    ['tokenizer.ggml.bos_token_id', { type: 'u32', value: 0 }],
    ['tokenizer.ggml.eos_token_id', { type: 'u32', value: 1 }],
  ]);
  change(metadata);
  const tensors = [...tinyWeights(random)].map(([name, { shape, values }]) => ({
    name: GGUF_NAMES[name]!,
    sizes: [...shape].reverse(),
    type: 0,
    bytes: floats(values),
  }));
  return { metadata: [...metadata], tensors };
}

/** The tiny model as a GGUF file. */
export const tinyGguf = (
  random: () => number,
  change?: (metadata: Map<string, RawValue>) => void,
  parts: Partial<GgufParts> = {},
): Buffer => gguf({ ...tinyGgufParts(random, change), ...parts });

/**
 * Types of 4 bits and fewer that are decoded when they are read: their number in a file, where a block has f16 numbers,
 * and the root mean square of weights where these are 1.
 */
export const SMALL_TYPES = {
  Q2_K: { number: 10, halves: [80, 82], spread: 13 },
  Q3_K: { number: 11, halves: [108], spread: 43 },
  IQ4_NL: { number: 20, halves: [0], spread: 67 },
  IQ4_XS: { number: 23, halves: [0], spread: 1250 },
  MXFP4: { number: 39, halves: [], spread: 2.9 },
} as const;
export type SmallType = keyof typeof SMALL_TYPES;

/**
 * Random blocks with scales of a few hundredths, f16 numbers of 2^-8 and exponents of 2^-7, or weights of about this
 * root mean square.
 */
export function smallBlocks(name: SmallType, values: number, random: () => number, rms?: number): Uint8Array {
  const { blockValues, blockBytes } = ELEMENT_TYPES.get(name)!;
  const bytes = Uint8Array.from({ length: (values / blockValues) * blockBytes }, () => Math.floor(random() * 256));
  const { halves, spread } = SMALL_TYPES[name];
  const scale = rms === undefined ? 0x1c00 : toHalf(Float32Array.of(rms / spread))[0]!;
  const exponent = rms === undefined ? 120 : 127 + Math.round(Math.log2(rms / spread));
  for (let at = 0; at < bytes.length; at += blockBytes) {
    for (const half of halves) new DataView(bytes.buffer).setUint16(at + half, scale, true);
    if (name === 'MXFP4') bytes[at] = exponent;
  }
  return bytes;
}

/** The numbers in a file of the types that the dense half packs as they are. */
const PACKED_TYPES: Readonly<Record<QuantizedType, number>> = {
  ...{ Q4_0: 2, Q4_1: 3, Q5_0: 6, Q5_1: 7, Q8_0: 8 },
  ...{ Q4_K: 12, Q5_K: 13, Q6_K: 14 },
};

/** All types of fewer than 16 bits that are read. */
export const BLOCK_TYPES = [...Object.keys(SMALL_TYPES), ...Object.keys(PACKED_TYPES)] as (SmallType | QuantizedType)[];

const isSmall = (name: SmallType | QuantizedType): name is SmallType => Object.hasOwn(SMALL_TYPES, name);

/** A model as tiny as whole blocks of 256 allow, its matrices in one of these types. */
export function blockTypeGguf(name: SmallType | QuantizedType, random: () => number): Buffer {
  const shape = { width: 256, hidden: 256, vocab: TINY.vocab, headDim: 64, queryHeads: 4, kvHeads: 1 };
  const change = (metadata: Map<string, RawValue>): void => {
    metadata.set('llama.embedding_length', { type: 'u32', value: shape.width });
    metadata.set('llama.feed_forward_length', { type: 'u32', value: shape.hidden });
    metadata.set('llama.attention.head_count', { type: 'u32', value: shape.queryHeads });
    metadata.set('llama.attention.head_count_kv', { type: 'u32', value: shape.kvHeads });
  };
  const tensors = [...tinyWeights(random, shape)].map(([key, { shape: sizes, values }]) => ({
    name: GGUF_NAMES[key]!,
    sizes: [...sizes].reverse(),
    ...(sizes.length < 2
      ? { type: 0, bytes: floats(values) }
      : isSmall(name)
        ? { type: SMALL_TYPES[name].number, bytes: smallBlocks(name, values.length, random) }
        : { type: PACKED_TYPES[name], bytes: weightBlocks(random, name, values.length, 0.05) }),
  }));
  return tinyGguf(random, change, { tensors });
}
