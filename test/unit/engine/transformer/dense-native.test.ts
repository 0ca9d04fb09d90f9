// Tries the dense half on our own kernels, on every instruction set of this CPU: each feature of the Llama family
// against float64 loops, with weights that 8 bits hold exactly, so that only the rounding of activations is left;
// rounding to 8 bits against its law; every quantized type against its decoded weights, in every output and in the
// divergence of a whole model; and what is refused.

import { afterAll, describe, expect, test } from 'vitest';
import { createNativeBackend } from '../../../../engine/transformer/dense-native.ts';
import { dequantize, ELEMENT_TYPES } from '../../../../engine/transformer/dequant.ts';
import { loadModel } from '../../../../engine/transformer/load.ts';
import { RandomNumbers } from '../../../../engine/transformer/sampling/random.ts';
import type { ModelConfig, Tensor, WeightSource } from '../../../../engine/transformer/types.ts';
import { nativeInfo, setIsa } from '../../../../native/index.ts';
import { DENSE_FORMS } from '../../../../native/layout.ts';
import { QUANTIZED_TYPES, type QuantizedType, weightBlocks } from '../../../native/weight-blocks.ts';
import { seeded } from '../../../random.ts';
import { isForHome } from '../../../tier.ts';
import {
  BASE,
  CASES,
  divergence,
  EXPERT_CASES,
  exactLogits,
  matricesOf,
  OWN_CASES,
  poisoned,
  randomWeights,
  worstErrors,
} from './dense-cases.ts';
import { blockTypeGguf, SMALL_TYPES, type SmallType, smallBlocks, temporaryFolder } from './model-files.ts';
import { Rng } from './rng.ts';

const { available, isa: best } = nativeInfo();
const folder = temporaryFolder();
afterAll(() => {
  setIsa(best);
  folder.remove();
});

/**
 * Activations are rounded to steps of (largest of 32)/32512: of a normal number 2.1/32512/√12 = 2e-5. At most four
 * products in a row, SiLU's slope up to 1.1, and q, k, v are taken from a norm that divides the error of the residual
 * stream as it divides the stream.
 */
const ROUNDED_ACTIVATIONS = 2e-4;

/** To multiples of a power of two, 127 of them in every block's largest: 8 bits hold it exactly. */
function toEightBits(w: Float32Array, inputs: number): void {
  for (let row = 0; row < w.length; row += inputs) {
    for (let start = row; start < row + inputs; start += 32) {
      const block = w.subarray(start, Math.min(start + 32, row + inputs));
      for (let i = 0; i < block.length; i++)
        block[i] = Math.max(-127, Math.min(127, Math.round(block[i]! * 512))) / 512;
      block[0] = 127 / 512;
    }
  }
}

const isSmall = (type: QuantizedType | SmallType): type is SmallType => Object.hasOwn(SMALL_TYPES, type);

/** A model whose matrices are blocks of a type, as a file has them. */
function inBlocks(
  weights: WeightSource,
  type: QuantizedType | SmallType,
  seed: number,
): WeightSource & { fileBytes(): number } {
  const random = seeded(seed);
  const element = ELEMENT_TYPES.get(type)!;
  const made = new Map<string, Tensor>();
  let fileBytes = 0;
  const tensor = (name: string): Tensor => {
    const given = weights.tensor(name);
    const [rows, width] = given.shape as [number, number | undefined];
    if (width === undefined) return given;
    const known = made.get(name);
    if (known !== undefined) return known;
    // The output matrix is larger, so that some tokens are far more likely than others.
    const rms = (name === 'embed' ? 3 : 1) / Math.sqrt(width);
    const bytes = isSmall(type)
      ? smallBlocks(type, rows * width, random, rms)
      : weightBlocks(random, type, rows * width, rms);
    fileBytes += bytes.length;
    const data = new Float32Array(rows * width);
    dequantize(element, bytes, data);
    const stored: Tensor = {
      ...given,
      storedType: type,
      readFloat32: (from = 0, to = rows) => data.slice(from * width, to * width),
      readStored(from, target) {
        const start = (from * bytes.length) / rows;
        target.set(bytes.subarray(start, start + target.length));
      },
    };
    made.set(name, stored);
    return stored;
  };
  return { has: (name) => weights.has(name), tensor, close: () => weights.close(), fileBytes: () => fileBytes };
}

describe.each(available)('%s', (isa) => {
  test.each([...CASES, ...EXPERT_CASES, ...OWN_CASES])(
    '$name: agrees with float64 to the rounding of activations',
    async ({ more }) => {
      setIsa(isa);
      const config: ModelConfig = { ...BASE, ...more };
      const weights = randomWeights(config, 11, toEightBits);
      const backend = await createNativeBackend({ config, weights }, { precision: 'auto', threads: 1 });
      const worst = await worstErrors(config, weights, backend);
      await backend.close();
      for (const [what, error] of Object.entries(worst)) expect(error, what).toBeLessThan(ROUNDED_ACTIVATIONS);
      expect(backend.weightTypes).toEqual({ q8: matricesOf(config) });
    },
  );
});

/** Sizes that blocks of every type divide. */
const BLOCKS: ModelConfig = {
  ...BASE,
  hiddenSize: 256,
  intermediateSize: 256,
  headDim: 64,
  layers: 2,
  vocabSize: 48,
};

const KEPT = QUANTIZED_TYPES.filter((_, place) => isForHome(place, 3));
test.each(KEPT)('%s stays as it is in the file and loses nothing', async (type) => {
  const config = BLOCKS;
  const weights = inBlocks(randomWeights(config, 12), type, 13);
  const { bits } = DENSE_FORMS.find(({ name }) => name === type)!;
  const exact = exactLogits(config, weights);
  for (const isa of available) {
    setIsa(isa);
    const backend = await createNativeBackend({ config, weights }, { precision: 'auto', threads: 1 });
    expect(await divergence(config, exact, backend), isa).toBeLessThan(1e-6);
    expect(backend.weightTypes).toEqual({ [`q${bits}`]: 7 * config.layers + 1 });
    expect(backend.bytes / weights.fileBytes()).toBeLessThan(1.1);
    await backend.close();
  }
});

const CHANGED = (Object.keys(SMALL_TYPES) as SmallType[]).filter((_, place) => isForHome(place, 2));
test.each(CHANGED)('%s keeps its codes in another form', async (type) => {
  const config = BLOCKS;
  const weights = inBlocks(randomWeights(config, 12), type, 13);
  const exact = exactLogits(config, weights);
  for (const isa of available) {
    setIsa(isa);
    const backend = await createNativeBackend({ config, weights }, { precision: 'auto', threads: 1 });
    // Q2_K alone has no such form. It is rounded to 8 bits, as floats are.
    expect(await divergence(config, exact, backend), isa).toBeLessThan(type === 'Q2_K' ? 1e-4 : 1e-6);
    expect(backend.weightTypes).toEqual({ [type === 'Q3_K' ? 'q6' : 'q8']: 7 * config.layers + 1 });
    await backend.close();
  }
});

test.each(Object.keys(SMALL_TYPES) as SmallType[])(
  '%s from a file computes as its decoded weights do',
  async (type) => {
    setIsa(best);
    const random = new RandomNumbers(16);
    const model = await loadModel(
      folder.write(
        `${type}.gguf`,
        blockTypeGguf(type, () => random.uniform()),
      ),
    );
    const { config, weights } = model;
    expect(weights.tensor('0.down').storedType).toBe(type);
    const backend = await createNativeBackend({ config, weights }, { precision: 'auto', threads: 1 });
    const worst = await worstErrors(config, weights, backend);
    await backend.close();
    weights.close();
    const most = type === 'Q2_K' ? 0.018 : type === 'IQ4_XS' ? 1e-3 : ROUNDED_ACTIVATIONS;
    for (const [what, error] of Object.entries(worst)) expect(error, what).toBeLessThan(most);
  },
);

// Weights off by 0.5% of their size (dense.test.ts); no more, because activations are not.
test('rounding to 8 bits stays within its law, and is not float32 in disguise', async () => {
  setIsa(best);
  const weights = randomWeights(BASE, 14);
  const backend = await createNativeBackend({ config: BASE, weights }, { precision: 'auto', threads: 2 });
  const worst = await worstErrors(BASE, weights, backend);
  await backend.close();
  for (const [what, error] of Object.entries(worst)) expect(error, what).toBeLessThan(0.018);
  expect(worst['logits']!).toBeGreaterThan(1e-3);
});

describe('one backend', () => {
  const model = { config: BASE, weights: randomWeights(BASE, 16) };
  const open = () => createNativeBackend(model, { precision: 'auto', threads: 1 });

  test('what it returns feeds the next call, and is overwritten only by the same call', async () => {
    const backend = await open();
    const random = new Rng(17);
    const attention = random.normal(64);
    const first = await backend.next(0, attention, random.normal(64), 1);
    const kept = [...first.x];
    const second = await backend.next(1, attention, first.x, 1);
    expect([...first.x]).toEqual(kept);
    const again = await backend.next(1, attention, Float32Array.from(kept), 1);
    expect([...again.x]).toEqual([...second.x]);
    await backend.close();
  });

  test.each([
    ['x too short', 'bad-shape', (b) => b.first(new Float32Array(63), 1)],
    ['tokens 0', 'bad-shape', (b) => b.first(new Float32Array(0), 0)],
    ['rows no integer', 'bad-shape', (b) => b.logits(new Float32Array(96), 1.5)],
    ['attention of other tokens than x', 'bad-shape', (b) => b.next(0, new Float32Array(64), new Float32Array(128), 2)],
    ['a token outside the vocabulary', 'bad-argument', async (b) => b.embed(Int32Array.of(50))],
  ] satisfies [string, string, (b: Awaited<ReturnType<typeof open>>) => Promise<unknown>][])(
    '%s is refused',
    async (_, code, call) => {
      const backend = await open();
      await expect(call(backend)).rejects.toMatchObject({ name: 'KvError', code });
      await backend.close();
      await expect(backend.first(new Float32Array(64), 1)).rejects.toMatchObject({ code: 'closed' });
      await expect(backend.last(new Float32Array(64), new Float32Array(64), 1)).rejects.toMatchObject({
        code: 'closed',
      });
    },
  );

  test.each(QUANTIZED_TYPES)('an infinite scale among blocks of %s is found at load', async (type) => {
    const config: ModelConfig = { ...BASE, hiddenSize: 256, intermediateSize: 512, headDim: 64, layers: 1 };
    const whole = inBlocks(randomWeights(config, 12), type, 13);
    const weights: WeightSource = {
      ...whole,
      tensor(asked) {
        const tensor = whole.tensor(asked);
        if (asked !== '0.up') return tensor;
        // All bits of the last block are set, and with them those of its halves.
        const { blockBytes } = ELEMENT_TYPES.get(type)!;
        const readStored = (from: number, target: Uint8Array): void => {
          tensor.readStored!(from, target);
          target.fill(255, -blockBytes);
        };
        return { ...tensor, readStored };
      },
    };
    const opened = createNativeBackend({ config, weights }, { precision: 'auto', threads: 1 });
    await expect(opened).rejects.toMatchObject({ code: 'bad-model', values: { tensor: '0.up' } });
  });

  test.each(['1.o', '2.gate', 'norm'])('NaN or infinity in %s is found at load', async (name) => {
    for (const poison of [NaN, Infinity, -Infinity]) {
      const weights = poisoned(model.weights, name, poison);
      const opened = createNativeBackend({ config: BASE, weights }, { precision: 'auto', threads: 1 });
      await expect(opened).rejects.toMatchObject({ code: 'bad-model', values: { tensor: name, bad: 1 } });
    }
  });
});
