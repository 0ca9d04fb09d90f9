/**
 * Writes models with random weights as GGUF files that both engines can read. Their output is nonsense, but they are as
 * fast as trained models: no kernel looks at what a weight says. Weights have variance 1/inputs, so that activations
 * neither vanish nor overflow. Blocks are random bytes behind scales of our choice, as no quantizer would write them.
 */
import { existsSync, mkdirSync, renameSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { toHalf } from '../../../native/index.ts';
import { gguf, type RawGgufTensor, type RawValue } from '../../../test/unit/engine/transformer/model-files.ts';
import { type Shape, shapeName } from '../shapes.ts';

export const RANDOM_LAYERS = 8;
const CONTEXT = 65_536;
const F32 = 0;

/**
 * A type of blocks: its number in a file, the weights and bytes of a block, and where its f16 numbers stand. A number
 * is the given factor times 1/√inputs. With random bytes behind them the weights then have mean 0 and variance
 * 1/inputs:
 *   Q8_0  codes of −128..127 have a standard deviation of 73.9
 *   Q4_K  s·q − 7.5·t, with s and t of 0..63 and q of 0..15, has one of 258
 *   Q6_K  s·(q − 32), with s of −128..127 and q of 0..63, has one of 1366
 */
const TYPES = {
  Q8_0: { number: 8, values: 32, bytes: 34, halves: [[0, 1 / 73.9]] },
  Q4_K: {
    number: 12,
    values: 256,
    bytes: 144,
    halves: [
      [0, 1 / 258],
      [2, 7.5 / 258],
    ],
  },
  Q6_K: { number: 14, values: 256, bytes: 210, halves: [[208, 1 / 1366]] },
} as const;
type Type = keyof typeof TYPES;

export interface RandomSpec {
  /** The name of the file, without its extension. */
  readonly name: string;
  readonly architecture: 'llama' | 'qwen2';
  readonly shape: Shape;
  readonly layers: number;
  /** The intermediate size. */
  readonly wide: number;
  readonly vocab: number;
  /** The type of a matrix (attn_q, ffn_down, …, token_embd) of a layer. */
  readonly typeOf: (matrix: string, layer: number) => Type;
}

const hiddenOf = ({ queryHeads, headDim }: Shape): number => queryHeads * headDim;

/**
 * A small Llama in Q8_0. Its intermediate size is 2.75 times the hidden size, as in many models, rounded to whole
 * blocks.
 */
export const smallLlama = (shape: Shape): RandomSpec => ({
  name: `random-llama-${shapeName(shape).replace('/', '-')}`,
  architecture: 'llama',
  shape,
  layers: RANDOM_LAYERS,
  wide: Math.ceil((hiddenOf(shape) * 2.75) / 256) * 256,
  vocab: 32_000,
  typeOf: () => 'Q8_0',
});

/**
 * The sizes of Llama 3.2 1B, in the mixture that llama.cpp calls Q4_K_M: Q6_K for the embedding, and for V and down in
 * the layers that it holds for sensitive.
 */
const LLAMA_1B_LAYERS = 16;
export const LLAMA_1B: RandomSpec = {
  name: 'random-llama-1b-q4_k_m',
  architecture: 'llama',
  shape: { queryHeads: 32, kvHeads: 8, headDim: 64 },
  layers: LLAMA_1B_LAYERS,
  wide: 8192,
  vocab: 128_256,
  typeOf: (matrix, layer) => {
    if (matrix === 'token_embd') return 'Q6_K';
    const eighth = LLAMA_1B_LAYERS / 8;
    const isSensitive = layer < eighth || layer >= 7 * eighth || (layer - eighth) % 3 === 2;
    return isSensitive && (matrix === 'attn_v' || matrix === 'ffn_down') ? 'Q6_K' : 'Q4_K';
  },
};

/** The sizes of Qwen2.5 0.5B, whose q, k and v have a bias, in Q8_0. */
export const QWEN_HALF_B: RandomSpec = {
  name: 'random-qwen2-0.5b-q8_0',
  architecture: 'qwen2',
  shape: { queryHeads: 14, kvHeads: 2, headDim: 64 },
  layers: 24,
  wide: 4864,
  vocab: 151_936,
  typeOf: () => 'Q8_0',
};

/** The sizes of SmolLM2 135M in Q8_0, with a longer context. */
export const SMOLLM2_LONG: RandomSpec = {
  name: 'random-smollm2-135m-q8_0',
  architecture: 'llama',
  shape: { queryHeads: 9, kvHeads: 3, headDim: 64 },
  layers: 30,
  wide: 1536,
  vocab: 49_152,
  typeOf: () => 'Q8_0',
};

/** Writes a model into the folder, unless it is there already, and returns its path. */
export function randomModel(spec: RandomSpec, folder: string): string {
  const file = join(folder, `${spec.name}.gguf`);
  if (existsSync(file)) return file;
  mkdirSync(folder, { recursive: true });
  const unfinished = `${file}.${process.pid}`;
  writeFileSync(unfinished, gguf({ metadata: metadata(spec), tensors: tensors(spec) }));
  renameSync(unfinished, file);
  return file;
}

function metadata({ name, architecture, shape, layers, wide, vocab }: RandomSpec): (readonly [string, RawValue])[] {
  const u32 = (value: number): RawValue => ({ type: 'u32', value });
  const bytes = Array.from({ length: 256 }, (_, byte) => `<0x${byte.toString(16).toUpperCase().padStart(2, '0')}>`);
  const special = ['<unk>', '<s>', '</s>', ...bytes];
  const words = [...special, ...Array.from({ length: vocab - special.length }, (_, i) => `w${i}`)];
  return [
    ['general.architecture', { type: 'string', value: architecture }],
    ['general.name', { type: 'string', value: name }],
    [`${architecture}.block_count`, u32(layers)],
    [`${architecture}.context_length`, u32(CONTEXT)],
    [`${architecture}.embedding_length`, u32(hiddenOf(shape))],
    [`${architecture}.feed_forward_length`, u32(wide)],
    [`${architecture}.attention.head_count`, u32(shape.queryHeads)],
    [`${architecture}.attention.head_count_kv`, u32(shape.kvHeads)],
    [`${architecture}.rope.dimension_count`, u32(shape.headDim)],
    [`${architecture}.vocab_size`, u32(vocab)],
    [`${architecture}.attention.layer_norm_rms_epsilon`, { type: 'f32', value: 1e-5 }],
    [`${architecture}.rope.freq_base`, { type: 'f32', value: 10_000 }],
    ['tokenizer.ggml.model', { type: 'string', value: 'llama' }],
    ['tokenizer.ggml.tokens', { type: 'strings', value: words }],
    ['tokenizer.ggml.scores', { type: 'f32s', value: words.map((_, id) => -id) }],
    [
      'tokenizer.ggml.token_type',
      { type: 'i32s', value: words.map((_, id) => (id === 0 ? 2 : id < 3 ? 3 : id < 259 ? 6 : 1)) },
    ],
    ['tokenizer.ggml.bos_token_id', u32(1)],
    ['tokenizer.ggml.eos_token_id', u32(2)],
    ['tokenizer.ggml.unknown_token_id', u32(0)],
  ];
}

function tensors({ architecture, shape, layers, wide, vocab, typeOf }: RandomSpec): RawGgufTensor[] {
  const hidden = hiddenOf(shape);
  const kv = shape.kvHeads * shape.headDim;
  let seed = 1;
  const matrix = (at: number, name: string, inputs: number, outputs: number): RawGgufTensor => {
    const type = typeOf(name, at);
    return {
      name: `${at < 0 ? '' : `blk.${at}.`}${name}.weight`,
      sizes: [inputs, outputs],
      type: TYPES[type].number,
      bytes: randomBlocks(type, inputs * outputs, inputs, seed++),
    };
  };
  const filled = (name: string, size: number, value: number): RawGgufTensor => ({
    name,
    sizes: [size],
    type: F32,
    bytes: new Uint8Array(new Float32Array(size).fill(value).buffer),
  });
  const projection = (at: number, name: string, outputs: number): RawGgufTensor[] => [
    matrix(at, name, hidden, outputs),
    ...(architecture === 'qwen2' ? [filled(`blk.${at}.${name}.bias`, outputs, 0.125)] : []),
  ];
  const layer = (at: number): RawGgufTensor[] => [
    filled(`blk.${at}.attn_norm.weight`, hidden, 1),
    ...projection(at, 'attn_q', hidden),
    ...projection(at, 'attn_k', kv),
    ...projection(at, 'attn_v', kv),
    matrix(at, 'attn_output', hidden, hidden),
    filled(`blk.${at}.ffn_norm.weight`, hidden, 1),
    matrix(at, 'ffn_gate', hidden, wide),
    matrix(at, 'ffn_up', hidden, wide),
    matrix(at, 'ffn_down', wide, hidden),
  ];
  return [
    matrix(-1, 'token_embd', hidden, vocab),
    filled('output_norm.weight', hidden, 1),
    ...Array.from({ length: layers }, (_, at) => layer(at)).flat(),
  ];
}

function randomBlocks(type: Type, elements: number, inputs: number, seed: number): Uint8Array {
  const { values, bytes: blockBytes, halves } = TYPES[type];
  const blocks = elements / values;
  const words = new Int32Array(Math.ceil((blocks * blockBytes) / 4));
  // xorshift is fast, and random enough for weights that mean nothing.
  let state = seed * 0x9e3779b9;
  for (let i = 0; i < words.length; i++) {
    state ^= state << 13;
    state ^= state >>> 17;
    state ^= state << 5;
    words[i] = state;
  }
  const bytes = new Uint8Array(words.buffer, 0, blocks * blockBytes);
  for (const [place, factor] of halves) {
    const [scale] = toHalf(Float32Array.of(factor / Math.sqrt(inputs)));
    for (let at = place; at < bytes.length; at += blockBytes) {
      bytes[at] = scale! & 255;
      bytes[at + 1] = scale! >> 8;
    }
  }
  return bytes;
}
