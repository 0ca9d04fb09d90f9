/**
 * The open page in 8 bits: small caches, filled token by token and in pieces, taken back, forked and sealed, against
 * the reference codec and dense attention.
 */
import { afterAll, describe, expect, it } from 'vitest';
import {
  fromHalf,
  type KvCache,
  nativeInfo,
  openBytes,
  openKvCache,
  openPool,
  PAGE_TOKENS,
  pageBytes,
  reference,
  SIDES,
  SINK_TOKENS,
  setIsa,
  toHalf,
} from '../../../native/index.ts';
import { CODED_TOLERANCE, denseAttention, history, normals, rowError, sameBits, uniform } from '../../native/dense.ts';
import { codeOf } from '../../refusal.ts';

const shape = { layers: 1, queryHeads: 6, kvHeads: 2, headDim: 64 };
const ROW = 2 * 64;
const { isa: best, available } = nativeInfo();
afterAll(() => setIsa(best));

const open = (openFormat: 'q8' | 'f16' = 'q8', pool = openPool(64_000_000)): KvCache =>
  openKvCache({ shape, pool, openFormat });

const rowsOf = (rows: Float32Array, from: number, to: number): Float32Array => rows.subarray(from * ROW, to * ROW);

function append(cache: KvCache, rows: Float32Array, from: number, to: number): void {
  cache.append(0, rowsOf(rows, from, to), rowsOf(rows, from, to));
}

/** Rows [tokens, n, d] as the reference codec gives them back, with the sinks of the first page in f16. */
function coded(rows: Float32Array): Float32Array {
  const out = new Float32Array(rows.length);
  for (let at = 0; at < rows.length; at += 64) {
    const page = new Float32Array(PAGE_TOKENS * 64);
    page.set(rows.subarray(at, at + 64));
    const { q8 } = reference.CODECS;
    out.set(q8.decode(q8.encode(page, 64)).subarray(0, 64), at);
  }
  out.set(fromHalf(toHalf(rows.subarray(0, SINK_TOKENS * ROW))));
  return out;
}

describe('an open page in 8 bits', () => {
  it('holds the codes of the reference, whatever the pieces that its rows come in, and exact sinks', () => {
    const rows = normals(uniform(1), 300 * ROW);
    const expected = coded(rows);
    for (const piece of [1, 3, 16, 50, 300]) {
      const cache = open();
      for (let at = 0; at < 300; at += piece) {
        const end = Math.min(300, at + piece);
        append(cache, rows, at, end);
        const { pages } = cache.table(0);
        for (const side of SIDES)
          expect(sameBits(cache.decode(0, pages, side), rowsOf(expected, pages * PAGE_TOKENS, end))).toBe(true);
      }
      for (const side of SIDES) expect(sameBits(history(cache, 0, side), expected)).toBe(true);
    }
  });

  it('is sealed as it is: the same bytes as an f16 page gives whose rows are exact in f16, and no memory for them', () => {
    const rows = fromHalf(toHalf(normals(uniform(2), 257 * ROW)));
    const [eight, sixteen] = [open('q8'), open('f16')];
    for (const cache of [eight, sixteen]) append(cache, rows, 0, 256);
    const before = eight.usedBytes;
    for (const cache of [eight, sixteen]) append(cache, rows, 256, 257);
    expect(eight.usedBytes - before).toBe(2 * pageBytes('q8', 2, 64, 16));
    for (const page of [0, 1]) expect(eight.exportPage(0, page)).toEqual(sixteen.exportPage(0, page));
  });

  it('takes what openBytes() and appendBytes() say', () => {
    const rows = normals(uniform(3), 300 * ROW);
    for (const piece of [1, 7, 16, 50, 128, 300]) {
      const pool = openPool(10_000_000);
      const cache = open('q8', pool);
      for (let at = 0; at < 300; at += piece) {
        const tokens = Math.min(piece, 300 - at);
        const promised = cache.usedBytes + cache.appendBytes(tokens);
        append(cache, rows, at, at + tokens);
        const { openBytes: own, sinkBytes, pageBytes: pages } = cache.memory();
        expect([cache.usedBytes, pool.auditBytes(), own + sinkBytes + pages]).toEqual([promised, promised, promised]);
        expect(own + sinkBytes).toBe(openBytes(shape, at + tokens, 'q8'));
      }
    }
  });

  it('refuses rows one byte short of room, changing nothing', () => {
    const rows = normals(uniform(4), 17 * ROW);
    const pool = openPool(openBytes(shape, 17, 'q8') - 1);
    const cache = open('q8', pool);
    append(cache, rows, 0, 16);
    const before = cache.decode(0, 0, 'k');
    expect(codeOf(() => append(cache, rows, 16, 17))).toBe('budget-exceeded');
    expect(sameBits(cache.decode(0, 0, 'k'), before)).toBe(true);
    pool.setBudget(openBytes(shape, 17, 'q8'));
    append(cache, rows, 16, 17);
    expect(pool.usedBytes).toBe(pool.budgetBytes);
  });

  it('needs the window in the same format', () => {
    const pool = openPool(1_000_000);
    expect(codeOf(() => openKvCache({ shape, pool, openFormat: 'q8', windowFormat: 'f16' }))).toBe('bad-argument');
    expect(codeOf(() => openKvCache({ shape, pool, openFormat: 'rot4' as never }))).toBe('bad-argument');
  });
});

describe('attention over it', () => {
  for (const isa of available)
    it(`equals dense attention on what decode() gives back, for every room and many queries, on ${isa}`, () => {
      setIsa(isa);
      for (const headDim of [64, 80, 256])
        for (const length of [1, 3, 5, 16, 17, 33, 65, 100, 128, 129, 150, 200, 256]) {
          const one = { layers: 1, queryHeads: 6, kvHeads: 2, headDim };
          const slopes = Float32Array.from({ length: 6 }, (_, h) => 2 ** -(h + 1));
          const window = length % 2 === 0 ? 70 : null;
          const cache = openKvCache({
            ...{ shape: one, pool: openPool(64_000_000), openFormat: 'q8', slidingWindow: [window] },
            ...(length % 3 === 0 ? { alibiSlopes: slopes } : {}),
          });
          const random = uniform(length);
          cache.append(0, normals(random, length * 2 * headDim), normals(random, length * 2 * headDim));
          for (const tokens of [1, Math.min(length, 40)]) {
            // What was appended last is read as it was given, until somebody takes tokens back.
            cache.truncate(length);
            const q = normals(random, tokens * 6 * headDim);
            const out = new Float32Array(q.length);
            cache.attend(0, q, out);
            const options = length % 3 === 0 ? { window, slopes } : { window };
            const dense = denseAttention(one, q, history(cache, 0, 'k'), history(cache, 0, 'v'), options);
            expect(rowError(out, dense.out, headDim)).toBeLessThan(CODED_TOLERANCE);
          }
          cache.close();
        }
      setIsa(best);
    });
});

describe('the rows that were appended last', () => {
  for (const isa of available)
    it(`are attended as they were given, whatever their number, on ${isa}`, () => {
      setIsa(isa);
      for (const [before, tokens] of [
        [0, 1],
        [0, 5],
        [3, 2],
        [20, 1],
        [100, 28],
        [128, 1],
        [120, 20],
        [200, 300],
      ] as const) {
        const random = uniform(before + tokens);
        const length = before + tokens;
        const [k, v] = [normals(random, length * ROW), normals(random, length * ROW)];
        const cache = open();
        if (before > 0) cache.append(0, rowsOf(k, 0, before), rowsOf(v, 0, before));
        cache.append(0, rowsOf(k, before, length), rowsOf(v, before, length));
        const [keys, values] = [history(cache, 0, 'k'), history(cache, 0, 'v')];
        const first = Math.max(before, cache.table(0).pages * PAGE_TOKENS);
        keys.set(fromHalf(toHalf(rowsOf(k, first, length))), first * ROW);
        values.set(fromHalf(toHalf(rowsOf(v, first, length))), first * ROW);
        const q = normals(random, Math.min(tokens, 30) * 6 * 64);
        const out = new Float32Array(q.length);
        cache.attend(0, q, out);
        expect(rowError(out, denseAttention(shape, q, keys, values).out, 64)).toBeLessThan(CODED_TOLERANCE);
        cache.close();
      }
      setIsa(best);
    });

  it('are so until the next append', () => {
    const rows = normals(uniform(10), 60 * ROW);
    const cache = openKvCache({ shape: { ...shape, layers: 2 }, pool: openPool(10_000_000), openFormat: 'q8' });
    const q = normals(uniform(11), 6 * 64);
    const attended = (): Float32Array => {
      const out = new Float32Array(q.length);
      cache.attend(0, q, out);
      return out;
    };
    append(cache, rows, 0, 40);
    const fresh = attended();
    expect(sameBits(attended(), fresh)).toBe(true);
    cache.append(1, rowsOf(rows, 0, 40), rowsOf(rows, 0, 40));
    const coded = attended();
    expect(sameBits(coded, fresh)).toBe(false);
    expect(rowError(coded, fresh, 64)).toBeLessThan(0.03);
    cache.truncate(40);
    expect(sameBits(attended(), coded)).toBe(true);
  });
});

describe('going back', () => {
  it('forgets rows as if they had never been there, sinks included', () => {
    const rows = normals(uniform(5), 400 * ROW);
    // Rows that are taken back are much larger than those that stay.
    const large = rows.map((x) => 1000 * x);
    const q = normals(uniform(6), 6 * 64);
    for (const [length, taken] of [
      [2, 1],
      [40, 30],
      [200, 50],
      [256, 128],
    ] as const) {
      const [cache, straight] = [open(), open()];
      append(cache, rows, 0, length - taken);
      append(cache, large, length - taken, length);
      cache.truncate(length - taken);
      append(straight, rows, 0, length - taken);
      for (const one of [cache, straight]) append(one, rows, length - taken, length - taken + 1);
      const [out, expected] = [new Float32Array(q.length), new Float32Array(q.length)];
      cache.attend(0, q, out);
      straight.attend(0, q, expected);
      expect(sameBits(out, expected)).toBe(true);
      for (const one of [cache, straight]) append(one, rows, length - taken + 1, 390);
      for (const side of SIDES) expect(sameBits(history(cache, 0, side), history(straight, 0, side))).toBe(true);
    }
  });

  it('gives the same codes to rows that were decoded and are appended again', () => {
    for (const size of [1e-3, 1, 300]) {
      const rows = normals(uniform(7), 100 * ROW, size);
      const [cache, again] = [open(), open()];
      append(cache, rows, 0, 100);
      again.append(0, cache.decode(0, 0, 'k'), cache.decode(0, 0, 'v'));
      for (const side of SIDES) expect(sameBits(again.decode(0, 0, side), cache.decode(0, 0, side))).toBe(true);
    }
  });

  it('forks with rows and sinks of its own', () => {
    const rows = normals(uniform(8), 300 * ROW);
    for (const length of [1, 3, 20, 128, 150]) {
      const pool = openPool(10_000_000);
      const cache = open('q8', pool);
      append(cache, rows, 0, length);
      const twin = cache.fork();
      expect(pool.usedBytes).toBe(pool.auditBytes());
      append(cache, rows, length, 290);
      twin.append(0, rowsOf(rows, 10, 20), rowsOf(rows, 10, 20));
      const expected = new Float32Array((length + 10) * ROW);
      expected.set(rowsOf(rows, 0, length));
      expected.set(rowsOf(rows, 10, 20), length * ROW);
      expect(sameBits(history(twin, 0, 'k'), coded(expected))).toBe(true);
      expect(sameBits(history(cache, 0, 'v'), coded(rowsOf(rows, 0, 290).slice()))).toBe(true);
      cache.close();
      twin.close();
      expect([pool.usedBytes, pool.auditBytes()]).toEqual([0, 0]);
    }
  });

  it('takes stored pages behind a full page and before the first', () => {
    const rows = normals(uniform(9), 257 * ROW);
    const [cache, other] = [open(), open()];
    append(cache, rows, 0, 257);
    other.importPage(0, cache.exportPage(0, 0));
    append(other, rows, 128, 257);
    for (const side of SIDES) expect(sameBits(history(other, 0, side), history(cache, 0, side))).toBe(true);
    const full = open();
    append(full, rows, 0, 128);
    full.importPage(0, cache.exportPage(0, 1));
    append(full, rows, 256, 257);
    for (const side of SIDES) expect(sameBits(history(full, 0, side), history(cache, 0, side))).toBe(true);
  });
});
