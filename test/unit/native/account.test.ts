/**
 * Bytes are counted for each cache and its forks: caches with budgets of their own, and one without, fill one pool to
 * the byte.
 */
import { describe, expect, it } from 'vitest';
import { openKvCache, openPool, pageBytes } from '../../../native/index.ts';
import { normals, uniform } from '../../native/dense.ts';
import { codeOf } from '../../refusal.ts';

const shape = { layers: 1, queryHeads: 2, kvHeads: 2, headDim: 64 };
const ROW = 2 * 64;
const SEAL = 2 * pageBytes('q8', 2, 64);
const rows = normals(uniform(1), 1024 * ROW);
const tokens = (count: number) => rows.subarray(0, count * ROW);

/** What a cache with `count` tokens takes. */
function bytesOf(count: number): number {
  const pool = openPool(1e9);
  const cache = openKvCache({ shape, pool });
  cache.append(0, tokens(count), tokens(count));
  const { usedBytes } = cache;
  cache.close();
  return usedBytes;
}

describe('the account of a cache', () => {
  it('has a budget of its own, which another cache on the pool neither uses nor gives', () => {
    const pool = openPool(10_000_000);
    const small = openKvCache({ shape, pool, budgetBytes: bytesOf(256) });
    const large = openKvCache({ shape, pool, budgetBytes: 5_000_000 });
    large.append(0, rows, rows);
    small.append(0, tokens(256), tokens(256));
    const before = { small: small.usedBytes, large: large.usedBytes };
    expect(before.small).toBe(bytesOf(256));
    expect(codeOf(() => small.append(0, tokens(128), tokens(128)))).toBe('budget-exceeded');
    expect(() => small.append(0, tokens(128), tokens(128))).toThrow(
      `the cache has no room to seal a page of layer 0: ${before.small} of ${small.budgetBytes} bytes are in use`,
    );
    expect(codeOf(() => small.transcode(0, 0, 'k', 'f16'))).toBe('budget-exceeded');
    expect({ small: small.usedBytes, large: large.usedBytes }).toEqual(before);
    expect(pool.usedBytes).toBe(before.small + before.large);
    for (const cache of [small, large]) expect(cache.auditBytes()).toBe(cache.usedBytes);
    expect(pool.auditBytes()).toBe(pool.usedBytes);
    small.setBudget(before.small + SEAL);
    small.append(0, tokens(128), tokens(128));
    expect(small.usedBytes).toBe(small.peakBytes);
    small.close();
    expect([pool.usedBytes, large.usedBytes]).toEqual([before.large, before.large]);
    large.close();
  });

  it('without a budget is bounded by the pool, and the pool bounds the sum of those that have one', () => {
    const pool = openPool(bytesOf(256) + bytesOf(128));
    const free = openKvCache({ shape, pool });
    const bound = openKvCache({ shape, pool, budgetBytes: pool.budgetBytes });
    expect([free.budgetBytes, bound.budgetBytes]).toEqual([null, pool.budgetBytes]);
    free.append(0, tokens(256), tokens(256));
    bound.append(0, tokens(128), tokens(128));
    expect([free.roomBytes, bound.roomBytes]).toEqual([0, 0]);
    expect(() => bound.append(0, tokens(1), tokens(1))).toThrow('the pool has no room');
    free.transcode(0, 0, 'k', 'rot2');
    expect(free.roomBytes).toBe(pool.budgetBytes - pool.usedBytes);
    expect(bound.roomBytes).toBe(free.roomBytes);
    bound.setBudget(bound.usedBytes);
    expect(bound.roomBytes).toBe(0);
    bound.setBudget(null);
    expect(bound.roomBytes).toBe(free.roomBytes);
    free.close();
    bound.close();
  });

  it('is shared with forks, each shared page counted once', () => {
    const pool = openPool(10_000_000);
    const cache = openKvCache({ shape, pool, budgetBytes: 1_000_000 });
    cache.append(0, tokens(300), tokens(300));
    const alone = cache.usedBytes;
    const twin = cache.fork();
    // Sinks of a sealed page are shared as it is.
    const { openBytes } = twin.memory();
    expect([cache.usedBytes, twin.usedBytes]).toEqual([alone + openBytes, alone + openBytes]);
    expect([twin.budgetBytes, twin.auditBytes()]).toEqual([1_000_000, twin.usedBytes]);
    cache.close();
    expect(twin.usedBytes).toBe(twin.memory().totalBytes);
    expect(twin.peakBytes).toBe(alone + openBytes);
    twin.close();
    expect(pool.usedBytes).toBe(0);
  });

  it('keeps the room of a move that is under way for it, in the cache and in the pool', () => {
    const pool = openPool(10_000_000);
    const cache = openKvCache({ shape, pool, budgetBytes: 5_000_000 });
    const other = openKvCache({ shape, pool });
    cache.append(0, tokens(300), tokens(300));
    const [room, elsewhere] = [cache.roomBytes, other.roomBytes];
    cache.startMove(0, 0, 'k', 'rot4');
    const claimed = pageBytes('rot4', 2, 64);
    expect([cache.roomBytes, other.roomBytes]).toEqual([room - claimed, elsewhere - claimed]);
    cache.finishMoves(true);
    const freed = pageBytes('q8', 2, 64) - claimed;
    expect([cache.roomBytes, other.roomBytes]).toEqual([room + freed, elsewhere + freed]);
    cache.startMove(0, 0, 'v', 'rot4');
    cache.close();
    expect(other.roomBytes).toBe(pool.budgetBytes - pool.usedBytes);
    other.close();
  });

  it('refuses budgets that are none, or below what is used, and rows that a cache’s own budget has no room for', () => {
    const pool = openPool(10_000_000);
    const cache = openKvCache({ shape, pool });
    cache.append(0, tokens(300), tokens(300));
    expect(codeOf(() => cache.setBudget(cache.usedBytes - 1))).toBe('budget-too-small');
    expect(cache.budgetBytes).toBe(null);
    for (const wrong of [-1, 0.5, Number.NaN, '1', {}] as number[]) {
      expect(codeOf(() => cache.setBudget(wrong))).toBe('bad-argument');
      expect(codeOf(() => openKvCache({ shape, pool, budgetBytes: wrong }))).toBe('bad-argument');
    }
    const tight = openKvCache({ shape, pool, budgetBytes: 1 });
    expect(() => tight.append(0, tokens(1), tokens(1))).toThrow(
      'the cache has no room to open rows of layer 0: 0 of 1',
    );
    tight.close();
    expect(pool.usedBytes).toBe(cache.usedBytes);
    cache.close();
    expect(codeOf(() => cache.usedBytes)).toBe('closed');
  });
});
