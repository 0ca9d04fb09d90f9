// Tries the generator of random numbers against its algorithm in 64-bit arithmetic, and seeds and streams against what
// independent ones must look like.
import { describe, expect, test } from 'vitest';
import { RandomNumbers } from '../../../../../engine/transformer/sampling/random.ts';

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

  test('streams of one seed begin anew, stream 0 is the seed alone, and their first numbers are uniform together', () => {
    expect(new RandomNumbers(7, 0).next()).toBe(new RandomNumbers(7).next());
    for (const seed of [0, 1, 2 ** 40 + 3]) {
      const firsts = Array.from({ length: 20000 }, (_, stream) => new RandomNumbers(seed, stream).uniform());
      // Chi-square over 100 bins: 99 ± 14 for a uniform distribution; five standard deviations.
      const bins = new Array<number>(100).fill(0);
      for (const value of firsts) bins[Math.floor(100 * value)]!++;
      const chi = bins.reduce((sum, seen) => sum + (seen - 200) ** 2 / 200, 0);
      expect(chi).toBeLessThan(99 + 5 * Math.sqrt(198));
      // Neighbours have nothing to do with each other: their correlation has a standard error of 1/√20000 = 0.0071;
      // five of them.
      const products = firsts.slice(1).map((value, i) => 12 * (value - 0.5) * (firsts[i]! - 0.5));
      expect(Math.abs(products.reduce((a, b) => a + b, 0) / products.length)).toBeLessThan(0.036);
    }
  });

  test('no two seeds share a stream', () => {
    const seen = new Set<string>();
    for (let seed = 0; seed < 50; seed++)
      for (let stream = 0; stream < 200; stream++) {
        const numbers = new RandomNumbers(seed, stream);
        seen.add([numbers.next(), numbers.next()].join());
      }
    expect(seen.size).toBe(50 * 200);
  });

  test.each([-1, 0.5, 2 ** 53, NaN])('seed %s is refused', (seed) => {
    expect(() => new RandomNumbers(seed)).toThrow(expect.objectContaining({ name: 'KvError', code: 'bad-argument' }));
  });
});
