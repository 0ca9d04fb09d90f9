// Tries a small model of every served family from a Hugging Face folder and from GGUF: the whole path from token ids to
// logits, against what the implementation in `transformers` computed in float64 (scripts/golden-families.py).

import { join } from 'node:path';
import { afterAll, describe, expect, test } from 'vitest';
import { Session } from '../../engine/session/session.ts';
import { headerOf } from '../../engine/trace/record.ts';
import { createLoopBackend } from '../../engine/transformer/dense-loops.ts';
import { createNativeBackend } from '../../engine/transformer/dense-native.ts';
import { createOrtBackend } from '../../engine/transformer/dense-ort.ts';
import { dequantize, ELEMENT_TYPES } from '../../engine/transformer/dequant.ts';
import { FAMILIES } from '../../engine/transformer/families/index.ts';
import { loadModel } from '../../engine/transformer/load.ts';
import { Rotary } from '../../engine/transformer/rotary.ts';
import { Runtime } from '../../engine/transformer/runtime/runtime.ts';
import type { DenseBackend, LoadedModel } from '../../engine/transformer/types.ts';
import { defaultThresholds } from '../../policy/index.ts';
import { weightBlocks } from '../native/weight-blocks.ts';
import { seeded } from '../random.ts';
import { gguf, temporaryFolder } from '../unit/engine/transformer/model-files.ts';
import { FAMILY_NAMES, familyTokens, ggufParts, hfFiles, readFamily } from './family-files.ts';
import { type Attention, logitsAt, nativeAttention, plainAttention } from './forward.ts';
import { expectGolden, type Golden } from './golden.ts';

const folder = temporaryFolder();
afterAll(() => folder.remove());

const PROBES = 64;
/** Sums in float64 that are rounded to float32 after each step of at most four layers. */
const FLOAT32 = 1e-5;
/** Keys and values in f16, which are off by up to 2^-11 of themselves; measured up to 1e-3. */
const F16 = 2e-3;
/**
 * Weights in 8 bits, and in onnxruntime activations as well; measured up to 0.041 and 0.057, with the stretched and so
 * sharper attention of Phi-3.
 */
const EIGHT_BITS = { native: 0.06, onnxruntime: 0.1 };

function goldenOf(name: string): Golden & { readonly ids: readonly number[] } {
  const { rows, config } = readFamily(name);
  const vocabSize = Number(config['vocab_size']);
  const probes = Array.from({ length: PROBES }, (_, i) => (i * vocabSize) / PROBES);
  return { rows, vocabSize, probes, ids: familyTokens(rows.at(-1)!.position + 1) };
}

const hasExperts = (name: string): boolean => 'num_experts_per_tok' in readFamily(name).config;

function hfFolder(name: string): string {
  for (const [file, content] of Object.entries(hfFiles(readFamily(name)))) folder.write(`${name}/${file}`, content);
  return join(folder.dir, name);
}

async function forward(
  model: LoadedModel,
  dense: DenseBackend,
  attention: Attention,
  { ids, rows }: ReturnType<typeof goldenOf>,
): Promise<Float32Array[]> {
  try {
    const rotary = new Rotary(model.config, ids.length);
    const positions = rows.map(({ position }) => position);
    return await logitsAt(dense, model.config, rotary, attention, ids.slice(0, positions.at(-1)! + 1), 128, positions);
  } finally {
    attention.close();
    await dense.close();
    model.weights.close();
  }
}

/** Those that are tried against formulas of our own (beside.test.ts, alibi.test.ts). */
const BY_FORMULA: readonly string[] = ['gpt-neox', 'falcon', 'mpt'];

test('every family has a model here', () => {
  const types = FAMILY_NAMES.map((name) => readFamily(name).config.model_type);
  for (const { modelTypes, name } of FAMILIES.filter((family) => !BY_FORMULA.includes(family.name)))
    expect(
      modelTypes.some((type) => types.includes(type)),
      name,
    ).toBe(true);
});

test('experts in blocks of a type, stored in one tensor, are packed as they are', async () => {
  const parts = ggufParts(readFamily('qwen3-moe'));
  const [experts, rows, columns] = [8, 64, 96];
  const bytes = weightBlocks(seeded(17), 'Q8_0', experts * rows * columns, 1 / 8);
  const tensors = parts.tensors.map((tensor) =>
    tensor.name === 'blk.1.ffn_up_exps.weight' ? { ...tensor, type: 8, bytes } : tensor,
  );
  const model = await loadModel(folder.write('blocks.gguf', gguf({ ...parts, tensors })));
  const values = new Float32Array(experts * rows * columns);
  dequantize(ELEMENT_TYPES.get('Q8_0')!, bytes, values);
  for (const expert of [0, 3, 7]) {
    const tensor = model.weights.tensor(`1.up.${expert}`);
    expect([tensor.storedType, tensor.shape]).toEqual(['Q8_0', [rows, columns]]);
    const own = values.subarray(expert * rows * columns, (expert + 1) * rows * columns);
    expect(tensor.readFloat32()).toEqual(own);
    const stored = new Uint8Array(bytes.length / experts);
    tensor.readStored!(0, stored);
    expect(stored).toEqual(new Uint8Array(bytes.subarray(expert * stored.length, (expert + 1) * stored.length)));
  }
  const x = model.weights.tensor('embed').readFloat32(3, 6);
  const found: Float32Array[] = [];
  for (const [create, precision] of [
    [createNativeBackend, 'auto'],
    [createLoopBackend, 'exact'],
  ] as const) {
    const dense = await create(model, { precision, threads: 1 });
    found.push(Float32Array.from(await dense.last(new Float32Array(3 * 256), x, 3)));
    await dense.close();
  }
  const [packed, exact] = found as [Float32Array, Float32Array];
  // Two products in a row with weights in 8 bits, one of them these blocks (test/unit/engine/transformer/dense.test.ts
  // has the law).
  expect(Math.hypot(...packed.map((value, i) => value - exact[i]!)) / Math.hypot(...exact)).toBeLessThan(0.025);
  model.weights.close();
});

test.each([
  ['smollm3', 'one rotary embedding in all layers'],
  ['gemma3', 'one rotary embedding in all layers'],
  ['olmo2', 'latents do not serve'],
])('%s: what needs keys made as in Llama is refused by name', async (name, reason) => {
  const runtime = await Runtime.open({ model: hfFolder(name), dense: 'auto', threads: 1 });
  const { layers } = runtime.model.config;
  try {
    const open = (): Session =>
      Session.open(runtime, { log: null, latents: 'xq8', kvBudget: '50%', thresholds: defaultThresholds(layers) });
    expect(open).toThrow(reason);
    const trace = () => headerOf(runtime, 300, { sample: {}, bytesMax: 2 ** 20, seed: 1 });
    if (name === 'olmo2') expect(trace().shape.layers).toBe(layers);
    else expect(trace).toThrow(reason);
  } finally {
    await runtime.close();
  }
});

test('gemma2: a trace, whose simulator has no cap, is refused by name; keys are made again from latents', async () => {
  const runtime = await Runtime.open({ model: hfFolder('gemma2'), dense: 'auto', threads: 1 });
  const thresholds = defaultThresholds(runtime.model.config.layers);
  try {
    expect(() => headerOf(runtime, 300, { sample: {}, bytesMax: 2 ** 20, seed: 1 })).toThrow('scores without a cap');
    // The first layer reads what no format has touched, so its keys are known from the exact cache.
    const keysOf = async (setup: object, isRestored: boolean): Promise<Float32Array> => {
      const session = Session.open(runtime, { log: null, thresholds, ...setup });
      try {
        await session.read(familyTokens(400));
        if (isRestored) session.governed.restore(0, 1);
        return session.governed.kv.decode(0, 1, 'k');
      } finally {
        session.close();
      }
    };
    const latents = { format: 'xq8', keep: 'always' } as const;
    const exact = await keysOf({ exact: true }, false);
    const error = (keys: Float32Array): number =>
      Math.hypot(...keys.map((key, i) => key - exact[i]!)) / Math.hypot(...exact);
    expect(error(await keysOf({ cacheTypes: 'rot2:rot2', latents }, false))).toBeGreaterThan(0.2);
    // Codes of 8 bits twice, each off by at most 1.2% (native/README.md).
    expect(error(await keysOf({ cacheTypes: 'rot2:rot2', latents }, true))).toBeLessThan(0.024);
  } finally {
    await runtime.close();
  }
});

test('gemma3 beside a reader of images, which is left alone', async () => {
  const golden = goldenOf('gemma3');
  const family = readFamily('gemma3');
  const { model_type, bos_token_id, eos_token_id, ...text } = family.config;
  const beside = { model_type: 'gemma3', bos_token_id, eos_token_id, vision_config: { hidden_size: 8 } };
  const files = hfFiles(family, {
    nameOf: (name) => `language_model.${name}`,
    more: {
      'vision_tower.vision_model.embeddings.weight': [4, 8],
      'multi_modal_projector.mm_soft_emb_norm.weight': [8],
    },
  });
  const config = JSON.stringify({ ...beside, text_config: { ...text, model_type } });
  for (const [file, content] of Object.entries({ ...files, 'config.json': config }))
    folder.write(`gemma3-images/${file}`, content);
  const model = await loadModel(join(folder.dir, 'gemma3-images'));
  const alone = await loadModel(hfFolder('gemma3'));
  alone.weights.close();
  expect(model.config).toEqual(alone.config);
  const dense = await createNativeBackend(model, { precision: 'auto', threads: 1 });
  expectGolden(await forward(model, dense, nativeAttention(model.config), golden), golden, EIGHT_BITS.native);
});

describe.each(FAMILY_NAMES.filter(hasExperts))('%s with experts in other forms', (name) => {
  const golden = goldenOf(name);

  const forms: Record<string, () => string> = {
    'from a folder, as transformers holds them': () => {
      const files = hfFiles(readFamily(name), { experts: 'stacked' });
      for (const [file, content] of Object.entries(files)) folder.write(`${name}-stacked/${file}`, content);
      return join(folder.dir, `${name}-stacked`);
    },
    'from GGUF, one tensor for each': () =>
      folder.write(`${name}-single.gguf`, gguf(ggufParts(readFamily(name), { experts: 'single' }))),
  };
  test.each(Object.keys(forms))('%s', async (form) => {
    const model = await loadModel(forms[form]!());
    const usual = await loadModel(hfFolder(name));
    for (const part of ['0.router', '0.gate.1', '1.up.3', '1.down.2'])
      expect(model.weights.tensor(part).readFloat32(), part).toEqual(usual.weights.tensor(part).readFloat32());
    usual.weights.close();
    const dense = await createNativeBackend(model, { precision: 'auto', threads: 2 });
    expectGolden(await forward(model, dense, nativeAttention(model.config), golden), golden, EIGHT_BITS.native);
  });
});

describe.each(FAMILY_NAMES)('%s', (name) => {
  const golden = goldenOf(name);

  // It is slow, so it ends at the position that is past the window.
  test('from a folder, float32, attention in float64 over unrounded rows', async () => {
    const short = { ...golden, rows: golden.rows.slice(0, 2) };
    const model = await loadModel(hfFolder(name));
    const dense = await createLoopBackend(model, { precision: 'exact', threads: 1 });
    expectGolden(await forward(model, dense, plainAttention(model.config), short), short, FLOAT32);
  });

  test('from GGUF, float32, a session with the exact cache', async () => {
    const path = folder.write(`${name}.gguf`, gguf(ggufParts(readFamily(name))));
    const runtime = await Runtime.open({ model: path, dense: 'exact', threads: 1 });
    try {
      const { layers, hiddenSize } = runtime.model.config;
      const session = Session.open(runtime, {
        exact: true,
        log: null,
        compareTokens: golden.ids.length,
        tokensExpected: golden.ids.length,
        thresholds: defaultThresholds(layers),
      });
      await session.read(golden.ids);
      const hidden = session.hiddenRows();
      session.close();
      const found: Float32Array[] = [];
      for (const { position } of golden.rows)
        found.push(await runtime.dense.logits(hidden.slice(position * hiddenSize, (position + 1) * hiddenSize), 1));
      expectGolden(found, golden, F16);
    } finally {
      await runtime.close();
    }
  });

  test.each([
    ['native', createNativeBackend],
    ...(hasExperts(name) ? [] : [['onnxruntime', createOrtBackend] as const]),
  ] as const)('from a folder, 8 bits, on %s', async (backend, create) => {
    const model = await loadModel(hfFolder(name));
    const dense = await create(model, { precision: 'auto', threads: 1 });
    expectGolden(await forward(model, dense, nativeAttention(model.config), golden), golden, EIGHT_BITS[backend]);
  });
});
