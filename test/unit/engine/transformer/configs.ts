/** Configurations in both notations, as the tests of this folder change them. */
import { ggufModel } from '../../../../engine/transformer/config-gguf.ts';
import { hfModel } from '../../../../engine/transformer/config-hf.ts';
import type { GgufValue } from '../../../../engine/transformer/gguf.ts';
import type { StoredTensor } from '../../../../engine/transformer/stored-tensor.ts';

export const base = {
  model_type: 'llama',
  hidden_size: 2048,
  intermediate_size: 8192,
  num_hidden_layers: 4,
  num_attention_heads: 32,
  num_key_value_heads: 8,
  vocab_size: 128256,
  max_position_embeddings: 4096,
  rms_norm_eps: 1e-5,
};

export const hfConfig = (config: unknown, generation?: unknown) => hfModel(config, generation).config;
export const ggufConfig = (file: Parameters<typeof ggufModel>[0]) => ggufModel(file).config;

/** Tensors are only asked for their names, the shape of the embedding, and rotary divisors. */
export function given(
  architecture: string,
  change: Record<string, GgufValue> = {},
  extra: Record<string, readonly number[]> = {},
) {
  const metadata = new Map<string, GgufValue>(
    Object.entries({
      'general.architecture': architecture,
      [`${architecture}.block_count`]: 2,
      [`${architecture}.context_length`]: 4096,
      [`${architecture}.embedding_length`]: 2048,
      [`${architecture}.feed_forward_length`]: 8192,
      [`${architecture}.attention.head_count`]: 32,
      [`${architecture}.attention.head_count_kv`]: 8,
      [`${architecture}.attention.layer_norm_rms_epsilon`]: 1e-5,
      [`${architecture}.rope.freq_base`]: 500000,
      'tokenizer.ggml.bos_token_id': 1,
      'tokenizer.ggml.eos_token_id': 2,
      ...change,
    }),
  );
  const tensor = (shape: readonly number[], values: readonly number[]) =>
    ({ shape, readFloat32: () => Float32Array.from(values) }) as unknown as StoredTensor;
  const tensors = new Map([
    ['token_embd.weight', tensor([32000, 2048], [])],
    ...Object.entries(extra).map(([name, values]) => [name, tensor([values.length], values)] as const),
  ]);
  return { metadata, tensors };
}
