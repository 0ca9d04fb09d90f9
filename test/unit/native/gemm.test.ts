// The int8 matrix product on every instruction set that this CPU runs: sums equal to exact integers, the same bits
// everywhere, any number of rows, steps and outputs (blocks of 8 rows, panels of 48 outputs and what is left of them),
// extremes of both operands, wrong calls.

import { afterAll, describe, expect, test } from 'vitest';
import { FORMATS, GemmWeights, type Isa, nativeInfo, setIsa } from '../../../native/index.ts';
import { LATENT_OPERATIONS } from '../../../native/layout.ts';
import { loadBinary } from '../../../native/load.ts';
import { gaussian } from '../../native/rows.ts';
import { seeded } from '../../random.ts';
import { codeOf } from '../../refusal.ts';

const SEED = 4017;
const { available } = nativeInfo();
const best = nativeInfo().isa;
afterAll(() => setIsa(best));

/** A matrix whose packed int16 codes are known: each row holds its largest value, so that the step is 1. */
function wholeWeights(outputs: number, contraction: number, random: () => number): Float32Array {
  const w = Float32Array.from({ length: outputs * contraction }, () => Math.round((random() * 2 - 1) * 32512));
  for (let o = 0; o < outputs; o++)
    w[o * contraction + Math.floor(random() * contraction)] = o % 2 === 0 ? 32512 : -32512;
  return w;
}
const int8 = (count: number, random: () => number): Int8Array =>
  Int8Array.from({ length: count }, () => Math.floor(random() * 256) - 128);
const ones = (count: number): Float32Array => new Float32Array(count).fill(1);
const onEvery = (work: (isa: Isa) => Float32Array): Map<Isa, Float32Array> =>
  new Map(
    available.map((isa) => {
      setIsa(isa);
      expect(nativeInfo().isa).toBe(isa);
      return [isa, work(isa)];
    }),
  );

describe(`products of whole numbers (seed ${SEED})`, () => {
  const shapes: [number, number, number][] = [
    [1, 1, 1], [1, 4, 16], [2, 5, 15], [3, 64, 17], [7, 63, 48], [8, 64, 49], [9, 96, 63], [16, 130, 64],
    [17, 192, 96], [127, 100, 33], [128, 64, 80], [129, 72, 97], [136, 256, 144], [300, 20, 47],
  ]; // biome-ignore format: a table
  test.each(shapes)(
    '%i rows, %i steps, %i outputs: both planes are exact on every instruction set',
    (rows, steps, outputs) => {
      const random = seeded(SEED + rows * 7 + steps);
      const w = wholeWeights(outputs, steps, random);
      const levels = int8(rows * steps, random);
      const results = onEvery(() => {
        const weights = new GemmWeights(w, outputs, steps);
        const out = weights.multiply(levels, ones(rows), { planes: 2 });
        weights.close();
        return out;
      });
      for (const [isa, out] of results) {
        for (let t = 0; t < rows; t++) {
          for (let o = 0; o < outputs; o++) {
            let high = 0;
            let low = 0;
            for (let c = 0; c < steps; c++) {
              const code = w[o * steps + c]!;
              const top = Math.floor((code + 128) / 256);
              high += levels[t * steps + c]! * top;
              low += levels[t * steps + c]! * (code - 256 * top);
            }
            // float32: each plane is converted and scaled once, then they are added.
            const expected = Math.fround(Math.fround(256 * Math.fround(high)) + Math.fround(low));
            if (out[t * outputs + o] !== expected) {
              expect.fail(`${isa}: row ${t}, output ${o}: ${out[t * outputs + o]} instead of ${expected}`);
            }
          }
        }
      }
    },
  );
});

test('the longest contraction of the largest operands does not overflow', () => {
  // 65536 · 128 · 255 < 2^31 is the bound of the unsigned intermediate; the signed result is −128·127·65536.
  const steps = 65_536;
  const levels = new Int8Array(steps).fill(-128);
  for (const sign of [1, -1]) {
    const w = new Float32Array(steps).fill(sign * 32_512);
    for (const [isa, out] of onEvery(() => new GemmWeights(w, 1, steps).multiply(levels, ones(1)))) {
      expect(out[0], isa).toBe(Math.fround(-128 * 127 * sign * steps) * 256);
    }
  }
});

test(`scales and base: y = base + rowScale·(columnScale·sum), the same bits on every instruction set (seed ${SEED})`, () => {
  const random = seeded(SEED);
  const [rows, steps, outputs] = [21, 84, 75];
  const w = Float32Array.from({ length: outputs * steps }, (_, i) => gaussian(random) * 10 ** ((i % outputs) % 7));
  w.fill(0, steps, 2 * steps); // an output without weights
  const levels = int8(rows * steps, random);
  const scale = Float32Array.from({ length: rows }, (_, t) => (t === 4 ? 0 : gaussian(random)));
  const base = Float32Array.from({ length: outputs }, () => gaussian(random));
  for (const planes of [1, 2] as const) {
    const results = [...onEvery(() => new GemmWeights(w, outputs, steps).multiply(levels, scale, { planes, base }))];
    const [, first] = results[0]!;
    for (const [isa, out] of results) expect(Buffer.from(out.buffer).equals(Buffer.from(first.buffer)), isa).toBe(true);
    for (let o = 0; o < outputs; o++) expect(first[4 * outputs + o]).toBe(base[o]);
    for (let t = 0; t < rows; t++) expect(first[t * outputs + 1]).toBe(base[1]);
    // Against float64: rounding a weight moves it by half a step, max/254 (one plane) or max/65024 (two).
    for (let t = 0; t < rows; t++) {
      for (let o = 0; o < outputs; o++) {
        let exact = 0;
        let moved = 0;
        const row = w.subarray(o * steps, (o + 1) * steps);
        const max = row.reduce((most, x) => Math.max(most, Math.abs(x)), 0);
        for (let c = 0; c < steps; c++) {
          exact += levels[t * steps + c]! * row[c]!;
          moved += Math.abs(levels[t * steps + c]!) * (max / (planes === 1 ? 253.9 : 65_000));
        }
        const error = Math.abs(first[t * outputs + o]! - (base[o]! + scale[t]! * exact));
        expect(error).toBeLessThanOrEqual(
          Math.abs(scale[t]!) * moved + 1e-6 * (Math.abs(base[o]!) + Math.abs(scale[t]! * exact)) + 1e-12,
        );
      }
    }
  }
});

test('int8 weights lose about 0.7 percent of a Gaussian product, int16 weights 3e-5', () => {
  const random = seeded(SEED);
  const [rows, steps, outputs] = [64, 576, 192];
  const w = Float32Array.from({ length: outputs * steps }, () => gaussian(random));
  const levels = Int8Array.from({ length: rows * steps }, () => Math.round(30 * gaussian(random)));
  const error = (planes: 1 | 2): number => {
    const out = new GemmWeights(w, outputs, steps).multiply(levels, ones(rows), { planes });
    let wrong = 0;
    let all = 0;
    for (let t = 0; t < rows; t++) {
      for (let o = 0; o < outputs; o++) {
        let exact = 0;
        for (let c = 0; c < steps; c++) exact += levels[t * steps + c]! * w[o * steps + c]!;
        wrong += (out[t * outputs + o]! - exact) ** 2;
        all += exact ** 2;
      }
    }
    return Math.sqrt(wrong / all);
  };
  // The step of a row is its largest weight / 127, about 3.2/127; uniform rounding gives step/√12.
  expect(error(1)).toBeGreaterThan(0.005);
  expect(error(1)).toBeLessThan(0.009);
  expect(error(2)).toBeLessThan(4e-5);
});

test('wrong calls end in one KvError and change nothing', () => {
  const weights = new GemmWeights(new Float32Array(12), 3, 4);
  const out = new Float32Array(6).fill(7);
  expect(codeOf(() => new GemmWeights(new Float32Array(11), 3, 4))).toBe('bad-shape');
  expect(codeOf(() => new GemmWeights(new Float32Array(12).fill(Number.NaN), 3, 4))).toBe('bad-value');
  expect(codeOf(() => new GemmWeights(new Float32Array(0), 0, 4))).toBe('bad-argument');
  expect(codeOf(() => new GemmWeights(new Float32Array(4), 2 ** 21, 4))).toBe('bad-argument');
  expect(codeOf(() => new GemmWeights(new Float32Array(4), 1, 2 ** 17))).toBe('bad-argument');
  expect(codeOf(() => new GemmWeights([] as unknown as Float32Array, 1, 1))).toBe('bad-argument');
  expect(codeOf(() => weights.multiply(new Int8Array(9), ones(2), { out }))).toBe('bad-shape');
  expect(codeOf(() => weights.multiply(new Int8Array(8), ones(3), { out }))).toBe('bad-shape');
  expect(codeOf(() => weights.multiply(new Int8Array(8), ones(2), { out: new Float32Array(5) }))).toBe('bad-shape');
  expect(codeOf(() => weights.multiply(new Int8Array(8), ones(2), { base: ones(2), out }))).toBe('bad-shape');
  expect(codeOf(() => weights.multiply(new Int8Array(8), ones(2), { planes: 3 as 1, out }))).toBe('bad-argument');
  expect(codeOf(() => weights.multiply(new Uint8Array(8) as unknown as Int8Array, ones(2), { out }))).toBe(
    'bad-argument',
  );
  expect(codeOf(() => weights.multiply(new Int8Array(out.buffer, 0, 8), ones(2), { out }))).toBe('bad-argument');
  expect([...out]).toEqual([7, 7, 7, 7, 7, 7]);
  expect(weights.multiply(new Int8Array(0), ones(0)).length).toBe(0);
  expect(weights.bytes).toBe(2 * 4 * 16 + 2 * 3 * 4);
  weights.close();
  expect(codeOf(() => weights.multiply(new Int8Array(8), ones(2)))).toBe('closed');
  expect(codeOf(() => weights.close())).toBe('closed');
});

test('levels whose number is a multiple of 2^32 are refused when there are none, also where sizes have 32 bits', () => {
  const weights = new (loadBinary().Weights)();
  expect(weights.open(new Float32Array(2 ** 16), 1, 2 ** 16, false)).toBe(0);
  const rows = 2 ** 16;
  const out = new Float32Array(rows);
  expect(weights.multiply(new Int8Array(0), rows, new Float32Array(rows), 1, undefined, out)).toBe(2); // bad shape
  weights.close();
});

test('weights of latents whose number is a multiple of 2^32 are refused when there are none, also where sizes have 32 bits', () => {
  const binary = loadBinary();
  const [pool, cache] = [new binary.Pool(), new binary.Cache()];
  expect(pool.open(2 ** 20)).toBe(0);
  // 1024 heads of 256 numbers, times a width of 16384.
  const shape = Int32Array.of(1, 1024, 1024, 256, FORMATS.q8.id, 1, 0);
  expect(cache.open(pool, shape, 1, new Int32Array(1), new Float32Array(0))).toBe(0);
  const none = new Float32Array(0);
  expect(cache.latent(LATENT_OPERATIONS.weights, 0, 2 ** 14, none, none, undefined, undefined, undefined, 0)).toBe(2); // bad shape
  cache.close();
  pool.close();
});
