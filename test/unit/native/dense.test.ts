// The matrices around attention: a row gives the same bits alone, among others and with any number of threads, on every
// instruction set; zeros, tiny and huge rows; experts of equal scores; and every wrong call, also of the bare binding.
// That the numbers are right is tried in engine/transformer/dense-native.test.ts.

import { afterAll, describe, expect, test } from 'vitest';
import {
  DENSE_SLOTS,
  DenseHalf,
  type DenseNorm,
  type DenseShape,
  type DenseSlot,
  densePacking,
  nativeInfo,
  type Projected,
  setIsa,
} from '../../../native/index.ts';
import { STATUSES } from '../../../native/layout.ts';
import { loadBinary } from '../../../native/load.ts';
import { normals } from '../../native/dense.ts';
import { QUANTIZED_TYPES, weightBlocks } from '../../native/weight-blocks.ts';
import { seeded } from '../../random.ts';
import { codeOf } from '../../refusal.ts';

const SEED = 5119;
const { available, isa: best } = nativeInfo();
afterAll(() => setIsa(best));

const SHAPE: DenseShape = {
  ...{ layers: 2, hiddenSize: 96, intermediateSize: 392, queryHeads: 3, kvHeads: 1, headDim: 32 },
  ...{ vocabSize: 77, normEpsilon: 1e-5 },
};

/** Everything that a layer can have otherwise. */
const OTHER: DenseShape = { ...SHAPE, preNorms: false, postNorms: true, activation: 'gelu-tanh', qkNorm: 'width' };
/** As in GPT-NeoX. */
const BESIDE: DenseShape = { ...SHAPE, layerNorms: true, parallel: true, gated: false, activation: 'gelu' };
/** So many experts that most rows meet others than their neighbours do. */
const EXPERTS: DenseShape = {
  ...SHAPE,
  intermediateSize: 136,
  experts: { count: 7, used: 3, shareAmongChosen: true },
};
const SHAPES = {
  'as in Llama': SHAPE,
  'with norms after, over all heads, and GELU': OTHER,
  'beside each other, with layer norms and without a gate': BESIDE,
  'with experts': EXPERTS,
  'with experts and norms after': {
    ...OTHER,
    intermediateSize: 136,
    experts: { count: 5, used: 2, shareAmongChosen: false },
  },
} as const;

/** The matrices of a layer, and of its experts. */
function matricesOf({ layers, experts, gated }: DenseShape, layer: number): [slot: DenseSlot, expert: number][] {
  if (layer === layers) return [['q', 0]];
  return DENSE_SLOTS.filter((slot) => gated !== false || slot !== 'gate').flatMap((slot, i) =>
    Array.from(
      { length: i < DENSE_SLOTS.indexOf('gate') ? 1 : (experts?.count ?? 1) },
      (_, expert): [DenseSlot, number] => [slot, expert],
    ),
  );
}

/** Every second matrix in the blocks of some type where its inputs allow, the others rounded to 8 bits. */
function filled(shape: DenseShape, threads: number): DenseHalf {
  const random = seeded(SEED);
  const half = new DenseHalf(shape, threads);
  for (let layer = 0; layer <= shape.layers; layer++) {
    for (const [i, [slot, expert]] of matricesOf(shape, layer).entries()) {
      const [outputs, inputs] = half.sizes(layer, slot);
      const types = QUANTIZED_TYPES.filter((type) => densePacking(type, outputs, inputs) !== null);
      const type = types[(layer * DENSE_SLOTS.length + i) % Math.max(1, types.length)];
      if ((layer + i) % 2 === 0 && type !== undefined)
        half.setRows(layer, slot, type, weightBlocks(random, type, outputs * inputs, 1 / 8), 0, expert);
      else half.setWide(layer, slot, normals(random, outputs * inputs, 1 / 8), expert);
    }
    if (shape.experts && layer < shape.layers)
      half.setRouter(layer, normals(random, shape.experts.count * shape.hiddenSize, 1 / 8));
    const { layers, preNorms = true, postNorms = false, qkNorm } = shape;
    const hiddenSize = (shape.layerNorms === true ? 2 : 1) * shape.hiddenSize;
    const norm = (name: DenseNorm, size: number, gain: number): void =>
      half.setNorm(layer, name, new Float32Array(size).fill(gain));
    if (preNorms || layer === layers) norm('attnNorm', hiddenSize, 1.5);
    if (layer === layers) continue;
    if (preNorms) norm('mlpNorm', hiddenSize, 0.75);
    if (postNorms) {
      norm('attnPost', hiddenSize, 1.25);
      norm('mlpPost', hiddenSize, 0.5);
    }
    if (qkNorm === 'width') {
      norm('qNorm', shape.queryHeads * shape.headDim, 1.5);
      norm('kNorm', shape.kvHeads * shape.headDim, 0.75);
    }
  }
  return half;
}

const projected = ({ queryHeads, kvHeads, headDim }: DenseShape, tokens: number): Projected => ({
  q: new Float32Array(tokens * queryHeads * headDim),
  k: new Float32Array(tokens * kvHeads * headDim),
  v: new Float32Array(tokens * kvHeads * headDim),
});

/** Everything that the pieces answer for T rows, one line a row. */
function answers(half: DenseHalf, x: Float32Array, attention: Float32Array, tokens: number): Float32Array[] {
  const { shape } = half;
  const first = projected(shape, tokens);
  half.first(x, tokens, first);
  const next = projected(shape, tokens);
  const xNext = new Float32Array(x.length);
  half.next(0, attention, x, tokens, xNext, next);
  const last = new Float32Array(x.length);
  half.last(attention, x, tokens, last);
  const logits = new Float32Array(tokens * shape.vocabSize);
  half.logits(x, tokens, logits);
  const all = [first.q, first.k, first.v, xNext, next.q, next.k, next.v, last, logits];
  return Array.from({ length: tokens }, (_, t) =>
    Float32Array.from(
      all.flatMap((rows) => [...rows.subarray((t * rows.length) / tokens, ((t + 1) * rows.length) / tokens)]),
    ),
  );
}

describe.each(available)(`%s (seed ${SEED})`, (isa) => {
  test.each(Object.entries(SHAPES))(
    'layers %s: a row gives the same bits alone, among others, and with three threads',
    (_, shape) => {
      setIsa(isa);
      const random = seeded(SEED + 1);
      const tokens = 131; // more than a slice, no multiple of any block; so many that threads share the wide products
      const x = normals(random, tokens * SHAPE.hiddenSize);
      const attention = normals(random, tokens * 96);
      const halves = [filled(shape, 1), filled(shape, 3)];
      const [one, three] = halves.map((half) => answers(half, x, attention, tokens));
      expect(three).toEqual(one);
      for (const t of [0, 1, 4, 7, 127, 128, 130]) {
        const at = (rows: Float32Array): Float32Array => rows.slice(t * 96, (t + 1) * 96);
        expect(answers(halves[0]!, at(x), at(attention), 1)[0], `row ${t}`).toEqual(one![t]);
      }
      for (const half of halves) half.close();
    },
  );

  test.each(Object.entries(SHAPES))(
    'layers %s: one plane for some matrices, by the same bits alone, among others and with three threads',
    (_, shape) => {
      setIsa(isa);
      const random = seeded(SEED + 6);
      const tokens = 131;
      const x = normals(random, tokens * SHAPE.hiddenSize);
      const attention = normals(random, tokens * 96);
      const halves = [filled(shape, 1), filled(shape, 3)];
      const before = answers(halves[0]!, x, attention, tokens);
      const slots = [
        [0, 'k'],
        [0, 'up'],
        [1, 'q'],
        [1, 'o'],
        [1, 'down'],
        [2, 'q'],
      ] as const;
      for (const half of halves) for (const [layer, slot] of slots) half.setPlanes(layer, slot, 1);
      const [one, three] = halves.map((half) => answers(half, x, attention, tokens));
      expect(three).toEqual(one);
      expect(one![0]).not.toEqual(before[0]);
      for (const t of [0, 5, 127, 130]) {
        const at = (rows: Float32Array): Float32Array => rows.slice(t * 96, (t + 1) * 96);
        expect(answers(halves[0]!, at(x), at(attention), 1)[0], `row ${t}`).toEqual(one![t]);
      }
      // The queries of the first layer have two planes beside keys that have one.
      expect(one![0]!.subarray(0, 96)).toEqual(before[0]!.subarray(0, 96));
      expect(one![0]!.subarray(96, 128)).not.toEqual(before[0]!.subarray(96, 128));
      for (const [layer, slot] of slots) halves[0]!.setPlanes(layer, slot, 2);
      expect(answers(halves[0]!, x, attention, tokens)).toEqual(before);
      for (const half of halves) half.close();
    },
  );

  test.each(Object.entries(SHAPES))(
    'layers %s: zeros, denormals, the smallest and the largest rows stay numbers',
    (_, shape) => {
      setIsa(isa);
      const half = filled(shape, 1);
      const attention = new Float32Array(96);
      for (const size of [0, 1e-44, 1e-38, 1e-30, 1e12]) {
        const x = normals(seeded(SEED + 2), 96).map((value) => value * size);
        for (const value of answers(half, x, attention, 1)[0]!)
          expect(Number.isFinite(value), `rows of ${size}`).toBe(true);
      }
      half.close();
    },
  );

  // Weights are checked when they are set, and rows are not: what is no number must come out as none, because then the
  // sampler refuses it.
  test.each(Object.entries(SHAPES))(
    'layers %s: one NaN or infinity, wherever it stands in a row, leaves no finite answers, and other rows as they are',
    (_, shape) => {
      setIsa(isa);
      const half = filled(shape, 1);
      const tokens = 2 * 96; // every second one has an element that is no number, each at another position
      const [x, attention] = [normals(seeded(SEED + 4), tokens * 96), normals(seeded(SEED + 5), tokens * 96)];
      const run = (read: Float32Array, attended: Float32Array): { logits: Float32Array; last: Float32Array } => {
        const [logits, last] = [new Float32Array(tokens * 77), new Float32Array(tokens * 96)];
        half.logits(read, tokens, logits);
        half.last(attended, read, tokens, last);
        return { logits, last };
      };
      const clean = run(x, attention);
      for (const value of [NaN, Infinity, -Infinity]) {
        const [read, attended] = [x.slice(), attention.slice()];
        for (let t = 0; t < tokens; t += 2) read[t * 96 + t / 2] = attended[t * 96 + 95 - t / 2] = value;
        const found = [run(read, attention), run(x, attended)] as const;
        const row = (rows: Float32Array, t: number): Float32Array =>
          rows.subarray((t * rows.length) / tokens, ((t + 1) * rows.length) / tokens);
        for (let t = 0; t < tokens; t++) {
          const what = `${value} at ${t / 2}`;
          const answered = [row(found[0].logits, t), row(found[0].last, t), row(found[1].last, t)];
          if (t % 2 === 0) for (const numbers of answered) expect(numbers.some(Number.isFinite), what).toBe(false);
          else expect(answered).toEqual([row(clean.logits, t), row(clean.last, t), row(clean.last, t)]);
        }
      }
      half.close();
    },
  );

  test('a row whose squares are beyond float32 has the logits of a smaller one', () => {
    setIsa(isa);
    const half = filled(SHAPE, 1);
    const row = normals(seeded(SEED + 6), 96).map(Math.tanh);
    const logits = (x: Float32Array): Float32Array => {
      const out = new Float32Array(77);
      half.logits(x, 1, out);
      return out;
    };
    // Without epsilon, because it counts beside small rows alone.
    const expected = logits(row.map((value) => value * 2 ** 40));
    for (const exponent of [65, 100, 128]) {
      const found = logits(row.map((value) => value * 2 ** exponent));
      for (const [i, logit] of found.entries()) expect(logit).toBeCloseTo(expected[i]!, 4);
    }
    half.close();
  });
});

test.each(Object.entries(SHAPES))('layers %s: all instruction sets agree to float32 rounding', (_, shape) => {
  const random = seeded(SEED + 3);
  const x = normals(random, 5 * 96);
  const attention = normals(random, 5 * 96);
  const found = available.map((isa) => {
    setIsa(isa);
    const half = filled(shape, 1);
    const rows = answers(half, x, attention, 5);
    half.close();
    return rows;
  });
  // A flip of one activation's last bit is 2^-15 of the largest in its block of 32, against sums of 96 to 392 of them.
  for (const rows of found) {
    for (const [t, row] of rows.entries()) {
      const reference = found[0]![t]!;
      let [difference, size] = [0, 0];
      for (let i = 0; i < row.length; i++) {
        difference += (row[i]! - reference[i]!) ** 2;
        size += reference[i]! ** 2;
      }
      expect(Math.sqrt(difference / size)).toBeLessThan(2e-5);
    }
  }
});

describe('experts', () => {
  const random = seeded(SEED + 4);
  const [m, f] = [96, 136];
  const norms = (half: DenseHalf): void => {
    half.setNorm(0, 'attnNorm', new Float32Array(m).fill(1));
    half.setNorm(0, 'mlpNorm', new Float32Array(m).fill(1));
    half.setNorm(1, 'attnNorm', new Float32Array(m).fill(1));
    half.setWide(1, 'q', new Float32Array(77 * m));
  };
  const shape: DenseShape = { ...SHAPE, layers: 1, intermediateSize: f };
  const attends = Object.fromEntries(
    (['q', 'k', 'v', 'o'] as const).map((slot) => [
      slot,
      normals(random, (slot === 'k' || slot === 'v' ? 32 : m) * m, 1 / 8),
    ]),
  );
  const feeds = Array.from({ length: 4 }, () => ({
    gate: normals(random, f * m, 1 / 8),
    up: normals(random, f * m, 1 / 8),
    down: normals(random, m * f, 1 / 8),
  }));
  const router = normals(random, m);
  const x = normals(random, 9 * m);

  function answer(
    feedForward: readonly (typeof feeds)[number][],
    used: number,
    shareAmongChosen: boolean,
    scores?: Float32Array,
  ): Float32Array {
    const experts = scores === undefined ? null : { count: feedForward.length, used, shareAmongChosen };
    const half = new DenseHalf({ ...shape, experts }, 1);
    norms(half);
    for (const slot of ['q', 'k', 'v', 'o'] as const) half.setWide(0, slot, attends[slot]!);
    for (const [expert, matrices] of feedForward.entries())
      for (const slot of ['gate', 'up', 'down'] as const) half.setWide(0, slot, matrices[slot], expert);
    if (scores !== undefined) half.setRouter(0, scores);
    const out = new Float32Array(x.length);
    half.last(x, x, 9, out);
    half.close();
    return out;
  }
  const close = (a: Float32Array, b: Float32Array): void => {
    for (const [i, value] of a.entries()) expect(Math.abs(value - b[i]!)).toBeLessThan(1e-5 * (1 + Math.abs(value)));
  };

  test('of equal scores the first answers, and one that answers alone is the feed-forward half', () => {
    const alike = Float32Array.from([...router, ...router, ...router, ...router]);
    const alone = answer([feeds[0]!], 1, false);
    close(answer(feeds, 1, true, alike), alone);
    // Two of four answer, with equal shares of all four or of themselves.
    const second = answer([feeds[1]!], 1, false);
    const base = answer([{ ...feeds[0]!, down: new Float32Array(m * f) }], 1, false);
    const mixed = (share: number): Float32Array =>
      base.map((value, i) => value + share * (alone[i]! - value) + share * (second[i]! - value));
    close(answer(feeds, 2, false, alike), mixed(1 / 4));
    close(answer(feeds, 2, true, alike), mixed(1 / 2));
  });

  test('the order of the experts does not matter to what is answered', () => {
    const scores = normals(random, 4 * m);
    const order = [2, 0, 3, 1];
    const turned = Float32Array.from(order.flatMap((expert) => [...scores.subarray(expert * m, (expert + 1) * m)]));
    const found = answer(
      order.map((expert) => feeds[expert]!),
      2,
      true,
      turned,
    );
    close(found, answer(feeds, 2, true, scores));
  });
});

describe('what is refused', () => {
  const half = filled(SHAPE, 1);
  afterAll(() => half.close());
  const empty = (): DenseHalf => new DenseHalf(SHAPE, 1);
  const SOME = { count: 7, used: 3, shareAmongChosen: true };
  const closedHalf = (): DenseHalf => {
    const half = empty();
    half.close();
    return half;
  };
  const withExperts = (): DenseHalf => new DenseHalf(EXPERTS, 1);
  const rows = (count: number): Float32Array => new Float32Array(count);
  const out = (): Projected => projected(SHAPE, 1);

  test('a matrix that was refused for a NaN may be given again, and is the one that was never refused', () => {
    const weights = Float32Array.from({ length: 96 * 96 }, (_, i) => Math.sin(i));
    const [again, other] = [empty(), empty()];
    for (const at of [0, 5000, weights.length - 1]) {
      expect(codeOf(() => again.setWide(0, 'q', weights.with(at, Number.NaN)))).toBe('bad-value');
      expect(again.bytes).toBe(0);
    }
    again.setWide(0, 'q', weights);
    other.setWide(0, 'q', weights);
    expect(again.bytes).toBe(other.bytes);
    expect(codeOf(() => again.setWide(0, 'q', weights))).toBe('bad-argument');
  });

  test('a norm or bias that was refused for a NaN leaves what was set, and may be given again', () => {
    const half = filled(SHAPE, 1);
    const [before, after] = [rows(77), rows(77)];
    const { bytes } = half;
    half.logits(rows(96).fill(1), 1, before);
    expect(codeOf(() => half.setNorm(2, 'attnNorm', rows(96).fill(NaN, 95)))).toBe('bad-value');
    expect(codeOf(() => half.setBias(2, 'q', rows(77).fill(NaN, 76)))).toBe('bad-value');
    expect(half.bytes).toBe(bytes);
    half.logits(rows(96).fill(1), 1, after);
    expect(after).toEqual(before);
    half.setNorm(2, 'attnNorm', rows(96).fill(1.5));
    half.setBias(2, 'q', rows(77).fill(1));
    half.logits(rows(96).fill(1), 1, after);
    expect(after).toEqual(before.map((logit) => logit + 1));
    half.close();
  });

  test.each([
    ['no layers', 'bad-argument', () => new DenseHalf({ ...SHAPE, layers: 0 })],
    ['a vocabulary beyond all bounds', 'bad-argument', () => new DenseHalf({ ...SHAPE, vocabSize: 2 ** 30 })],
    [
      'heads wider than a million',
      'bad-argument',
      () => new DenseHalf({ ...SHAPE, queryHeads: 1024, headDim: 1024, kvHeads: 1025 }),
    ],
    ['NaN as epsilon', 'bad-argument', () => new DenseHalf({ ...SHAPE, normEpsilon: NaN })],
    ['layer norms behind each half', 'bad-argument', () => new DenseHalf({ ...OTHER, layerNorms: true })],
    ['experts without a gate', 'bad-argument', () => new DenseHalf({ ...EXPERTS, gated: false })],
    ['experts beside attention', 'bad-argument', () => new DenseHalf({ ...EXPERTS, parallel: true })],
    ['gains without biases', 'bad-shape', () => new DenseHalf(BESIDE).setNorm(0, 'mlpNorm', rows(96))],
    ['a gate where there is none', 'bad-argument', () => new DenseHalf(BESIDE).setWide(0, 'gate', rows(392 * 96))],
    ['65 threads', 'bad-argument', () => new DenseHalf(SHAPE, 65)],
    ['an unknown matrix', 'bad-argument', () => empty().setWide(0, 'w' as 'q', rows(1))],
    ['a layer too many', 'bad-argument', () => empty().setWide(3, 'q', rows(96 * 96))],
    ['k behind the last layer', 'bad-argument', () => empty().setWide(2, 'k', rows(96 * 32))],
    ['a matrix twice', 'bad-argument', () => half.setWide(0, 'k', rows(32 * 96))],
    ['a matrix of another size', 'bad-shape', () => empty().setWide(0, 'q', rows(95))],
    ['a matrix with NaN', 'bad-value', () => empty().setWide(0, 'q', rows(96 * 96).fill(NaN, 7, 8))],
    ['an infinite matrix', 'bad-value', () => empty().setWide(0, 'q', rows(96 * 96).fill(-Infinity, 7, 8))],
    ['a bias with NaN', 'bad-value', () => empty().setBias(0, 'q', rows(96).fill(NaN, 95))],
    ['an infinite bias', 'bad-value', () => empty().setBias(0, 'down', rows(96).fill(Infinity, 0, 1))],
    ['a norm with NaN', 'bad-value', () => empty().setNorm(2, 'attnNorm', rows(96).fill(NaN, 95))],
    ['an infinite norm', 'bad-value', () => empty().setNorm(0, 'qNorm', rows(32).fill(-Infinity, 0, 1))],
    ['a bias of another size', 'bad-shape', () => empty().setBias(0, 'q', rows(95))],
    ['a norm of another size', 'bad-shape', () => empty().setNorm(0, 'qNorm', rows(96))],
    ['a norm after a half that has none', 'bad-argument', () => empty().setNorm(0, 'attnPost', rows(96))],
    ['a norm of heads for all heads together', 'bad-shape', () => new DenseHalf(OTHER).setNorm(0, 'qNorm', rows(32))],
    ['a head norm behind the last layer', 'bad-argument', () => empty().setNorm(2, 'kNorm', rows(32))],
    ['a run before all weights are there', 'bad-argument', () => empty().first(rows(96), 1, out())],
    ['rows of another size', 'bad-shape', () => half.first(rows(95), 1, out())],
    ['no tokens', 'bad-argument', () => half.first(rows(0), 0, out())],
    [
      'the last layer as one before another',
      'bad-argument',
      () => half.next(1, rows(96), rows(96), 1, rows(96), out()),
    ],
    ['no experts', 'bad-argument', () => new DenseHalf({ ...EXPERTS, experts: { ...SOME, count: 0 } })],
    ['too many experts', 'bad-argument', () => new DenseHalf({ ...EXPERTS, experts: { ...SOME, count: 1025 } })],
    [
      'too many experts in all layers',
      'bad-argument',
      () => new DenseHalf({ ...EXPERTS, layers: 4096, experts: { ...SOME, count: 17 } }),
    ],
    [
      'more experts for a row than there are',
      'bad-argument',
      () => new DenseHalf({ ...EXPERTS, experts: { ...SOME, used: 8 } }),
    ],
    ['no experts for a row', 'bad-argument', () => new DenseHalf({ ...EXPERTS, experts: { ...SOME, used: 0 } })],
    [
      'experts that are a number',
      'bad-argument',
      () => new DenseHalf({ ...EXPERTS, experts: 4 as unknown as typeof SOME }),
    ],
    [
      'shares among nobody knows whom',
      'bad-argument',
      () => new DenseHalf({ ...EXPERTS, experts: { ...SOME, shareAmongChosen: 1 as unknown as boolean } }),
    ],
    ['an expert where there are none', 'bad-argument', () => empty().setWide(0, 'gate', rows(392 * 96), 1)],
    ['an expert for attention', 'bad-argument', () => withExperts().setWide(0, 'o', rows(96 * 96), 1)],
    ['an expert too many', 'bad-argument', () => withExperts().setWide(0, 'gate', rows(136 * 96), 7)],
    ['half an expert', 'bad-argument', () => withExperts().setWide(0, 'gate', rows(136 * 96), 0.5)],
    ['the bias of an expert', 'bad-argument', () => withExperts().setBias(0, 'up', rows(136))],
    ['a router where there are no experts', 'bad-argument', () => empty().setRouter(0, rows(96))],
    ['a router behind the last layer', 'bad-argument', () => withExperts().setRouter(2, rows(7 * 96))],
    ['a router of another size', 'bad-shape', () => withExperts().setRouter(0, rows(6 * 96))],
    ['a router with NaN', 'bad-value', () => withExperts().setRouter(0, rows(7 * 96).fill(NaN, 600, 601))],
    ['no planes', 'bad-argument', () => half.setPlanes(0, 'q', 0 as 1)],
    ['three planes', 'bad-argument', () => half.setPlanes(0, 'q', 3 as 1)],
    ['planes of no matrix', 'bad-argument', () => half.setPlanes(2, 'down', 1)],
    ['planes behind the last layer', 'bad-argument', () => half.setPlanes(3, 'q', 1)],
    ['planes after the end', 'closed', () => closedHalf().setPlanes(0, 'q', 1)],
    ['results too short', 'bad-shape', () => half.logits(rows(96), 1, rows(76))],
    ['a plain array', 'bad-argument', () => half.logits(Array(96).fill(0) as unknown as Float32Array, 1, rows(77))],
  ])('%s', (_, expected, call) => {
    expect(codeOf(call)).toBe(expected);
  });

  test('a run before the router or an expert is there', () => {
    for (const missing of ['router', 'expert']) {
      const half = new DenseHalf({ ...EXPERTS, layers: 1 }, 1);
      for (const [slot, expert] of [...matricesOf(EXPERTS, 0)]) {
        if (missing === 'expert' && slot === 'up' && expert === 4) continue;
        const [outputs, inputs] = half.sizes(0, slot);
        half.setWide(0, slot, rows(outputs * inputs), expert);
      }
      half.setWide(1, 'q', rows(77 * 96));
      for (const norm of ['attnNorm', 'mlpNorm'] as const) half.setNorm(0, norm, rows(96).fill(1));
      half.setNorm(1, 'attnNorm', rows(96).fill(1));
      if (missing !== 'router') half.setRouter(0, rows(7 * 96));
      expect(codeOf(() => half.last(rows(96), rows(96), 1, rows(96)))).toBe('bad-argument');
      if (missing === 'router') half.setRouter(0, rows(7 * 96));
      else half.setWide(0, 'up', rows(136 * 96), 4);
      half.last(rows(96), rows(96), 1, rows(96));
      half.close();
    }
  });

  test('of the bare binding: numbers that no shape has answer a status', () => {
    const { Dense } = loadBinary();
    const opened = (layers: number, experts: number, used: number): number =>
      new Dense().open(Int32Array.of(layers, 96, 136, 3, 1, 32, 77, 1, 0, experts, used), 1e-5);
    const bad = STATUSES.findIndex(({ name }) => name === 'bad-argument');
    expect([opened(2, 0, 0), opened(2, 7, 3), opened(64, 1024, 64)]).toEqual([0, 0, 0]);
    const wrong = [
      ...[opened(2, 0, 1), opened(2, 7, 0), opened(2, 7, 8), opened(2, -1, 0), opened(2, 1025, 2)],
      ...[opened(65, 1024, 2), opened(2, 128, 65), opened(2, 7, -1), opened(2, 2 ** 31 - 1, 2)],
    ];
    expect(wrong).toEqual(wrong.map(() => bad));
    const half = new Dense();
    half.open(Int32Array.of(2, 96, 136, 3, 1, 32, 77, 1, 0, 7, 3), 1e-5);
    const gate = new Uint8Array(136 * 96 * 4);
    const row = (expert: number): number => half.setRows(0, 4, 0, gate, 0, 136, expert);
    expect([row(0), row(6), row(7), row(-1), row(0.5), row(2 ** 31)]).toEqual([0, 0, bad, bad, bad, bad]);
    expect(half.setRows(0, 0, 0, new Uint8Array(96 * 96 * 4), 0, 96, 1)).toBe(bad);
    expect([half.setRouter(2, rows(7 * 96)), half.setBias(0, 5, rows(136))]).toEqual([bad, bad]);
    for (const [layer, slot, planes] of [
      ...[
        [0, 0, 0],
        [0, 0, 3],
        [0, 0, 1.5],
        [0, 0, NaN],
        [0, 7, 1],
        [0, -1, 1],
        [3, 0, 1],
        [2, 6, 1],
      ],
      ...[
        [0, 0, '1'],
        [undefined, 0, 1],
        [0, {}, 1],
        [0, 0, undefined],
      ],
    ] as unknown as [number, number, number][])
      expect(half.setPlanes(layer, slot, planes), `${layer}, ${slot}, ${planes}`).toBe(bad);
    expect(half.setPlanes(0, 5, 1)).toBe(0);
    expect(half.setRouter(0, rows(7 * 96 - 1))).toBe(STATUSES.findIndex(({ name }) => name === 'bad-shape'));
    half.close();
    expect(half.setRouter(0, rows(7 * 96))).toBe(STATUSES.findIndex(({ name }) => name === 'closed'));
  });

  test('of the bare binding: adapters, and rows of adapters, that nobody has answer a status', () => {
    const { Dense } = loadBinary();
    const status = (wanted: string): number => STATUSES.findIndex(({ name }) => name === wanted);
    const [bad, shape] = [status('bad-argument'), status('bad-shape')];
    const bare = new Dense();
    bare.open(Int32Array.of(2, 96, 136, 3, 1, 32, 77, 1, 0, 7, 3), 1e-5);
    const [a, b] = [rows(4 * 96), rows(96 * 4)];
    const set = (...[adapter, layer, slot, rank]: readonly unknown[]): number =>
      bare.setAdapter(adapter as number, layer as number, slot as number, rank as number, a, b);
    const wrong = [
      ...[set(-1, 0, 0, 4), set(2 ** 16, 0, 0, 4), set(0.5, 0, 0, 4), set('0', 0, 0, 4), set(undefined, 0, 0, 4)],
      ...[set(0, 2, 0, 4), set(0, -1, 0, 4), set(0, 0, 7, 4), set(0, 0, -1, 4), set(0, 0, {}, 4)],
      // Of experts, and of no rank.
      ...[set(0, 0, 4, 4), set(0, 0, 0, 0), set(0, 0, 0, 4097), set(0, 0, 0, NaN)],
    ];
    expect(wrong).toEqual(wrong.map(() => bad));
    expect([set(0, 0, 0, 3), bare.setAdapter(0, 0, 0, 4, a, rows(95 * 4))]).toEqual([shape, shape]);
    expect(bare.setAdapter(0, 0, 0, 4, a, rows(96 * 4).fill(NaN, 5, 6))).toBe(status('bad-value'));
    // It may be dropped then, and given again, and once alone.
    expect([bare.dropAdapter(0), set(0, 0, 0, 4), set(0, 0, 0, 4)]).toEqual([0, 0, bad]);
    for (const adapter of [-1, 2 ** 16, NaN, '0', undefined] as unknown as number[])
      expect(bare.dropAdapter(adapter), String(adapter)).toBe(bad);
    expect([bare.dropAdapter(0), bare.dropAdapter(0), bare.dropAdapter(9)]).toEqual([0, 0, 0]);
    bare.close();
    expect([set(0, 0, 0, 4), bare.dropAdapter(0)]).toEqual([status('closed'), status('closed')]);

    const whole = filled(SHAPE, 2);
    whole.setAdapter(3, 1, 'o', 4, rows(4 * 96), rows(96 * 4));
    const last = (parts: unknown, scales: unknown): string =>
      codeOf(() =>
        whole.last(rows(2 * 96), rows(2 * 96), 2, rows(2 * 96), {
          parts: parts as Int32Array,
          scales: scales as Float32Array,
        }),
      );
    const one = Float32Array.of(1);
    for (const parts of [
      ...[Int32Array.of(0, 3, 3), Int32Array.of(2, 1, 3), Int32Array.of(-1, 1, 3), Int32Array.of(0, 0, 3)],
      ...[Int32Array.of(0, 1, 2), Int32Array.of(0, 1, -1), Int32Array.of(0, 1, 2 ** 31 - 1), Int32Array.of(0, 1)],
      ...[Int32Array.of(2 ** 31 - 1, 2, 3), Int32Array.of(0, 2 ** 31 - 1, 3), [0, 1, 3], Float32Array.of(0, 1, 3)],
    ])
      expect(last(parts, one), String(parts)).toBe('bad-argument');
    for (const scales of [new Float32Array(0), new Float32Array(2), [1], undefined])
      expect(last(Int32Array.of(0, 1, 3), scales), String(scales)).toBe('bad-argument');
    whole.last(rows(2 * 96), rows(2 * 96), 2, rows(2 * 96), { parts: Int32Array.of(0, 2, 3), scales: one });
    whole.close();
  });

  test('results that share memory with what is read, or with each other', () => {
    const x = rows(96);
    expect(codeOf(() => half.last(rows(96), x, 1, x))).toBe('bad-argument');
    const shared = rows(64);
    const twice = { q: rows(96), k: shared.subarray(0, 32), v: shared.subarray(16, 48) };
    expect(codeOf(() => half.first(x, 1, twice))).toBe('bad-argument');
  });

  test('a closed one refuses every call; closing twice is fine', () => {
    const closed = filled(SHAPE, 2);
    expect(closed.bytes).toBeGreaterThan(0);
    closed.close();
    closed.close();
    expect(codeOf(() => closed.logits(rows(96), 1, rows(77)))).toBe('closed');
    expect(codeOf(() => closed.bytes)).toBe('closed');
  });
});
