// The picture of bytes over tokens: drawn for series small enough that a person can check every row.
import { describe, expect, test } from 'vitest';
import { bytesPicture } from '../../../../engine/cli/picture.ts';

const f16BytesPerToken = 1024;

describe('the picture of a cache while it reads', () => {
  test('shades what f16 takes beyond a cache that stays at a quarter', () => {
    const points = Array.from({ length: 60 }, (_, i) => ({ tokens: (i + 1) * 128, kvBytes: 2 * 128 * 1024 * 7.5 }));
    const lines = bytesPicture(points, f16BytesPerToken).split('\n');
    expect(lines).toHaveLength(9);
    // The first row is the size of f16 at the end, and only the last columns reach it.
    expect(lines[0]).toMatch(/^ +7\.5 MiB +░+$/);
    // A quarter of eight rows is two rows, filled from end to end.
    expect(lines[6]).toMatch(/^ 1\.875 MiB █{60}$/);
    expect(lines[7]!.trim()).toMatch(/^█{60}$/);
    expect(lines[5]).not.toContain('█');
    expect(lines[8]!.trim()).toMatch(/^0 +7,680 tokens$/);
  });

  test('draws no shade where the cache is as large as f16', () => {
    const points = Array.from({ length: 30 }, (_, i) => ({ tokens: (i + 1) * 100, kvBytes: (i + 1) * 100 * 1024 }));
    const picture = bytesPicture(points, f16BytesPerToken);
    expect(picture).toContain('█');
    expect(picture).not.toContain('░');
  });

  test('is empty for fewer than two points', () => {
    expect(bytesPicture([], f16BytesPerToken)).toBe('');
    expect(bytesPicture([{ tokens: 5, kvBytes: 5 }], f16BytesPerToken)).toBe('');
  });
});
