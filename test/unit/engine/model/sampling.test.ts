// Tries the sampler against probabilities computed here: counts of many draws (chi-square), the exact nucleus, order of
// equals, repeatability, and refusal of NaN. The generator is checked against its algorithm in 64-bit arithmetic.
import { describe, expect, test } from 'vitest';
import { createSampler, greedy, RandomNumbers } from '../../../../engine/model/sampling.ts';
import { KvError } from '../../../../native/index.ts';
import { Rng } from './rng.ts';

const draw = (
  logits: Float32Array,
  count: number,
  options: { temperature: number; topP: number; seed: number },
): number[] => {
  const sampler = createSampler(options);
  return Array.from({ length: count }, () => sampler.next(logits));
};

function softmax(logits: Float32Array, temperature: number): number[] {
  const weights = Array.from(logits, (logit) => Math.exp(logit / temperature));
  const total = weights.reduce((a, b) => a + b, 0);
  return weights.map((weight) => weight / total);
}

/** Draws and probabilities agree: chi-square under its mean plus six standard deviations (chance of a false alarm under 1e-6; the seed is fixed anyway). */
function expectDistribution(draws: readonly number[], probabilities: readonly number[]): void {
  let chi = 0;
  let freedom = -1;
  for (const [id, p] of probabilities.entries()) {
    const seen = draws.filter((drawn) => drawn === id).length;
    if (p === 0) {
      expect(seen).toBe(0);
      continue;
    }
    chi += (seen - p * draws.length) ** 2 / (p * draws.length);
    freedom++;
  }
  expect(chi).toBeLessThan(freedom + 6 * Math.sqrt(2 * freedom));
}

describe('generator', () => {
  test('follows xoshiro128** on the state that splitmix32 makes of the seed', () => {
    const mask = 0xffffffffn;
    const splitmix = (z: bigint): bigint => {
      let word = z & mask;
      word = ((word ^ (word >> 16n)) * 0x21f0aaadn) & mask;
      word = ((word ^ (word >> 15n)) * 0x735a2d97n) & mask;
      return word ^ (word >> 15n);
    };
    const seed = 2 ** 40 + 12345;
    const [low, high, step] = [12345n, 256n, 0x9e3779b9n];
    const after = ((low + 2n * step) & mask) ^ high;
    const s = [splitmix(low + step), splitmix(low + 2n * step), splitmix(after + step), splitmix(after + 2n * step)];
    const rotate = (x: bigint, k: bigint): bigint => ((x << k) | (x >> (32n - k))) & mask;
    const numbers = new RandomNumbers(seed);
    for (let i = 0; i < 1000; i++) {
      const expected = (rotate((s[1]! * 5n) & mask, 7n) * 9n) & mask;
      const shifted = (s[1]! << 9n) & mask;
      s[2]! ^= s[0]!;
      s[3]! ^= s[1]!;
      s[1]! ^= s[2]!;
      s[0]! ^= s[3]!;
      s[2]! ^= shifted;
      s[3] = rotate(s[3]!, 11n);
      expect(numbers.next()).toBe(Number(expected));
    }
  });

  test('uniform numbers lie in [0, 1) with the mean and spread of a uniform distribution', () => {
    const numbers = new RandomNumbers(1);
    const values = Array.from({ length: 20000 }, () => numbers.uniform());
    expect(Math.min(...values)).toBeGreaterThanOrEqual(0);
    expect(Math.max(...values)).toBeLessThan(1);
    const mean = values.reduce((a, b) => a + b, 0) / values.length;
    // Standard error of the mean: 1/√(12·20000) = 0.002; five of them.
    expect(Math.abs(mean - 0.5)).toBeLessThan(0.0102);
  });

  test('neighbouring seeds, and seeds that differ above 32 bits, give other numbers', () => {
    const firsts = [0, 1, 2, 2 ** 32, 2 ** 33, 2 ** 53 - 1].map((seed) => {
      const numbers = new RandomNumbers(seed);
      return [numbers.next(), numbers.next(), numbers.next()].join();
    });
    expect(new Set(firsts).size).toBe(firsts.length);
  });
});

describe('greedy', () => {
  test('takes the largest, the lowest id among equals, and passes over −inf', () => {
    expect(greedy(Float32Array.of(-1, 3, 2, 3))).toBe(1);
    expect(greedy(Float32Array.of(-Infinity, -5, -Infinity))).toBe(1);
    expect(draw(Float32Array.of(0, 7, 7), 5, { temperature: 0, topP: 0.1, seed: 3 })).toEqual([1, 1, 1, 1, 1]);
  });

  test.each([
    ['NaN', Float32Array.of(1, NaN, 2)],
    ['NaN after the largest', Float32Array.of(1, 5, NaN)],
    ['+inf', Float32Array.of(1, Infinity)],
    ['only −inf', Float32Array.of(-Infinity, -Infinity)],
    ['nothing', new Float32Array(0)],
  ])('%s is refused, greedy or drawn', (_, logits) => {
    for (const temperature of [0, 1]) {
      const sampler = createSampler({ temperature, topP: 0.9, seed: 1 });
      expect(() => sampler.next(logits)).toThrow(expect.objectContaining({ name: 'KvError', code: 'bad-value' }));
    }
  });
});

describe('temperature', () => {
  const logits = new Rng(5).normal(12, 1.5);

  test.each([0.5, 1, 2])('%f gives the softmax of logits divided by it', (temperature) => {
    expectDistribution(draw(logits, 20000, { temperature, topP: 1, seed: 17 }), softmax(logits, temperature));
  });

  test('does not overflow on large logits and never draws the impossible', () => {
    const large = Float32Array.of(3e38, -Infinity, 3e38, -3e38);
    expectDistribution(draw(large, 4000, { temperature: 0.01, topP: 1, seed: 4 }), [0.5, 0, 0.5, 0]);
  });
});

describe('top-p', () => {
  test('draws from the smallest set that reaches it, in proportion', () => {
    const logits = Float32Array.from([0.1, 0.4, 0.05, 0.25, 0.2], Math.log);
    // 0.4 + 0.25 = 0.65 < 0.7 ≤ 0.85.
    const kept = [0, 0.4 / 0.85, 0, 0.25 / 0.85, 0.2 / 0.85];
    expectDistribution(draw(logits, 20000, { temperature: 1, topP: 0.7, seed: 9 }), kept);
    expect(new Set(draw(logits, 200, { temperature: 1, topP: 0.39, seed: 9 }))).toEqual(new Set([1]));
  });

  test('equals enter by lowest id', () => {
    const flat = new Float32Array(10).fill(2);
    expect(new Set(draw(flat, 500, { temperature: 1, topP: 0.25, seed: 2 }))).toEqual(new Set([0, 1, 2]));
  });

  test('on a large vocabulary the set is that of a full sort', () => {
    const logits = new Rng(8).normal(2000, 3);
    const order = softmax(logits, 0.8)
      .map((p, id) => ({ p, id }))
      .sort((a, b) => b.p - a.p || a.id - b.id);
    let mass = 0;
    const nucleus = new Set<number>();
    for (const { p, id } of order) {
      if (mass >= 0.9) break;
      mass += p;
      nucleus.add(id);
    }
    const drawn = new Set(draw(logits, 2000, { temperature: 0.8, topP: 0.9, seed: 6 }));
    expect([...drawn].filter((id) => !nucleus.has(id))).toEqual([]);
    expect(drawn.size).toBeGreaterThan(nucleus.size / 4);
  });
});

describe('repeatability and options', () => {
  test('one seed, one sequence; another seed, another', () => {
    const logits = new Rng(3).normal(100);
    const options = { temperature: 1, topP: 0.95, seed: 77 };
    expect(draw(logits, 50, options)).toEqual(draw(logits, 50, options));
    expect(draw(logits, 50, options)).not.toEqual(draw(logits, 50, { ...options, seed: 78 }));
  });

  test.each([
    { temperature: -1, topP: 1, seed: 0 },
    { temperature: NaN, topP: 1, seed: 0 },
    { temperature: Infinity, topP: 1, seed: 0 },
    { temperature: 1, topP: 0, seed: 0 },
    { temperature: 1, topP: 1.01, seed: 0 },
    { temperature: 1, topP: NaN, seed: 0 },
    { temperature: 1, topP: 1, seed: -1 },
    { temperature: 1, topP: 1, seed: 0.5 },
    { temperature: 1, topP: 1, seed: 2 ** 53 },
  ])('$temperature, $topP, $seed is refused', (options) => {
    expect(() => createSampler(options)).toThrow(KvError);
    expect(() => createSampler(options)).toThrow(expect.objectContaining({ code: 'bad-argument' }));
  });
});
