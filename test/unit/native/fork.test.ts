/**
 * A fork shares sealed pages as objects and copies the open one: a move of a shared page is made once, for all who hold
 * it, also when it is under way while a fork is made, ends or closes. Seen in bytes and in values.
 */
import { describe, expect, it } from 'vitest';
import { KvError, nativeInfo, openBytes, openKvCache, openPool, pageBytes } from '../../../native/index.ts';
import { history, normals, uniform } from '../../native/dense.ts';
import { loadKernels } from '../../native/kernels-binding.ts';

const shape = { layers: 2, queryHeads: 3, kvHeads: 1, headDim: 64 };

function filled(tokens: number) {
  const pool = openPool(10_000_000);
  const cache = openKvCache({ shape, pool });
  const random = uniform(1);
  for (const layer of tokens > 0 ? [0, 1] : [])
    cache.append(layer, normals(random, tokens * 64), normals(random, tokens * 64));
  return { pool, cache, random };
}

describe('fork', () => {
  it('costs the rows of the open pages only, and sees what its parent saw', () => {
    const { pool, cache } = filled(400);
    const before = pool.usedBytes;
    const twin = cache.fork();
    // 400 tokens leave 16 rows open. The sinks are in use twice and stand there once.
    expect(twin.memory()).toMatchObject({ openBytes: openBytes(shape, 16), sinkBytes: cache.memory().sinkBytes });
    expect(pool.usedBytes - before).toBe(openBytes(shape, 16));
    expect(pool.auditBytes()).toBe(pool.usedBytes);
    for (const side of ['k', 'v'] as const) expect(history(twin, 1, side)).toEqual(history(cache, 1, side));
    expect(twin.table(0)).toEqual(cache.table(0));
  });

  it.skipIf(nativeInfo().binding === 'wasm')('tells V8 at once of the rows that it copies (needs an addon)', () => {
    const wide = { layers: 8, queryHeads: 8, kvHeads: 8, headDim: 128 };
    const cache = openKvCache({ shape: wide, pool: openPool(2 ** 28) });
    const rows = new Float32Array(100 * 8 * 128);
    for (let layer = 0; layer < wide.layers; layer++) cache.append(layer, rows, rows);
    const kernels = loadKernels();
    const before = kernels.externalBytes();
    const twin = cache.fork();
    expect(kernels.externalBytes() - before).toBeGreaterThan(openBytes(wide, 100) / 2);
    expect(openBytes(wide, 100)).toBeGreaterThan(2 ** 22);
    twin.close();
    cache.close();
  });

  it.each([0, 1, 15, 16, 100, 127, 128, 129, 400])(
    'goes its own way with what it appends to %i tokens, and lives on when its parent closes',
    (tokens) => {
      const { pool, cache, random } = filled(tokens);
      const twin = cache.fork();
      const mine = history(cache, 0, 'k');
      twin.append(0, normals(random, 64 * 200), normals(random, 64 * 200));
      expect(history(cache, 0, 'k')).toEqual(mine);
      const theirs = history(twin, 0, 'k');
      cache.close();
      expect(history(twin, 0, 'k')).toEqual(theirs);
      expect(pool.auditBytes()).toBe(pool.usedBytes);
      expect(pool.usedBytes).toBe(twin.memory().totalBytes);
      twin.close();
      expect(pool.usedBytes).toBe(0);
    },
  );

  it('a shared page that one of them moves has moved for all, and its bytes fall once', () => {
    const { pool, cache } = filled(400);
    const twins = [cache.fork(), cache.fork()];
    const before = pool.usedBytes;
    const freed = pageBytes('q8', 1, 64) - pageBytes('rot4', 1, 64);
    expect(twins[0]!.transcode(0, 0, 'k', 'rot4')).toBe(freed);
    expect(pool.usedBytes).toBe(before - freed);
    for (const one of [cache, ...twins]) {
      expect(one.format(0, 0, 'k')).toBe('rot4');
      expect(history(one, 0, 'k')).toEqual(history(twins[0]!, 0, 'k'));
    }
    // The others find it done.
    expect(cache.transcode(0, 0, 'k', 'rot4')).toBe(0);
    expect(cache.transcode(0, 0, 'kv', 'rot2')).toBe(
      pageBytes('rot4', 1, 64) + pageBytes('q8', 1, 64) - 2 * pageBytes('rot2', 1, 64),
    );
    expect(twins.map((one) => [one.format(0, 0, 'k'), one.format(0, 0, 'v')])).toEqual([
      ['rot2', 'rot2'],
      ['rot2', 'rot2'],
    ]);
    expect(pool.auditBytes()).toBe(pool.usedBytes);
  });

  it('a full pool with a live fork meets pressure by moving what both share', () => {
    const { pool, cache, random } = filled(400);
    const twin = cache.fork();
    pool.setBudget(pool.usedBytes + cache.memory().openBytes / shape.layers);
    const rows = normals(random, 64 * 128);
    expect(() => twin.append(0, rows, rows)).toThrow(KvError);
    for (const page of [0, 1]) cache.transcode(0, page, 'kv', 'rot2');
    twin.append(0, rows, rows);
    expect(pool.usedBytes).toBeLessThanOrEqual(pool.budgetBytes);
    expect(pool.auditBytes()).toBe(pool.usedBytes);
  });

  it('mass and what may be skipped are each cache’s own', () => {
    const { cache, random } = filled(400);
    const twin = cache.fork();
    const before = [...cache.table(0).mass];
    const q = normals(random, 3 * 64);
    twin.attend(0, q, new Float32Array(q.length));
    expect([...cache.table(0).mass]).toEqual(before);
    expect([...twin.table(0).mass]).not.toEqual(before);
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
    pool.setBudget(pool.usedBytes + cache.memory().openBytes - 1);
    const before = pool.usedBytes;
    expect(() => cache.fork()).toThrow(KvError);
    expect([pool.usedBytes, pool.auditBytes()]).toEqual([before, before]);
  });
});
