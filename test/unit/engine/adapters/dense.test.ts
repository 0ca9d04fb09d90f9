// What adapters add to a dense half: the same as weights into which they are merged in float64, for every matrix by
// itself and all together, for every feature of a model, rank and mix; and the same bits alone as in any company.
import { afterAll, describe, expect, test } from 'vitest';
import { adaptedDense } from '../../../../engine/transformer/adapted-dense.ts';
import { expectedShapes } from '../../../../engine/transformer/config.ts';
import { chooseDense } from '../../../../engine/transformer/dense-choice.ts';
import { createLoopBackend } from '../../../../engine/transformer/dense-loops.ts';
import { createNativeBackend } from '../../../../engine/transformer/dense-native.ts';
import type {
  AdaptedRows,
  AdapterMatrix,
  DenseBackend,
  ModelConfig,
  WeightSource,
} from '../../../../engine/transformer/types.ts';
import { DENSE_SLOTS, type DenseSlot, nativeInfo, setIsa } from '../../../../native/index.ts';
import { refusal } from '../../../refusal.ts';
import { BASE, CASES, EXPERT_CASES, randomWeights, worstErrors } from '../transformer/dense-cases.ts';
import { Rng } from '../transformer/rng.ts';

const { available, isa: best } = nativeInfo();
afterAll(() => setIsa(best));

/** Sums in float64 that are rounded to float32 after each product. */
const FLOAT32 = 1e-5;
/** As in dense-native.test.ts, for activations of 16 bits; what the first factor answers is rounded once more. */
const ROUNDED_ACTIVATIONS = 3e-4;

/** Values that 8 bits hold exactly with one scale for 32, as the kernels keep weights and first factors. */
const eightBits = (values: Float32Array, width: number): Float32Array => {
  for (let at = 0; at < values.length; at += width)
    for (let start = at; start < at + width; start += 32) {
      const block = values.subarray(start, Math.min(start + 32, at + width));
      for (let i = 0; i < block.length; i++)
        block[i] = Math.max(-127, Math.min(127, Math.round(block[i]! * 256))) / 256;
      block[0] = 127 / 256;
    }
  return values;
};

/** Values that 8 bits hold exactly with one scale for a column, as the kernels keep second factors. */
const eightBitColumns = (values: Float32Array, width: number): Float32Array =>
  values.map((value, at) => (at < width ? 127 : Math.max(-127, Math.min(127, Math.round(value * 256)))) / 256);

function matricesOf(
  config: ModelConfig,
  slots: readonly DenseSlot[],
  rank: number,
  seed: number,
  hasGains = false,
): AdapterMatrix[] {
  const random = new Rng(seed);
  const shapes = expectedShapes(config);
  return Array.from({ length: config.layers }, (_, layer) => layer).flatMap((layer) =>
    slots.map((slot) => {
      const [outputs, inputs] = shapes.get(`${layer}.${slot}`) as [number, number];
      const a = eightBits(random.normal(rank * inputs, 0.5 / Math.sqrt(inputs)), inputs);
      const b = eightBitColumns(random.normal(outputs * rank, 0.5 / Math.sqrt(rank)), rank);
      return { layer, slot, rank, a, b, ...(hasGains ? { gains: random.normal(outputs, 0.2) } : {}) };
    }),
  );
}

/** The same weights with what the adapter adds in them. */
function merged(weights: WeightSource, adapter: readonly AdapterMatrix[], scale: number): WeightSource {
  const added = new Map(adapter.map((one) => [`${one.layer}.${one.slot}`, one]));
  return {
    ...weights,
    tensor(name) {
      const tensor = weights.tensor(name);
      const one = added.get(name);
      if (one === undefined) return tensor;
      const { rank, a, b, gains } = one;
      const plain = tensor.readFloat32();
      const width = a.length / rank;
      const sum = Float64Array.from(plain, (w, at) => w * (1 + scale * (gains?.[Math.floor(at / width)] ?? 0)));
      const inputs = a.length / rank;
      for (let o = 0; o < b.length / rank; o++)
        for (let r = 0; r < rank; r++)
          for (let i = 0; i < inputs; i++) sum[o * inputs + i]! += scale * b[o * rank + r]! * a[r * inputs + i]!;
      // The reference sums in float64 whatever it is given.
      return { ...tensor, readFloat32: () => sum as unknown as Float32Array };
    },
  };
}

const ATTENTION = ['q', 'k', 'v', 'o'] as const;
/** To values that 8 bits hold exactly. */
const rounded = (w: Float32Array, inputs: number): void => void eightBits(w, inputs);

async function errors(
  create: typeof createNativeBackend,
  precision: 'auto' | 'exact',
  config: ModelConfig,
  slots: readonly DenseSlot[],
  rank: number,
  { scale = 0.75, hasGains = false }: { readonly scale?: number; readonly hasGains?: boolean } = {},
): Promise<Record<string, number>> {
  const weights = randomWeights(config, 7, rounded);
  const adapter = matricesOf(config, slots, rank, 11, hasGains);
  const backend = await create({ config, weights }, { precision, threads: 1 });
  try {
    const adapted = adaptedDense(backend, [{ adapter: backend.addAdapter!(adapter), scale }]);
    return await worstErrors(config, merged(weights, adapter, scale), adapted);
  } finally {
    await backend.close();
  }
}

const below = (found: Record<string, number>, bound: number, what: string): void => {
  for (const [output, error] of Object.entries(found)) expect(error, `${what}: ${output}`).toBeLessThan(bound);
};

describe('equal to merged weights', () => {
  test.each([...CASES, EXPERT_CASES[2]!])('$name', async ({ more }) => {
    const config = { ...BASE, ...more };
    const slots = config.experts === null ? DENSE_SLOTS : ATTENTION;
    below(await errors(createLoopBackend, 'exact', config, slots, 4), FLOAT32, 'loops');
    for (const isa of available) {
      setIsa(isa);
      below(await errors(createNativeBackend, 'auto', config, slots, 4), ROUNDED_ACTIVATIONS, isa);
    }
  });

  test.each([...CASES, EXPERT_CASES[2]!])('with gains, as DoRA has them: $name', async ({ more }) => {
    const config = { ...BASE, ...more };
    const slots = config.experts === null ? DENSE_SLOTS : ATTENTION;
    const options = { hasGains: true };
    below(await errors(createLoopBackend, 'exact', config, slots, 4, options), FLOAT32, 'loops');
    for (const isa of available) {
      setIsa(isa);
      below(await errors(createNativeBackend, 'auto', config, slots, 4, options), ROUNDED_ACTIVATIONS, isa);
    }
  });

  test.each(DENSE_SLOTS.map((slot) => [slot]))('%s alone', async (slot) => {
    below(await errors(createLoopBackend, 'exact', BASE, [slot], 8), FLOAT32, 'loops');
    below(await errors(createNativeBackend, 'auto', BASE, [slot], 8), ROUNDED_ACTIVATIONS, 'native');
  });

  test.each([1, 2, 7, 16, 17, 32, 33, 64])('rank %i', async (rank) => {
    below(await errors(createLoopBackend, 'exact', BASE, DENSE_SLOTS, rank, { scale: 0.2 }), FLOAT32, 'loops');
    for (const isa of available) {
      setIsa(isa);
      below(
        await errors(createNativeBackend, 'auto', BASE, DENSE_SLOTS, rank, { scale: 0.2 }),
        ROUNDED_ACTIVATIONS,
        isa,
      );
    }
  });
});

/** What a dense half answers to rows, by all of its methods, [rows][values]. */
async function answers(
  dense: DenseBackend,
  rows: { readonly x: Float32Array; readonly attention: Float32Array; readonly tokens: number },
  adapted?: readonly AdaptedRows[],
): Promise<number[][]> {
  const { x, attention, tokens } = rows;
  const found: Float32Array[] = [];
  const take = ({ q, k, v, x: stream }: Awaited<ReturnType<DenseBackend['first']>>): void => {
    found.push(q.slice(), k.slice(), v.slice(), stream.slice());
  };
  take(await dense.first(x, tokens, adapted));
  take(await dense.next(0, attention, x, tokens, adapted));
  found.push((await dense.last(attention, x, tokens, adapted)).slice());
  return Array.from({ length: tokens }, (_, row) =>
    found.flatMap((values) => [
      ...values.subarray((row * values.length) / tokens, ((row + 1) * values.length) / tokens),
    ]),
  );
}

describe('rows', () => {
  const { hiddenSize, queryHeads, headDim } = BASE;
  const weights = randomWeights(BASE, 3);
  const width = queryHeads * headDim;
  // More than one slice of the kernels.
  const tokens = 150;
  const x = new Rng(1).normal(tokens * hiddenSize, 2);
  const attention = new Rng(2).normal(tokens * width);
  const rowsOf = (from: number, count: number) => ({
    x: x.slice(from * hiddenSize, (from + count) * hiddenSize),
    attention: attention.slice(from * width, (from + count) * width),
    tokens: count,
  });

  test.each([
    ['native', createNativeBackend, 'auto'],
    ['loops', createLoopBackend, 'exact'],
  ] as const)('of a mix have the bits that they have alone (%s)', async (name, create, precision) => {
    for (const isa of name === 'native' ? available : [best]) {
      setIsa(isa);
      const dense = await create({ config: BASE, weights }, { precision, threads: 3 });
      const [one, two, attentionOnly] = [
        dense.addAdapter!(matricesOf(BASE, DENSE_SLOTS, 16, 21)),
        dense.addAdapter!(matricesOf(BASE, DENSE_SLOTS, 5, 22, true)),
        dense.addAdapter!(matricesOf(BASE, ['q', 'v'], 33, 23)),
      ];
      const parts: AdaptedRows[] = [
        { from: 0, rows: 3, adapter: one!, scale: 1 },
        { from: 5, rows: 120, adapter: two!, scale: -0.5 },
        { from: 126, rows: 4, adapter: attentionOnly!, scale: 2 },
        { from: 140, rows: 10, adapter: one!, scale: 0.25 },
        { from: 140, rows: 10, adapter: two!, scale: 1 },
      ];
      const plain = await answers(dense, rowsOf(0, tokens));
      const mixed = await answers(dense, rowsOf(0, tokens), parts);
      for (const row of [0, 2, 3, 4, 5, 60, 124, 125, 126, 129, 130, 139, 140, 149]) {
        const own = parts
          .filter(({ from, rows }) => row >= from && row < from + rows)
          .map((part) => ({ ...part, from: 0, rows: 1 }));
        const [alone] = await answers(dense, rowsOf(row, 1), own);
        expect(alone, `${isa}, row ${row}`).toEqual(mixed[row]);
        if (own.length === 0) expect(mixed[row], `${isa}, row ${row}`).toEqual(plain[row]);
        else expect(mixed[row]).not.toEqual(plain[row]);
      }
      // Nothing is left when they are gone, and their numbers are used again.
      for (const adapter of [one, two, attentionOnly]) dense.dropAdapter!(adapter!);
      expect(await answers(dense, rowsOf(0, 7))).toEqual(plain.slice(0, 7));
      expect(dense.addAdapter!(matricesOf(BASE, ['o'], 1, 24))).toBe(one);
      await dense.close();
    }
  });

  test('of an adapter that is not there, or beyond those of the call, are refused', async () => {
    const dense = await createNativeBackend({ config: BASE, weights }, { precision: 'auto', threads: 1 });
    const before = dense.bytes;
    const adapter = dense.addAdapter!(matricesOf(BASE, ['q'], 4, 1));
    expect(dense.bytes).toBeGreaterThan(before);
    for (const part of [
      { from: 0, rows: 2, adapter: adapter + 1, scale: 1 },
      { from: 1, rows: 2, adapter, scale: 1 },
      { from: -1, rows: 1, adapter, scale: 1 },
      { from: 0, rows: 0, adapter, scale: 1 },
    ])
      await expect(dense.first(rowsOf(0, 2).x, 2, [part])).rejects.toMatchObject({ code: 'bad-argument' });
    dense.dropAdapter!(adapter);
    expect(dense.bytes).toBe(before);
    const [bad] = matricesOf(BASE, ['q'], 4, 1);
    bad!.b[3] = Number.NaN;
    expect(refusal(() => dense.addAdapter!([bad!])).code).toBe('bad-value');
    expect(dense.bytes).toBe(before);
    await dense.close();
  });
});

test.each([
  ['native', createNativeBackend, 'auto'],
  ['loops', createLoopBackend, 'exact'],
] as const)('what an adapter takes is known before it is there (%s)', async (_, create, precision) => {
  for (const config of [BASE, { ...BASE, hiddenSize: 36, intermediateSize: 55, headDim: 24, kvHeads: 4 }])
    for (const rank of [1, 3, 4, 5, 16, 33])
      for (const hasGains of [false, true]) {
        const dense = await create({ config, weights: randomWeights(config, 3) }, { precision, threads: 1 });
        const before = dense.bytes;
        const matrices = matricesOf(config, DENSE_SLOTS, rank, 1, hasGains);
        const adapter = dense.addAdapter!(matrices);
        expect(dense.bytes - before).toBe(dense.adapterBytes!(matrices));
        dense.dropAdapter!(adapter);
        expect(dense.bytes).toBe(before);
        await dense.close();
      }
});

test('onnxruntime is never chosen where adapters are named', async () => {
  for (const precision of ['auto', 'exact'] as const) {
    const { name } = await chooseDense(precision, undefined, BASE, true);
    expect(name).toBe(precision === 'exact' ? 'loops' : 'native');
  }
});
