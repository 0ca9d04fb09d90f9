/** Adapters for tests: seeded factors, and the files that PEFT writes of them. */
import { join } from 'node:path';
import { FAMILIES } from '../../../../engine/transformer/families/index.ts';
import { hfNaming } from '../../../../engine/transformer/names.ts';
import type { LoadedModel, ModelConfig, WeightSource } from '../../../../engine/transformer/types.ts';
import { type LowRank, readFamily } from '../../../model/family-files.ts';
import { type RawTensor, safetensors } from '../transformer/model-files.ts';
import { Rng } from '../transformer/rng.ts';

/** Seeded factors for these matrices, [name, outputs, inputs], so large that what they add shows. */
export function lowRank(
  matrices: readonly (readonly [module: string, outputs: number, inputs: number])[],
  rankOf: (module: string) => number,
  seed: number,
  size = 1,
): LowRank[] {
  const random = new Rng(seed);
  return matrices.map(([module, outputs, inputs]) => {
    const rank = rankOf(module);
    return {
      module,
      rank,
      a: random.normal(rank * inputs, 1 / Math.sqrt(inputs)),
      b: random.normal(outputs * rank, size / Math.sqrt(rank)),
    };
  });
}

/** The matrices of a golden family that an adapter may be of. */
export const adaptable = (family: string): (readonly [string, number, number])[] =>
  readFamily(family).tensors.flatMap(([name, shape]) =>
    shape.length === 2 && /(q|k|v|o|qkv|gate|up|gate_up|down)_proj\.weight$/.test(name) && !name.includes('experts')
      ? [[name.replace(/\.weight$/, ''), shape[0]!, shape[1]!] as const]
      : [],
  );

/** All matrices of a model that is stored as Llama. */
export const matricesOf = ({
  layers,
  hiddenSize: m,
  intermediateSize: f,
  queryHeads,
  kvHeads,
  headDim: d,
}: ModelConfig): [module: string, outputs: number, inputs: number][] =>
  Array.from({ length: layers }, (_, layer) => `model.layers.${layer}`).flatMap((layer): [string, number, number][] => [
    [`${layer}.self_attn.q_proj`, queryHeads * d, m],
    [`${layer}.self_attn.k_proj`, kvHeads * d, m],
    [`${layer}.self_attn.v_proj`, kvHeads * d, m],
    [`${layer}.self_attn.o_proj`, m, queryHeads * d],
    [`${layer}.mlp.gate_proj`, f, m],
    [`${layer}.mlp.up_proj`, f, m],
    [`${layer}.mlp.down_proj`, m, f],
  ]);

const bytesOf = (values: Float32Array): Uint8Array =>
  new Uint8Array(values.buffer, values.byteOffset, values.byteLength);

export const peftTensors = (factors: readonly LowRank[]): Record<string, RawTensor> =>
  Object.fromEntries(
    factors.flatMap(({ module, rank, a, b }): [string, RawTensor][] => [
      [`base_model.model.${module}.lora_A.weight`, { dtype: 'F32', shape: [rank, a.length / rank], bytes: bytesOf(a) }],
      [`base_model.model.${module}.lora_B.weight`, { dtype: 'F32', shape: [b.length / rank, rank], bytes: bytesOf(b) }],
    ]),
  );

/** As PEFT 0.17 writes it, but for what a test is about. */
export const peftConfig = (more: Readonly<Record<string, unknown>> = {}): Record<string, unknown> => ({
  alpha_pattern: {},
  auto_mapping: null,
  base_model_name_or_path: 'somebody/something',
  bias: 'none',
  corda_config: null,
  eva_config: null,
  exclude_modules: null,
  fan_in_fan_out: false,
  inference_mode: true,
  init_lora_weights: true,
  layer_replication: null,
  layers_pattern: null,
  layers_to_transform: null,
  loftq_config: {},
  lora_alpha: 16,
  lora_bias: false,
  lora_dropout: 0.05,
  megatron_config: null,
  megatron_core: 'megatron.core',
  modules_to_save: null,
  peft_type: 'LORA',
  qalora_group_size: 16,
  r: 8,
  rank_pattern: {},
  revision: null,
  target_modules: ['q_proj', 'v_proj'],
  target_parameters: null,
  task_type: 'CAUSAL_LM',
  trainable_token_indices: null,
  use_dora: false,
  use_qalora: false,
  use_rslora: false,
  ...more,
});

/** Writes a PEFT folder. → its path */
export function writePeft(
  folder: { readonly dir: string; write(name: string, content: string | Uint8Array): string },
  name: string,
  config: Readonly<Record<string, unknown>>,
  tensors: Readonly<Record<string, RawTensor>>,
): string {
  folder.write(`${name}/adapter_config.json`, JSON.stringify(config));
  folder.write(`${name}/adapter_model.safetensors`, safetensors(tensors));
  return join(folder.dir, name);
}

/** Weights of a Hugging Face model with what factors add, summed in float64. */
export function mergedWeights(
  model: LoadedModel,
  factors: readonly LowRank[],
  scaleOf: (one: LowRank) => number,
): WeightSource {
  const family = FAMILIES.find(({ name }) => name === model.config.architecture)!;
  const added = new Map<string, LowRank>();
  for (const one of factors) {
    const name = hfNaming(family).nameOf(`${one.module}.weight`)!;
    const [layer, part] = name.split('.');
    const parts = { qkv: ['q', 'k', 'v'], gateUp: ['gate', 'up'] }[part!] ?? [part!];
    let from = 0;
    for (const slot of parts) {
      const rows = model.weights.tensor(`${layer}.${slot}`).shape[0]!;
      added.set(`${layer}.${slot}`, { ...one, b: one.b.slice(from * one.rank, (from + rows) * one.rank) });
      from += rows;
    }
  }
  return {
    has: (name) => model.weights.has(name),
    close: () => {},
    tensor(name) {
      const tensor = model.weights.tensor(name);
      const one = added.get(name);
      if (one === undefined) return tensor;
      const { rank, a, b } = one;
      const [sum, inputs, scale] = [Float64Array.from(tensor.readFloat32()), a.length / rank, scaleOf(one)];
      for (let o = 0; o < b.length / rank; o++)
        for (let r = 0; r < rank; r++)
          for (let i = 0; i < inputs; i++) sum[o * inputs + i]! += scale * b[o * rank + r]! * a[r * inputs + i]!;
      return { ...tensor, name, shape: tensor.shape, storedType: 'F32', readFloat32: () => Float32Array.from(sum) };
    },
  };
}
