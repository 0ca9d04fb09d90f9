// The example of a cache of single tokens: what it promises, and that what such caches easily get wrong is right in
// this one.
import { describe, expect, test } from 'vitest';
import { KvError } from '../../native/index.ts';
import { normals, uniform } from '../native/dense.ts';
import { TokenCache, type TokenCacheOptions } from './token-cache.ts';

const SIZE = { heads: 2, headDim: 16 };
const open = (more: Partial<TokenCacheOptions> = {}): TokenCache =>
  new TokenCache({ ...SIZE, bits: 4, maxTokens: 8, rule: 'h2o', ...more });
const random = uniform(11);
const row = (): Float32Array => normals(random, SIZE.heads * SIZE.headDim);
const fill = (cache: TokenCache, tokens: number, look?: (held: number[]) => Float32Array): void => {
  for (let token = 0; token < tokens; token++) {
    cache.append(row(), row());
    if (look !== undefined) cache.observe(look(cache.positions));
  }
};

describe('codes', () => {
  test.each([2, 3, 4, 8] as const)('of %i bits err by half a step of their head at most', (bits) => {
    const [cache, key, value] = [open({ bits }), row(), row()];
    const found = cache.get(cache.append(key, value))!;
    for (const [given, decoded] of [
      [key, found.key],
      [value, found.value],
    ] as const)
      for (let head = 0; head < SIZE.heads; head++) {
        const own = given.subarray(head * SIZE.headDim, (head + 1) * SIZE.headDim);
        const step = (Math.max(...own) - Math.min(...own)) / (2 ** bits - 1);
        // Low and step are f16, rounded outwards: 2⁻¹⁰ of their size each, over all steps.
        for (const [c, x] of own.entries())
          expect(Math.abs(x - decoded[head * SIZE.headDim + c]!)).toBeLessThanOrEqual(step / 2 + 2 ** -8);
      }
  });

  test('of a constant head are that constant', () => {
    const cache = open({ bits: 2 });
    const constant = (x: number): Float32Array => new Float32Array(SIZE.heads * SIZE.headDim).fill(x);
    const found = cache.get(cache.append(constant(0.5), constant(-0.25)))!;
    expect([...found.key]).toEqual([...constant(0.5)]);
    expect([...found.value]).toEqual([...constant(-0.25)]);
  });

  test('go to the even one where a value lies half-way between two', () => {
    // From 0 to 15 in 4 bits the step is 1, so a value is its own place between two codes.
    const cache = open();
    const key = Float32Array.from({ length: SIZE.heads * SIZE.headDim }, (_, i) => (i % SIZE.headDim) + 0.5);
    for (let head = 0; head < SIZE.heads; head++) {
      key[head * SIZE.headDim] = 0;
      key[(head + 1) * SIZE.headDim - 1] = 15;
    }
    const found = cache.get(cache.append(key, row()))!.key;
    expect([...found.subarray(0, SIZE.headDim)]).toEqual([0, 2, 2, 4, 4, 6, 6, 8, 8, 10, 10, 12, 12, 14, 14, 15]);
  });

  test('of heads with a small range keep it', () => {
    const cache = open({ bits: 8 });
    const key = Float32Array.from({ length: SIZE.heads * SIZE.headDim }, (_, i) => (i % 2 === 0 ? 0 : 2 ** -12));
    const found = cache.get(cache.append(key, row()))!.key;
    for (const [i, x] of key.entries()) expect(Math.abs(found[i]! - x)).toBeLessThan(2 ** -16);
  });

  test('are packed, and ratios are to f16', () => {
    for (const bits of [2, 3, 4, 8] as const) {
      const cache = open({ bits });
      fill(cache, 5);
      // Two rows of 32 codes, and a low and a step of two bytes for each of two heads.
      expect(cache.bytes).toBe(5 * 2 * ((32 * bits) / 8 + 2 * 4));
      expect(cache.ratio).toBeCloseTo(16 / (bits + 32 / SIZE.headDim), 10);
    }
  });
});

describe('what stays', () => {
  test('never exceeds the budget, and is known by its position in the text', () => {
    for (const rule of ['h2o', 'streaming', 'pyramid'] as const)
      for (const maxTokens of [1, 2, 3, 7]) {
        const cache = open({ rule, maxTokens });
        for (let token = 0; token < 20; token++) {
          expect(cache.append(row(), row())).toBe(token);
          expect(cache.positions.length).toBe(Math.min(token + 1, maxTokens));
          const held = cache.positions;
          for (let at = 0; at <= token + 1; at++) expect(cache.get(at) !== null).toBe(held.includes(at));
        }
      }
  });

  test('is the newest half and the tokens that were looked at most', () => {
    const cache = open();
    fill(cache, 30, (held) => Float32Array.from(held, (position) => (position === 3 ? 0.9 : 0.1 / held.length)));
    expect(cache.positions).toContain(3);
    expect(cache.positions.slice(-4)).toEqual([26, 27, 28, 29]);
  });

  test('is the first four tokens and the window, and the budget where that is smaller', () => {
    const [cache, small] = [open({ rule: 'streaming' }), open({ rule: 'streaming', maxTokens: 3 })];
    fill(cache, 20);
    fill(small, 20);
    expect(cache.positions).toEqual([0, 1, 2, 3, 16, 17, 18, 19]);
    expect(small.positions).toEqual([0, 1, 2]);
  });

  test('is most in the lowest layer, and the budget on average over layers', () => {
    const layers = 12;
    const budgets = Array.from({ length: layers }, (_, layer) => {
      const { budgetTokens } = open({ rule: 'pyramid', maxTokens: 100, layer, layers });
      return budgetTokens;
    });
    expect(budgets).toEqual([...budgets].sort((a, b) => b - a));
    expect(budgets[0]!).toBeGreaterThan(budgets.at(-1)!);
    expect(Math.abs(budgets.reduce((sum, one) => sum + one, 0) - layers * 100)).toBeLessThanOrEqual(layers);
  });

  test('holds a new token whatever the older ones were asked', () => {
    for (const rule of ['h2o', 'pyramid'] as const) {
      const cache = open({ rule });
      fill(cache, 8, (held) => new Float32Array(held.length).fill(1 / held.length));
      for (let token = 8; token < 20; token++) {
        const position = cache.append(row(), row());
        expect(cache.get(position), `${rule}, token ${token}`).not.toBeNull();
      }
    }
  });

  test('in one layer is not what stays in another', () => {
    const layers = [0, 1].map((layer) => open({ layer, layers: 2 }));
    for (const [layer, cache] of layers.entries())
      fill(cache, 20, (held) => Float32Array.from(held, (position) => (position === 6 + layer ? 0.9 : 0.001)));
    expect(layers.map(({ positions }) => positions.slice(0, 4))).toEqual([
      [0, 1, 2, 6],
      [0, 1, 2, 7],
    ]);
  });

  test('is nothing at first, and the only token of a cache of one', () => {
    const cache = open({ bits: 3, maxTokens: 1 });
    expect([cache.positions, cache.bytes, cache.ratio, cache.get(0)]).toEqual([[], 0, 1, null]);
    cache.append(row(), row());
    cache.observe(Float32Array.of(1));
    cache.shrink(1);
    expect(cache.positions).toEqual([0]);
    expect(cache.get(0)).not.toBeNull();
  });

  test('becomes less on demand', () => {
    const cache = open();
    fill(cache, 8);
    cache.shrink(3);
    expect(cache.positions.length).toBe(3);
    expect(cache.positions).toContain(7);
    cache.shrink(0);
    expect([cache.positions.length, cache.bytes, cache.ratio]).toEqual([0, 0, 1]);
  });
});

test('what cannot be is refused', () => {
  expect(() => open({ bits: 5 as 4 })).toThrow(KvError);
  expect(() => open({ maxTokens: 0 })).toThrow(KvError);
  expect(() => open().append(new Float32Array(3), row())).toThrow(KvError);
  expect(() => open().append(row().fill(Number.NaN), row())).toThrow(KvError);
  expect(() => open().observe(new Float32Array(1))).toThrow(KvError);
});
