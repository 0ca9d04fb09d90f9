/**
 * onnxruntime-node's GroupQueryAttention as a peer, with float32, int8 and int4 caches. It is the only node of a graph
 * that we write; the cache is in our buffers and is read and extended in place. Codes have static scales for each
 * channel, given as constants, because the operator supports nothing else. The binding copies all results of a run,
 * including the whole cache, so a run over a short history is timed too, and attention is the difference.
 */
import type { InferenceSession, Tensor } from 'onnxruntime-node';
import { type OnnxGraph, type OnnxValue, writeOnnxModel } from '../../../engine/transformer/onnx-writer.ts';
import { gaussians, type Shape } from '../shapes.ts';

export const ORT_TYPES = ['f32', 'int8', 'int4'] as const;
export type OrtType = (typeof ORT_TYPES)[number];
const ELEMENT_BYTES: Readonly<Record<OrtType, number>> = { f32: 4, int8: 1, int4: 0.5 };

/** The bytes of K and V of one token and KV head, without the static scales, which are negligible. */
export const ortBytesPerToken = (type: OrtType, { headDim }: Shape): number => 2 * headDim * ELEMENT_BYTES[type];

/** The length of the short history. */
export const SHORT = 128;

export interface OrtAttention {
  readonly type: OrtType;
  /** The number of caches in the arena. */
  readonly caches: number;
  /** Runs one query over each cache of the arena, over all of its tokens or the first SHORT of them. */
  pass(whole: boolean): Promise<void>;
  /** The result of the last query, [H, d]. */
  answer(): Float32Array;
  close(): Promise<void>;
}

function graph(type: OrtType, { queryHeads, kvHeads, headDim }: Shape, tokens: number): OnnxGraph {
  const element = type === 'f32' ? 'float32' : type === 'int8' ? 'int8' : 'uint8';
  const width = type === 'int4' ? headDim / 2 : headDim;
  const cache = (name: string): OnnxValue => ({ name, type: element, shape: [1, kvHeads, tokens, width] });
  const row = (name: string, heads: number): OnnxValue => ({ name, type: 'float32', shape: [1, 1, heads * headDim] });
  const coded = type !== 'f32';
  // Codes from −127 to 127, or from −7 to 7, cover four standard deviations.
  const scales = new Float32Array(kvHeads * headDim).fill(4 / (type === 'int8' ? 127 : 7));
  const scale = (name: string): OnnxGraph['initializers'][number] => ({
    name,
    type: 'float32',
    shape: [1, kvHeads, 1, headDim],
    data: scales,
  });
  return {
    name: `attention over ${type}`,
    nodes: [
      {
        op: 'GroupQueryAttention',
        domain: 'com.microsoft',
        inputs: [
          'query',
          'key',
          'value',
          'past_key',
          'past_value',
          'seqlens_k',
          'total_sequence_length',
          ...(coded ? ['', '', '', '', '', 'k_scale', 'v_scale'] : []),
        ],
        outputs: ['out', 'present_key', 'present_value'],
        attributes: {
          num_heads: { int: queryHeads },
          kv_num_heads: { int: kvHeads },
          ...(coded
            ? {
                k_quant_type: { text: 'PER_CHANNEL' },
                v_quant_type: { text: 'PER_CHANNEL' },
                kv_cache_bit_width: { int: type === 'int8' ? 8 : 4 },
              }
            : {}),
        },
      },
    ],
    initializers: coded ? [scale('k_scale'), scale('v_scale')] : [],
    inputs: [
      row('query', queryHeads),
      row('key', kvHeads),
      row('value', kvHeads),
      cache('past_key'),
      cache('past_value'),
      { name: 'seqlens_k', type: 'int32', shape: [1] },
      { name: 'total_sequence_length', type: 'int32', shape: [1] },
    ],
    outputs: [row('out', queryHeads), cache('present_key'), cache('present_value')],
  };
}

/** Opens a session, and as many caches of `tokens` tokens as fill `arenaBytes`. */
export async function openOrtAttention(
  type: OrtType,
  shape: Shape,
  {
    tokens,
    threads,
    arenaBytes,
    random,
  }: { tokens: number; threads: number; arenaBytes: number; random: () => number },
): Promise<OrtAttention> {
  const ort = await import('onnxruntime-node');
  const session: InferenceSession = await ort.InferenceSession.create(writeOnnxModel(graph(type, shape, tokens)), {
    intraOpNumThreads: threads,
    interOpNumThreads: 1,
    // Threads that spin while they wait would slow down the subject that is measured next.
    extra: { session: { intra_op: { allow_spinning: '0' } } },
  });
  const { queryHeads, kvHeads, headDim } = shape;
  const width = type === 'int4' ? headDim / 2 : headDim;
  const elements = kvHeads * tokens * width;
  const rows = gaussians(elements, random);
  const codes = type === 'int8' ? Int8Array.from(rows, (x) => x * 32) : Uint8Array.from(rows, (x) => x * 64 + 128);
  const make = (): Tensor => {
    const dims = [1, kvHeads, tokens, width];
    if (type === 'f32') return new ort.Tensor('float32', rows.slice(), dims);
    return new ort.Tensor(type === 'int8' ? 'int8' : 'uint8', codes.slice(), dims);
  };
  const caches = Math.max(1, Math.ceil(arenaBytes / (2 * elements * (type === 'f32' ? 4 : 1))));
  const arena = Array.from({ length: caches }, () => ({ k: make(), v: make() }));
  const floats = (heads: number): Tensor =>
    new ort.Tensor('float32', gaussians(heads * headDim, random), [1, 1, heads * headDim]);
  const feeds = { query: floats(queryHeads), key: floats(kvHeads), value: floats(kvHeads) };
  const length = (count: number): Record<string, Tensor> => ({
    seqlens_k: new ort.Tensor('int32', Int32Array.of(count - 1), [1]),
    total_sequence_length: new ort.Tensor('int32', Int32Array.of(count), [1]),
  });
  const lengths = { whole: length(tokens), short: length(SHORT) };
  const out = floats(queryHeads);
  return {
    type,
    caches,
    pass: async (whole) => {
      const counts = whole ? lengths.whole : lengths.short;
      for (const { k, v } of arena) {
        await session.run(
          { ...feeds, ...counts, past_key: k, past_value: v },
          { out, present_key: k, present_value: v },
        );
      }
    },
    answer: () => out.data as Float32Array,
    close: () => session.release(),
  };
}
