// Masses and norms of a small cache whose attention can be foreseen: a query along one page's keys looks there, and
// keys a thousand times as long as values say so. Head size 64, one layer, rows written by hand.
import { expect, it } from 'vitest';
import { MassTrace, measureWork } from '../../../../engine/cache/workload.ts';
import { type KvCache, openKvCache, openPool, PAGE_TOKENS } from '../../../../native/index.ts';

const DIM = 64;
const shape = { layers: 1, queryHeads: 1, kvHeads: 1, headDim: DIM };

/** Keys of a page point along the axis of its number; all values are 0.5. */
function append(cache: KvCache, page: number, lookAt: number, strength: number): void {
  const k = new Float32Array(PAGE_TOKENS * DIM);
  const q = new Float32Array(PAGE_TOKENS * DIM);
  for (let t = 0; t < PAGE_TOKENS; t++) {
    k[t * DIM + page] = 8;
    q[t * DIM + lookAt] = strength;
  }
  cache.append(0, k, new Float32Array(PAGE_TOKENS * DIM).fill(0.5));
  cache.attend(0, q, new Float32Array(PAGE_TOKENS * DIM));
}

function run(lookAt: (page: number) => number, strength: number): ReturnType<typeof measureWork> {
  const pool = openPool(1e7);
  const cache = openKvCache({ shape, pool });
  const masses = new MassTrace(cache);
  for (let page = 0; page < 6; page++) {
    append(cache, page, lookAt(page), strength);
    masses.note((page + 1) * PAGE_TOKENS);
  }
  const measured = measureWork(cache, masses);
  cache.close();
  pool.close();
  return measured;
}

it('tells sinks, recency and spread of attention apart', () => {
  const sinks = run(() => 0, 40);
  expect(sinks.sinkMass).toBeGreaterThan(0.99);
  expect(sinks.recencyMass).toBeLessThan(0.01);
  expect(sinks.attentionEntropy).toBeLessThan(0.05);
  const recent = run((page) => page, 40);
  expect(recent.recencyMass).toBeGreaterThan(0.99);
  const even = run(() => 60, 0);
  // The last page of queries: 5.5 pages on average, every key alike.
  expect(even.sinkMass).toBeCloseTo(1 / 5.5, 1);
  expect(even.attentionEntropy).toBeGreaterThan(0.9);
});

it('measures keys beside values', () => {
  const { keyValueRatio, keyOutlier } = run(() => 0, 0);
  // Every key has one channel of 8 among 64, every value 64 channels of 0.5.
  expect(keyValueRatio).toBeCloseTo(8 / Math.sqrt(DIM) / 0.5, 1);
  expect(keyOutlier).toBeCloseTo(DIM, 0);
});

it('says nothing before there are four pages, and nothing of keys before one is sealed', () => {
  const pool = openPool(1e7);
  const cache = openKvCache({ shape, pool });
  const masses = new MassTrace(cache);
  expect(measureWork(cache, masses)).toEqual({});
  for (let page = 0; page < 3; page++) {
    append(cache, page, 0, 1);
    masses.note((page + 1) * PAGE_TOKENS);
  }
  expect(Object.keys(measureWork(cache, masses)).sort()).toEqual(['keyOutlier', 'keyValueRatio']);
  cache.close();
  pool.close();
});
