// Tries every method of the ONNX Runtime backend and of the loops that stand in for it in float32, for each feature of
// the Llama family by itself and together, against the same formulas written as plain float64 loops; 8-bit weights
// against their own error law; and what is refused.
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { Q8_BLOCK, quantizeQ8 } from '../../../../engine/transformer/dense-graphs.ts';
import { createLoopBackend } from '../../../../engine/transformer/dense-loops.ts';
import { createOrtBackend } from '../../../../engine/transformer/dense-ort.ts';
import type { DenseBackend, ModelConfig } from '../../../../engine/transformer/types.ts';
import {
  BASE,
  CASES,
  EXPERT_CASES,
  matricesOf,
  OWN_CASES,
  poisoned,
  randomWeights,
  worstErrors,
} from './dense-cases.ts';
import { Rng } from './rng.ts';

describe.each(CASES)('$name', ({ more }) => {
  const config: ModelConfig = { ...BASE, ...more };
  const weights = randomWeights(config, 1);

  // A sum of K products in float32 errs by about √K·2^-24 of its size; up to four such sums (o, gate and up, down, q)
  // follow each other, and norms and SiLU add a few roundings. K ≤ 96: 4·10·2^-24, doubled.
  test.each([createOrtBackend, createLoopBackend])("'exact' agrees with float64 to rounding: %o", async (create) => {
    const backend = await create({ config, weights }, { precision: 'exact', threads: 1 });
    const worst = await worstErrors(config, weights, backend);
    await backend.close();
    for (const [what, error] of Object.entries(worst)) expect(error, what).toBeLessThan(80 * 2 ** -24);
    expect(backend.weightTypes).toEqual({ f32: 7 * config.layers + 1 });
  });

  // Rounding a normal number in a block of 32 to steps of (largest ≈ 2.1σ)/127 errs by 2.1/127/√12 = 0.5%, weights and
  // activations alike: 0.7% per product, at most four in a row and SiLU's slope up to 1.1: under 2.5%.
  test("'auto' stays within the error of 8-bit rounding, and is not float32 in disguise", async () => {
    const backend = await createOrtBackend({ config, weights }, { precision: 'auto', threads: 1 });
    const worst = await worstErrors(config, weights, backend);
    await backend.close();
    for (const [what, error] of Object.entries(worst)) expect(error, what).toBeLessThan(0.025);
    const inputs = [config.hiddenSize, config.queryHeads * config.headDim, config.intermediateSize];
    const coded = inputs.map((size) => size % Q8_BLOCK === 0);
    // q, k, v, gate, up of every layer and the head read the residual stream.
    const q8 = (coded[0] ? 5 * config.layers + 1 : 0) + (coded[1] ? config.layers : 0) + (coded[2] ? config.layers : 0);
    const f32 = 7 * config.layers + 1 - q8;
    expect(backend.weightTypes).toEqual({ ...(q8 > 0 && { q8 }), ...(f32 > 0 && { f32 }) });
    if (coded[0]) expect(worst['logits']!).toBeGreaterThan(1e-4);
  });
});

describe.each([...EXPERT_CASES, ...OWN_CASES])('$name', ({ more }) => {
  const config: ModelConfig = { ...BASE, ...more };
  const weights = randomWeights(config, 1);

  test('loops agree with float64 to rounding', async () => {
    const backend = await createLoopBackend({ config, weights }, { precision: 'exact', threads: 1 });
    const worst = await worstErrors(config, weights, backend);
    await backend.close();
    for (const [what, error] of Object.entries(worst)) expect(error, what).toBeLessThan(80 * 2 ** -24);
    expect(backend.weightTypes).toEqual({ f32: matricesOf(config) });
  });

  test('onnxruntime refuses them, and says what has them', async () => {
    await expect(createOrtBackend({ config, weights }, { precision: 'auto', threads: 1 })).rejects.toMatchObject({
      code: 'unsupported',
      hint: expect.stringContaining('--dense auto'),
    });
  });
});

describe('one backend', () => {
  const weights = randomWeights(BASE, 2);
  let backend: DenseBackend;
  beforeAll(async () => {
    backend = await createOrtBackend({ config: BASE, weights }, { precision: 'exact', threads: 2 });
  });
  afterAll(() => backend.close());

  test('embeds rows of the table in order', () => {
    const table = weights.tensor('embed').readFloat32();
    const rows = backend.embed(Int32Array.of(7, 0, 49, 7));
    for (const [t, id] of [7, 0, 49, 7].entries()) {
      expect(rows.subarray(t * 64, (t + 1) * 64)).toEqual(table.subarray(id * 64, (id + 1) * 64));
    }
  });

  test('sketches the output projection', () => {
    const sketch = new Rng(4).normal(32 * 64);
    const o = weights.tensor('1.o').readFloat32();
    const product = backend.outputSketch(1, sketch);
    expect(product.length).toBe(32 * 64);
    for (const [row, column] of [
      [0, 0],
      [31, 63],
      [5, 40],
    ] as const) {
      let sum = 0;
      for (let i = 0; i < 64; i++) sum += sketch[row * 64 + i]! * o[i * 64 + column]!;
      expect(product[row * 64 + column]).toBe(Math.fround(sum));
    }
  });

  test('a result is not touched by later calls', async () => {
    const random = new Rng(5);
    const attention = random.normal(64);
    const first = await backend.next(0, attention, random.normal(64), 1);
    const kept = [...first.x, ...first.q];
    await backend.next(0, random.normal(64), first.x, 1);
    expect([...first.x, ...first.q]).toEqual(kept);
  });

  test('bytes are those of the matrices and norms', () => {
    const matrices = 50 * 64 + 3 * (2 * 64 * 64 + 2 * 32 * 64 + 3 * 64 * 96);
    // 7 norms of 64, and three int64 per split of q, k, v.
    expect(backend.bytes).toBe(4 * (matrices + 7 * 64) + 3 * 3 * 8);
  });

  test.each([
    ['x too short', () => backend.first(new Float32Array(63), 1)],
    ['tokens 0', () => backend.first(new Float32Array(0), 0)],
    ['tokens no integer', () => backend.logits(new Float32Array(96), 1.5)],
    ['attention of other tokens than x', () => backend.next(0, new Float32Array(64), new Float32Array(128), 2)],
    ['a sketch of another width', async () => backend.outputSketch(0, new Float32Array(65))],
  ])('%s is refused by shape', async (_, call) => {
    await expect(call()).rejects.toMatchObject({ name: 'KvError', code: 'bad-shape' });
  });

  test.each([-1, 50, 2 ** 31 - 1])('token id %d is outside the vocabulary', (id) => {
    expect(() => backend.embed(Int32Array.of(1, id))).toThrow(expect.objectContaining({ code: 'bad-argument' }));
  });
});

describe('opening and closing', () => {
  const model = { config: BASE, weights: randomWeights(BASE, 3) };

  test('without onnxruntime-node the error says what to install', async () => {
    const absent = async (): Promise<never> => {
      throw Object.assign(new Error("Cannot find package 'onnxruntime-node'"), { code: 'ERR_MODULE_NOT_FOUND' });
    };
    await expect(createOrtBackend(model, { precision: 'exact', threads: 1 }, absent)).rejects.toMatchObject({
      code: 'missing-dependency',
      hint: 'npm install onnxruntime-node --ignore-scripts',
    });
  });

  test.each([{ threads: 0 }, { threads: 1.5 }, { threads: NaN }, { precision: 'best' as 'auto' }])(
    '%o is refused',
    async (wrong) => {
      const options = { precision: 'exact', threads: 1, ...wrong } as const;
      await expect(createOrtBackend(model, options)).rejects.toMatchObject({ code: 'bad-argument' });
    },
  );

  test.each(['1.o', '2.gate', 'norm'])('NaN or infinity in %s is found at load', async (name) => {
    for (const poison of [NaN, Infinity, -Infinity]) {
      const weights = poisoned(model.weights, name, poison);
      const opened = createOrtBackend({ config: BASE, weights }, { precision: 'auto', threads: 1 });
      await expect(opened).rejects.toMatchObject({ code: 'bad-model', values: { tensor: name, bad: 1 } });
    }
  });

  // Spinning threads take the cores from attention and from other processes; that settings of this kind arrive is seen
  // by one that is none.
  test('threads of no session spin while they wait, and the library hears of it', async () => {
    const ort = await import('onnxruntime-node');
    const spins: unknown[] = [];
    const load = (more: object) => async () => ({
      ...ort,
      InferenceSession: {
        ...ort.InferenceSession,
        create: (bytes: Uint8Array, options: import('onnxruntime-node').InferenceSession.SessionOptions) => {
          spins.push(options.extra);
          return ort.InferenceSession.create(bytes, { ...options, extra: { ...options.extra, ...more } });
        },
      },
    });
    const options = { precision: 'exact', threads: 2 } as const;
    const backend = await createOrtBackend(model, options, load({}) as unknown as () => Promise<typeof ort>);
    await backend.close();
    expect(spins.length).toBe(BASE.layers + 2);
    for (const extra of spins) expect(extra).toEqual({ session: { intra_op: { allow_spinning: '0' } } });
    const odd = load({ ['x'.repeat(5000)]: '1' }) as unknown as () => Promise<typeof ort>;
    await expect(createOrtBackend(model, options, odd)).rejects.toThrow(/[Cc]onfig/);
  });

  test('a closed backend refuses every call, and closing twice is fine', async () => {
    const backend = await createOrtBackend(model, { precision: 'exact', threads: 1 });
    await backend.close();
    await backend.close();
    await expect(backend.first(new Float32Array(64), 1)).rejects.toMatchObject({ code: 'closed' });
    await expect(backend.logits(new Float32Array(64), 1)).rejects.toMatchObject({ code: 'closed' });
    expect(() => backend.embed(Int32Array.of(1))).toThrow(expect.objectContaining({ code: 'closed' }));
    expect(() => backend.outputSketch(0, new Float32Array(64))).toThrow(expect.objectContaining({ code: 'closed' }));
  });
});

describe('8-bit codes', () => {
  test('err by at most half a step, keep the largest weight of a block, and code zero as 128', () => {
    const weights = new Rng(6).normal(64 * Q8_BLOCK);
    weights.fill(0, 0, Q8_BLOCK);
    weights[Q8_BLOCK] = 0;
    const { codes, scales } = quantizeQ8(weights);
    for (const [i, weight] of weights.entries()) {
      const scale = scales[Math.floor(i / Q8_BLOCK)]!;
      expect(Math.abs((codes[i]! - 128) * scale - weight)).toBeLessThanOrEqual((scale / 2) * (1 + 2 ** -20));
    }
    expect([...codes.subarray(0, Q8_BLOCK + 1)]).toEqual(Array(Q8_BLOCK + 1).fill(128));
    for (let block = 1; block < 64; block++) {
      const magnitudes = [...codes.subarray(block * Q8_BLOCK, (block + 1) * Q8_BLOCK)].map((code) =>
        Math.abs(code - 128),
      );
      expect(Math.max(...magnitudes)).toBe(127);
    }
  });
});
