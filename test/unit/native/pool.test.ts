/** The pool is one hard budget: small pools a person can add up, filled to the byte, shared, refused and drained. */
import { createHash } from 'node:crypto';
import { describe, expect, it } from 'vitest';
import {
  fromHalf,
  nativeInfo,
  openBytes,
  openKvCache,
  openPool,
  PAGE_TOKENS,
  pageBytes,
  SERVED_FORMATS,
  SIDES,
  toHalf,
} from '../../../native/index.ts';
import { normals, pick, uniform } from '../../native/dense.ts';
import { codeOf } from '../../refusal.ts';

const shape = { layers: 1, queryHeads: 2, kvHeads: 2, headDim: 64 };
const ROW = 2 * 64;
const OPEN = 2 * PAGE_TOKENS * ROW * 2;
const SINKS = 2 * 4 * ROW * 2;

/** Rows are long, and an expectation of equal arrays looks at every number on its own. */
const sameBits = (a: Float32Array, b: Float32Array) =>
  Buffer.from(a.buffer, a.byteOffset, a.byteLength).equals(Buffer.from(b.buffer, b.byteOffset, b.byteLength));

describe('PagePool', () => {
  it('counts nothing for an empty cache, its open page when that is full, and gives it back at close', () => {
    const pool = openPool(1_000_000);
    const cache = openKvCache({ shape, pool });
    expect([pool.usedBytes, cache.memory().totalBytes]).toEqual([0, 0]);
    const rows = normals(uniform(1), 128 * ROW);
    cache.append(0, rows, rows);
    expect(pool.usedBytes).toBe(OPEN + SINKS);
    expect(pool.auditBytes()).toBe(pool.usedBytes);
    expect(cache.memory()).toMatchObject({ openBytes: OPEN, sinkBytes: SINKS, pageBytes: 0, totalBytes: OPEN + SINKS });
    cache.close();
    expect([pool.usedBytes, pool.auditBytes(), pool.peakBytes]).toEqual([0, 0, OPEN + SINKS]);
  });

  it('takes what openBytes() and appendBytes() say, token by token and in pieces, and what a row is does not depend on where it grew', () => {
    const layers = 3;
    for (const kvHeads of [1, 2]) {
      const three = { layers, queryHeads: 2, kvHeads, headDim: 64 };
      const rows = normals(uniform(6), 300 * kvHeads * 64);
      const part = (from: number, to: number) => rows.subarray(from * kvHeads * 64, to * kvHeads * 64);
      const pool = openPool(10_000_000);
      const whole = openKvCache({ shape: three, pool });
      whole.append(0, rows, rows);
      for (const piece of [1, 7, 16, 50, 128, 300]) {
        const cache = openKvCache({ shape: three, pool });
        for (let at = 0; at < 300; at += piece) {
          const tokens = Math.min(piece, 300 - at);
          const before = cache.usedBytes;
          const promised = cache.appendBytes(tokens);
          for (let layer = 0; layer < layers; layer++) {
            cache.append(layer, part(at, at + tokens), part(at, at + tokens));
          }
          expect(cache.usedBytes).toBe(before + promised);
          const { openBytes: open, sinkBytes, pageBytes: pages } = cache.memory();
          expect(open + sinkBytes).toBe(openBytes(three, at + tokens));
          expect(cache.usedBytes).toBe(open + sinkBytes + pages);
          const last = cache.table(0).pages;
          const exact = fromHalf(toHalf(part(last * 128, at + tokens)));
          for (const side of ['k', 'v'] as const) expect(sameBits(cache.decode(0, last, side), exact)).toBe(true);
        }
        for (let page = 0; page < 3; page++) {
          expect(sameBits(cache.decode(0, page, 'k'), whole.decode(0, page, 'k'))).toBe(true);
        }
        cache.close();
      }
      whole.close();
    }
  });

  it('refuses rows that the open page has no room for, one byte short, changing nothing', () => {
    const [some, more] = [openBytes(shape, 16), openBytes(shape, 17)];
    const pool = openPool(more - 1);
    const cache = openKvCache({ shape, pool });
    const rows = normals(uniform(7), 17 * ROW);
    cache.append(0, rows.subarray(0, 16 * ROW), rows.subarray(0, 16 * ROW));
    const before = cache.decode(0, 0, 'v');
    const next = rows.subarray(16 * ROW);
    expect(() => cache.append(0, next, next)).toThrow(`the pool has no room to open rows of layer 0: ${some} of`);
    expect([cache.length(), cache.usedBytes, pool.auditBytes()]).toEqual([16, some, some]);
    expect(cache.decode(0, 0, 'v')).toEqual(before);
    pool.setBudget(more);
    cache.append(0, next, next);
    expect([cache.length(), cache.usedBytes]).toEqual([17, more]);
  });

  it('serves an append to the last byte and refuses the one that needs a byte more, changing nothing', () => {
    const seal = 2 * pageBytes('q8', 2, 64);
    const pool = openPool(OPEN + SINKS + 2 * seal - 1);
    const cache = openKvCache({ shape, pool });
    expect(cache.sealBytes).toBe(seal);
    const random = uniform(1);
    const rows = (count: number) => normals(random, count * ROW);
    cache.append(0, rows(256), rows(256)); // seals one page, the second stays open
    expect(pool.usedBytes).toBe(OPEN + SINKS + seal);
    const before = cache.decode(0, 1, 'k');
    expect(codeOf(() => cache.append(0, rows(1), rows(1)))).toBe('budget-exceeded');
    expect([cache.length(), pool.usedBytes, cache.table(0).pages]).toEqual([256, OPEN + SINKS + seal, 1]);
    expect(cache.decode(0, 1, 'k')).toEqual(before);
    pool.setBudget(OPEN + SINKS + 2 * seal);
    cache.append(0, rows(1), rows(1));
    expect(pool.usedBytes).toBe(pool.budgetBytes);
  });

  it('refuses an append over several pages as a whole when the last of them does not fit', () => {
    const pool = openPool(OPEN + SINKS + 2 * 2 * pageBytes('q8', 2, 64));
    const cache = openKvCache({ shape, pool });
    const rows = normals(uniform(2), 3 * 128 * ROW + ROW);
    expect(codeOf(() => cache.append(0, rows, rows))).toBe('budget-exceeded');
    expect([cache.length(), pool.usedBytes]).toEqual([0, 0]);
    cache.append(0, rows.subarray(0, 3 * 128 * ROW), rows.subarray(0, 3 * 128 * ROW));
    expect(pool.usedBytes).toBe(pool.budgetBytes);
  });

  it('lets a page shrink in a full pool, because its own bytes make the room', () => {
    const pool = openPool(OPEN + SINKS + 2 * pageBytes('q8', 2, 64));
    const cache = openKvCache({ shape, pool });
    const rows = normals(uniform(3), 200 * ROW);
    cache.append(0, rows, rows);
    expect(pool.usedBytes).toBe(pool.budgetBytes);
    expect(cache.transcode(0, 0, 'k', 'rot4')).toBe(pageBytes('q8', 2, 64) - pageBytes('rot4', 2, 64));
    expect(pool.peakBytes).toBe(pool.budgetBytes);
    expect(pool.auditBytes()).toBe(pool.usedBytes);
    expect(codeOf(() => cache.transcode(0, 0, 'v', 'f16'))).toBe('budget-exceeded');
    expect(pool.auditBytes()).toBe(pool.usedBytes);
  });

  it('takes exactly pageBytes for a side in each format, for every head size (T21)', () => {
    for (const headDim of [64, 80, 96, 128, 256]) {
      for (const kvHeads of [1, 3]) {
        const pool = openPool(64_000_000);
        const cache = openKvCache({
          shape: { layers: 1, queryHeads: kvHeads, kvHeads, headDim },
          pool,
          windowFormat: 'f16',
        });
        const rows = normals(uniform(4), 129 * kvHeads * headDim);
        cache.append(0, rows, rows);
        const rest = pool.usedBytes - 2 * pageBytes('f16', kvHeads, headDim);
        for (const side of ['k', 'v'] as const) {
          for (const format of SERVED_FORMATS) {
            cache.transcode(0, 0, side, format);
            const other = side === 'k' ? 'f16' : SERVED_FORMATS.at(-1)!;
            expect(pool.usedBytes).toBe(
              rest + pageBytes(format, kvHeads, headDim) + pageBytes(other, kvHeads, headDim),
            );
            expect(cache.memory().totalBytes).toBe(pool.usedBytes);
          }
        }
        cache.close();
      }
    }
    // 0.21 bits above the code at d = 64: 128 int8 scales, a mean row, a bit of each row, the scale of the means and
    // the reference per page and head; padding adds under 1%.
    const metaBits = (8 * (128 + 64 + 16 + 3)) / (128 * 64);
    const bits = (pageBytes('rot4', 8, 64) * 8) / (128 * 8 * 64);
    expect(bits - 4).toBeGreaterThanOrEqual(metaBits);
    expect(bits - 4).toBeLessThan(metaBits + 0.01);
  });

  it('cannot be lowered below what is in use, and may be raised', () => {
    const pool = openPool(1_000_000);
    const cache = openKvCache({ shape, pool });
    const rows = normals(uniform(8), ROW);
    cache.append(0, rows, rows);
    expect(codeOf(() => pool.setBudget(pool.usedBytes - 1))).toBe('budget-too-small');
    pool.setBudget(pool.usedBytes);
    expect(pool.budgetBytes).toBe(pool.usedBytes);
    cache.close();
  });

  it('may be closed before its caches, which go on and free their memory themselves', () => {
    const pool = openPool(1_000_000);
    const cache = openKvCache({ shape, pool });
    pool.close();
    expect(codeOf(() => pool.usedBytes)).toBe('closed');
    pool.close();
    expect(codeOf(() => openKvCache({ shape, pool }))).toBe('closed');
    const rows = normals(uniform(5), 200 * ROW);
    cache.append(0, rows, rows);
    expect(cache.length()).toBe(200);
    cache.close();
  });

  it.each([
    ['with nothing under way', false],
    ['with moves and trials under way', true],
  ])('gives scattered memory back at once, and what is left is what it was, %s', (_, isBusy) => {
    const some = { layers: 4, queryHeads: 2, kvHeads: 2, headDim: 64 };
    const pool = openPool(2 ** 30);
    const random = uniform(12);
    const rows = normals(random, 700 * ROW);
    const caches = Array.from({ length: 40 }, () => openKvCache({ shape: some, pool }));
    // Pages of all stand among each other.
    for (let at = 0; at < 640; at += 32)
      for (const [i, cache] of caches.entries())
        for (let layer = 0; layer < some.layers; layer++) {
          const part = rows.subarray((at + i) * ROW, (at + i + 32) * ROW);
          cache.append(layer, part, part);
        }
    const q = normals(random, 64 * ROW);
    const seen = (cache: (typeof caches)[number]) => {
      const digest = createHash('sha1');
      for (let layer = 0; layer < some.layers; layer++)
        for (const side of SIDES)
          for (let page = 0; page <= cache.table(layer).pages; page++) digest.update(cache.decode(layer, page, side));
      return digest.digest('hex');
    };
    let most = 0;
    for (let round = 0; caches.length > 6; round++) {
      const cache = pick(random, caches);
      const [layer, page] = [round % some.layers, Math.floor(random() * 4)];
      const side = pick(random, SIDES);
      codeOf(() => cache.transcode(layer, page, side, pick(random, ['trellis4', 'rot3', 'rot2'])));
      // Forks and kept originals hold parts as well, and so does what is under way.
      if (round % 7 === 1) codeOf(() => cache.keepOriginal(layer, page, side));
      if (isBusy && round % 7 === 0) cache.attend(layer, q, new Float32Array(q.length));
      if (isBusy && round % 7 === 2) codeOf(() => cache.startMove(layer, page, side, 'rot1'));
      if (isBusy && round % 7 === 3) codeOf(() => cache.startTrial(layer, page, [{ side, format: 'rot1' }]));
      if (round % 40 === 0) caches.push(cache.fork());
      if (round % 4 !== 3) continue;
      const [gone] = caches.splice(Math.floor(random() * caches.length), 1);
      const before = round % 12 === 3 ? caches.map(seen) : null;
      gone!.close();
      most = Math.max(most, pool.reservedBytes - 1.06 * pool.usedBytes);
      if (before !== null) expect(caches.map(seen)).toEqual(before);
      expect(pool.auditBytes()).toBe(pool.usedBytes);
      if (round % 20 !== 3) continue;
      for (const each of caches) {
        each.finishMoves(true);
        each.finishTrials(true);
      }
    }
    // What is under way is not counted, nor what a trial leaves to its page. Elsewhere only whole chunks go back.
    const { binding } = nativeInfo();
    if (!isBusy && process.platform === 'linux' && binding !== 'wasm') expect(most).toBeLessThan(6 * 2 ** 20 + 4096);
    for (const cache of caches) cache.close();
    expect([pool.usedBytes, pool.reservedBytes]).toEqual([0, 0]);
  });
});
