/**
 * Values that a decode step weighs with 8 bits: on random caches, and on ones made so that rounding errors add up, the output stays within the proven
 * bound of the one with 16 bits, nothing changes at share 0, and the counts say what was done. That instruction sets agree to the bit is left to the fuzzer.
 */
import fc from 'fast-check';
import { afterAll, expect, it } from 'vitest';
import { formats as rotFormats } from '../../native/formats/rot.ts';
import { nativeInfo, openKvCache, openPool, PAGE_TOKENS, setIsa } from '../../native/index.ts';
import { normals, pick, uniform as seeded } from '../native/dense.ts';
import { largestOfRows, NO_SHARES, unevenKeys } from '../native/value-rows.ts';

const SEED = 20261124;
const ROT = rotFormats.map(({ name }) => name);
const SHARES = [0, 1e-3, 0.02, 0.25, 1];
const best = nativeInfo().isa;
afterAll(() => setIsa(best));

/** The largest scale of a page times its longest row of levels, V of setPlaneShare(): 0 of a zero row. */
const reachOf = (distance: number, exponent: number, most: number): number =>
  exponent === -128 ? 0 : distance * 2 ** ((most - exponent) / 16);

/** The largest distance of a row of `out` from the row of `full`, as a share of V. */
function farthest(out: Float32Array, full: Float32Array, reach: readonly number[], headDim: number): number {
  const heads = out.length / headDim;
  return Math.max(
    ...Array.from({ length: heads }, (_, head) => {
      let sum = 0;
      for (let c = head * headDim; c < (head + 1) * headDim; c++) sum += (out[c]! - full[c]!) ** 2;
      return Math.sqrt(sum) / reach[Math.floor((head * reach.length) / heads)]!;
    }),
  );
}

it(`output stays within share times the reach of a page (seed ${SEED})`, () => {
  const counted = { single: 0, double: 0 };
  let farthestUnfair = 0;
  fc.assert(
    fc.property(
      fc.integer(),
      fc.constantFrom(...nativeInfo().available),
      fc.integer({ min: 1, max: 2 }),
      (seed, isa, threads) => {
        setIsa(isa);
        const random = seeded(seed);
        const headDim = pick(random, [64, 80, 128]);
        const kvHeads = pick(random, [1, 2, 3]);
        const shape = { layers: 1, kvHeads, queryHeads: kvHeads * pick(random, [1, 3, 4, 7]), headDim };
        const pool = openPool(2 ** 28);
        const cache = openKvCache({ shape, pool, windowFormat: 'q8', threads });
        const pages = pick(random, [3, 6, 9]);
        const width = kvHeads * headDim;
        const direction = normals(random, headDim);
        const isUnfair = random() < 0.4;
        for (let page = 0; page < pages; page++) {
          const keys = isUnfair
            ? unfairKeys(kvHeads, direction, 0.5 + random())
            : unevenKeys(random, kvHeads, direction);
          const values = normals(random, PAGE_TOKENS * width);
          // Every second token is weighed too little, the others too much, and they pull apart.
          if (isUnfair)
            for (let i = 0; i < values.length; i++)
              values[i] = direction[i % headDim]! * (Math.floor(i / width) % 2 ? 1 : -1);
          cache.append(0, keys, values);
        }
        cache.append(0, normals(random, width), normals(random, width));
        for (let page = 0; page < pages - 1; page++) {
          cache.transcode(0, page, 'k', pick(random, ROT));
          cache.transcode(0, page, 'v', pick(random, ROT));
        }
        const q = normals(random, shape.queryHeads * headDim).map(
          (x, i) => (isUnfair ? 0 : x) + direction[i % headDim]!,
        );
        const full = new Float32Array(q.length);
        const out = new Float32Array(q.length);
        cache.attend(0, q, full);
        expect(cache.planes(0)).toEqual({ met: 0, single: 0 });
        const reach = largestOfRows(cache, shape, reachOf);
        for (const share of SHARES) {
          const before = cache.planes(0);
          cache.setPlaneShare(share);
          cache.attend(0, q, out);
          const { met, single } = cache.planes(0);
          const mine = { met: met - before.met, single: single - before.single };
          if (share === 0) expect(mine.met).toBe(0);
          else expect(mine.met).toBeGreaterThanOrEqual((pages - 1) * kvHeads);
          if (share === 0) expect([...out]).toEqual([...full]);
          // Half a step of every token is a quarter of the largest weight.
          if (share === 1) expect(mine.single).toBe(mine.met);
          if (share === 0.02) {
            counted.single += mine.single;
            counted.double += mine.met - mine.single;
          }
          const moved = farthest(out, full, reach, headDim);
          if (isUnfair) farthestUnfair = Math.max(farthestUnfair, moved);
          // The rounding of 16 bits on either side is far below 1e-4 of V.
          expect(moved).toBeLessThanOrEqual(share * 1.001 + 1e-4);
        }
        cache.close();
        pool.close();
      },
    ),
    { seed: SEED, numRuns: 25 },
  );
  // Otherwise the bound was tried on nothing, or only where errors cancel out.
  expect(counted.single).toBeGreaterThan(20);
  expect(counted.double).toBeGreaterThan(20);
  expect(farthestUnfair).toBeGreaterThan(1e-3);
});

/** Keys of two lengths in turn behind one that is far longer: tokens of either kind are all rounded the same way. */
function unfairKeys(kvHeads: number, direction: readonly number[] | Float32Array, lengths: number): Float32Array {
  const width = kvHeads * direction.length;
  return Float32Array.from({ length: PAGE_TOKENS * width }, (_, i) => {
    const t = Math.floor(i / width);
    const along = t === 5 ? lengths : t % 2 ? 0.1 * lengths : 0.05 * lengths;
    return along * direction[i % direction.length]!;
  });
}

it('refuses a share that is none', () => {
  const pool = openPool(2 ** 24);
  const cache = openKvCache({ shape: { layers: 1, kvHeads: 1, queryHeads: 1, headDim: 64 }, pool });
  for (const share of NO_SHARES) expect(() => cache.setPlaneShare(share)).toThrow(/share must be a number from 0 to 1/);
  cache.close();
  pool.close();
});
