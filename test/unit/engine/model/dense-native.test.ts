// Tries the dense half on our own kernels, on every instruction set of this CPU: each feature of the Llama family against float64 loops,
// with weights that 8 bits (or 4) hold exactly, so that only the rounding of activations is left; rounding to 8 bits against its law; 4-bit
// blocks of files against their decoded weights; and what is refused.
import { afterAll, describe, expect, test } from 'vitest';
import { createNativeBackend } from '../../../../engine/model/dense-native.ts';
import { dequantize, ELEMENT_TYPES } from '../../../../engine/model/dequant.ts';
import { hasNibbles, nibblesOf } from '../../../../engine/model/nibbles.ts';
import type { ModelConfig, Tensor, WeightSource } from '../../../../engine/model/types.ts';
import { nativeInfo, setIsa } from '../../../../native/index.ts';
import { BASE, CASES, randomWeights, worstErrors } from './dense-cases.ts';
import { Rng } from './rng.ts';

const { available, isa: best } = nativeInfo();
afterAll(() => setIsa(best));

/**
 * Activations are rounded to steps of (largest of 32)/32512: of a normal number 2.1/32512/√12 = 2e-5. At most four products in a row, SiLU's
 * slope up to 1.1, and q, k, v are taken from a norm that divides the error of the residual stream as it divides the stream.
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

/** The same weights in the blocks of a 4-bit type, with scales of our choice. */
function inBlocks(weights: WeightSource, type: 'Q4_0' | 'Q4_1' | 'Q4_K', seed: number): WeightSource {
  const random = new Rng(seed);
  const element = ELEMENT_TYPES.get(type)!;
  const made = new Map<string, Tensor>();
  const tensor = (name: string): Tensor => {
    const given = weights.tensor(name);
    const count = given.shape.reduce((a, b) => a * b, 1);
    if (given.shape.length !== 2 || count % element.blockValues !== 0) return given;
    const known = made.get(name);
    if (known !== undefined) return known;
    const bytes = Uint8Array.from({ length: (count / element.blockValues) * element.blockBytes }, () =>
      Math.floor((random.normal(1)[0]! * 1000 + 1e6) % 256),
    );
    // Two halves at the start of every block: about 0.02 and −0.1 (Q4_K: times 6-bit numbers).
    for (let at = 0; at < bytes.length; at += element.blockBytes) {
      bytes.set(
        type === 'Q4_K' ? [0x00, 0x10, 0x00, 0x14] : type === 'Q4_1' ? [0x12, 0x25, 0x66, 0xae] : [0x12, 0x25],
        at,
      );
    }
    const data = new Float32Array(count);
    dequantize(element, bytes, data);
    const width = given.shape[1]!;
    const stored: Tensor = {
      ...given,
      storedType: type,
      readFloat32: (from = 0, to = given.shape[0]!) => data.slice(from * width, to * width),
      readNibbles: () => nibblesOf(element, bytes),
    };
    made.set(name, stored);
    return stored;
  };
  return { has: (name) => weights.has(name), tensor, close: () => weights.close() };
}

describe.each(available)('%s', (isa) => {
  test.each(CASES)('$name: agrees with float64 to the rounding of activations', async ({ more }) => {
    setIsa(isa);
    const config: ModelConfig = { ...BASE, ...more };
    const weights = randomWeights(config, 11, toEightBits);
    const backend = await createNativeBackend({ config, weights }, { precision: 'auto', threads: 1 });
    const worst = await worstErrors(config, weights, backend);
    await backend.close();
    for (const [what, error] of Object.entries(worst)) expect(error, what).toBeLessThan(ROUNDED_ACTIVATIONS);
    expect(backend.weightTypes).toEqual({ q8: 7 * config.layers + 1 });
  });

  test.each(['Q4_0', 'Q4_1', 'Q4_K'] as const)('%s stays in 4 bits and loses nothing', async (type) => {
    setIsa(isa);
    const config: ModelConfig = { ...BASE, hiddenSize: 256, intermediateSize: 512, headDim: 64, layers: 2 };
    const weights = inBlocks(randomWeights(config, 12), type, 13);
    const backend = await createNativeBackend({ config, weights }, { precision: 'auto', threads: 1 });
    const worst = await worstErrors(config, weights, backend);
    await backend.close();
    // Scales of Q4_K are products of 17 bits, of which a half keeps 11: 2^-12 of a weight at most.
    const tolerance = ROUNDED_ACTIVATIONS + (type === 'Q4_K' ? 2 ** -11 : 0);
    for (const [what, error] of Object.entries(worst)) expect(error, what).toBeLessThan(tolerance);
    expect(backend.weightTypes).toEqual({ q4: 7 * config.layers + 1 });
  });
});

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

test('codes, scales and minima of a file say the same as its decoded weights', () => {
  const random = new Rng(15);
  const named = [...ELEMENT_TYPES.values()].filter(hasNibbles);
  expect(named.map(({ name }) => name)).toEqual(['Q4_0', 'Q4_1', 'Q4_K']);
  for (const type of named) {
    const bytes = Uint8Array.from(
      { length: 6 * type.blockBytes },
      () => Math.floor(Math.abs(random.normal(1)[0]!) * 1e4) % 256,
    );
    // Halves that are numbers: exponents below 31.
    for (let at = 0; at < bytes.length; at += type.blockBytes) for (const high of [1, 3]) bytes[at + high]! &= 0xbb;
    const expected = new Float32Array(6 * type.blockValues);
    dequantize(type, bytes, expected);
    const { codes, scales, minima } = nibblesOf(type, bytes);
    for (const [i, value] of expected.entries()) {
      const group = Math.floor(i / 32);
      const size = Math.abs(scales[group]! * 15) + Math.abs(minima[group]!);
      expect(Math.abs(scales[group]! * codes[i]! + minima[group]! - value)).toBeLessThanOrEqual(size * 2 ** -23);
    }
  }
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

  test.each(['1.o', '2.gate', 'norm'])('NaN or infinity in %s is found at load', async (name) => {
    for (const poison of [NaN, Infinity, -Infinity]) {
      const weights: WeightSource = {
        ...model.weights,
        tensor(asked) {
          const tensor = model.weights.tensor(asked);
          if (asked !== name) return tensor;
          return { ...tensor, readFloat32: (from, to) => tensor.readFloat32(from, to).fill(poison, 3, 4) };
        },
      };
      const opened = createNativeBackend({ config: BASE, weights }, { precision: 'auto', threads: 1 });
      await expect(opened).rejects.toMatchObject({ code: 'bad-model', values: { tensor: name, bad: 1 } });
    }
  });
});
