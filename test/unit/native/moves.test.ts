/**
 * A page side that moves in the background ends as transcode() would have made it, to the bit, and until it is put in
 * place nobody sees it: every legal move beside transcode() in a twin that shares nothing; attention, decoding and
 * appending meanwhile; what is refused while a move is under way; the budget, seen in bytes.
 */
import { describe, expect, it } from 'vitest';
import {
  type FormatName,
  isMove,
  type KvCache,
  LATENT_NAMES,
  latentBytes,
  openKvCache,
  openPool,
  PARTS,
  type PagePool,
  pageBytes,
  SERVED_FORMATS,
  SIDES,
} from '../../../native/index.ts';
import { isTried } from '../../native/compared.ts';
import { formatOf, history, normals, sameBits, uniform } from '../../native/dense.ts';
import { twinOf } from '../../native/twin.ts';
import { codeOf } from '../../refusal.ts';
import { IS_SHORT, isForHome } from '../../tier.ts';

const shape = { layers: 2, queryHeads: 4, kvHeads: 2, headDim: 64 };
const ROW = 128;
const PAGES = 3;

interface World {
  readonly pool: PagePool;
  readonly cache: KvCache;
  readonly random: () => number;
}

function filled(headDim = 64, windowFormat: 'q8' | 'f16' = 'q8'): World {
  const pool = openPool(2 ** 30);
  const cache = openKvCache({ shape: { ...shape, headDim }, pool, windowFormat, threads: 2 });
  const random = uniform(headDim);
  const row = 2 * headDim;
  for (const layer of [0, 1])
    cache.append(layer, normals(random, (PAGES * 128 + 40) * row), normals(random, (PAGES * 128 + 40) * row));
  return { pool, cache, random };
}

function attended(cache: KvCache, q: Float32Array, layer = 0): Float32Array {
  const out = new Float32Array(q.length);
  cache.attend(layer, q, out, { observe: false });
  return out;
}

function expectSame(one: KvCache, other: KvCache): void {
  for (let layer = 0; layer < one.shape.layers; layer++) {
    expect(one.table(layer).kFormat).toEqual(other.table(layer).kFormat);
    expect(one.table(layer).vFormat).toEqual(other.table(layer).vFormat);
    for (const side of SIDES) {
      expect([layer, side, sameBits(history(one, layer, side), history(other, layer, side))]).toEqual([
        layer,
        side,
        true,
      ]);
      for (let page = 0; page < one.table(layer).pages; page++) {
        expect([layer, page, sameBits(one.exportPage(layer, page), other.exportPage(layer, page))]).toEqual([
          layer,
          page,
          true,
        ]);
      }
    }
  }
}

const LADDER: readonly (readonly [FormatName, FormatName])[] = SERVED_FORMATS.flatMap((from) =>
  SERVED_FORMATS.filter((to) => isMove(from, to) && isTried(from, to)).map((to) => [from, to] as const),
);
const TRIED = LADDER.filter((_, place) => isForHome(place, 3));

describe('a move in the background', () => {
  it.each(TRIED)('from %s to %s is what transcode() does, to the bit', (from, to) => {
    for (const headDim of IS_SHORT ? [80] : [64, 80, 256]) {
      const { pool, cache } = filled(headDim, from === 'q8' ? 'q8' : 'f16');
      for (const side of SIDES) for (const page of [0, 2]) cache.transcode(1, page, side, from);
      const twin = twinOf(cache, { windowFormat: from === 'q8' ? 'q8' : 'f16' });
      for (const side of SIDES) for (const page of [0, 2]) cache.startMove(1, page, side, to);
      expect(cache.movesUnderWay).toBe(4);
      for (const side of SIDES) expect(formatOf(cache, 1, 2, side)).toBe(from);
      const before = pool.usedBytes;
      const finished = cache.finishMoves(true);
      expect(finished.map(({ layer, page, side }) => [layer, page, side])).toEqual([
        [1, 0, 'k'],
        [1, 2, 'k'],
        [1, 0, 'v'],
        [1, 2, 'v'],
      ]);
      for (const { side, ...move } of finished)
        expect(move).toMatchObject({ from: { k: null, v: null, [side]: from }, to, refused: null });
      expect(finished.reduce((sum, { freedBytes }) => sum + freedBytes, 0)).toBe(before - pool.usedBytes);
      expect([cache.movesUnderWay, pool.auditBytes()]).toEqual([0, pool.usedBytes]);
      for (const side of SIDES) for (const page of [0, 2]) twin.transcode(1, page, side, to);
      expectSame(cache, twin);
      cache.close();
      twin.close();
      expect(pool.usedBytes).toBe(0);
    }
  });

  it('is not seen before it is put in place, and stops nothing', () => {
    const { pool, cache, random } = filled();
    const q = normals(random, 5 * 256);
    const before = attended(cache, q);
    const values = history(cache, 0, 'v');
    const [used, scratch] = [pool.usedBytes, cache.memory().scratchBytes];
    for (let page = 0; page < PAGES; page++)
      for (const side of SIDES) {
        cache.startMove(0, page, side, 'rot2');
        expect(sameBits(attended(cache, q), before)).toBe(true);
      }
    expect([pool.usedBytes, pool.auditBytes()]).toEqual([used, used]);
    const drafted = 2 * PAGES * pageBytes('rot2', 2, 64);
    expect(cache.memory().scratchBytes - scratch).toBeGreaterThanOrEqual(drafted);
    expect(sameBits(history(cache, 0, 'v'), values)).toBe(true);
    expect(codeOf(() => cache.trial(0, 1, [{ side: 'k', format: 'rot3' }]))).toBe('no error');
    const twin = cache.fork();
    const rows = normals(random, 300 * ROW);
    for (const one of [cache, twin]) one.append(0, rows, rows);
    expect(sameBits(attended(cache, q), attended(twin, q))).toBe(true);
    expect(cache.finishMoves(true)).toHaveLength(2 * PAGES);
    for (let page = 0; page < PAGES; page++) for (const side of SIDES) twin.transcode(0, page, side, 'rot2');
    expectSame(cache, twin);
    expect(sameBits(attended(cache, q), attended(twin, q))).toBe(true);
    expect(cache.memory().scratchBytes).toBeLessThan(scratch + drafted + 4 * 128 * 64 * 4);
  });

  it('ends without anybody waiting, in the order of its start', async () => {
    const { cache } = filled();
    const order: string[] = [];
    for (let page = PAGES - 1; page >= 0; page--) for (const layer of [1, 0]) cache.startMove(layer, page, 'k', 'rot4');
    // The test's own time limit is what fails when the thread never comes to an end.
    while (cache.movesUnderWay > 0) {
      const finished = cache.finishMoves(false);
      order.push(...finished.map(({ layer, page }) => `${layer}.${page}`));
      await new Promise((resolve) => setTimeout(resolve, 1));
    }
    expect(order).toEqual(['1.2', '0.2', '1.1', '0.1', '1.0', '0.0']);
    expect(cache.finishMoves(true)).toEqual([]);
  });

  it('to the format that is there changes nothing', () => {
    const { pool, cache } = filled();
    const before = pool.usedBytes;
    cache.startMove(0, 1, 'v', 'q8');
    expect(codeOf(() => cache.startMove(0, 1, 'v', 'rot4'))).toBe('unsupported');
    expect(cache.finishMoves(true)).toEqual([
      { layer: 0, page: 1, side: 'v', from: { k: null, v: 'q8' }, to: 'q8', freedBytes: 0, refused: null },
    ]);
    expect([pool.usedBytes, pool.auditBytes()]).toEqual([before, before]);
  });
});

describe('while a move is under way', () => {
  it('the same page side can be neither moved, transcoded nor held; everything else can', () => {
    const { cache, random } = filled();
    const width = 64;
    const weights = normals(random, ROW * width);
    cache.setLatentWeights(0, { width, wk: weights, wv: weights });
    cache.startMove(0, 1, 'k', 'rot4');
    const hold = () => cache.holdLatent(0, 1, LATENT_NAMES[0], new Uint8Array(latentBytes(LATENT_NAMES[0], width)));
    expect(() => cache.startMove(0, 1, 'k', 'rot3')).toThrow(/under way/);
    expect(() => cache.transcode(0, 1, 'k', 'rot2')).toThrow(/under way/);
    expect(codeOf(hold)).toBe('unsupported');
    expect(formatOf(cache, 0, 1, 'k')).toBe('q8');
    cache.transcode(0, 1, 'v', 'rot2');
    cache.startMove(1, 1, 'k', 'rot3');
    cache.truncate(PAGES * 128 + 3);
    expect(cache.finishMoves(true).map(({ to }) => to)).toEqual(['rot4', 'rot3']);
    cache.transcode(0, 1, 'k', 'rot2');
    hold();
    expect(codeOf(() => cache.startMove(0, 1, 'k', 'rot2'))).toBe('unsupported');
  });

  it('a promotion, a head size without codes, a page that is not there are refused as in transcode()', () => {
    const { cache } = filled();
    cache.transcode(0, 0, 'k', 'rot3');
    expect(codeOf(() => cache.startMove(0, 0, 'k', 'rot4'))).toBe('unsupported');
    expect(codeOf(() => cache.startMove(0, PAGES, 'k', 'rot4'))).toBe('bad-argument');
    expect(codeOf(() => cache.startMove(2, 0, 'k', 'rot4'))).toBe('bad-argument');
    const plain = filled(72, 'f16').cache;
    expect(codeOf(() => plain.startMove(0, 0, 'k', 'rot4'))).toBe('unsupported');
    expect([cache.movesUnderWay, plain.movesUnderWay]).toEqual([0, 0]);
    expect(codeOf(() => cache.finishMoves(1 as unknown as boolean))).toBe('bad-argument');
  });

  it('of both sides at once is one move, all or nothing', () => {
    const { pool, cache } = filled();
    const twin = twinOf(cache);
    const freed = 2 * (pageBytes('q8', 2, 64) - pageBytes('rot3', 2, 64));
    cache.startMove(0, 1, 'kv', 'rot3');
    for (const side of PARTS) expect(codeOf(() => cache.startMove(0, 1, side, 'rot4'))).toBe('unsupported');
    expect(cache.finishMoves(true)).toEqual([
      { layer: 0, page: 1, side: 'kv', from: { k: 'q8', v: 'q8' }, to: 'rot3', freedBytes: freed, refused: null },
    ]);
    expect(twin.transcode(0, 1, 'kv', 'rot3')).toBe(freed);
    expectSame(cache, twin);
    // One side is lower already: what was lost is not in it, so neither moves.
    twin.transcode(0, 2, 'v', 'rot2');
    expect(codeOf(() => twin.transcode(0, 2, 'kv', 'rot4'))).toBe('unsupported');
    expect([formatOf(twin, 0, 2, 'k'), formatOf(twin, 0, 2, 'v')]).toEqual(['q8', 'rot2']);
    // One side is there already: the other moves alone.
    expect(twin.transcode(0, 2, 'kv', 'rot2')).toBe(pageBytes('q8', 2, 64) - pageBytes('rot2', 2, 64));
    expect(pool.auditBytes()).toBe(pool.usedBytes);
  });

  it('a fork does not take it over, and sees the page change when its owner finishes', () => {
    const { pool, cache } = filled();
    cache.startMove(0, 1, 'k', 'rot4');
    const twin = cache.fork();
    expect(twin.movesUnderWay).toBe(0);
    for (const work of [() => twin.startMove(0, 1, 'k', 'rot2'), () => twin.transcode(0, 1, 'kv', 'rot2')])
      expect(work).toThrow(/a move of it is under way, here or in a fork/);
    expect(twin.finishMoves(true)).toEqual([]);
    twin.startMove(0, 1, 'v', 'rot2');
    expect(cache.finishMoves(true)[0]!.freedBytes).toBe(pageBytes('q8', 2, 64) - pageBytes('rot4', 2, 64));
    expect(twin.finishMoves(true)[0]!.freedBytes).toBe(pageBytes('q8', 2, 64) - pageBytes('rot2', 2, 64));
    for (const one of [cache, twin])
      expect([formatOf(one, 0, 1, 'k'), formatOf(one, 0, 1, 'v')]).toEqual(['rot4', 'rot2']);
    expect(pool.auditBytes()).toBe(pool.usedBytes);
  });

  it('is dropped with the cache that started it, and a fork may then move the page itself', () => {
    const { pool, cache } = filled();
    const twin = cache.fork();
    const keys = history(twin, 0, 'k');
    cache.startMove(0, 1, 'kv', 'rot4');
    expect(codeOf(() => twin.startMove(0, 1, 'k', 'rot2'))).toBe('unsupported');
    cache.close();
    expect(sameBits(history(twin, 0, 'k'), keys)).toBe(true);
    twin.startMove(0, 1, 'k', 'rot2');
    expect(twin.finishMoves(true)).toMatchObject([{ refused: null }]);
    expect(pool.usedBytes).toBe(twin.memory().totalBytes);
  });

  it('waits for trials of the page that a fork has started', () => {
    const { cache, random } = filled();
    const q = normals(random, 128 * 256);
    cache.attend(0, q, new Float32Array(q.length));
    const twin = cache.fork();
    const candidates = [{ side: 'kv', format: 'rot2' }] as const;
    const expected = twin.trial(0, 1, candidates);
    twin.startTrial(0, 1, candidates);
    cache.transcode(0, 1, 'kv', 'rot4');
    expect(twin.finishTrials(true)).toEqual([expected]);
  });

  it('close() drops it, and gives everything back', () => {
    for (let round = 0; round < 20; round++) {
      const { pool, cache } = filled();
      const twin = cache.fork();
      for (let page = 0; page < PAGES; page++) {
        for (const side of SIDES) {
          cache.startMove(0, page, side, 'rot2');
          twin.startMove(1, page, side, 'rot4');
        }
      }
      cache.close();
      expect(pool.auditBytes()).toBe(pool.usedBytes);
      expect(twin.finishMoves(true)).toHaveLength(2 * PAGES);
      expect(pool.usedBytes).toBe(twin.memory().totalBytes);
      twin.close();
      pool.setBudget(0); // nothing is left, nothing is claimed
      expect(codeOf(() => cache.finishMoves(true))).toBe('closed');
    }
  });
});

describe('the budget', () => {
  it('a full pool still demotes, some page sides at a time', () => {
    const { pool, cache } = filled();
    pool.setBudget(pool.usedBytes);
    cache.startMove(0, 0, 'k', 'rot4');
    // Drafts have to fit into what one page side gives back.
    let under = 1;
    while (codeOf(() => cache.startMove(0, under, 'k', 'rot4')) === 'no error') under++;
    expect(under).toBeLessThan(PAGES);
    const [first] = cache.finishMoves(true);
    expect(first).toMatchObject({ refused: null, freedBytes: pageBytes('q8', 2, 64) - pageBytes('rot4', 2, 64) });
    expect(codeOf(() => cache.startMove(0, under, 'k', 'rot4'))).toBe('no error');
    cache.finishMoves(true);
    expect(pool.usedBytes).toBeLessThan(pool.budgetBytes);
  });

  it('what a move needs is nobody else’s until it ends', () => {
    const { pool, cache } = filled();
    const growth = pageBytes('f16', 2, 64) - pageBytes('q8', 2, 64);
    pool.setBudget(pool.usedBytes + growth + cache.sealBytes);
    cache.startMove(0, 0, 'k', 'f16');
    const rows = new Float32Array(128 * ROW);
    expect(codeOf(() => cache.append(0, rows, rows))).toBe('budget-exceeded');
    expect(cache.finishMoves(true)).toMatchObject([{ refused: null }]);
    expect(codeOf(() => cache.append(0, rows, rows))).toBe('no error');
    expect(pool.auditBytes()).toBe(pool.usedBytes);
  });

  it('a move whose room was taken away by a lower budget ends with the page as it was', () => {
    const { pool, cache } = filled();
    cache.startMove(0, 0, 'k', 'f16');
    const keys = history(cache, 0, 'k');
    const twin = cache.fork();
    pool.setBudget(pool.usedBytes);
    expect(cache.finishMoves(true)).toMatchObject([{ refused: 'budget-exceeded', freedBytes: 0 }]);
    expect(sameBits(history(cache, 0, 'k'), keys)).toBe(true);
    expect([pool.usedBytes, pool.auditBytes()]).toEqual([pool.budgetBytes, pool.budgetBytes]);
    twin.close();
    cache.startMove(0, 0, 'k', 'rot4');
    expect(cache.finishMoves(true)).toMatchObject([{ refused: null }]);
  });
});
