/**
 * Pages that are held as bytes of the caller: what they would have added to attention is given beside it, and one
 * softmax comes of both; bytes count exactly, in the cache, in forks and when they go; trials of given rows find what
 * trials of the same rows in a format find; queries that are kept for trials have seen both parts.
 */
import { crc32 } from 'node:zlib';
import { describe, expect, it } from 'vitest';
import {
  type Beside,
  isEvicted,
  isForeign,
  isFreed,
  type KvCache,
  type KvCacheOptions,
  nativeInfo,
  openKvCache,
  openPool,
  setIsa,
} from '../../../native/index.ts';
import { denseAttention, denseOf, history, normals, relativeError, sameBits, uniform } from '../../native/dense.ts';
import { codeOf } from '../../refusal.ts';

const shape = { layers: 2, queryHeads: 4, kvHeads: 2, headDim: 64 };
const ROW = 128;
const QUERY = 256;
const BYTES = Uint8Array.from({ length: 1000 }, (_, i) => i % 251);

function filled(tokens: number, more: Partial<KvCacheOptions> = {}): KvCache {
  const cache = openKvCache({ shape, pool: openPool(2 ** 30), ...more });
  const random = uniform(1);
  for (let layer = 0; layer < shape.layers; layer++)
    cache.append(layer, normals(random, tokens * ROW), normals(random, tokens * ROW));
  return cache;
}

const queries = (tokens: number): Float32Array => normals(uniform(7), tokens * QUERY);

/** What plain attention gives over some pages alone, whose sinks are not theirs. */
function besideOf(whole: KvCache, pages: readonly number[], tokens: number, more: object): Beside {
  const skips = (at: number): boolean => at < 4 || !pages.includes(Math.floor(at / 128));
  const { lse, out } = denseOf(whole, 0, queries(tokens), { ...more, skips });
  for (const [row, one] of lse.entries()) if (!Number.isFinite(one)) out.fill(0, row * 64, row * 64 + 64);
  const known = lse.map((one) => (Number.isNaN(one) ? Number.NEGATIVE_INFINITY : one));
  return { lse: Float32Array.from(known), out: Float32Array.from(out) };
}

describe('a page that is held as bytes of the caller', () => {
  it('counts its bytes in whole 64, is the same for forks, and is gone for everything else', () => {
    const cache = filled(600);
    const fork = cache.fork();
    const before = cache.usedBytes;
    expect(cache.holdForeign(0, 1, BYTES)).toBe(cache.sealBytes - 1024);
    for (const one of [cache, fork]) {
      expect(one.usedBytes).toBe(before - cache.sealBytes + 1024);
      expect(one.auditBytes()).toBe(one.usedBytes);
      const table = one.table(0);
      expect([isForeign(table, 1), isEvicted(table, 1), isFreed(table, 1), isForeign(table, 0)]).toEqual([
        true,
        true,
        true,
        false,
      ]);
      expect([...one.foreignBytes(0, 1)]).toEqual([...BYTES]);
      expect(codeOf(() => one.decode(0, 1, 'k'))).toBe('unsupported');
      expect(codeOf(() => one.transcode(0, 1, 'k', 'rot4'))).toBe('unsupported');
      expect(codeOf(() => one.holdForeign(0, 1, BYTES))).toBe('unsupported');
    }
    expect(codeOf(() => cache.foreignBytes(0, 0))).toBe('unsupported');
    expect(codeOf(() => cache.holdForeign(0, 0, new Uint8Array()))).toBe('bad-shape');
    expect(cache.evictPage(0, 1)).toBe(1024);
    expect(fork.auditBytes()).toBe(before - cache.sealBytes);
    cache.holdForeign(0, 2, BYTES);
    cache.truncate(256);
    fork.close();
    expect(cache.auditBytes()).toBe(cache.usedBytes);
  });

  it('is exported with its bytes, and imported again, alone or among all', () => {
    const cache = filled(300);
    for (const layer of [0, 1]) cache.holdForeign(layer, layer, BYTES);
    const pages = [0, 1].flatMap((page) => [0, 1].map((layer) => cache.exportPage(layer, page)));
    const all = Buffer.concat(pages);
    let at = 0;
    const records = pages.map(({ length }) => ({ at: (at += length) - length, length, formats: null }));
    const empty = (): KvCache => openKvCache({ shape, pool: openPool(2 ** 30) });
    const [one, other] = [empty(), empty()];
    for (const [i, page] of pages.entries()) one.importPage(i % 2, page);
    other.importPages({ bytes: all, records, predicted: null });
    for (const back of [one, other]) {
      expect(back.auditBytes()).toBe(back.usedBytes);
      expect([0, 1].flatMap((page) => [0, 1].map((layer) => back.exportPage(layer, page)))).toEqual(pages);
      for (const layer of [0, 1]) expect([...back.foreignBytes(layer, layer)]).toEqual([...BYTES]);
      expect(back.evictPage(1, 1)).toBe(1024);
      back.close();
    }
    // Sizes that no page has, in a head that is sound otherwise; no budget for what is there.
    for (const [page, bytes] of [
      [0, 0],
      [1, 0],
      [1, 2 ** 24 + 1],
    ] as const) {
      const stored = cache.exportPage(page, page);
      const sinks = page === 0 ? stored.length - 132 - BYTES.length : 0;
      const lying = Buffer.alloc(132 + bytes + sinks);
      lying.set(stored.subarray(0, 128));
      lying.writeUInt32LE(bytes + sinks, 36);
      lying.writeUInt32LE(crc32(lying.subarray(0, -4)), lying.length - 4);
      const into = page === 0 ? empty() : filled(128);
      expect(codeOf(() => into.importPage(page, lying))).toBe('bad-shape');
      expect(into.auditBytes()).toBe(into.usedBytes);
    }
    const small = empty();
    small.setBudget(small.usedBytes + 512);
    expect(codeOf(() => small.importPage(0, pages[0]!))).toBe('budget-exceeded');
    expect(codeOf(() => small.importPages({ bytes: all, records, predicted: null }))).toBe('budget-exceeded');
    expect(small.auditBytes()).toBe(small.usedBytes);
  });

  it('takes no more than the budget leaves, and changes nothing then', () => {
    const cache = filled(600);
    cache.transcode(0, 1, 'kv', 'rot2');
    cache.setBudget(cache.usedBytes);
    expect(codeOf(() => cache.holdForeign(0, 1, new Uint8Array(2 ** 16)))).toBe('budget-exceeded');
    expect(cache.format(0, 1, 'k')).toBe('rot2');
    expect(cache.auditBytes()).toBe(cache.usedBytes);
  });

  // Each instruction set; a step and a block of tokens; a history that is cut in ranges; a window, a cap.
  it.each(nativeInfo().available)('is one softmax with what is given beside it (%s)', (isa) => {
    const best = nativeInfo().isa;
    setIsa(isa);
    try {
      for (const [length, pages, more] of [
        [580, [0, 3], {}],
        [580, [1, 2], { openFormat: 'q8' }],
        [580, [0, 1, 2, 3], { windowFormat: 'f16' }],
        [580, [1, 2], { slidingWindow: [500, null] }],
        [580, [1, 2], { scoreCap: 5 }],
        [6500, [0, 7, 30, 44], { threads: 2 }],
      ] as const) {
        const [cache, whole] = [filled(length, more as Partial<KvCacheOptions>), filled(length, more as object)];
        const dense = { window: 'slidingWindow' in more ? 500 : null, scoreCap: 'scoreCap' in more ? 5 : null };
        for (const page of pages) cache.holdForeign(0, page, BYTES);
        for (const tokens of length > 1000 ? [1] : [1, 33]) {
          const out = new Float32Array(tokens * QUERY);
          const lse = new Float32Array(tokens * 4);
          cache.attend(0, queries(tokens), out, { lse, beside: besideOf(whole, pages, tokens, dense) });
          const [k, v] = [history(whole, 0, 'k'), history(whole, 0, 'v')];
          const expected = denseAttention(shape, queries(tokens), k, v, dense);
          expect(relativeError(out, expected.out)).toBeLessThan(3e-4);
          expect(relativeError(lse, expected.lse)).toBeLessThan(1e-5);
        }
        cache.close();
        whole.close();
      }
    } finally {
      setIsa(best);
    }
  });

  it('gives the same bits where nothing is beside, and refuses what is no part of a softmax', () => {
    const cache = filled(580);
    const [plain, empty] = [new Float32Array(QUERY), new Float32Array(QUERY)];
    cache.attend(0, queries(1), plain);
    const nothing = { lse: new Float32Array(4).fill(Number.NEGATIVE_INFINITY), out: new Float32Array(QUERY) };
    cache.attend(0, queries(1), empty, { beside: nothing });
    expect(sameBits(plain, empty)).toBe(true);
    const attend = (beside: Beside) => codeOf(() => cache.attend(0, queries(1), empty, { beside }));
    expect(attend({ ...nothing, lse: new Float32Array(3) })).toBe('bad-shape');
    expect(attend({ ...nothing, lse: new Float32Array(4).fill(Number.NaN) })).toBe('bad-value');
    expect(attend({ ...nothing, lse: new Float32Array(4).fill(Number.POSITIVE_INFINITY) })).toBe('bad-value');
    expect(attend({ ...nothing, out: new Float32Array(QUERY).fill(Number.NaN) })).toBe('bad-value');
    expect(attend({ ...nothing, out: empty })).toBe('bad-argument');
  });

  it('leaves trials of other pages what they were: kept queries have seen both parts', () => {
    const [cache, whole] = [filled(580), filled(580)];
    cache.holdForeign(0, 1, BYTES);
    for (const one of [cache, whole]) {
      const beside = one === cache ? besideOf(whole, [1], 60, {}) : undefined;
      one.attend(0, queries(60), new Float32Array(60 * QUERY), beside === undefined ? {} : { beside });
    }
    const candidates = [{ side: 'k', format: 'rot2' }] as const;
    const [error] = whole.trial(0, 2, candidates);
    expect(error).toBeGreaterThan(0.01);
    expect(Math.abs(cache.trial(0, 2, candidates)[0]! - error!)).toBeLessThan(2e-3 * error!);
  });

  it('tries given rows as it tries a format that decodes to them', () => {
    for (const [page, side] of [
      [1, 'k'],
      [0, 'v'],
      [2, 'kv'],
    ] as const) {
      const [cache, lower] = [filled(580), filled(580)];
      for (const one of [cache, lower]) one.attend(0, queries(60), new Float32Array(60 * QUERY));
      const [error] = cache.trial(0, page, [{ side, format: 'rot2' }]);
      lower.transcode(0, page, side, 'rot2');
      const rows = { k: lower.decode(0, page, 'k'), v: lower.decode(0, page, 'v') };
      const given = side === 'kv' ? rows : { [side]: rows[side] };
      expect(Math.abs(cache.trialForeign(0, page, given) - error!)).toBeLessThan(5e-3 * error!);
      expect(cache.trialForeign(0, page, { k: cache.decode(0, page, 'k') })).toBeLessThan(1e-3 * error!);
      expect(codeOf(() => cache.trialForeign(0, page, { k: rows.k.fill(Number.NaN) }))).toBe('bad-value');
      expect(codeOf(() => cache.trialForeign(0, page, {}))).toBe('bad-argument');
    }
  });

  it('is a page of a format again, with the rows that are given', () => {
    const [cache, twin] = [filled(580), filled(580)];
    const before = cache.usedBytes;
    for (const page of [0, 2]) {
      const rows = { k: cache.decode(0, page, 'k'), v: cache.decode(0, page, 'v') };
      cache.holdForeign(0, page, BYTES);
      expect(codeOf(() => cache.restoreForeign(0, page, 'q8', { ...rows, k: rows.v.subarray(1) }))).toBe('bad-shape');
      expect(cache.restoreForeign(0, page, 'q8', rows)).toBe(1024 - cache.sealBytes);
      for (const side of ['k', 'v'] as const)
        expect(relativeError(cache.decode(0, page, side), twin.decode(0, page, side))).toBeLessThan(1e-3);
      expect(codeOf(() => cache.restoreForeign(0, page, 'q8', rows))).toBe('unsupported');
    }
    expect(cache.usedBytes).toBe(before);
    expect(cache.auditBytes()).toBe(before);
  });
});
