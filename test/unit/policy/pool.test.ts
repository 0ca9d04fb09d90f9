// Who gives up bytes where sessions share one budget.
import { describe, expect, it } from 'vitest';
import {
  CHEAPEST,
  EQUAL,
  EVEN,
  LARGEST,
  LEAST_RECENT,
  POOL_POLICIES,
  type PoolMember,
  PROPORTIONAL,
  poolPolicy,
} from '../../../policy/index.ts';

const member = (id: string, given: Partial<PoolMember> = {}): PoolMember => ({
  id,
  tokens: 1000,
  bytes: 1000,
  behindTokens: 800,
  behindBytes: 800,
  price: null,
  idleMs: 0,
  ...given,
});

describe('even', () => {
  it('asks whoever has most bytes for a token behind its window, whatever its length', () => {
    const short = member('short', { tokens: 300, behindTokens: 100, behindBytes: 150, bytes: 700 });
    const long = member('long', { tokens: 9000, behindTokens: 8800, behindBytes: 12_000, bytes: 13_000 });
    expect(EVEN.next([long, short], long)).toBe(short);
    const lower = { ...short, behindBytes: 130 };
    expect(EVEN.next([long, lower], lower)).toBe(long);
  });

  it('goes by bits of a number where sessions are of several models, which its first version did not', () => {
    const large = member('large', { behindBytes: 8000, tokenBytes: 40 });
    const small = member('small', { behindBytes: 1200, tokenBytes: 4 });
    expect(EVEN.next([large, small], large)).toBe(small);
    expect(poolPolicy('even', 2)).toBe(EVEN);
    expect(poolPolicy('even', 1)!.next([large, small], large)).toBe(large);
  });

  it('asks those that wait first, but by a quarter more only', () => {
    const working = member('working', { behindBytes: 1000 });
    const waits = member('waits', { behindBytes: 900, idleMs: 5 });
    expect(EVEN.next([working, waits], working)).toBe(waits);
    expect(EVEN.next([working, { ...waits, behindBytes: 700 }], working)).toBe(working);
  });

  it('asks nobody who has nothing behind its window, and of equal ones the first', () => {
    const fresh = member('fresh', { behindTokens: 0, behindBytes: 0, bytes: 10_000 });
    expect(EVEN.next([fresh], fresh)).toBeNull();
    const [a, b] = [member('a'), member('b')];
    expect(EVEN.next([fresh, a, b], fresh)).toBe(a);
  });
});

describe('the others', () => {
  const asking = member('asking', { bytes: 1500, price: 2 });
  const cheap = member('cheap', { bytes: 500, price: 1, tokens: 2000 });
  const unpriced = member('unpriced', { bytes: 2500, price: undefined, tokens: 5000 });
  const all = [asking, cheap, unpriced];

  it('price asks the cheapest, and those without prices when nobody is cheaper than whoever asks', () => {
    expect(CHEAPEST.next(all, asking)).toBe(cheap);
    expect(CHEAPEST.next([asking, unpriced], asking)).toBe(unpriced);
    expect(CHEAPEST.next([asking, { ...unpriced, bytes: 900 }], asking)).toBe(asking);
    expect(CHEAPEST.next([asking, member('waits', { price: 2.2, idleMs: 1 })], asking)?.id).toBe('waits');
    expect(CHEAPEST.next([member('nothing')], asking)).toBeNull();
  });

  it('largest, equal, proportional and lru go by bytes, length and time', () => {
    expect(LARGEST.next(all, asking)).toBe(unpriced);
    expect(LARGEST.next([asking, cheap], asking)).toBeNull();
    expect(EQUAL.next([asking, cheap], asking)).toBe(asking);
    expect(PROPORTIONAL.next(all, asking)).toBe(asking);
    expect(LEAST_RECENT.next([asking, { ...cheap, idleMs: 5 }, { ...unpriced, idleMs: 4 }], asking)?.id).toBe('cheap');
    expect(LEAST_RECENT.next(all, asking)).toBe(unpriced);
  });

  it('each has a name of its own', () => {
    expect(new Set(POOL_POLICIES.map(({ id }) => id)).size).toBe(POOL_POLICIES.length);
    for (const { next } of POOL_POLICIES) expect(next([], asking)).toBeNull();
  });
});
