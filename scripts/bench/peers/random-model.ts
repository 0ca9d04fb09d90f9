/**
 * Writes a Llama model with random 8-bit weights as a GGUF file that both engines can read. Its output is nonsense, but it is as fast as a
 * trained model. Weights are uniform with variance 1/inputs, so that activations neither vanish nor overflow.
 */
import { existsSync, mkdirSync, renameSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { toHalf } from '../../../native/index.ts';
import { gguf, type RawGgufTensor, type RawValue } from '../../../test/unit/engine/model/model-files.ts';
import { type Shape, shapeName } from '../shapes.ts';

export const RANDOM_LAYERS = 8;
const VOCAB = 32_000;
const CONTEXT = 65_536;
const Q8_0 = 8;
const F32 = 0;
/** The elements of a Q8_0 block and its bytes, which are an f16 scale and the codes. */
const BLOCK = 32;
const BLOCK_BYTES = 34;
/** The standard deviation of a code that is uniform over −128..127. */
const CODE_DEVIATION = 73.9;

/** Writes the model of a shape into the folder, unless it is there already, and returns its path. */
export function randomModel(shape: Shape, folder: string): string {
  const file = join(folder, `random-llama-${shapeName(shape).replace('/', '-')}.gguf`);
  if (existsSync(file)) return file;
  mkdirSync(folder, { recursive: true });
  const unfinished = `${file}.${process.pid}`;
  writeFileSync(unfinished, gguf({ metadata: metadata(shape), tensors: tensors(shape) }));
  renameSync(unfinished, file);
  return file;
}

const hiddenOf = ({ queryHeads, headDim }: Shape): number => queryHeads * headDim;
/** The intermediate size: 2.75 times the hidden size, as in many models, rounded to whole blocks. */
const feedForward = (shape: Shape): number => Math.ceil((hiddenOf(shape) * 2.75) / 256) * 256;

function metadata(shape: Shape): (readonly [string, RawValue])[] {
  const u32 = (value: number): RawValue => ({ type: 'u32', value });
  const bytes = Array.from({ length: 256 }, (_, byte) => `<0x${byte.toString(16).toUpperCase().padStart(2, '0')}>`);
  const special = ['<unk>', '<s>', '</s>', ...bytes];
  const words = [...special, ...Array.from({ length: VOCAB - special.length }, (_, i) => `w${i}`)];
  return [
    ['general.architecture', { type: 'string', value: 'llama' }],
    ['general.name', { type: 'string', value: `random ${shapeName(shape)}` }],
    ['llama.block_count', u32(RANDOM_LAYERS)],
    ['llama.context_length', u32(CONTEXT)],
    ['llama.embedding_length', u32(hiddenOf(shape))],
    ['llama.feed_forward_length', u32(feedForward(shape))],
    ['llama.attention.head_count', u32(shape.queryHeads)],
    ['llama.attention.head_count_kv', u32(shape.kvHeads)],
    ['llama.rope.dimension_count', u32(shape.headDim)],
    ['llama.vocab_size', u32(VOCAB)],
    ['llama.attention.layer_norm_rms_epsilon', { type: 'f32', value: 1e-5 }],
    ['llama.rope.freq_base', { type: 'f32', value: 10_000 }],
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

function tensors(shape: Shape): RawGgufTensor[] {
  const hidden = hiddenOf(shape);
  const kv = shape.kvHeads * shape.headDim;
  const wide = feedForward(shape);
  let seed = 1;
  const matrix = (name: string, inputs: number, outputs: number): RawGgufTensor => ({
    name: `${name}.weight`,
    sizes: [inputs, outputs],
    type: Q8_0,
    bytes: randomBlocks(inputs * outputs, inputs, seed++),
  });
  const ones = (name: string): RawGgufTensor => ({
    name: `${name}.weight`,
    sizes: [hidden],
    type: F32,
    bytes: new Uint8Array(new Float32Array(hidden).fill(1).buffer),
  });
  const layer = (at: number): RawGgufTensor[] => [
    ones(`blk.${at}.attn_norm`),
    matrix(`blk.${at}.attn_q`, hidden, hidden),
    matrix(`blk.${at}.attn_k`, hidden, kv),
    matrix(`blk.${at}.attn_v`, hidden, kv),
    matrix(`blk.${at}.attn_output`, hidden, hidden),
    ones(`blk.${at}.ffn_norm`),
    matrix(`blk.${at}.ffn_gate`, hidden, wide),
    matrix(`blk.${at}.ffn_up`, hidden, wide),
    matrix(`blk.${at}.ffn_down`, wide, hidden),
  ];
  return [
    matrix('token_embd', hidden, VOCAB),
    ones('output_norm'),
    ...Array.from({ length: RANDOM_LAYERS }, (_, at) => layer(at)).flat(),
  ];
}

function randomBlocks(elements: number, inputs: number, seed: number): Uint8Array {
  const blocks = elements / BLOCK;
  const words = new Int32Array(Math.ceil((blocks * BLOCK_BYTES) / 4));
  // xorshift is fast, and random enough for weights that mean nothing.
  let state = seed * 0x9e3779b9;
  for (let i = 0; i < words.length; i++) {
    state ^= state << 13;
    state ^= state >>> 17;
    state ^= state << 5;
    words[i] = state;
  }
  const bytes = new Uint8Array(words.buffer, 0, blocks * BLOCK_BYTES);
  const [scale] = toHalf(Float32Array.of(1 / (CODE_DEVIATION * Math.sqrt(inputs))));
  for (let at = 0; at < bytes.length; at += BLOCK_BYTES) {
    bytes[at] = scale! & 255;
    bytes[at + 1] = scale! >> 8;
  }
  return bytes;
}
