// Every type of weights that the dense half packs: on every instruction set, products are those with the decoded
// weights of the file in float64, within the rounding of the activations (and of floats to 8 bits), and a row alone has
// the bits that it has among any number of others, also on other instruction sets that fuse; scales that are no numbers
// are found; rows come in parts; and what is refused.

import { afterAll, describe, expect, test } from 'vitest';
import { dequantize, ELEMENT_TYPES } from '../../../engine/transformer/dequant.ts';
import { DenseHalf, densePacking, KvError, nativeInfo, setIsa, toHalf } from '../../../native/index.ts';
import { DENSE_FORMS, DENSE_TYPES, type DenseType } from '../../../native/layout.ts';
import { availableIsas, loadKernels } from '../../native/kernels-binding.ts';
import { gaussian } from '../../native/rows.ts';
import { halvesOf, QUANTIZED_TYPES, weightBlocks } from '../../native/weight-blocks.ts';
import { seeded } from '../../random.ts';
import { codeOf } from '../../refusal.ts';

const SEED = 8311;
const kernels = loadKernels();
const ISAS = availableIsas(kernels);
/** Of the sets that fuse multiplications with additions, what the first of them answers for one row at a time. */
const fused = new Map<string, Float32Array>();
const TYPES = DENSE_TYPES.map(({ name }) => name);
const { isa: best } = nativeInfo();
afterAll(() => setIsa(best));

function decoded(type: DenseType, bytes: Uint8Array, count: number): Float32Array {
  const values = new Float32Array(count);
  dequantize(ELEMENT_TYPES.get(type)!, bytes, values);
  return values;
}

/** What y[t, o] is, and how far from it a product may be. */
function exactly(type: DenseType, w: Float32Array, x: Float32Array, inputs: number): { y: number; bound: number } {
  const isFloat = !(QUANTIZED_TYPES as readonly string[]).includes(type);
  let [y, bound, size] = [0, 0, 0];
  for (let first = 0; first < inputs; first += 32) {
    const block = w.subarray(first, Math.min(first + 32, inputs));
    const largest = block.reduce((most, value) => Math.max(most, Math.abs(value)), 0);
    const most = x.subarray(first, first + block.length).reduce((so, value) => Math.max(so, Math.abs(value)), 0);
    for (const [i, weight] of block.entries()) {
      const value = x[first + i]!;
      y += value * weight;
      // Half a step of the activations, which is 1/32512 of their largest; and of floats half a step of 1/127 of
      // theirs.
      bound += (most / 32512) * 0.501 * Math.abs(weight);
      if (isFloat) bound += (Math.abs(value) + most / 32512) * (largest / 127) * 0.501;
      // A code times its scale, and the minimum, are both less than ten times the largest weight.
      size += 20 * largest * (Math.abs(value) + most / 32512);
    }
  }
  return { y, bound: bound + size * ((4 * inputs) / 32 + 4) * 2 ** -24 };
}

/** The reference of one plane: what rows become, their steps, and the sums of all integers and of the last 16. */
function inBytes(x: Float32Array): { x: Float64Array; steps: Float32Array; sums: Int32Array } {
  const blocks = x.length / 32;
  const [whole, steps, sums] = [new Float64Array(x.length), new Float32Array(blocks), new Int32Array(2 * blocks)];
  for (let block = 0; block < blocks; block++) {
    const from = x.subarray(32 * block, 32 * block + 32);
    const most = from.reduce((so, value) => Math.max(so, Math.abs(value)), 0);
    steps[block] = most / 127;
    if (most === 0) continue;
    const inverse = Math.fround(127 / most);
    for (const [i, value] of from.entries()) {
      // Halves do not occur in what is drawn here.
      const code = Math.round(Math.fround(value * inverse));
      whole[32 * block + i] = code * steps[block]!;
      sums[2 * block]! += code;
      if (i >= 16) sums[2 * block + 1]! += code;
    }
  }
  return { x: whole, steps, sums };
}

test.each(TYPES)(
  `%s: every instruction set packs the same bytes, of whole and of last panels (seed ${SEED + 4})`,
  (type) => {
    const random = seeded(SEED + 4);
    const id = TYPES.indexOf(type);
    const { values } = DENSE_TYPES[id]!;
    for (const outputs of [16, 37]) {
      const inputs = values === 1 ? 77 : 3 * values;
      const bytes = weightBlocks(random, type, outputs * inputs, 0.1);
      const packed = ISAS.map(([, isa]) => {
        const panels = new Uint8Array(densePacking(type, outputs, inputs)!.bytes);
        expect(kernels.densePack(isa, id, inputs, outputs, bytes, panels)).toBe(1);
        return panels;
      });
      for (const [i, panels] of packed.entries()) expect(panels, ISAS[i]![0]).toEqual(packed[0]);
    }
  },
);

describe.each(ISAS)('%s', (name, isa) => {
  test.each(TYPES)(`%s: products within the rounding of the activations (seed ${SEED})`, (type) => {
    const random = seeded(SEED);
    const id = TYPES.indexOf(type);
    const { values, form } = DENSE_TYPES[id]!;
    const formId = DENSE_FORMS.findIndex(({ name }) => name === form);
    for (const [outputs, blocks] of [
      [1, 1],
      [16, 3],
      [37, 2],
      [80, 4],
    ] as const) {
      const inputs = values === 1 ? 45 * blocks : values * blocks;
      const bytes = weightBlocks(random, type, outputs * inputs, 0.1);
      const w = decoded(type, bytes, outputs * inputs);
      const panels = new Uint8Array(densePacking(type, outputs, inputs)!.bytes).fill(0xa5);
      expect(kernels.densePack(isa, id, inputs, outputs, bytes, panels)).toBe(1);
      const product = (x: Float32Array): Float32Array => {
        const n = x.length / inputs;
        const y = new Float32Array(n * outputs);
        const count = n * Math.ceil(inputs / 32);
        const [steps, sums] = [new Float32Array(count), new Int32Array(2 * count)];
        const none = new Float32Array(0);
        kernels.densePanels(isa, formId, inputs, outputs, n, panels, x, none, none, y, steps, sums, 2);
        return y;
      };
      for (const n of [1, 2, 3, 9]) {
        const x = Float32Array.from({ length: n * inputs }, () => gaussian(random));
        const y = product(x);
        const alone = product(x.subarray((n - 1) * inputs));
        expect(y.subarray((n - 1) * outputs), 'the last row alone').toEqual(alone);
        for (let i = 0; i < y.length; i++) {
          const [t, o] = [Math.floor(i / outputs), i % outputs];
          const row = w.subarray(o * inputs, (o + 1) * inputs);
          const exact = exactly(type, row, x.subarray(t * inputs, (t + 1) * inputs), inputs);
          expect(Math.abs(y[i]! - exact.y), `${outputs}x${inputs}, row ${t}, output ${o}`).toBeLessThanOrEqual(
            exact.bound,
          );
        }
      }
    }
  });

  test.each([1, 2].flatMap((planes) => TYPES.map((type) => [type, planes] as const)))(
    `%s, planes: %i: a row has the same bits among any number of others, and on every set that fuses (seed ${SEED + 2})`,
    (type, planes) => {
      const random = seeded(SEED + 2);
      const id = TYPES.indexOf(type);
      const { values, form } = DENSE_TYPES[id]!;
      const formId = DENSE_FORMS.findIndex(({ name }) => name === form);
      const most = 17; // more than two tiles of any instruction set, and every number that the last may have
      const inputs = values === 1 ? 77 : 2 * values;
      for (const outputs of [16, 37, 64]) {
        const panels = new Uint8Array(densePacking(type, outputs, inputs)!.bytes);
        kernels.densePack(isa, id, inputs, outputs, weightBlocks(random, type, outputs * inputs, 0.1), panels);
        const x = Float32Array.from({ length: most * inputs }, () => gaussian(random));
        const bias = Float32Array.from({ length: Math.ceil(outputs / 16) * 16 }, () => gaussian(random));
        const base = Float32Array.from({ length: most * outputs }, () => gaussian(random));
        const product = (from: number, n: number): Float32Array => {
          const y = new Float32Array(n * outputs);
          const count = n * Math.ceil(inputs / 32);
          const [rows, onto] = [x.slice(from * inputs), base.slice(from * outputs)];
          const [steps, sums] = [new Float32Array(count), new Int32Array(2 * count)];
          const [given, bases] = [rows.subarray(0, n * inputs), onto.subarray(0, n * outputs)];
          kernels.densePanels(isa, formId, inputs, outputs, n, panels, given, bias, bases, y, steps, sums, planes);
          return y;
        };
        const alone = Float32Array.from(Array.from({ length: most }, (_, row) => [...product(row, 1)]).flat());
        for (let n = 2; n <= most; n++)
          expect(product(0, n), `${outputs} outputs, ${n} rows`).toEqual(alone.subarray(0, n * outputs));
        if (name === 'scalar' || name === 'wasm-simd128') continue;
        const key = `${type}, ${planes}, ${outputs}`;
        expect(alone, key).toEqual(fused.get(key) ?? alone);
        fused.set(key, alone);
      }
    },
  );

  test.each(QUANTIZED_TYPES)(`%s: one plane is products with rows of 8 bits (seed ${SEED + 3})`, (type) => {
    const random = seeded(SEED + 3);
    const id = TYPES.indexOf(type);
    const { values, form } = DENSE_TYPES[id]!;
    const formId = DENSE_FORMS.findIndex(({ name }) => name === form);
    const [outputs, inputs, n] = [37, 3 * values, 5];
    const blocks = inputs / 32;
    const bytes = weightBlocks(random, type, outputs * inputs, 0.1);
    const w = decoded(type, bytes, outputs * inputs);
    const panels = new Uint8Array(densePacking(type, outputs, inputs)!.bytes);
    kernels.densePack(isa, id, inputs, outputs, bytes, panels);
    const x = Float32Array.from({ length: n * inputs }, () => gaussian(random));
    x.fill(0, 32, 64);
    x[70] = 100;
    const [y, steps, sums] = [
      new Float32Array(n * outputs),
      new Float32Array(n * blocks),
      new Int32Array(2 * n * blocks),
    ];
    const none = new Float32Array(0);
    kernels.densePanels(isa, formId, inputs, outputs, n, panels, x, none, none, y, steps, sums, 1);
    const rounded = inBytes(x);
    expect([steps, sums]).toEqual([rounded.steps, rounded.sums]);
    for (let i = 0; i < y.length; i++) {
      const [t, o] = [Math.floor(i / outputs), i % outputs];
      const row = w.subarray(o * inputs, (o + 1) * inputs);
      let [exact, size] = [0, 0];
      for (let at = 0; at < inputs; at++) {
        exact += rounded.x[t * inputs + at]! * row[at]!;
        size += Math.abs(rounded.x[t * inputs + at]!);
      }
      // What scale times code and the minimum are, of the largest weight; five roundings of each of the sums so far.
      const largest = row.reduce((most, weight) => Math.max(most, Math.abs(weight)), 0);
      expect(Math.abs(y[i]! - exact), `row ${t}, output ${o}`).toBeLessThanOrEqual(
        20 * largest * size * (4 * blocks + 4) * 2 ** -24,
      );
    }
  });

  test.each(QUANTIZED_TYPES)('%s: an infinite or missing scale or minimum is found wherever it is', (type) => {
    const random = seeded(SEED + 1);
    const id = TYPES.indexOf(type);
    const { values, bytes: blockBytes } = DENSE_TYPES[id]!;
    const [outputs, inputs] = [19, 2 * values];
    const good = weightBlocks(random, type, outputs * inputs, 0.1);
    const panels = new Uint8Array(densePacking(type, outputs, inputs)!.bytes);
    for (const at of halvesOf(type)) {
      for (const block of [0, 17, 2 * outputs - 1]) {
        for (const bad of [Infinity, -Infinity, NaN]) {
          const bytes = good.slice();
          new DataView(bytes.buffer).setUint16(block * blockBytes + at, toHalf(Float32Array.of(bad))[0]!, true);
          expect(kernels.densePack(isa, id, inputs, outputs, bytes, panels)).toBe(0);
        }
      }
    }
    expect(kernels.densePack(isa, id, inputs, outputs, good, panels)).toBe(1);
  });
});

test('a kept matrix takes no more than a twentieth above the bytes of the file', () => {
  for (const type of QUANTIZED_TYPES) {
    const { rowBytes, bytes } = densePacking(type, 1024, 2048)!;
    expect(bytes / (1024 * rowBytes), type).toBeLessThanOrEqual(1.05);
    expect(bytes / (1024 * rowBytes), type).toBeGreaterThanOrEqual(1);
  }
});

test('a kept matrix ends where a line of 64 bytes does, however many blocks a row has', () => {
  for (const type of TYPES) {
    const { values } = DENSE_TYPES[TYPES.indexOf(type)]!;
    for (const outputs of [16, 48]) {
      for (let blocks = 1; blocks < 8; blocks++) {
        const inputs = Math.max(32, values) * blocks;
        const { bytes, rowBytes } = densePacking(type, outputs, inputs)!;
        expect(bytes % 64, `${type}, ${blocks} blocks`).toBe(0);
        const half = new DenseHalf({
          ...{ layers: 1, hiddenSize: inputs, intermediateSize: 16, queryHeads: 1, kvHeads: 1, headDim: 16 },
          ...{ vocabSize: outputs, normEpsilon: 1e-5 },
        });
        half.setRows(1, 'q', type, new Uint8Array(outputs * rowBytes));
        expect(half.bytes).toBe(bytes);
        half.close();
      }
    }
  }
});

// The packed matrix would have 20 TB. In 32 bits that is a number which wraps to 0; elsewhere it is no test at all, so
// that nothing is told as skipped.
if (nativeInfo().binding === 'wasm')
  test('a matrix of more bytes than 32 bits count is refused', () => {
    const half = new DenseHalf({
      ...{ layers: 1, hiddenSize: 2 ** 20, intermediateSize: 16, queryHeads: 1, kvHeads: 1, headDim: 16 },
      ...{ vocabSize: 2 ** 24, normEpsilon: 1e-5 },
    });
    let error: unknown;
    try {
      half.setRows(1, 'q', 'F32', new Uint8Array(16 * 2 ** 22));
    } catch (thrown) {
      error = thrown;
    }
    expect(error).toBeInstanceOf(KvError);
    expect(error).toMatchObject({ code: 'budget-exceeded', message: expect.stringContaining('memory') });
    expect(half.bytes).toBe(0);
    half.close();
  });

describe('rows of a matrix', () => {
  const SHAPE = {
    ...{ layers: 1, hiddenSize: 256, intermediateSize: 64, queryHeads: 2, kvHeads: 2, headDim: 32, vocabSize: 53 },
    normEpsilon: 1e-5,
  };
  const empty = (threads = 1): DenseHalf => new DenseHalf(SHAPE, threads);
  /** Everything but the output matrix. */
  function filled(threads = 1): DenseHalf {
    const half = empty(threads);
    for (const slot of ['q', 'k', 'v', 'o', 'gate', 'up', 'down'] as const) {
      const [outputs, inputs] = half.sizes(0, slot);
      half.setWide(0, slot, new Float32Array(outputs * inputs));
    }
    for (const norm of ['attnNorm', 'mlpNorm'] as const) half.setNorm(0, norm, new Float32Array(256).fill(1));
    half.setNorm(1, 'attnNorm', new Float32Array(256).fill(1));
    return half;
  }
  const logits = (half: DenseHalf): Float32Array => {
    const out = new Float32Array(53);
    const random = seeded(SEED + 3);
    half.logits(
      Float32Array.from({ length: 256 }, () => gaussian(random)),
      1,
      out,
    );
    half.close();
    return out;
  };

  test.each(TYPES)('%s: parts, in threads, are the whole; bytes are those that are announced', (type) => {
    const bytes = weightBlocks(seeded(SEED + 2), type, 53 * 256, 0.1);
    const { rowBytes, bytes: kept } = densePacking(type, 53, 256)!;
    const [whole, parts] = [filled(), filled(3)];
    const before = whole.bytes;
    whole.setRows(1, 'q', type, bytes);
    expect(whole.bytes - before).toBe(kept);
    for (const [from, to] of [
      [0, 16],
      [16, 48],
      [48, 53],
    ] as const)
      parts.setRows(1, 'q', type, bytes.subarray(from * rowBytes, to * rowBytes), from);
    expect(parts.bytes).toBe(whole.bytes);
    expect(logits(parts)).toEqual(logits(whole));
  });

  test('floats given as the bytes of a file are the matrix that they are as numbers', () => {
    const bytes = weightBlocks(seeded(SEED + 4), 'F32', 53 * 256, 0.1);
    const [fromBytes, fromNumbers] = [filled(), filled()];
    // At an odd address.
    const odd = new Uint8Array(bytes.length + 1);
    odd.set(bytes, 1);
    fromBytes.setRows(1, 'q', 'F32', odd.subarray(1));
    fromNumbers.setWide(1, 'q', new Float32Array(bytes.buffer));
    expect(logits(fromBytes)).toEqual(logits(fromNumbers));
  });

  test('rows that were refused for a scale may be given again', () => {
    const bytes = weightBlocks(seeded(SEED + 5), 'Q6_K', 53 * 256, 0.1);
    const half = filled();
    const before = half.bytes;
    const bad = bytes.slice().fill(0xff, 208, 210);
    expect(codeOf(() => half.setRows(1, 'q', 'Q6_K', bad))).toBe('bad-value');
    expect(half.bytes).toBe(before);
    half.setRows(1, 'q', 'Q6_K', bytes.subarray(0, 16 * 210));
    expect(codeOf(() => half.setRows(1, 'q', 'Q6_K', bad.subarray(0, 16 * 210), 16))).toBe('bad-value');
    expect(codeOf(() => half.logits(new Float32Array(256), 1, new Float32Array(53)))).toBe('bad-argument');
    half.setRows(1, 'q', 'Q6_K', bytes.subarray(16 * 210), 16);
    const other = filled();
    other.setRows(1, 'q', 'Q6_K', bytes);
    expect(logits(half)).toEqual(logits(other));
  });

  test.each([
    ['an unknown type', 'bad-argument', (half) => half.setRows(1, 'q', 'IQ1_S' as 'Q8_0', new Uint8Array(50))],
    ['no bytes', 'bad-argument', (half) => half.setRows(1, 'q', 'Q8_0', 'q' as unknown as Uint8Array)],
    ['half a row', 'bad-shape', (half) => half.setRows(1, 'q', 'Q8_0', new Uint8Array(4 * 34))],
    ['empty rows', 'bad-shape', (half) => half.setRows(1, 'q', 'Q8_0', new Uint8Array(0))],
    ['rows too many', 'bad-shape', (half) => half.setRows(1, 'q', 'Q8_0', new Uint8Array(54 * 8 * 34))],
    [
      'rows before those that come first',
      'bad-argument',
      (half) => half.setRows(1, 'q', 'Q8_0', new Uint8Array(8 * 34), 52),
    ],
    [
      'a part that is no multiple of 16',
      'bad-argument',
      (half) => half.setRows(1, 'q', 'Q8_0', new Uint8Array(17 * 8 * 34)),
    ],
    [
      'parts of two types',
      'bad-argument',
      (half) => {
        half.setRows(1, 'q', 'Q8_0', new Uint8Array(16 * 8 * 34));
        half.setRows(1, 'q', 'Q4_0', new Uint8Array(16 * 8 * 18), 16);
      },
    ],
    ['a first row that is none', 'bad-argument', (half) => half.setRows(1, 'q', 'Q8_0', new Uint8Array(8 * 34), 0.5)],
    [
      'blocks that do not divide the inputs',
      'unsupported',
      (half) => half.setRows(0, 'down', 'Q6_K', new Uint8Array(64 * 210)),
    ],
    [
      'a closed one',
      'closed',
      (half) => {
        half.close();
        half.setRows(1, 'q', 'Q8_0', new Uint8Array(53 * 8 * 34));
      },
    ],
  ] satisfies [string, string, (half: DenseHalf) => void][])('%s is refused', (_, expected, call) => {
    const half = empty();
    expect(codeOf(() => call(half))).toBe(expected);
    half.close();
  });
});
