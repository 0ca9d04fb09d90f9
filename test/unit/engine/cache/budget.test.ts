// Budgets as people write them, the bytes they mean, and the refusal of what cannot work; checked by hand-made numbers.
import { describe, expect, it } from 'vitest';
import {
  bytesAt,
  checkBudget,
  f16CacheBytes,
  fixedBytes,
  forecast,
  surelyFreed,
} from '../../../../engine/cache/budget.ts';
import { parseBudget, parseBytes } from '../../../../engine/options/parse-budget.ts';
import { type FormatName, KvError, openBytes, openKvCache, openPool, pageBytes } from '../../../../native/index.ts';

const shape = { layers: 2, queryHeads: 4, kvHeads: 2, headDim: 64 };

describe('KV budgets', () => {
  it('are bytes with a unit or a share of the f16 cache', () => {
    expect(parseBudget('64MiB', null)).toBe(64 * 2 ** 20);
    expect(parseBudget('1.5GB', null)).toBe(1.5e9);
    expect(parseBudget('25%', 1000)).toBe(250);
    expect(parseBudget('4096', null)).toBe(4096);
    expect(parseBudget(77, null)).toBe(77);
  });
  it.each(['', '-1', '0', '10 parsecs', '25%%', '101%', '0%', 'NaN', '1e9'])('refuse %j', (text) => {
    expect(() => parseBudget(text, 1000)).toThrow(KvError);
  });
  it('that can only be meant in percent say so', () => {
    const error = ((): unknown => {
      try {
        return parseBudget('25', 1000);
      } catch (thrown) {
        return thrown;
      }
    })();
    expect(error).toMatchObject({ code: 'bad-argument', hint: expect.stringContaining('25%') });
  });
  it('of fewer bytes than one, or of more than can be counted, are none', () => {
    for (const given of ['0.5b', 0.5, 2 ** 53, '9007199254740993', '99999999999GiB', Number.POSITIVE_INFINITY])
      expect(() => parseBudget(given, null), String(given)).toThrow(/is not a KV budget/);
  });
  it('are named as what they are, also where they are the size of something else', () => {
    const told = (given: string | number): unknown => {
      try {
        return parseBytes(given, 'originalsBytes');
      } catch (error) {
        const { code, message, values } = error as KvError;
        return [code, message, values];
      }
    };
    expect(told('2GiB')).toBe(2 ** 31);
    for (const [given, message] of [
      ['2', 'originalsBytes of 2 is 2 bytes'],
      ['1', 'originalsBytes of 1 is 1 byte'],
      ['25%', 'originalsBytes cannot be 25%: there is nothing of which that is a share'],
      ['much', "'much' is not a size, as originalsBytes must be"],
    ] as const)
      expect(told(given)).toEqual(['bad-argument', message, { originalsBytes: given }]);
    expect(told(Number.NaN)).toContain("'NaN' is not a size, as originalsBytes must be");
  });
  it('in percent need a length', () => {
    expect(() => parseBudget('25%', null)).toThrow(/expected length/);
  });
  it('count an f16 cache as 2 sides of 2 bytes', () => {
    expect(f16CacheBytes(shape, 10)).toBe(10 * 2 * 2 * 64 * 2 * 2);
  });
});

describe('the forecast', () => {
  const both = (k: FormatName, v: FormatName) => [
    { k, v },
    { k, v },
  ];
  it.each(['f16', 'q8'] as const)(
    'says what a real cache takes, to the byte, with an open page in %s',
    (openFormat) => {
      const window = { openFormat, windowFormat: 'q8', windowTokens: 128 } as const;
      const pool = openPool(2 ** 30);
      const cache = openKvCache({ shape, pool, openFormat });
      const row = new Float32Array(shape.kvHeads * shape.headDim).fill(0.5);
      const tokens = 128 * 4;
      for (let t = 1; t <= tokens; t++) {
        for (let layer = 0; layer < shape.layers; layer++) cache.append(layer, row, row);
        expect(pool.usedBytes).toBe(bytesAt(shape, t, both('q8', 'q8'), window));
      }
      expect(pool.usedBytes).toBe(bytesAt(shape, tokens, both('q8', 'q8'), window));
      for (let layer = 0; layer < shape.layers; layer++) {
        for (let page = 0; page < 2; page++) {
          cache.transcode(layer, page, 'k', 'rot4');
          cache.transcode(layer, page, 'v', 'rot2');
        }
      }
      expect(pool.usedBytes).toBe(bytesAt(shape, tokens, both('rot4', 'rot2'), window));
      cache.close();
      pool.close();
    },
  );
  it('leaves out what sliding windows have let go of, whatever is under way', () => {
    // A query at 2,000 of a window of 200 sees 1,801. Of 12 pages before 1,801 − 2 · 128 the 3 that a prompt may see
    // from its beginning stay.
    expect(surelyFreed(2000, 200)).toBe(9);
    expect([surelyFreed(2000, null), surelyFreed(300, 200)]).toEqual([0, 0]);
    const window = { openFormat: 'f16', windowFormat: 'q8', windowTokens: 128 } as const;
    const slidingWindow = [200, null];
    // The most is taken at 1,990 tokens, where the ninth is still there.
    expect(bytesAt(shape, 2000, both('rot4', 'rot2'), { ...window, slidingWindow })).toBe(
      bytesAt(shape, 2000, both('rot4', 'rot2'), window) - 8 * (pageBytes('rot4', 2, 64) + pageBytes('rot2', 2, 64)),
    );
  });
  it('orders the pairs by size', () => {
    const { pairs } = forecast(shape, 4096);
    for (let i = 1; i < pairs.length; i++) expect(pairs[i]!.bytes).toBeLessThan(pairs[i - 1]!.bytes);
  });
  it('refuses a budget below the window, or below the lowest formats at this length', () => {
    const pair = { k: 'rot2', v: 'rot2' } as const;
    const lowest = { pairs: [pair, pair], openFormat: 'f16', windowFormat: 'q8', windowTokens: 128 } as const;
    expect(() => checkBudget(shape, fixedBytes(shape, 'f16'), 4096, lowest)).toThrow(KvError);
    // A page or more when the length is not known, no more than its rows take when it is.
    const spare = pageBytes('rot4', 2, 64);
    const short = openBytes(shape, 20) + spare;
    expect(() => checkBudget(shape, fixedBytes(shape, 'f16') + spare, null, lowest)).not.toThrow();
    expect(() => checkBudget(shape, fixedBytes(shape, 'f16') + spare - 1, null, lowest)).toThrow(KvError);
    expect(() => checkBudget(shape, short, 20, lowest)).not.toThrow();
    expect(() => checkBudget(shape, short - 1, 20, lowest)).toThrow(KvError);
    const least = bytesAt(shape, 4096, lowest.pairs, lowest);
    expect(() => checkBudget(shape, least - 1, 4096, lowest)).toThrow(/cannot hold 4096 tokens/);
    expect(() => checkBudget(shape, least + spare, 4096, lowest)).not.toThrow();
  });
});
