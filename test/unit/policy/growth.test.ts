// When a cache is said to grow without end: by its pace where nothing holds it, by the least that it can take where a
// budget does, and never where it has come to rest, is planned for, or cannot reach the limit.
import { describe, expect, test } from 'vitest';
import { type GrowthPoint, type GrowthSeen, growthOf } from '../../../policy/index.ts';

const PAGE = 128;
/** A cache at the ends of its pages 1 to `pages`. */
const points = (pages: number, bytesAt: (tokens: number) => number): GrowthPoint[] =>
  Array.from({ length: pages }, (_, i) => ({ tokens: PAGE * (i + 1), bytes: bytesAt(PAGE * (i + 1)) }));
const seen = (more: Partial<GrowthSeen>): GrowthSeen => ({
  ...{ points: points(12, (tokens) => 5000 + 10 * tokens), least: null, limitBytes: 35_000, tokensMost: 4096 },
  ...more,
});

describe('a cache that no budget holds', () => {
  test('is told with its pace, and when it reaches the limit', () => {
    const growth = growthOf(seen({}))!;
    expect(growth).toMatchObject({ tokens: 1536, bytes: 20_360, limitBytes: 35_000 });
    expect(growth.bytesPerToken).toBeCloseTo(10, 9);
    // 5,000 bytes and 3,000 tokens of 10 are 35,000.
    expect(growth.tokens + growth.tokensLeft).toBe(3000);
  });

  test('is not where its limit is behind the longest text, or nobody knows how long that is', () => {
    expect(growthOf(seen({ tokensMost: 3001 }))).not.toBeNull();
    expect(growthOf(seen({ tokensMost: 3000 }))).toBeNull();
    expect(growthOf(seen({ limitBytes: 2 ** 40 }))).toBeNull();
    expect(growthOf(seen({ tokensMost: null }))).toBeNull();
  });

  test('is not before so many pages are there that a pace can be told', () => {
    const all = seen({}).points;
    expect(growthOf(seen({ points: [] }))).toBeNull();
    expect(growthOf(seen({ points: all.slice(0, 8) }))).toBeNull();
    expect(growthOf(seen({ points: all.slice(0, 9) }))).not.toBeNull();
  });

  test('is not where it has come to rest, or becomes smaller', () => {
    expect(growthOf(seen({ points: points(16, (tokens) => 10 * Math.min(tokens, 1024)) }))).toBeNull();
    expect(growthOf(seen({ points: points(16, (tokens) => 30_000 - 5 * tokens) }))).toBeNull();
  });

  test('goes on by its newer pages where it has become slower', () => {
    const slower = points(16, (tokens) => 10 * tokens - 8 * Math.max(0, tokens - 1000));
    expect(growthOf(seen({ points: slower, limitBytes: 16_000 }))!.bytesPerToken).toBeCloseTo(2, 1);
  });

  test('has no tokens left behind its limit', () => {
    expect(growthOf(seen({ limitBytes: 1 }))!.tokensLeft).toBe(0);
  });
});

describe('a cache that a budget holds', () => {
  const least = { bytes: 20_000, bytesPerToken: 4 };

  test('is told near the least that it can take, by what that grows', () => {
    // 20,360 bytes are within a tenth of the least; 15,000 more are 3,750 tokens of 4.
    const growth = growthOf(seen({ least, tokensMost: 2 ** 20 }))!;
    expect(growth).toMatchObject({ bytesPerToken: 4, tokensLeft: 3750 });
    expect(growthOf(seen({ least }))).toBeNull();
  });

  test('is not while its pages can go lower', () => {
    expect(growthOf(seen({ least: { ...least, bytes: 18_000 }, tokensMost: 2 ** 20 }))).toBeNull();
  });

  test('is not where the least does not grow, as behind windows that slide', () => {
    expect(growthOf(seen({ least: { ...least, bytesPerToken: 0 }, tokensMost: 2 ** 20 }))).toBeNull();
  });
});
