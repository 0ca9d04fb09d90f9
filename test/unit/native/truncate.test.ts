// Taking rows back: after truncate the cache must be as if they had never been appended; what is sealed goes by whole
// pages, and forks keep what they share.
import { describe, expect, it } from 'vitest';
import { KvError, nativeInfo, openKvCache, openPool, type WindowName } from '../../../native/index.ts';
import { loadKernels } from '../../native/kernels-binding.ts';

const kernels = loadKernels();

const shape = { layers: 2, queryHeads: 4, kvHeads: 2, headDim: 64 };
const rows = (tokens: number, heads: number, seed: number): Float32Array =>
  Float32Array.from({ length: tokens * heads * shape.headDim }, (_, i) => Math.sin(i * 0.37 + seed * 1.7));

function filled(tokens: number, openFormat: WindowName = 'f16') {
  const pool = openPool(2 ** 26);
  const cache = openKvCache({ shape, pool, openFormat });
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
  it('gives the memory back at once, and V8 is told', () => {
    const isTold = nativeInfo().binding !== 'wasm';
    const external = (): number => (isTold ? kernels.externalBytes() : 0);
    const { pool, cache } = filled(1);
    const more = new Float32Array(20_000 * shape.kvHeads * shape.headDim).fill(0.5);
    for (let layer = 0; layer < shape.layers; layer++) cache.append(layer, more, more);
    const before = { reserved: pool.reservedBytes, external: external() };
    expect(before.reserved).toBeGreaterThan(2 ** 23);
    cache.truncate(0);
    const after = { reserved: pool.reservedBytes, external: external() };
    expect(pool.usedBytes).toBe(0);
    expect(after.reserved).toBeLessThan(before.reserved / 2);
    if (isTold) expect(before.external - after.external).toBeGreaterThan(before.reserved / 4);
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
  it.each(['f16', 'q8'] as const)('drops sealed pages whole, with an open page in %s', (openFormat) => {
    for (const [pages, tokens] of [
      [0, 300],
      [1, 300],
      [2, 700],
      [2, 257],
    ] as const) {
      const [a, b] = [filled(700, openFormat), filled(700, openFormat)];
      a.cache.truncate(pages * 128);
      expect(a.cache.table(0).pages).toBe(pages);
      expect(a.pool.auditBytes()).toBe(a.pool.usedBytes);
      // The same rows again, or fewer, give what a cache has that never held more.
      for (let layer = 0; layer < shape.layers; layer++) {
        const rest = (seed: number) => rows(700, shape.kvHeads, seed).slice(pages * 128 * 128, tokens * 128);
        a.cache.append(layer, rest(layer), rest(layer + 9));
      }
      b.cache.close();
      const c = filled(tokens, openFormat);
      // An open page in f16 keeps the room that it once had; here it has begun anew.
      expect(a.pool.usedBytes).toBeLessThanOrEqual(c.pool.usedBytes);
      for (let layer = 0; layer < shape.layers; layer++) {
        expect(a.cache.decode(layer, 0, 'k')).toEqual(c.cache.decode(layer, 0, 'k'));
        expect(answer(a.cache, layer)).toEqual(answer(c.cache, layer));
      }
      a.cache.close();
      expect(a.pool.usedBytes).toBe(0);
    }
  });
  it('leaves a fork what it shares', () => {
    const { pool, cache } = filled(700);
    const [fork, other] = [cache.fork(), filled(700)];
    cache.truncate(0);
    expect(pool.auditBytes()).toBe(pool.usedBytes);
    for (let layer = 0; layer < shape.layers; layer++) expect(answer(fork, layer)).toEqual(answer(other.cache, layer));
    cache.append(0, rows(300, shape.kvHeads, 5), rows(300, shape.kvHeads, 6));
    fork.truncate(384);
    expect([cache.length(), fork.length()]).toEqual([300, 384]);
    cache.close();
    fork.close();
    expect(pool.usedBytes).toBe(0);
  });
  it('leaves trials that were started their results', () => {
    const { cache } = filled(700);
    cache.attend(0, rows(200, shape.queryHeads, 1), new Float32Array(200 * shape.queryHeads * shape.headDim));
    const expected = cache.trial(0, 1, [{ side: 'k', format: 'rot2' }]);
    for (const page of [1, 4]) cache.startTrial(0, page, [{ side: 'k', format: 'rot2' }]);
    cache.truncate(128);
    const found = cache.finishTrials(true);
    expect(found).toHaveLength(2);
    expect(found[0]).toEqual(expected);
  });
  it('waits for moves to be over before it drops pages', () => {
    const { cache } = filled(700);
    cache.startMove(0, 4, 'k', 'rot4');
    expect(() => cache.truncate(256)).toThrow(/go by whole pages/);
    cache.truncate(650);
    cache.finishMoves(true);
    cache.truncate(256);
    expect(cache.length(1)).toBe(256);
  });
  it('refuses rows within a sealed page, lengths beyond the end, and nonsense', () => {
    const { cache } = filled(300);
    for (const tokens of [255, 1, 301, -1, 1.5, Number.NaN])
      expect(() => cache.truncate(tokens), String(tokens)).toThrow(KvError);
    expect(cache.length()).toBe(300);
    cache.truncate(256);
    expect(cache.length(1)).toBe(256);
    cache.close();
    expect(() => cache.truncate(256)).toThrow(KvError);
  });
});
