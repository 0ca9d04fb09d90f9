// Adapter files of both formats, on models of both formats, for every family: what is added equals merged weights, and
// is the same whatever file it came from. What is not served is refused by the name of the field.
import { join } from 'node:path';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { KeptGains } from '../../../../engine/adapters/gains.ts';
import { readAdapter } from '../../../../engine/adapters/read.ts';
import { adaptedDense } from '../../../../engine/transformer/adapted-dense.ts';
import { createLoopBackend } from '../../../../engine/transformer/dense-loops.ts';
import { FAMILIES } from '../../../../engine/transformer/families/index.ts';
import { loadModel } from '../../../../engine/transformer/load.ts';
import { hfNaming } from '../../../../engine/transformer/names.ts';
import { Rotary } from '../../../../engine/transformer/rotary.ts';
import type { LoadedModel, WeightSource } from '../../../../engine/transformer/types.ts';
import type { KvErrorCode } from '../../../../native/index.ts';
import {
  FAMILY_NAMES,
  familyTokens,
  ggufAdapterParts,
  ggufParts,
  hfFiles,
  type LowRank,
  readFamily,
} from '../../../model/family-files.ts';
import { logitsAt, plainAttention } from '../../../model/forward.ts';
import { refusal } from '../../../refusal.ts';
import { gguf, type RawTensor, temporaryFolder } from '../transformer/model-files.ts';
import { Rng } from '../transformer/rng.ts';
import { adaptable, lowRank, mergedWeights, peftConfig, peftTensors, writePeft } from './adapter-files.ts';

const folder = temporaryFolder();
afterAll(() => folder.remove());

const TOKENS = 6;
/** Sums in float64 that are rounded to float32 after each step, over a model of up to four layers. */
const FLOAT32 = 1e-5;

function modelFiles(family: string): { readonly hf: string; readonly gguf: string } {
  const golden = readFamily(family);
  for (const [file, content] of Object.entries(hfFiles(golden))) folder.write(`${family}/${file}`, content);
  return {
    hf: join(folder.dir, family),
    gguf: folder.write(`${family}.gguf`, gguf(ggufParts(golden))),
  };
}

async function logits(
  model: LoadedModel,
  { adapter, scale = 1, weights = model.weights }: { adapter?: string; scale?: number; weights?: WeightSource },
): Promise<Float32Array> {
  const dense = await createLoopBackend({ config: model.config, weights }, { precision: 'exact', threads: 1 });
  const attention = plainAttention(model.config);
  try {
    const held =
      adapter === undefined ? [] : [{ adapter: dense.addAdapter!(readAdapter(adapter, model).added), scale }];
    const adapted = adaptedDense(dense, held);
    const ids = familyTokens(TOKENS);
    const rotary = new Rotary(model.config, TOKENS);
    const [found] = await logitsAt(adapted, model.config, rotary, attention, ids, 4, [TOKENS - 1]);
    return found!;
  } finally {
    attention.close();
    await dense.close();
  }
}

const distance = (a: Float32Array, b: Float32Array): number =>
  Math.hypot(...a.map((value, i) => value - b[i]!)) / Math.hypot(...b);

describe('of every family, in both formats, on both kinds of model', () => {
  test.each(FAMILY_NAMES.map((name) => [name]))('%s', async (family) => {
    const files = modelFiles(family);
    const factors = lowRank(adaptable(family), () => 4, 5, 0.3);
    const peft = writePeft(folder, `${family}-peft`, peftConfig({ r: 4, lora_alpha: 6 }), peftTensors(factors));
    const other = folder.write(`${family}-adapter.gguf`, gguf(ggufAdapterParts(readFamily(family), factors, 6)));
    const [hf, ggufModel] = [await loadModel(files.hf), await loadModel(files.gguf)];
    try {
      const expected = await logits(hf, { weights: mergedWeights(hf, factors, () => 1.5) });
      expect(distance(await logits(hf, {}), expected)).toBeGreaterThan(0.02);
      for (const model of [hf, ggufModel]) {
        expect(readAdapter(peft, model).digest).toBe(readAdapter(other, model).digest);
        for (const adapter of [peft, other])
          expect(distance(await logits(model, { adapter }), expected), `${adapter} on ${model.path}`).toBeLessThan(
            FLOAT32,
          );
      }
    } finally {
      for (const model of [hf, ggufModel]) model.weights.close();
    }
  });
});

/** A small llama, for which nothing is computed. */
const { hf: LLAMA } = modelFiles('llama');
const MATRICES = adaptable('llama');
const [FIRST] = MATRICES.filter(([name]) => name.endsWith('v_proj'));
let llama: LoadedModel;
beforeAll(async () => {
  llama = await loadModel(LLAMA);
});
afterAll(() => llama.weights.close());
const onLlama = <Result>(work: (model: LoadedModel) => Result): Result => work(llama);

describe('scales', () => {
  test.each([
    ['alpha / r', {}, () => 2],
    ['rsLoRA', { use_rslora: true }, ({ rank }: LowRank) => 16 / Math.sqrt(rank)],
    [
      'patterns of ranks and alphas',
      {
        rank_pattern: { 'layers.0.self_attn.q_proj': 3, down_proj: 16 },
        alpha_pattern: { v_proj: 4, 'layers.1.mlp.up_proj': -8 },
      },
      ({ module, rank }: LowRank) =>
        (module.endsWith('v_proj') ? 4 : module.endsWith('layers.1.mlp.up_proj') ? -8 : 16) / rank,
    ],
    [
      'patterns with rsLoRA',
      { use_rslora: true, rank_pattern: { o_proj: 1 }, alpha_pattern: { o_proj: 3 } },
      ({ module, rank }: LowRank) => (module.endsWith('o_proj') ? 3 : 16) / Math.sqrt(rank),
    ],
  ])('%s', async (name, more, scaleOf) => {
    const ranks: Readonly<Record<string, number>> =
      (more as { rank_pattern?: Record<string, number> }).rank_pattern ?? {};
    const rankOf = (module: string): number =>
      Object.entries(ranks).find(([key]) => module.endsWith(`.${key}`))?.[1] ?? 8;
    const factors = lowRank(MATRICES, rankOf, 9, 0.2);
    const adapter = writePeft(folder, name.replaceAll(/\W/g, '-'), peftConfig(more), peftTensors(factors));
    await onLlama(async (model) => {
      const expected = await logits(model, { weights: mergedWeights(model, factors, scaleOf) });
      expect(distance(await logits(model, { adapter }), expected)).toBeLessThan(FLOAT32);
      expect(readAdapter(adapter, model)).toMatchObject({ matrices: MATRICES.length, format: 'PEFT' });
    });
  });

  test('the digest is of what is added, not of its file', async () => {
    const factors = lowRank(MATRICES.slice(0, 3), () => 8, 2);
    const halved = factors.map((one) => ({ ...one, b: one.b.map((value) => value / 2) }));
    onLlama((model) => {
      const digest = (name: string, config: Readonly<Record<string, unknown>>, given: readonly LowRank[]): string =>
        readAdapter(writePeft(folder, name, peftConfig(config), peftTensors(given)), model).digest;
      const plain = digest('d1', {}, factors);
      expect(digest('d2', { lora_alpha: 32, lora_dropout: 0, revision: 'main' }, halved)).toBe(plain);
      expect(digest('d3', {}, [...factors].reverse())).toBe(plain);
      expect(digest('d4', { lora_alpha: 32 }, factors)).not.toBe(plain);
      expect(digest('d5', {}, factors.slice(1))).not.toBe(plain);
    });
  });
});

/** The magnitude of every output of a matrix, near the length of its rows. */
const magnitudesOf = (outputs: number, seed: number): Float32Array =>
  new Rng(seed).normal(outputs, 0.1).map((value) => 1 + value);

describe('DoRA', () => {
  const factors = lowRank(MATRICES, () => 8, 12, 0.3);
  const magnitudes = new Map(factors.map(({ module, b, rank }, i) => [module, magnitudesOf(b.length / rank, i)]));
  const tensors = (suffix = ''): Record<string, RawTensor> => ({
    ...peftTensors(factors),
    ...Object.fromEntries(
      [...magnitudes].map(([module, values]): [string, RawTensor] => [
        `base_model.model.${module}.lora_magnitude_vector${suffix}`,
        { dtype: 'F32', shape: [values.length], bytes: new Uint8Array(values.buffer) },
      ]),
    ),
  });

  /** W + s·B·A, each row brought to its magnitude. */
  function weightsOf(model: LoadedModel): WeightSource {
    const sum = mergedWeights(model, factors, () => 2);
    const named = new Map([...magnitudes].map(([module, values]) => [hfName(model, module), values]));
    return {
      ...sum,
      tensor(name) {
        const tensor = sum.tensor(name);
        const lengths = named.get(name);
        if (lengths === undefined) return tensor;
        const w = tensor.readFloat32();
        const inputs = w.length / lengths.length;
        const scaled = w.map((value, at) => {
          const row = w.subarray(at - (at % inputs), at - (at % inputs) + inputs);
          return (value * lengths[Math.floor(at / inputs)]!) / Math.hypot(...row);
        });
        return { ...tensor, name, shape: tensor.shape, storedType: 'F32', readFloat32: () => scaled };
      },
    };
  }
  const hfName = ({ config }: LoadedModel, module: string): string =>
    hfNaming(FAMILIES.find(({ name }) => name === config.architecture)!).nameOf(`${module}.weight`)!;

  test.each(['', '.weight'])('equals merged weights on models in both formats%s', async (suffix) => {
    const path = writePeft(folder, `dora${suffix}`, peftConfig({ use_dora: true }), tensors(suffix));
    const stored = await loadModel(modelFiles('llama').gguf);
    try {
      const expected = await logits(llama, { weights: weightsOf(llama) });
      expect(distance(await logits(llama, {}), expected)).toBeGreaterThan(0.02);
      for (const model of [llama, stored])
        expect(distance(await logits(model, { adapter: path }), expected), model.path).toBeLessThan(FLOAT32);
      expect(readAdapter(path, llama).digest).not.toBe(
        readAdapter(writePeft(folder, 'no-dora', peftConfig(), peftTensors(factors)), llama).digest,
      );
    } finally {
      stored.weights.close();
    }
  });

  test('gains that are kept are those that are computed, and need no weights', () => {
    const path = writePeft(folder, 'kept', peftConfig({ use_dora: true }), tensors());
    const kept = new KeptGains(join(folder.dir, 'kept-state'));
    const computed = readAdapter(path, llama);
    for (const { config, weights } of [llama, { ...llama, weights: { ...llama.weights, tensor: () => expect.fail() } }])
      expect(
        readAdapter(path, { config, weights }, (wanted, compute) => kept.of(llama.digest, wanted, compute)),
      ).toEqual(computed);
  });

  test('with other magnitudes is refused where they do not fit', () => {
    const [name] = Object.keys(tensors()).filter((one) => one.endsWith('magnitude_vector'));
    const spoilt = (tensor: RawTensor): KvErrorCode => {
      const path = writePeft(folder, 'spoilt', peftConfig({ use_dora: true }), { ...tensors(), [name!]: tensor });
      return refusal(() => readAdapter(path, llama)).code;
    };
    const count = tensors()[name!]!.shape[0]!;
    const bytes = (values: Float32Array): Uint8Array => new Uint8Array(values.buffer);
    expect(spoilt({ dtype: 'F32', shape: [count - 1], bytes: bytes(new Float32Array(count - 1)) })).toBe('bad-file');
    expect(spoilt({ dtype: 'F32', shape: [1, count], bytes: bytes(new Float32Array(count)) })).toBe('bad-file');
    const bad = new Float32Array(count).fill(Number.NaN);
    expect(spoilt({ dtype: 'F32', shape: [count], bytes: bytes(bad) })).toBe('bad-model');
  });
});

describe('is refused', () => {
  const factors = lowRank([FIRST!], () => 8, 1);
  const good = peftTensors(factors);
  const [A, B] = Object.keys(good) as [string, string];
  const floats = (count: number, value = 0.5): Uint8Array => new Uint8Array(new Float32Array(count).fill(value).buffer);

  test.each<[field: string, config: Readonly<Record<string, unknown>>, code?: KvErrorCode]>([
    ['peft_type', { peft_type: 'IA3' }],
    ['peft_type', { peft_type: 'LOHA' }],
    ['peft_type', { peft_type: 'PREFIX_TUNING' }],
    ['use_qalora', { use_qalora: true }],
    ['alora_invocation_tokens beside use_dora', { alora_invocation_tokens: [1, 2], use_dora: true }],
    ['alora_invocation_tokens', { alora_invocation_tokens: [] }, 'bad-file'],
    ['alora_invocation_tokens', { alora_invocation_tokens: [1, -2] }, 'bad-file'],
    ['alora_invocation_tokens', { alora_invocation_tokens: [1.5] }, 'bad-file'],
    ['alora_invocation_tokens', { alora_invocation_tokens: 'assistant' }, 'bad-file'],
    ['alora_invocation_tokens', { alora_invocation_tokens: new Array(129).fill(1) }, 'bad-file'],
    ['its invocation has the token 256', { alora_invocation_tokens: [3, 256] }, 'model-mismatch'],
    ['invocation_string', { invocation_string: '<|assistant|>' }],
    ['bias', { bias: 'all' }],
    ['bias', { bias: 'lora_only' }],
    ['lora_bias', { lora_bias: true }],
    ['fan_in_fan_out', { fan_in_fan_out: true }],
    ['modules_to_save', { modules_to_save: ['lm_head'] }],
    ['layer_replication', { layer_replication: [[0, 2]] }],
    ['trainable_token_indices', { trainable_token_indices: [1] }],
    ['target_parameters', { target_parameters: ['experts.gate_up_proj'] }],
    ['megatron_config', { megatron_config: { a: 1 } }],
    ['loftq_config', { loftq_config: { loftq_bits: 4 } }],
    ['corda_config', { corda_config: { corda_method: 'kpm' } }],
    ['init_lora_weights', { init_lora_weights: 'pissa' }],
    ['init_lora_weights', { init_lora_weights: 'pissa_niter_16' }],
    ['init_lora_weights', { init_lora_weights: 'olora' }],
    ['init_lora_weights', { init_lora_weights: 'corda' }],
    ['init_lora_weights', { init_lora_weights: 'loftq' }],
    ['task_type', { task_type: 'SEQ_CLS' }],
    ['rank_pattern', { rank_pattern: { '.*q_proj': 4 } }],
    ['alpha_pattern', { alpha_pattern: { '^model.layers': 4 } }],
    ['something_new', { something_new: 3 }],
    ['something_new', { something_new: ['x'] }],
    ['r: ', { r: 0 }, 'bad-file'],
    ['r: ', { r: '8' }, 'bad-file'],
    ['r: ', { r: 1.5 }, 'bad-file'],
    ['lora_alpha: ', { lora_alpha: null }, 'bad-file'],
    ['use_rslora: ', { use_rslora: 'yes' }, 'bad-file'],
    ['rank_pattern', { rank_pattern: { q_proj: 'many' } }, 'bad-file'],
    ['rank 8, and adapter_config.json says 16', { r: 16 }, 'bad-file'],
    ['has no lora_magnitude_vector', { use_dora: true }, 'bad-file'],
    ['use_dora: ', { use_dora: 1 }, 'bad-file'],
  ])('adapter_config.json: %s %j', async (field, config, code = 'unsupported') => {
    const path = writePeft(folder, 'refused', peftConfig(config), good);
    const error = onLlama((model) => refusal(() => readAdapter(path, model)));
    expect(error.code).toBe(code);
    expect(error.message).toContain(field);
    if (code === 'unsupported') expect(error.values['field']).toBe(field);
  });

  const renamed = (from: string, to: string): Record<string, RawTensor> =>
    Object.fromEntries(Object.entries(good).map(([name, tensor]) => [name.replace(from, to), tensor]));
  test.each<[what: string, tensors: () => Record<string, RawTensor>, code: KvErrorCode, says: string]>([
    ['A without B', () => ({ [A]: good[A]! }), 'bad-file', 'has no B'],
    ['B without A', () => ({ [B]: good[B]! }), 'bad-file', 'has no A'],
    ['no tensor', () => ({}), 'bad-file', 'adds to no matrix'],
    ['an output matrix', () => renamed('model.layers.0.self_attn.v_proj', 'lm_head'), 'unsupported', 'lm_head'],
    ['a norm', () => renamed('self_attn.v_proj', 'input_layernorm'), 'unsupported', 'input_layernorm'],
    ['an unknown module', () => renamed('v_proj', 'x_proj'), 'unsupported', 'x_proj'],
    ['a layer that is not there', () => renamed('layers.0', 'layers.99'), 'model-mismatch', 'layers.99'],
    ['another width', () => renamed('self_attn.v_proj', 'mlp.down_proj'), 'model-mismatch', 'down_proj'],
    ['other outputs', () => renamed('self_attn.v_proj', 'mlp.gate_proj'), 'model-mismatch', 'gate_proj'],
    [
      'a magnitude',
      () => ({ ...good, [A.replace('lora_A.weight', 'lora_magnitude_vector')]: good[A]! }),
      'bad-file',
      'lora_magnitude_vector',
    ],
    ['an embedding', () => renamed('lora_A.weight', 'lora_embedding_A'), 'unsupported', 'lora_embedding_A'],
    ['a saved module', () => ({ ...good, 'base_model.model.lm_head.weight': good[A]! }), 'unsupported', 'lm_head'],
    ['another prefix', () => renamed('base_model.model.', 'transformer.'), 'unsupported', 'transformer.'],
    [
      'factors of different ranks',
      () => ({ [A]: good[A]!, [B]: { dtype: 'F32', shape: [FIRST![1], 4], bytes: floats(4 * FIRST![1]) } }),
      'bad-file',
      'A is [',
    ],
    [
      'a factor that is no matrix',
      () => ({ [A]: good[A]!, [B]: { dtype: 'F32', shape: [FIRST![1] * 8], bytes: floats(8 * FIRST![1]) } }),
      'bad-file',
      'B is [',
    ],
    [
      'rank 0',
      () => ({
        [A]: { dtype: 'F32', shape: [0, FIRST![2]], bytes: floats(0) },
        [B]: { dtype: 'F32', shape: [FIRST![1], 0], bytes: floats(0) },
      }),
      'bad-file',
      'A is [',
    ],
    [
      'NaN',
      () => ({ [A]: good[A]!, [B]: { ...good[B]!, bytes: floats(8 * FIRST![1], Number.NaN) } }),
      'bad-model',
      'NaN',
    ],
    [
      'infinity',
      () => ({ [A]: { ...good[A]!, bytes: floats(8 * FIRST![2], Number.POSITIVE_INFINITY) }, [B]: good[B]! }),
      'bad-model',
      'Infinity',
    ],
    [
      'what its scale makes infinite',
      () => ({ [A]: good[A]!, [B]: { ...good[B]!, bytes: floats(8 * FIRST![1], 3e38) } }),
      'bad-file',
      'infinite',
    ],
    ['an unknown type', () => ({ [A]: { ...good[A]!, dtype: 'F4' }, [B]: good[B]! }), 'unsupported', 'F4'],
  ])('adapter_model.safetensors with %s', async (_, tensors, code, says) => {
    const path = writePeft(folder, 'refused', peftConfig(), tensors());
    const error = onLlama((model) => refusal(() => readAdapter(path, model)));
    expect(error.message).toContain(says);
    expect(error.code).toBe(code);
  });

  const parts = ggufAdapterParts(readFamily('llama'), factors, 16);
  const withKey = (key: string, value: (typeof parts.metadata)[number][1]) => ({
    ...parts,
    metadata: [...parts.metadata.filter(([name]) => name !== key), [key, value] as const],
  });
  test.each<[what: string, made: typeof parts, code: KvErrorCode]>([
    ['general.type', withKey('general.type', { type: 'string', value: 'model' }), 'unsupported'],
    ['adapter.type', withKey('adapter.type', { type: 'string', value: 'control_vector' }), 'unsupported'],
    [
      'adapter.alora.invocation_tokens',
      withKey('adapter.alora.invocation_tokens', { type: 'i32s', value: [] }),
      'bad-file',
    ],
    [
      'adapter.alora.invocation_tokens',
      withKey('adapter.alora.invocation_tokens', { type: 'i32s', value: [-1] }),
      'bad-file',
    ],
    [
      'adapter.alora.invocation_tokens',
      withKey('adapter.alora.invocation_tokens', { type: 'u32', value: 1 }),
      'bad-file',
    ],
    ['adapter.alora.later', withKey('adapter.alora.later', { type: 'u32', value: 1 }), 'unsupported'],
    [
      'its invocation has the token 999',
      withKey('adapter.alora.invocation_tokens', { type: 'i32s', value: [999] }),
      'model-mismatch',
    ],
    ['adapter.lora.alpha', withKey('adapter.lora.alpha', { type: 'string', value: 'x' }), 'bad-file'],
    ['general.architecture', withKey('general.architecture', { type: 'string', value: 'qwen2' }), 'unsupported'],
    ['general.architecture', withKey('general.architecture', { type: 'string', value: 'gpt2' }), 'unsupported'],
    [
      'blk.0.attn_norm.weight',
      { ...parts, tensors: [...parts.tensors, { ...parts.tensors[0]!, name: 'blk.0.attn_norm.weight' }] },
      'unsupported',
    ],
    ['has no B', { ...parts, tensors: parts.tensors.slice(0, 1) }, 'bad-file'],
    [
      'token_embd.weight',
      {
        ...parts,
        tensors: parts.tensors.map((tensor) => ({
          ...tensor,
          name: tensor.name.replace('blk.0.attn_v', 'token_embd'),
        })),
      },
      'unsupported',
    ],
  ])('a GGUF adapter with another %s', async (says, made, code) => {
    const path = folder.write('refused.gguf', gguf(made));
    const error = onLlama((model) => refusal(() => readAdapter(path, model)));
    expect(error.message).toContain(says);
    expect(error.code).toBe(code);
  });

  test('what is not there, and PyTorch weights', async () => {
    folder.write('torch/adapter_config.json', JSON.stringify(peftConfig()));
    folder.write('torch/adapter_model.bin', 'x');
    onLlama((model) => {
      expect(refusal(() => readAdapter(join(folder.dir, 'nothing'), model)).code).toBe('not-found');
      expect(refusal(() => readAdapter(join(folder.dir, 'torch'), model)).message).toContain(
        'adapter_model.safetensors',
      );
      expect(refusal(() => readAdapter(folder.dir, model)).code).toBe('not-found');
    });
  });

  test('the same matrix twice, under two names', async () => {
    const [a, b] = ['model.layers.0.self_attn.v_proj', 'layers.0.self_attn.v_proj'] as const;
    const path = writePeft(folder, 'refused', peftConfig(), { ...good, ...renamed(a, b) });
    expect(onLlama((model) => refusal(() => readAdapter(path, model))).message).toContain('twice');
  });

  test.each(Array.from({ length: 100 }, (_, at) => [at]))('damaged files never do harm (%i)', async (at) => {
    const path = writePeft(folder, 'damaged', peftConfig(), good);
    const { safetensors } = await import('../transformer/model-files.ts');
    const bytes = Buffer.from(safetensors(good));
    const place = Math.floor((at * 7919) % Math.min(bytes.length, 400));
    if (at % 3 === 0) folder.write('damaged/adapter_model.safetensors', bytes.subarray(0, place));
    else {
      bytes[place]! ^= 1 + (at % 255);
      folder.write('damaged/adapter_model.safetensors', bytes);
    }
    onLlama((model) => {
      try {
        expect(readAdapter(path, model).matrices).toBe(1);
      } catch (error) {
        expect(error).toMatchObject({ name: 'KvError' });
      }
    });
  });
});
