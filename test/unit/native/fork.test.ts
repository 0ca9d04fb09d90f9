/** A fork shares sealed pages until one of the two changes them, and copies the open one: seen in bytes and in values. */
import { describe, expect, it } from 'vitest';
import { KvError, openKvCache, openPool, pageBytes } from '../../../native/index.ts';
import { history, normals, uniform } from '../../native/dense.ts';

const shape = { layers: 2, queryHeads: 3, kvHeads: 1, headDim: 64 };

function filled(tokens: number) {
  const pool = openPool(10_000_000);
  const cache = openKvCache({ shape, pool });
  const random = uniform(1);
  for (const layer of [0, 1]) cache.append(layer, normals(random, tokens * 64), normals(random, tokens * 64));
  return { pool, cache, random };
}

describe('fork', () => {
  it('costs the open pages only, and sees what its parent saw', () => {
    const { pool, cache } = filled(400);
    const before = pool.usedBytes;
    const twin = cache.fork();
    const { openBytes, sinkBytes, totalBytes } = twin.memory();
    expect(pool.usedBytes - before).toBe(openBytes + sinkBytes);
    expect(totalBytes).toBe(cache.memory().totalBytes);
    expect(pool.auditBytes()).toBe(pool.usedBytes);
    for (const side of ['k', 'v'] as const) expect(history(twin, 1, side)).toEqual(history(cache, 1, side));
    expect(twin.table(0)).toEqual(cache.table(0));
  });

  it('goes its own way after appending, transcoding and closing on either side', () => {
    const { pool, cache, random } = filled(400);
    const twin = cache.fork();
    const mine = history(cache, 0, 'k');
    twin.append(0, normals(random, 64 * 200), normals(random, 64 * 200));
    const grown = pool.usedBytes;
    // The shared q8 side stays for the parent, so nothing is freed: the pool grows by the new one.
    expect(twin.transcode(0, 0, 'k', 'rot4')).toBe(-pageBytes('rot4', 1, 64));
    expect(pool.usedBytes).toBe(grown + pageBytes('rot4', 1, 64));
    expect(history(cache, 0, 'k')).toEqual(mine);
    const theirs = history(twin, 0, 'k');
    cache.close();
    expect(history(twin, 0, 'k')).toEqual(theirs);
    expect(pool.auditBytes()).toBe(pool.usedBytes);
    expect(pool.usedBytes).toBe(twin.memory().totalBytes);
    twin.close();
    expect(pool.usedBytes).toBe(0);
  });

  it('shares the high plane of a page that only one of the two demotes', () => {
    const { pool, cache } = filled(200);
    cache.transcode(0, 0, 'k', 'rot4');
    const twin = cache.fork();
    const before = pool.usedBytes;
    twin.transcode(0, 0, 'k', 'rot2');
    const meta = pageBytes('rot2', 1, 64) - (128 * 64 * 2) / 8;
    expect(pool.usedBytes - before).toBe(meta);
    expect(pool.auditBytes()).toBe(pool.usedBytes);
    cache.close();
    expect(pool.usedBytes).toBe(twin.memory().totalBytes);
  });

  it('keeps the trial queries and the mass', () => {
    const { cache, random } = filled(400);
    const q = normals(random, 130 * 3 * 64);
    cache.attend(0, q, new Float32Array(q.length));
    const twin = cache.fork();
    expect(twin.trial(0, 0, [{ side: 'k', format: 'rot2' }])).toEqual(
      cache.trial(0, 0, [{ side: 'k', format: 'rot2' }]),
    );
    expect(twin.table(0).mass).toEqual(cache.table(0).mass);
  });

  it('is refused when the pool has no room, with nothing changed', () => {
    const { pool, cache } = filled(200);
    pool.setBudget(pool.usedBytes + cache.memory().openBytes);
    const before = pool.usedBytes;
    expect(() => cache.fork()).toThrow(KvError);
    expect([pool.usedBytes, pool.auditBytes()]).toEqual([before, before]);
  });
});
