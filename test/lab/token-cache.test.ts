/** A cache of single tokens in codes, with rules that drop some: rows, rules, bytes and refusals. */
import { describe, expect, test } from 'vitest';
import { TokenCache, type TokenCacheOptions } from '../../lab/index.ts';
import { decodeRow, encodeGrid, GRID_BITS } from '../../lab/token-cache/grid.ts';
import { mulberry32 } from '../random.ts';

const SHAPE = { kvHeads: 2, headDim: 4 } as const;
const open = (more: Partial<TokenCacheOptions> = {}): TokenCache =>
  new TokenCache({ ...SHAPE, tokens: 8, bits: 4, rule: { id: 'h2o' }, ...more });
const row = (value: number): Float32Array => new Float32Array(8).fill(value);

function append(cache: TokenCache, count: number): TokenCache {
  for (let token = 0; token < count; token++) cache.append(row(token), row(-token));
  return cache;
}

/** The largest difference between a row and what its codes stand for, in steps. */
function worst(numbers: Float32Array, decoded: Float32Array, step: number): number {
  return Math.max(...numbers.map((x, i) => Math.abs(x - decoded[i]!))) / step;
}

describe('codes of a row', () => {
  const random = mulberry32(7);
  const numbers = Float32Array.from({ length: 64 }, () => 4 * random() - 1);

  test.each(GRID_BITS)('of %i bits lie within half a step, and a little for steps in f16', (bits) => {
    const step = 4 / (2 ** bits - 1);
    expect(worst(numbers, decodeRow(encodeGrid(numbers, 4, bits)), step)).toBeLessThan(0.55);
    expect(encodeGrid(numbers, 4, bits).codes).toHaveLength(8 * bits);
  });

  test('halves go to the even code', () => {
    // From 0 to 15 in 4 bits the step is 1, so a number is its own place between two codes.
    const halves = Float32Array.from({ length: 16 }, (_, i) => (i === 0 ? 0 : i === 15 ? 15 : i + 0.5));
    const even = [0, 2, 2, 4, 4, 6, 6, 8, 8, 10, 10, 12, 12, 14, 14, 15];
    expect([...decodeRow(encodeGrid(halves, 1, 4))]).toEqual(even);
  });

  test('a small range is kept, at 0 and far from it', () => {
    const near = Float32Array.from({ length: 32 }, (_, i) => (i % 2 === 0 ? 0 : 2 ** -12));
    for (const [i, x] of decodeRow(encodeGrid(near, 2, 8)).entries())
      expect(Math.abs(x - near[i]!)).toBeLessThan(2 ** -16);
    // f16 has 100 and 100.0625.
    const far = near.map((x) => 100.03 + 64 * x);
    for (const [i, x] of decodeRow(encodeGrid(far, 2, 8)).entries())
      expect(Math.abs(x - far[i]!)).toBeLessThan(2 ** -11);
  });

  test('a group of equal numbers reads back as f16 has it', () => {
    expect([...decodeRow(encodeGrid(row(0.25), 2, 2))]).toEqual([...row(0.25)]);
    expect([...decodeRow(encodeGrid(row(-0.3), 2, 3))]).toEqual([...row(-0.3)].map((x) => expect.closeTo(x, 3)));
  });
});

describe('a token cache', () => {
  test('gives back the rows of a token by its position', () => {
    const cache = open();
    const key = Float32Array.of(0, 0.5, 1, -1, 0.25, -0.5, 0.75, -0.25);
    cache.append(key, row(-1));
    const { keys, values } = cache.rows([0]);
    expect(worst(key, keys[0]!, 2 / 15)).toBeLessThan(0.55);
    expect([...values[0]!]).toEqual([...row(-1)]);
  });

  test('is empty at first, and says which tokens it does not hold', () => {
    const cache = open();
    expect([cache.length, cache.usedBytes, cache.rows([]).keys]).toEqual([0, 0, []]);
    expect(() => cache.rows([0])).toThrow(expect.objectContaining({ code: 'not-found' }));
  });

  test('keeps the tokens with most attention, and half of them the newest', () => {
    const cache = append(open(), 4);
    cache.observe([5, 1, 3, 0]);
    cache.evict(3);
    expect(cache.positions).toEqual([0, 2, 3]);
    cache.observe([0, 9, 0]);
    cache.evict(2);
    expect(cache.positions, 'attention adds up').toEqual([2, 3]);
  });

  test('keeps the first and the newest tokens, and never more than asked', () => {
    const cache = append(open({ tokens: 100, rule: { id: 'window', window: 3, sinks: 2 } }), 10);
    cache.evict(50);
    expect(cache.positions).toEqual([0, 1, 7, 8, 9]);
    cache.evict(3);
    expect(cache.positions).toEqual([0, 1, 9]);
    cache.evict(1);
    expect(cache.positions).toEqual([0]);
  });

  test('never holds more than its tokens, and the one that has just come is among them', () => {
    const cache = open();
    for (let token = 0; token < 30; token++) {
      cache.append(row(token), row(token));
      cache.observe(cache.positions.map((position) => (position < 4 ? 1 : 0)));
      expect(cache.length).toBe(Math.min(8, token + 1));
      expect(cache.positions.at(-1)).toBe(token);
    }
    expect(cache.positions.slice(0, 4)).toEqual([0, 1, 2, 3]);
  });

  test('holds what its own tokens were looked at for, and no other cache does', () => {
    const kept = [6, 7].map((hitter) => {
      const cache = open();
      for (let token = 0; token < 20; token++) {
        cache.append(row(token), row(token));
        cache.observe(cache.positions.map((position) => (position === hitter ? 0.9 : 0.001)));
      }
      return cache.positions.slice(0, 4);
    });
    expect(kept).toEqual([
      [0, 1, 2, 6],
      [0, 1, 2, 7],
    ]);
  });

  test('has more tokens for lower layers, as many in the mean', () => {
    const layers = 4;
    const of = (layer: number): TokenCache => open({ tokens: 40, rule: { id: 'pyramid', layer, layers } });
    const capacities = [0, 1, 2, 3].map((layer) => of(layer).capacity);
    expect(capacities).toEqual([...capacities].sort((a, b) => b - a));
    expect(capacities[0]).toBeGreaterThan(capacities[3]!);
    expect(capacities.reduce((sum, one) => sum + one, 0)).toBe(40 * layers);
    expect(append(of(3), 20).length).toBe(capacities[3]);
  });

  test('counts all bytes: codes, steps and offsets', () => {
    const cache = append(open(), 3);
    // 8 codes of 4 bits and two heads with a step and an offset in f16, keys and values.
    expect(cache.tokenBytes).toBe(2 * (4 + 8));
    expect(cache.usedBytes).toBe(3 * cache.tokenBytes);
    expect(cache.ratio).toBeCloseTo(32 / 24, 12);
    expect(open({ kvHeads: 1, headDim: 128 }).ratio).toBeCloseTo(512 / 136, 12);
  });

  test('one token alone survives what leaves room for it', () => {
    const cache = append(open({ bits: 3 }), 1);
    cache.observe([1]);
    cache.evict(1);
    expect(cache.positions).toEqual([0]);
    cache.evict(0);
    expect(cache.length).toBe(0);
  });

  test('refuses what it cannot hold, and stays as it was', () => {
    const cache = append(open(), 2);
    const wrong = (work: () => unknown, code = 'bad-argument'): void =>
      expect(work).toThrow(expect.objectContaining({ name: 'KvError', code }));
    for (const more of [{ tokens: 0 }, { kvHeads: 1.5 }, { headDim: Number.NaN }, { bits: 5 as 4 }])
      wrong(() => open(more));
    wrong(() => open({ rule: { id: 'window', window: -1, sinks: 0 } }));
    wrong(() => open({ rule: { id: 'pyramid', layer: 4, layers: 4 } }));
    wrong(() => cache.append(new Float32Array(7), row(0)));
    wrong(() => cache.append(row(0), row(Number.NaN)), 'bad-value');
    wrong(() => cache.append(row(1e6), row(0)), 'bad-value');
    wrong(() => cache.observe([1]));
    wrong(() => cache.observe([1, -1]), 'bad-value');
    wrong(() => cache.evict(-1));
    expect(cache.positions).toEqual([0, 1]);
    cache.append(row(2), row(2));
    expect(cache.positions).toEqual([0, 1, 2]);
  });
});
