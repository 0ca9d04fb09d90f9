// f16 by its definition: every one of the 65,536 bit patterns, the midpoints between neighbours, and the edges of the
// range.
import { describe, expect, test } from 'vitest';
import { fromHalf, toHalf } from '../../../native/reference/index.ts';

describe('binary16', () => {
  test('every finite value survives the round trip', () => {
    for (let bits = 0; bits < 0x10000; bits++) {
      if ((bits & 0x7c00) === 0x7c00) continue;
      expect(toHalf(fromHalf(bits))).toBe(bits);
    }
  });

  test('the midpoint of two neighbours goes to the even one, a hair beside it to the nearer', () => {
    for (let bits = 0; bits < 0x7bff; bits++) {
      const low = fromHalf(bits);
      const middle = (low + fromHalf(bits + 1)) / 2; // exact in float32
      expect(toHalf(middle)).toBe(bits + (bits & 1));
      expect(toHalf(middle * (1 - 2 ** -22))).toBe(bits);
      expect(toHalf(middle * (1 + 2 ** -22))).toBe(bits + 1);
    }
  });

  test('the largest value is 65504; what rounds beyond it is infinite', () => {
    expect(toHalf(65504)).toBe(0x7bff);
    expect(toHalf(65519.99)).toBe(0x7bff);
    expect(toHalf(65520)).toBe(0x7c00);
    expect(toHalf(-1e30)).toBe(0xfc00);
    expect(fromHalf(0x7c00)).toBe(Infinity);
    expect(fromHalf(toHalf(Number.NaN))).toBeNaN();
    expect(Object.is(fromHalf(0x8000), -0)).toBe(true);
    expect(fromHalf(1)).toBe(2 ** -24);
  });
});
