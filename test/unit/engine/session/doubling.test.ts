// Errors of pages are doubled by coding them once more: the two errors have nothing to do with each other, both have
// the energies that the table says, and what is divided by them is what was there before.
import { expect, test } from 'vitest';
import { CODED, Doubled } from '../../../../engine/session/doubling.ts';
import { type FormatName, type KvCache, openKvCache, openPool, PAGE_TOKENS } from '../../../../native/index.ts';
import { normals, uniform } from '../../../native/dense.ts';

const shape = { layers: 1, queryHeads: 4, kvHeads: 4, headDim: 64 };
const numbers = (PAGE_TOKENS + 1) * shape.kvHeads * shape.headDim;
const page = PAGE_TOKENS * shape.kvHeads * shape.headDim;

/** Works with a cache whose first page is sealed. */
function onPage(work: (cache: KvCache) => void): void {
  const pool = openPool(16 << 20);
  const cache = openKvCache({ shape, pool, windowFormat: 'f16', openFormat: 'f16' });
  try {
    const random = uniform(11);
    cache.append(0, Float32Array.from(normals(random, numbers)), Float32Array.from(normals(random, numbers)));
    work(cache);
  } finally {
    cache.close();
    pool.close();
  }
}

const values = (cache: KvCache): Float32Array => cache.decode(0, 0, 'v').slice(0, page);
const energy = (a: Float32Array, b?: Float32Array): number =>
  a.reduce((sum, one, at) => sum + (one - (b?.[at] ?? 0)) ** 2, 0);

test('errors have the energies that are told, and those of the second code are beside those of the first', () => {
  for (const [format, { second, present, added }] of Object.entries(CODED))
    onPage((cache) => {
      const exact = values(cache);
      cache.transcode(0, 0, 'v', format as FormatName);
      const coded = values(cache);
      expect(energy(coded, exact) / energy(exact) / present, format).toBeCloseTo(1, 1);
      if (second === null) return;
      const doubled = new Doubled();
      doubled.double(cache, 1);
      expect(cache.format(0, 0, 'v')).toBe(second);
      const again = values(cache);
      expect(energy(again, coded) / energy(exact) / added, format).toBeCloseTo(1, 1);
      expect(energy(again, exact) / energy(exact) / (present + added), format).toBeCloseTo(1, 1);
      expect(doubled.share).toBeCloseTo(present / added, 12);
    });
});

test('sides that stay as they were count like the others, and where most do nothing is told', () => {
  onPage((cache) => {
    expect(new Doubled().share).toBeNull();
    const none = new Doubled();
    none.double(cache, 1);
    expect(none.share).toBeNull();
    cache.transcode(0, 0, 'k', 'kivi2');
    const few = new Doubled();
    few.double(cache, 1);
    expect(few.share).toBeNull();
    cache.transcode(0, 0, 'v', 'trellis2');
    const half = new Doubled();
    half.double(cache, 1);
    expect(half.share).toBeNull();
  });
  onPage((cache) => {
    cache.transcode(0, 0, 'k', 'rot2');
    cache.transcode(0, 0, 'v', 'trellis2');
    const doubled = new Doubled();
    doubled.double(cache, 1);
    expect(cache.format(0, 0, 'k')).toBe('rot2');
    const [k, v] = [CODED.rot2!, CODED.trellis2!];
    expect(doubled.share).toBeCloseTo((k.present + v.present) / v.added, 12);
  });
});
