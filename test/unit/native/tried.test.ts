/**
 * Codes that a trial leaves to its page: another trial and a move take them instead of making them again, and find what
 * they would have made. They go when the side changes and when the page is old, and are told as scratch.
 */
import { describe, expect, it } from 'vitest';
import {
  type FormatName,
  type KvCache,
  openKvCache,
  openPool,
  SIDES,
  type Side,
  type TrialCandidate,
} from '../../../native/index.ts';
import { normals, uniform } from '../../native/dense.ts';

const shape = { layers: 1, queryHeads: 4, kvHeads: 2, headDim: 64 };
const ROW = 128;
/** What sessions try pages again in. */
const AGAIN: readonly TrialCandidate[] = [
  { side: 'k', format: 'trellis3' },
  { side: 'v', format: 'trellis2' },
];
const FIRST: readonly TrialCandidate[] = SIDES.flatMap((side) =>
  (['trellis4', 'rot4', 'trellis3', 'trellis2'] as const).map((format) => ({ side, format })),
);

function filled(pages: number, windowFormat: 'q8' | 'f16' = 'q8'): KvCache {
  const cache = openKvCache({ shape, pool: openPool(2 ** 30), windowFormat });
  const random = uniform(11);
  grow(cache, random, pages);
  return cache;
}

function grow(cache: KvCache, random: () => number, pages: number): void {
  const tokens = 128 * pages + (cache.length(0) === 0 ? 8 : 0);
  cache.append(0, normals(random, tokens * ROW), normals(random, tokens * ROW));
  const q = normals(random, Math.min(tokens, 128) * 256);
  cache.attend(0, q, new Float32Array(q.length));
}

const scratch = (cache: KvCache): number => cache.memory().scratchBytes;

describe.each(['q8', 'f16'] as const)('codes of a side in %s', (windowFormat) => {
  it.each([0, 2])('are those of a move, of page %i', (page) => {
    for (const [side, format] of [
      ['k', 'trellis3'],
      ['v', 'trellis2'],
      ['k', 'rot4'],
    ] as const) {
      const tried = filled(3, windowFormat);
      const plain = filled(3, windowFormat);
      tried.trial(0, page, [{ side, format }]);
      const before = tried.usedBytes;
      expect(tried.transcode(0, page, side, format)).toBe(plain.transcode(0, page, side, format));
      expect(tried.usedBytes).toBe(plain.usedBytes);
      expect(tried.usedBytes).toBeLessThan(before);
      expect(tried.auditBytes()).toBe(tried.usedBytes);
      expect(tried.exportSide(0, page, side)).toEqual(plain.exportSide(0, page, side));
      tried.close();
      plain.close();
    }
  });
});

describe('codes that a trial leaves', () => {
  it('are found again by the next trial, with the same errors on other queries', () => {
    const [tried, plain] = [filled(3), filled(3)];
    tried.trial(0, 1, FIRST);
    tried.trial(0, 1, AGAIN);
    const left = scratch(tried);
    for (const cache of [tried, plain]) grow(cache, uniform(12), 1);
    expect(tried.trial(0, 1, AGAIN)).toEqual(plain.trial(0, 1, AGAIN));
    expect(tried.trial(0, 1, FIRST)).toEqual(plain.trial(0, 1, FIRST));
    expect(scratch(tried)).toBeGreaterThanOrEqual(left);
    for (const cache of [tried, plain]) cache.close();
  });

  it('count as scratch, not among the bytes of the cache, and go with the move that takes them', () => {
    const cache = filled(3);
    cache.trial(0, 0, FIRST);
    for (const page of [0, 1, 2]) cache.trial(0, page, AGAIN);
    const { usedBytes } = cache;
    const all = scratch(cache);
    cache.transcode(0, 2, 'k', 'trellis3');
    const taken = all - scratch(cache);
    expect(taken).toBe(cache.exportSide(0, 2, 'k').bytes.byteLength);
    // Others are of no use once the side is another.
    cache.transcode(0, 1, 'k', 'trellis4');
    expect(all - scratch(cache)).toBe(2 * taken);
    expect(cache.usedBytes).toBeLessThan(usedBytes);
    cache.close();
  });

  it('go when their page is no longer among the nine newest', () => {
    const cache = filled(3);
    cache.trial(0, 1, AGAIN);
    const before = scratch(cache);
    cache.trial(0, 0, AGAIN);
    const [random, left] = [uniform(13), scratch(cache) - before];
    expect(left).toBeGreaterThan(0);
    for (let page = 0; page < 6; page++) grow(cache, random, 1);
    const held = scratch(cache);
    grow(cache, random, 1);
    expect(held - scratch(cache)).toBe(left);
    cache.trial(0, 0, AGAIN);
    expect(held - scratch(cache)).toBe(left);
    cache.close();
  });

  it('are not left to a page that has become old while it was tried', () => {
    const cache = filled(9);
    cache.startTrial(0, 0, AGAIN);
    grow(cache, uniform(14), 1);
    const before = scratch(cache);
    cache.finishTrials(true);
    expect(scratch(cache)).toBeLessThanOrEqual(before);
    cache.close();
  });

  it.each([
    ['an exchanged side', (cache: KvCache) => cache.exchangeSide(0, 1, 'k', cache.exportSide(0, 2, 'k'))],
    [
      'an original that came back',
      (cache: KvCache) => {
        cache.keepOriginal(0, 1, 'k');
        cache.transcode(0, 1, 'k', 'trellis4');
        cache.trial(0, 1, [{ side: 'k', format: 'rot2' }]);
        cache.restoreOriginal(0, 1, 'k');
      },
    ],
    ['an evicted page', (cache: KvCache) => cache.evictPage(0, 1)],
    ['pages that were taken back', (cache: KvCache) => cache.truncate(128)],
  ] as const)('do not outlive their side: %s', (_, change) => {
    const [tried, plain] = [filled(3), filled(3)];
    tried.trial(0, 1, [{ side: 'k', format: 'trellis3' }]);
    const left = scratch(tried);
    for (const cache of [tried, plain]) change(cache);
    expect(scratch(tried)).toBeLessThan(left);
    const { pages, kind } = tried.table(0);
    if (pages < 2 || kind[1] !== kind[0]) return;
    expect(tried.trial(0, 1, AGAIN)).toEqual(plain.trial(0, 1, AGAIN));
    for (const cache of [tried, plain]) cache.transcode(0, 1, 'k', 'trellis3');
    expect(tried.exportSide(0, 1, 'k')).toEqual(plain.exportSide(0, 1, 'k'));
    for (const cache of [tried, plain]) cache.close();
  });

  it.each([true, false])('are left by trials in the background too, waited for: %s', (isWaited) => {
    const [tried, plain] = [filled(3), filled(3)];
    tried.startTrial(0, 1, AGAIN);
    tried.startTrial(0, 2, FIRST);
    if (isWaited) tried.finishTrials(true);
    tried.startMove(0, 1, 'v', 'trellis2');
    tried.finishMoves(true);
    tried.transcode(0, 1, 'k', 'trellis3');
    for (const [side, format] of [
      ['v', 'trellis2'],
      ['k', 'trellis3'],
    ] as readonly (readonly [Side, FormatName])[]) {
      plain.transcode(0, 1, side, format);
      expect(tried.exportSide(0, 1, side)).toEqual(plain.exportSide(0, 1, side));
    }
    expect(tried.usedBytes).toBe(plain.usedBytes);
    if (!isWaited) expect(tried.finishTrials(true)).toEqual([filled(3).trial(0, 1, AGAIN), plain.trial(0, 2, FIRST)]);
    for (const cache of [tried, plain]) cache.close();
  });

  it('serve forks, which share the page', () => {
    const cache = filled(3);
    cache.trial(0, 1, AGAIN);
    const fork = cache.fork();
    const plain = filled(3);
    expect(fork.transcode(0, 1, 'k', 'trellis3')).toBe(plain.transcode(0, 1, 'k', 'trellis3'));
    expect(cache.exportSide(0, 1, 'k')).toEqual(plain.exportSide(0, 1, 'k'));
    for (const one of [cache, fork, plain]) one.close();
  });
});
