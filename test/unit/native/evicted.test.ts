/**
 * Pages that are evicted: they give their bytes back though queries would see them, attention goes on over what is left
 * as plain attention does, other tokens keep their positions, the sinks stay, forks lose what they share, and stored
 * bytes say that nothing is there. What would need such a page is refused.
 */
import { describe, expect, it } from 'vitest';
import {
  isEvicted,
  isFreed,
  type KvCache,
  type KvCacheOptions,
  nativeInfo,
  openKvCache,
  openPool,
  type PageRecord,
  setIsa,
} from '../../../native/index.ts';
import { denseAttention, history, normals, relativeError, sameBits, uniform } from '../../native/dense.ts';
import { twinOf } from '../../native/twin.ts';
import { codeOf } from '../../refusal.ts';

const shape = { layers: 2, queryHeads: 4, kvHeads: 2, headDim: 64 };
const ROW = 128;
const QUERY = 256;
const SLOPES = Float32Array.from({ length: 4 }, (_, head) => 2 ** -(head + 6));

function filled(tokens: number, more: Partial<KvCacheOptions> = {}): KvCache {
  const cache = openKvCache({ shape, pool: openPool(2 ** 30), ...more });
  append(cache, tokens, 1);
  return cache;
}

function append(cache: KvCache, tokens: number, seed: number): void {
  const random = uniform(seed);
  for (let layer = 0; layer < shape.layers; layer++)
    cache.append(layer, normals(random, tokens * ROW), normals(random, tokens * ROW));
}

const queries = (tokens: number): Float32Array => normals(uniform(7), tokens * QUERY);

function attended(cache: KvCache, tokens: number, layer = 0): Float32Array {
  const out = new Float32Array(tokens * QUERY);
  cache.attend(layer, queries(tokens), out);
  return out;
}

/** What plain attention gives over the rows of a whole cache, of which the rows of some pages are not there. */
function expected(whole: KvCache, pages: readonly number[], tokens: number, more: object = {}) {
  const [k, v] = [history(whole, 0, 'k'), history(whole, 0, 'v')];
  const skips = (at: number): boolean => at >= 4 && pages.includes(Math.floor(at / 128));
  return denseAttention(shape, queries(tokens), k, v, { ...more, skips });
}

describe('a page that is evicted', () => {
  it('gives its bytes back, for all who share it, and counts as a page of which nothing is left', () => {
    const cache = filled(600);
    const fork = cache.fork();
    const before = cache.usedBytes;
    expect(cache.evictPage(0, 1)).toBe(cache.sealBytes);
    expect(cache.usedBytes).toBe(before - cache.sealBytes);
    expect(cache.auditBytes()).toBe(cache.usedBytes);
    expect(cache.evictPage(0, 1)).toBe(0);
    for (const one of [cache, fork]) {
      const table = one.table(0);
      expect([0, 1, 2, 3].map((page) => isEvicted(table, page))).toEqual([false, true, false, false]);
      expect([0, 1, 2, 3].map((page) => isFreed(table, page))).toEqual([false, true, false, false]);
      expect(table.kFormat[1]).toBe(255);
      expect(isFreed(one.table(1), 1)).toBe(false);
    }
    expect(sameBits(attended(fork, 1), attended(cache, 1))).toBe(true);
  });

  // Each instruction set; a step, a few tokens, a block of them; none, one, several pages, all; beside a window, slopes
  // and a cap; open pages in 8 bits; page 0 coded and in f16.
  it.each(nativeInfo().available)('is skipped by attention, as plain attention would (%s)', (isa) => {
    const best = nativeInfo().isa;
    setIsa(isa);
    try {
      for (const more of [
        {},
        { windowFormat: 'f16' },
        { openFormat: 'q8' },
        { slidingWindow: [500, null] },
        { alibiSlopes: SLOPES },
        { scoreCap: 5 },
      ] as const)
        for (const pages of [
          [0, 3],
          [1, 2],
          [0, 1, 2, 3],
        ]) {
          const [cache, whole] = [filled(580, more), filled(580, more)];
          for (const page of pages) cache.evictPage(0, page);
          for (const tokens of [1, 60]) {
            const window = 'slidingWindow' in more ? 500 : null;
            const { out, mass } = expected(whole, pages, tokens, {
              window,
              ...('alibiSlopes' in more ? { slopes: SLOPES } : {}),
              ...('scoreCap' in more ? { scoreCap: 5 } : {}),
            });
            const massBefore = cache.table(0).mass;
            const found = attended(cache, tokens);
            expect(relativeError(found, out)).toBeLessThan(3e-4);
            for (const [page, share] of cache.table(0).mass.entries())
              expect(Math.abs(share - massBefore[page]! - mass[page]!)).toBeLessThan(1e-3 * tokens);
          }
        }
    } finally {
      setIsa(best);
    }
  });

  it('leaves long histories alike with any number of threads', () => {
    const pages = Array.from({ length: 93 }, (_, page) => page).filter((page) => page % 7 !== 3 && page < 80);
    const whole = filled(12_000);
    const found = [1, 2, 3, 7].map((threads) => {
      const cache = filled(12_000, { threads });
      for (const page of pages) cache.evictPage(0, page);
      const out = attended(cache, 1);
      expect(relativeError(out, expected(whole, pages, 1).out)).toBeLessThan(3e-4);
      return { out, many: attended(cache, 40), mass: cache.table(0).mass };
    });
    // What is divided among threads differs in its heads alone, which do not depend on each other.
    for (const { out, many } of found.slice(1)) {
      expect(sameBits(out, found[0]!.out)).toBe(true);
      expect(sameBits(many, found[0]!.many)).toBe(true);
    }
  });

  it('changes the weights of what is left and nothing else: positions stay', () => {
    const cache = filled(600);
    for (const page of [0, 1, 2]) cache.evictPage(0, page);
    append(cache, 70, 3);
    expect(cache.length(0)).toBe(670);
    const whole = filled(600);
    append(whole, 70, 3);
    expect(relativeError(attended(cache, 70), expected(whole, [0, 1, 2], 70).out)).toBeLessThan(3e-4);
  });

  it('takes latents, originals, kept rows and trials that wait with it', () => {
    const cache = filled(600);
    attended(cache, 64);
    cache.keepOriginal(0, 0, 'k');
    cache.keepRows(0, 0, 'v', [{ head: 0, token: 9 }]);
    cache.transcode(0, 0, 'k', 'rot2');
    cache.startTrial(0, 0, [{ side: 'v', format: 'rot4' }]);
    const before = cache.usedBytes;
    expect(cache.evictPage(0, 0)).toBe(before - cache.usedBytes);
    expect(cache.originalFormat(0, 0, 'k')).toBeNull();
    expect(cache.keptRows(0, 0, 'v')).toBe(0);
    expect(cache.finishTrials(true)).toHaveLength(1);
    expect(cache.auditBytes()).toBe(cache.usedBytes);
  });

  it('refuses everything that needs its keys and values', () => {
    const cache = filled(600);
    cache.evictPage(0, 0);
    const used = cache.usedBytes;
    const calls: (() => unknown)[] = [
      () => cache.format(0, 0, 'k'),
      () => cache.decode(0, 0, 'k'),
      () => cache.transcode(0, 0, 'kv', 'rot2'),
      () => cache.startMove(0, 0, 'v', 'rot2'),
      () => cache.trial(0, 0, [{ side: 'k', format: 'rot2' }]),
      () => cache.trial(0, 0, []),
      () => cache.startTrial(0, 0, []),
      () => cache.keepOriginal(0, 0, 'k'),
      () => cache.restoreOriginal(0, 0, 'k'),
      () => cache.trialOriginal(0, 0, 'k'),
      () => cache.keepRows(0, 0, 'k', [{ head: 0, token: 9 }]),
      () => cache.exportSide(0, 0, 'k'),
      () => cache.exchangeSide(0, 0, 'k', cache.exportSide(0, 3, 'k')),
      () => cache.toLatent(0, 0, 'xq8'),
      () => cache.dropLatent(0, 0),
      () => cache.restore(0, 0, 'q8'),
      () => cache.freePage(0, 0),
    ];
    for (const call of calls) expect(codeOf(call)).toBe('unsupported');
    expect(cache.usedBytes).toBe(used);
    expect(codeOf(() => cache.evictPage(0, 4))).toBe('bad-argument');
  });

  it('is not evicted while it is moved, and queries of its own tokens or of earlier ones are refused', () => {
    const cache = filled(600);
    cache.startMove(0, 2, 'k', 'rot4');
    expect(codeOf(() => cache.evictPage(0, 2))).toBe('unsupported');
    cache.finishMoves(true);
    cache.evictPage(0, 2);
    // The first of 216 tokens is the first behind page 2.
    expect(() => attended(cache, 216)).not.toThrow();
    expect(codeOf(() => attended(cache, 217))).toBe('unsupported');
    expect(() => attended(cache, 600, 1)).not.toThrow();
  });

  it('stays as it is when tokens behind it are taken back, and is there anew when its own were', () => {
    const cache = filled(600);
    for (const page of [1, 3]) cache.evictPage(0, page);
    cache.truncate(512);
    append(cache, 20, 4);
    expect(isEvicted(cache.table(0), 3)).toBe(true);
    expect(() => attended(cache, 20)).not.toThrow();
    cache.truncate(384);
    append(cache, 200, 5);
    expect([0, 1, 2, 3].map((page) => isEvicted(cache.table(0), page))).toEqual([false, true, false, false]);
    expect(() => attended(cache, 200)).not.toThrow();
  });

  it('may be left behind by a sliding window as well', () => {
    const cache = filled(900, { slidingWindow: [300, null] });
    cache.evictPage(0, 1);
    expect(cache.freePage(0, 1)).toBe(0);
    expect(isEvicted(cache.table(0), 1)).toBe(false);
    expect(codeOf(() => cache.evictPage(0, 1))).toBe('unsupported');
    cache.evictPage(0, 5);
    expect(() => attended(cache, 4)).not.toThrow();
  });

  it('is stored as nothing, but for the sinks of the first page, and comes back so', () => {
    const cache = filled(900);
    for (const page of [0, 1, 4]) cache.evictPage(0, page);
    cache.evictPage(1, 2);
    expect(cache.exportPage(0, 1)).toHaveLength(128 + 4);
    expect(cache.exportPage(0, 0)).toHaveLength(128 + 4 * ROW * 4 + 4);
    const twin = twinOf(cache);
    expect(twin.table(0).kind).toEqual(cache.table(0).kind);
    const parts: Uint8Array[] = [];
    const records: PageRecord[] = [];
    for (let page = 0, at = 0; page < cache.table(0).pages; page++)
      for (let layer = 0; layer < shape.layers; layer++) {
        const part = cache.exportPage(layer, page);
        parts.push(part);
        records.push({ at, length: part.length, formats: null });
        at += part.length;
      }
    const atOnce = openKvCache({ shape, pool: openPool(2 ** 30) });
    atOnce.importPages({ bytes: Buffer.concat(parts), records, predicted: null });
    for (let layer = 0; layer < shape.layers; layer++)
      atOnce.append(layer, cache.decode(layer, 7, 'k'), cache.decode(layer, 7, 'v'));
    expect(atOnce.usedBytes).toBe(twin.usedBytes);
    for (const one of [twin, atOnce])
      for (const layer of [0, 1]) expect(sameBits(attended(one, 4, layer), attended(cache, 4, layer))).toBe(true);
  });
});
