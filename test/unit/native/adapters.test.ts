// Adapters of a dense half under any sequence of calls, right and wrong: what is added is that of the adapters that are
// there, every row has the bits that it has alone and with any number of threads, every byte comes back, and the bare
// binding answers a status to whatever it is given.

import { afterAll, expect, test } from 'vitest';
import {
  DENSE_SLOTS,
  DenseHalf,
  type DenseMix,
  type DenseShape,
  type DenseSlot,
  nativeInfo,
  setIsa,
} from '../../../native/index.ts';
import { STATUSES } from '../../../native/layout.ts';
import { loadBinary } from '../../../native/load.ts';
import { normals, pick, uniform } from '../../native/dense.ts';
import { codeOf } from '../../refusal.ts';
import { seedFrom, volume } from '../../tier.ts';

const SEED = seedFrom(30_417);
const STEPS = volume('adapter steps');
const { available, isa: best } = nativeInfo();
afterAll(() => setIsa(best));

// Outputs that are no multiples of 16, and ranks beyond those that are summed at once.
const SHAPE: DenseShape = {
  ...{ layers: 2, hiddenSize: 72, intermediateSize: 100, queryHeads: 3, kvHeads: 1, headDim: 24 },
  ...{ vocabSize: 17, normEpsilon: 1e-5 },
};
const WIDTH = SHAPE.queryHeads * SHAPE.headDim;
const RANKS = [1, 2, 3, 4, 5, 8, 16, 17, 255, 256, 257, 300];

function filled(threads: number): DenseHalf {
  const half = new DenseHalf(SHAPE, threads);
  const random = uniform(7);
  for (let layer = 0; layer <= SHAPE.layers; layer++) {
    for (const slot of layer < SHAPE.layers ? DENSE_SLOTS : (['q'] as const)) {
      const [outputs, inputs] = half.sizes(layer, slot);
      half.setWide(layer, slot, normals(random, outputs * inputs));
    }
    half.setNorm(layer, 'attnNorm', new Float32Array(SHAPE.hiddenSize).fill(1));
    if (layer < SHAPE.layers) half.setNorm(layer, 'mlpNorm', new Float32Array(SHAPE.hiddenSize).fill(1));
  }
  return half;
}

/** What the first and the last piece answer to rows, by row. */
function answers(half: DenseHalf, x: Float32Array, attention: Float32Array, mix?: DenseMix): Float32Array[] {
  const rows = x.length / SHAPE.hiddenSize;
  const kv = SHAPE.kvHeads * SHAPE.headDim;
  const [q, k, v, out] = [WIDTH, kv, kv, SHAPE.hiddenSize].map((width) => new Float32Array(rows * width));
  half.first(x, rows, { q: q!, k: k!, v: v! }, mix);
  half.last(attention, x, rows, out!, mix);
  return Array.from({ length: rows }, (_, row) => {
    const parts = [q!, k!, v!, out!].map((all) =>
      all.subarray((row * all.length) / rows, ((row + 1) * all.length) / rows),
    );
    return Float32Array.from(parts.flatMap((part) => [...part]));
  });
}

type Part = readonly [from: number, rows: number, adapter: number, scale: number];
const mixOf = (parts: readonly Part[]): DenseMix => ({
  parts: Int32Array.from(parts.flatMap((part) => part.slice(0, 3))),
  scales: Float32Array.from(parts, ([, , , scale]) => scale),
});

test('random calls: what is there adds, to each row as if it were alone, and nothing stays behind', () => {
  console.log(`seed ${SEED}`);
  const random = uniform(SEED);
  const below = (count: number): number => Math.floor(random() * count);
  const halves = [filled(1), filled(3)];
  const empty = halves.map(({ bytes }) => bytes);
  const there = new Map<number, Set<string>>();
  let compared = 0;
  for (let step = 0; step < STEPS; step++) {
    setIsa(pick(random, available));
    const adapter = below(5);
    const [layer, slot] = [below(SHAPE.layers), pick(random, DENSE_SLOTS) as DenseSlot];
    if (random() < 0.5) {
      const [outputs, inputs] = halves[0]!.sizes(layer, slot);
      const rank = pick(random, RANKS);
      const [a, b] = [normals(random, rank * inputs), normals(random, outputs * rank)];
      const gains = random() < 0.3 ? normals(random, outputs) : undefined;
      const has = there.get(adapter) ?? new Set();
      const wrong = random() < 0.2 ? pick(random, ['value', 'shape', 'rank'] as const) : null;
      const spoilt = pick(random, [a, b, gains ?? b]);
      if (wrong === 'value') spoilt[below(spoilt.length)] = Number.POSITIVE_INFINITY;
      const given = wrong === 'shape' ? b.subarray(1) : b;
      const codes = halves.map((half) =>
        codeOf(() => half.setAdapter(adapter, layer, slot, wrong === 'rank' ? rank + 1 : rank, a, given, gains)),
      );
      const twice = has.has(`${layer}.${slot}`);
      const expected = wrong === 'shape' || wrong === 'rank' ? 'bad-shape' : twice ? 'bad-argument' : 'bad-value';
      expect(codes).toEqual(codes.map(() => (wrong === null && !twice ? 'no error' : expected)));
      // What is refused is there without matrices, which adds nothing.
      if (wrong === null || wrong === 'value') there.set(adapter, has);
      if (wrong === null) has.add(`${layer}.${slot}`);
    } else if (random() < 0.2) {
      for (const half of halves) half.dropAdapter(adapter);
      there.delete(adapter);
    } else {
      const rows = 1 + below(20);
      const [x, attention] = [normals(random, rows * SHAPE.hiddenSize), normals(random, rows * WIDTH)];
      const parts = Array.from({ length: below(5) }, (): Part => {
        const from = below(rows);
        return [from, 1 + below(rows - from), pick(random, [...there.keys(), 9]), pick(random, [1, -0.5, 0, 3])];
      });
      const mix = mixOf(parts);
      if (parts.some(([, , one]) => !there.has(one))) {
        expect(codeOf(() => answers(halves[0]!, x, attention, mix))).toBe('bad-argument');
        continue;
      }
      const [one, three] = halves.map((half) => answers(half, x, attention, mix));
      expect(three).toEqual(one);
      const row = below(rows);
      const own = parts.filter(([from, count]) => row >= from && row < from + count);
      const alone = answers(
        halves[0]!,
        x.subarray(row * SHAPE.hiddenSize, (row + 1) * SHAPE.hiddenSize),
        attention.subarray(row * WIDTH, (row + 1) * WIDTH),
        mixOf(own.map(([, , number, scale]): Part => [0, 1, number, scale])),
      );
      expect(alone[0]).toEqual(one![row]);
      compared++;
    }
  }
  expect(compared).toBeGreaterThan(STEPS / 20);
  for (let adapter = 0; adapter < 5; adapter++) for (const half of halves) half.dropAdapter(adapter);
  expect(halves.map(({ bytes }) => bytes)).toEqual(empty);
  for (const half of halves) half.close();
});

test('the bare binding answers a status to whatever it is given, also when it is closed', () => {
  const random = uniform(SEED);
  const { Dense } = loadBinary();
  const known = new Set(STATUSES.keys());
  const nonsense: readonly (() => unknown)[] = [
    ...[undefined, null, Number.NaN, -1, 0, 1, 2, 4, 0.5, 2 ** 31, 2 ** 53, 4096, 65_536, 'q', true, 10n, {}, []].map(
      (one) => () => one,
    ),
    ...[0, 1, 4 * 72, 4 * 100, 72, 24 * 4].map((length) => () => new Float32Array(length)),
    () => new Float32Array(4 * 72).fill(Number.NaN),
    () => new Float32Array(new SharedArrayBuffer(4 * 4 * 72)),
    () => new Float64Array(4 * 72),
    () => Int32Array.of(0, 1, 0),
    () => Int32Array.of(2 ** 31 - 1, -(2 ** 31), 1, 0, 0, 0),
  ];
  const open = () => {
    const bare = new Dense();
    bare.open(Int32Array.of(2, 72, 100, 3, 1, 24, 17, 2, 0, 0, 0), 1e-5);
    return bare;
  };
  let bare = open();
  const counts = { setAdapter: 7, dropAdapter: 1, first: 7, next: 10, last: 6 } as const;
  let done = 0;
  for (let step = 0; step < 8 * STEPS; step++) {
    const name = pick(random, Object.keys(counts) as (keyof typeof counts)[]);
    const given = Array.from({ length: counts[name] }, () => pick(random, nonsense)());
    if (name === 'setAdapter' && random() < 0.5) {
      const [a, b] = [new Float32Array(4 * 72).fill(1), new Float32Array(72 * 4).fill(1)];
      const gains = pick(random, [undefined, new Float32Array(72), given[6]]);
      given.splice(0, 7, Math.floor(random() * 4), 0, pick(random, [0, 3]), 4, a, b, gains);
    }
    const status = (bare[name] as (...args: unknown[]) => number)(...given);
    expect(known.has(status), `${name}: ${status}`).toBe(true);
    if (status === 0) done++;
    if (random() < 0.01) {
      bare.close();
      if (random() < 0.5) bare = open();
    }
  }
  expect(done).toBeGreaterThan(0);
});
