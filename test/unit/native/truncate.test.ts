// Taking rows back: after truncate the cache must be as if they had never been appended, and what is sealed cannot be taken back.
import { describe, expect, it } from 'vitest';
import { KvError, openKvCache, openPool } from '../../../native/index.ts';

const shape = { layers: 2, queryHeads: 4, kvHeads: 2, headDim: 64 };
const rows = (tokens: number, heads: number, seed: number): Float32Array =>
  Float32Array.from({ length: tokens * heads * shape.headDim }, (_, i) => Math.sin(i * 0.37 + seed * 1.7));

function filled(tokens: number) {
  const pool = openPool(2 ** 26);
  const cache = openKvCache({ shape, pool });
  for (let layer = 0; layer < shape.layers; layer++)
    cache.append(layer, rows(tokens, shape.kvHeads, layer), rows(tokens, shape.kvHeads, layer + 9));
  return { pool, cache };
}

function answer(cache: ReturnType<typeof openKvCache>, layer: number): Float32Array {
  const out = new Float32Array(shape.queryHeads * shape.headDim);
  cache.append(layer, rows(1, shape.kvHeads, 40), rows(1, shape.kvHeads, 41));
  cache.attend(layer, rows(1, shape.queryHeads, 42), out);
  return out;
}

describe('truncate', () => {
  it('leaves a cache that never saw the rows', () => {
    const a = filled(200);
    const b = filled(200);
    for (let layer = 0; layer < shape.layers; layer++) {
      b.cache.append(layer, rows(30, shape.kvHeads, 77), rows(30, shape.kvHeads, 78));
      b.cache.attend(layer, rows(30, shape.queryHeads, 79), new Float32Array(30 * shape.queryHeads * shape.headDim));
    }
    b.cache.truncate(200);
    expect(b.cache.length()).toBe(200);
    for (let layer = 0; layer < shape.layers; layer++) expect(answer(b.cache, layer)).toEqual(answer(a.cache, layer));
    expect(b.pool.usedBytes).toBe(a.pool.usedBytes);
    expect(b.pool.auditBytes()).toBe(b.pool.usedBytes);
  });
  it('forgets the kept queries of the rows', () => {
    const { cache } = filled(300);
    cache.attend(0, rows(300, shape.queryHeads, 1), new Float32Array(300 * shape.queryHeads * shape.headDim));
    expect(cache.trial(0, 0, [{ side: 'k', format: 'rot2' }])[0]).toBeGreaterThan(0);
    cache.truncate(256);
    // Slots of positions 263, 271 … 295 are empty now; those of the full page before remain.
    expect(cache.trial(0, 0, [{ side: 'k', format: 'rot2' }])[0]).toBeGreaterThan(0);
  });
  it('keeps no attention mass that forgotten tokens may have received, and all that sealed pages have', () => {
    const { cache } = filled(300);
    const attend = (): void =>
      cache.attend(0, rows(10, shape.queryHeads, 1), new Float32Array(10 * shape.queryHeads * shape.headDim));
    attend();
    const before = cache.table(0).mass;
    expect(before[2]).toBeGreaterThan(0);
    cache.truncate(300); // forgets nothing
    expect(cache.table(0).mass).toEqual(before);
    cache.truncate(280);
    expect([...cache.table(0).mass]).toEqual([before[0], before[1], 0]);
    attend();
    const { mass } = cache.table(0);
    // Ten queries of four heads more, each with a mass of one.
    expect(mass.reduce((sum, x) => sum + x, 0)).toBeCloseTo(before[0]! + before[1]! + 40, 3);
  });
  it('refuses rows that are sealed, lengths beyond the end, and nonsense', () => {
    const { cache } = filled(300);
    for (const tokens of [255, 0, 301, -1, 1.5, Number.NaN])
      expect(() => cache.truncate(tokens), String(tokens)).toThrow(KvError);
    expect(cache.length()).toBe(300);
    cache.truncate(256);
    expect(cache.length(1)).toBe(256);
    cache.close();
    expect(() => cache.truncate(256)).toThrow(KvError);
  });
});
