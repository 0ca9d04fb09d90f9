/**
 * Values that a decode step leaves unread: on random caches whose attention is uneven, the output stays within the
 * proven bound of the full one, nothing changes at share 0, and the counts say what was left out.
 */
import fc from 'fast-check';
import { afterAll, expect, it } from 'vitest';
import { formats as rotFormats } from '../../native/formats/rot/rot.ts';
import { nativeInfo, openKvCache, openPool, PAGE_TOKENS, setIsa } from '../../native/index.ts';
import { normals, pick, uniform as seeded } from '../native/dense.ts';
import { largestOfRows, NO_SHARES, unevenKeys } from '../native/value-rows.ts';

const SEED = 20261122;
const ROT = rotFormats.map(({ name }) => name);
const best = nativeInfo().isa;
afterAll(() => setIsa(best));

it(`output stays within share times the largest deviation (seed ${SEED})`, () => {
  let someSkipped = 0;
  let someKept = 0;
  fc.assert(
    fc.property(
      fc.integer(),
      fc.constantFrom(...nativeInfo().available),
      fc.integer({ min: 1, max: 2 }),
      fc.constantFrom(null, null, 3),
      (seed, isa, threads, scoreCap) => {
        setIsa(isa);
        const random = seeded(seed);
        const headDim = pick(random, [64, 80, 128]);
        const kvHeads = pick(random, [1, 2, 3]);
        const shape = { layers: 1, kvHeads, queryHeads: kvHeads * pick(random, [1, 3, 4]), headDim };
        const pool = openPool(2 ** 28);
        const cache = openKvCache({ shape, pool, windowFormat: 'q8', threads, scoreCap });
        const pages = pick(random, [3, 6, 9]);
        const width = kvHeads * headDim;
        const direction = normals(random, headDim);
        for (let page = 0; page < pages; page++) {
          const keys = unevenKeys(random, kvHeads, direction);
          cache.append(0, keys, normals(random, PAGE_TOKENS * width));
        }
        cache.append(0, normals(random, width), normals(random, width));
        for (let page = 0; page < pages - 1; page++) {
          cache.transcode(0, page, 'k', pick(random, ROT));
          cache.transcode(0, page, 'v', pick(random, ROT));
        }
        const q = normals(random, shape.queryHeads * headDim).map((x, i) => x + direction[i % headDim]!);
        const full = new Float32Array(q.length);
        const out = new Float32Array(q.length);
        cache.attend(0, q, full);
        expect(cache.skipped(0)).toEqual({ met: 0, skipped: 0 });
        const deviation = largestOfRows(cache, shape, (distance) => distance);
        for (const share of [0, 1e-4, 0.03, 0.5, 1]) {
          const before = cache.skipped(0);
          cache.setSkipShare(share);
          cache.attend(0, q, out);
          const { met, skipped } = cache.skipped(0);
          const mine = { met: met - before.met, skipped: skipped - before.skipped };
          expect(mine.met).toBe(share === 0 ? 0 : (pages - 1) * kvHeads);
          if (share === 0) expect([...out]).toEqual([...full]);
          if (share === 1) expect(mine.skipped).toBe(mine.met);
          if (share === 0.03) {
            someSkipped += mine.skipped;
            someKept += mine.met - mine.skipped;
          }
          for (let head = 0; head < shape.queryHeads; head++) {
            let sum = 0;
            for (let c = head * headDim; c < (head + 1) * headDim; c++) sum += (out[c]! - full[c]!) ** 2;
            const bound = share * deviation[Math.floor((head * kvHeads) / shape.queryHeads)]!;
            // The rounding of either side, as everywhere: 3e-4 of the values' size.
            expect(Math.sqrt(sum)).toBeLessThanOrEqual(bound * 1.001 + 3e-4 * Math.sqrt(headDim));
          }
        }
        cache.close();
        pool.close();
      },
    ),
    { seed: SEED, numRuns: 40 },
  );
  // Otherwise the bound was tried on nothing.
  expect(someSkipped).toBeGreaterThan(20);
  expect(someKept).toBeGreaterThan(20);
});

it('refuses a share that is none', () => {
  const pool = openPool(2 ** 24);
  const cache = openKvCache({ shape: { layers: 1, kvHeads: 1, queryHeads: 1, headDim: 64 }, pool });
  for (const share of NO_SHARES) expect(() => cache.setSkipShare(share)).toThrow(/share must be a number from 0 to 1/);
  cache.close();
  pool.close();
});
