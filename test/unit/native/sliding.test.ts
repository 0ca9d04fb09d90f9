/**
 * Pages that a sliding window has left behind: freed, they give their bytes back, later queries attend with the bits
 * that they have without it, forks keep theirs, and stored bytes say that nothing is there. What would see or need such
 * a page is refused, and so is freeing one that may still be seen.
 */
import { crc32 } from 'node:zlib';
import { describe, expect, it } from 'vitest';
import {
  isFreed,
  type KvCache,
  type KvCacheOptions,
  openKvCache,
  openPool,
  type PageRecord,
  pagesLeftBehind,
} from '../../../native/index.ts';
import { normals, sameBits, uniform } from '../../native/dense.ts';
import { twinOf } from '../../native/twin.ts';
import { codeOf } from '../../refusal.ts';

const shape = { layers: 2, queryHeads: 4, kvHeads: 2, headDim: 64 };
const ROW = 128;
const WINDOW = 200;
const options = { slidingWindow: [WINDOW, null] } as const;

function filled(tokens: number, more: Partial<KvCacheOptions> = {}): KvCache {
  const cache = openKvCache({ shape, pool: openPool(2 ** 30), ...options, ...more });
  append(cache, tokens, 1);
  return cache;
}

function append(cache: KvCache, tokens: number, seed: number): void {
  const random = uniform(seed);
  for (let layer = 0; layer < shape.layers; layer++)
    cache.append(layer, normals(random, tokens * ROW), normals(random, tokens * ROW));
}

function attended(cache: KvCache, tokens: number, layer = 0): Float32Array {
  const q = normals(uniform(7), tokens * 2 * ROW);
  const out = new Float32Array(q.length);
  cache.attend(layer, q, out);
  return out;
}

/** All sealed pages of a cache as records, page after page. */
function parked(cache: KvCache): { bytes: Uint8Array; records: PageRecord[]; predicted: null } {
  const { pages } = cache.table(0);
  const parts: Uint8Array[] = [];
  const records: PageRecord[] = [];
  let at = 0;
  for (let page = 0; page < pages; page++)
    for (let layer = 0; layer < shape.layers; layer++) {
      const part = cache.exportPage(layer, page);
      parts.push(part);
      records.push({ at, length: part.length, formats: null });
      at += part.length;
    }
  return { bytes: Buffer.concat(parts), records, predicted: null };
}

describe('a page that the sliding window has left behind', () => {
  it('is freed with its bytes, and later queries attend with the same bits', () => {
    // A query at 600 sees 401 to 600, so that pages 0, 1 and 2 are behind.
    const [cache, whole] = [filled(600), filled(600)];
    expect(pagesLeftBehind(600, WINDOW)).toBe(3);
    expect(pagesLeftBehind(600, null)).toBe(0);
    const before = cache.usedBytes;
    const side = cache.table(0).pages;
    let freed = 0;
    for (const page of [0, 1, 2]) freed += cache.freePage(0, page);
    expect(freed).toBe(3 * cache.sealBytes);
    expect(cache.usedBytes).toBe(before - freed);
    expect(cache.auditBytes()).toBe(cache.usedBytes);
    expect(cache.freePage(0, 1)).toBe(0);
    expect(Array.from({ length: side }, (_, page) => isFreed(cache.table(0), page))).toEqual([true, true, true, false]);
    expect(cache.table(0).kFormat[0]).toBe(255);
    for (const one of [cache, whole]) append(one, 1, 2);
    expect(sameBits(attended(cache, 1), attended(whole, 1))).toBe(true);
    expect(cache.table(0).mass).toEqual(whole.table(0).mass);
    for (const one of [cache, whole]) append(one, 70, 3);
    expect(sameBits(attended(cache, 70), attended(whole, 70))).toBe(true);
  });

  it('is there as long as a later query may see it, and in layers that see everything', () => {
    const cache = filled(582);
    // A query at 582 sees 383, the last token of page 2.
    expect(codeOf(() => cache.freePage(0, 2))).toBe('unsupported');
    expect(codeOf(() => cache.freePage(1, 0))).toBe('unsupported');
    append(cache, 1, 2);
    cache.startMove(0, 2, 'k', 'rot4');
    expect(codeOf(() => cache.freePage(0, 2))).toBe('unsupported');
    cache.finishMoves(true);
    expect(cache.freePage(0, 2)).toBeGreaterThan(0);
    expect(codeOf(() => cache.freePage(0, 9))).toBe('bad-argument');
  });

  it('stays with forks that share it until the last has freed it', () => {
    const cache = filled(600);
    const fork = cache.fork();
    expect(cache.freePage(0, 0)).toBe(0);
    expect(isFreed(fork.table(0), 0)).toBe(false);
    expect(fork.decode(0, 0, 'k').length).toBe(128 * ROW);
    expect(fork.freePage(0, 0)).toBe(cache.sealBytes);
    expect(cache.auditBytes()).toBe(cache.usedBytes);
  });

  it('takes originals and trials that wait with it', () => {
    const cache = filled(600);
    attended(cache, 64);
    cache.keepOriginal(0, 0, 'k');
    cache.transcode(0, 0, 'k', 'rot2');
    cache.startTrial(0, 0, [{ side: 'v', format: 'rot4' }]);
    const before = cache.usedBytes;
    expect(cache.freePage(0, 0)).toBe(before - cache.usedBytes);
    expect(cache.originalFormat(0, 0, 'k')).toBeNull();
    expect(cache.finishTrials(true)).toHaveLength(1);
    expect(cache.auditBytes()).toBe(cache.usedBytes);
  });

  it('refuses everything that needs its keys and values', () => {
    const cache = filled(600);
    cache.freePage(0, 0);
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
      () => cache.exportSide(0, 0, 'k'),
      () => cache.exchangeSide(0, 0, 'k', cache.exportSide(0, 3, 'k')),
      () => cache.toLatent(0, 0, 'xq8'),
      () => cache.dropLatent(0, 0),
      () => cache.restore(0, 0, 'q8'),
    ];
    for (const call of calls) expect(codeOf(call)).toBe('unsupported');
    expect(cache.usedBytes).toBe(used);
  });

  it('refuses queries that see it, and a way back to them', () => {
    const cache = filled(600);
    cache.freePage(0, 1);
    // The first of 145 tokens is at 455 and sees 256, just behind page 1.
    expect(() => attended(cache, 145)).not.toThrow();
    expect(codeOf(() => attended(cache, 146))).toBe('unsupported');
    expect(() => attended(cache, 600, 1)).not.toThrow();
    expect(codeOf(() => cache.truncate(384))).toBe('unsupported');
    expect(cache.length(0)).toBe(600);
    cache.truncate(128);
    expect(cache.length(0)).toBe(128);
    expect(cache.table(0).pages).toBe(1);
  });

  it('is stored as nothing, but for the sinks of the first page', () => {
    const cache = filled(900);
    for (const page of [0, 1, 2]) cache.freePage(0, page);
    expect(cache.exportPage(0, 1)).toHaveLength(128 + 4);
    expect(cache.exportPage(0, 0)).toHaveLength(128 + 4 * ROW * 4 + 4);
    const twin = twinOf(cache, options);
    expect(twin.table(0).kind).toEqual(cache.table(0).kind);
    expect(sameBits(attended(twin, 4), attended(cache, 4))).toBe(true);
    expect(codeOf(() => twinOf(cache))).toBe('unsupported');

    const filledAtOnce = openKvCache({ shape, pool: openPool(2 ** 30), ...options });
    filledAtOnce.importPages(parked(cache));
    for (let layer = 0; layer < shape.layers; layer++)
      filledAtOnce.append(layer, cache.decode(layer, 7, 'k'), cache.decode(layer, 7, 'v'));
    expect(filledAtOnce.usedBytes).toBe(twin.usedBytes);
    for (const layer of [0, 1])
      expect(sameBits(attended(filledAtOnce, 4, layer), attended(cache, 4, layer))).toBe(true);
  });

  it('is refused among stored pages where it would be seen, or is damaged', () => {
    const cache = filled(900);
    for (const page of [0, 1, 2]) cache.freePage(0, page);
    const { bytes, records, predicted } = parked(cache);
    const empty = (more: Partial<KvCacheOptions> = options): KvCache =>
      openKvCache({ shape, pool: openPool(2 ** 30), ...more });
    // So few pages that what follows would see page 2.
    const few = records.slice(0, 3 * shape.layers);
    expect(codeOf(() => empty().importPages({ bytes, records: few, predicted }))).toBe('unsupported');
    expect(codeOf(() => empty({}).importPages({ bytes, records, predicted }))).toBe('unsupported');
    // A freed page that has a rest of something.
    const stored = cache.exportPage(0, 1);
    const longer = Buffer.concat([stored.subarray(0, 128), new Uint8Array(16), new Uint8Array(4)]);
    longer.writeUInt32LE(16, 36);
    longer.writeUInt32LE(crc32(longer.subarray(0, -4)), longer.length - 4);
    const twin = empty();
    for (let layer = 0; layer < shape.layers; layer++) twin.importPage(layer, cache.exportPage(layer, 0));
    expect(codeOf(() => twin.importPage(0, longer))).toBe('bad-shape');
    twin.importPage(0, stored);
    expect(codeOf(() => attended(twin, 1))).toBe('unsupported');
  });
});
