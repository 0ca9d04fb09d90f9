/**
 * A page side as bytes, and in place of another: to the bit, within the budget by the byte, for all forks, beside a
 * kept original; refused by name. And the mass of the sinks, which the first page's count includes.
 */
import { describe, expect, it } from 'vitest';
import {
  encodeLatent,
  type FormatName,
  type KvCache,
  openKvCache,
  openPool,
  pageBytes,
  SIDES,
  type StoredSide,
} from '../../../native/index.ts';
import { normals, sameBits, uniform } from '../../native/dense.ts';
import { codeOf } from '../../refusal.ts';

const shape = { layers: 1, queryHeads: 4, kvHeads: 2, headDim: 64 };
const ROW = 128;
const bytesOf = (format: FormatName): number => pageBytes(format, 2, 64);

function filled(windowFormat: 'q8' | 'f16' = 'q8', openFormat: 'q8' | 'f16' = 'f16'): KvCache {
  const cache = openKvCache({ shape, pool: openPool(2 ** 30), windowFormat, openFormat });
  const random = uniform(7);
  cache.append(0, normals(random, 400 * ROW), normals(random, 400 * ROW));
  const q = normals(random, 140 * 256);
  cache.attend(0, q, new Float32Array(q.length), {});
  return cache;
}

const counted = (cache: KvCache): number => {
  expect(cache.auditBytes()).toBe(cache.usedBytes);
  expect(cache.memory().totalBytes).toBe(cache.usedBytes);
  return cache.usedBytes;
};

const look = (cache: KvCache): Float32Array => {
  const out = new Float32Array(256);
  cache.attend(0, normals(uniform(9), 256), out, { observe: false });
  return out;
};

describe('a side as bytes', () => {
  it('comes back in place of what it has become, to the bit, in every format', () => {
    const cache = filled();
    for (const side of SIDES) {
      for (const [page, to] of [
        [0, 'rot4'],
        [1, 'trellis4'],
        [2, 'trellis2'],
      ] as const) {
        const [before, rows, seen] = [counted(cache), cache.decode(0, page, side), look(cache)];
        const original = cache.exportSide(0, page, side);
        expect([original.format, original.bytes.length]).toEqual(['q8', bytesOf('q8')]);
        cache.transcode(0, page, side, to);
        const low = cache.exportSide(0, page, side);
        expect([low.format, low.bytes.length]).toEqual([to, bytesOf(to)]);
        const [lowRows, lowSeen] = [cache.decode(0, page, side), look(cache)];
        // Up, down again without encoding, and up.
        expect(cache.exchangeSide(0, page, side, original)).toBe(bytesOf(to) - bytesOf('q8'));
        expect([counted(cache), cache.format(0, page, side)]).toEqual([before, 'q8']);
        expect(sameBits(look(cache), seen)).toBe(true);
        expect(cache.exchangeSide(0, page, side, low)).toBe(bytesOf('q8') - bytesOf(to));
        expect(sameBits(cache.decode(0, page, side), lowRows)).toBe(true);
        expect(sameBits(look(cache), lowSeen)).toBe(true);
        cache.exchangeSide(0, page, side, original);
        expect(sameBits(cache.decode(0, page, side), rows)).toBe(true);
        expect(Buffer.compare(cache.exportSide(0, page, side).bytes, original.bytes)).toBe(0);
      }
    }
    cache.close();
  });

  it('changes the page for all forks, and leaves a kept original what it was', () => {
    const cache = filled();
    const [before, rows] = [counted(cache), cache.decode(0, 1, 'k')];
    const original = cache.exportSide(0, 1, 'k');
    cache.keepOriginal(0, 1, 'k');
    const fork = cache.fork();
    const withFork = fork.usedBytes;
    // As long as nothing has moved, the original has the bytes of the side, which therefore frees none.
    expect(cache.exchangeSide(0, 1, 'k', original)).toBe(-bytesOf('q8'));
    cache.transcode(0, 1, 'k', 'trellis2');
    const low = cache.exportSide(0, 1, 'k');
    expect(fork.exchangeSide(0, 1, 'k', original)).toBe(bytesOf('trellis2') - bytesOf('q8'));
    expect(cache.format(0, 1, 'k')).toBe('q8');
    expect(cache.trialOriginal(0, 1, 'k')).toBe(0);
    expect(cache.exchangeSide(0, 1, 'k', low)).toBe(bytesOf('q8') - bytesOf('trellis2'));
    expect(cache.trialOriginal(0, 1, 'k')).toBeGreaterThan(0);
    expect(cache.restoreOriginal(0, 1, 'k')).toBe(bytesOf('trellis2'));
    expect(sameBits(fork.decode(0, 1, 'k'), rows)).toBe(true);
    expect([fork.usedBytes, fork.auditBytes()]).toEqual([withFork, withFork]);
    cache.close();
    expect(counted(fork)).toBeLessThan(before);
    fork.close();
  });

  it('is put back within the budget or not at all', () => {
    const cache = filled();
    const original = cache.exportSide(0, 0, 'v');
    cache.transcode(0, 0, 'v', 'trellis2');
    const [low, used] = [cache.decode(0, 0, 'v'), counted(cache)];
    const more = bytesOf('q8') - bytesOf('trellis2');
    cache.setBudget(used + more - 1);
    expect(codeOf(() => cache.exchangeSide(0, 0, 'v', original))).toBe('budget-exceeded');
    expect([counted(cache), sameBits(cache.decode(0, 0, 'v'), low)]).toEqual([used, true]);
    cache.setBudget(used + more);
    expect(cache.exchangeSide(0, 0, 'v', original)).toBe(-more);
    expect([counted(cache), cache.roomBytes]).toEqual([used + more, 0]);
    cache.close();
  });

  it('is refused by name: lengths, formats, numbers that are none, moves, latents, pages that are not there', () => {
    const cache = filled();
    const stored = cache.exportSide(0, 1, 'v');
    const exchange = (given: StoredSide, page = 1): string => codeOf(() => cache.exchangeSide(0, page, 'v', given));
    const before = cache.decode(0, 1, 'v');
    for (const bytes of [stored.bytes.subarray(1), new Uint8Array(0), new Uint8Array(stored.bytes.length + 64)]) {
      expect(exchange({ ...stored, bytes })).toBe('bad-shape');
    }
    expect(exchange({ ...stored, format: 'trellis4' })).toBe('bad-shape');
    expect(exchange({ ...stored, format: 'f7' as FormatName })).toBe('unsupported');
    expect(exchange({ ...stored, bytes: [...stored.bytes] as unknown as Uint8Array })).toBe('bad-argument');
    expect(exchange(null as unknown as StoredSide)).toBe('bad-argument');
    expect(exchange({ format: 'f16', bytes: new Uint8Array(bytesOf('f16')).fill(255) })).toBe('bad-value');
    expect(exchange({ format: 'q8', bytes: new Uint8Array(bytesOf('q8')).fill(255) })).toBe('bad-value');
    expect(exchange(stored, 9)).toBe('bad-argument');
    expect(codeOf(() => cache.exportSide(0, 9, 'v'))).toBe('bad-argument');
    expect(codeOf(() => cache.exportSide(0, 1, 'kv' as 'k'))).toBe('bad-argument');
    expect(sameBits(cache.decode(0, 1, 'v'), before)).toBe(true);
    cache.startMove(0, 1, 'v', 'rot4');
    expect(exchange(stored)).toBe('unsupported');
    cache.finishMoves(true);
    expect(cache.exchangeSide(0, 1, 'v', stored)).toBe(bytesOf('rot4') - bytesOf('q8'));
    const width = 64;
    const random = uniform(3);
    const [wk, wv] = [normals(random, ROW * width), normals(random, ROW * width)];
    cache.setLatentWeights(0, { width, wk, wv });
    cache.holdLatent(0, 1, 'xq8', encodeLatent('xq8', normals(random, 128 * width), width, 0));
    expect(exchange(stored)).toBe('unsupported');
    expect(codeOf(() => cache.exportSide(0, 1, 'v'))).toBe('unsupported');
    expect(counted(cache)).toBe(cache.usedBytes);
    cache.close();
  });
});

describe('the mass of the sinks', () => {
  /** What queries give to the first four tokens: 1 less what they give to all others, seen in a cache of values. */
  it('is what of the first page went to tokens 0 to 3', () => {
    const random = uniform(11);
    const [tokens, heads, d] = [300, 2, 64];
    const keys = normals(random, tokens * heads * d);
    // Values are 1 for the sinks and 0 for everything else, so the output of a head is the share of the sinks.
    const values = new Float32Array(tokens * heads * d).fill(1, 0, 4 * heads * d);
    for (const openFormat of ['q8', 'f16'] as const) {
      const cache = openKvCache({ shape, pool: openPool(2 ** 30), openFormat });
      cache.append(0, keys, values);
      const q = normals(uniform(13), 20 * 256);
      const out = new Float32Array(q.length);
      cache.attend(0, q, out, {});
      const share = Array.from({ length: 20 * 4 }, (_, i) => out[i * d]!).reduce((sum, x) => sum + x, 0);
      const { sinkMass, mass } = cache.table(0);
      expect(sinkMass).toBeCloseTo(share, 4);
      expect(mass[0]!).toBeGreaterThan(sinkMass);
      expect(mass.reduce((sum, x) => sum + x, 0)).toBeCloseTo(80, 3);
      const fork = cache.fork();
      expect(fork.table(0).sinkMass).toBe(sinkMass);
      cache.attend(0, q, out, { observe: false });
      expect(cache.table(0).sinkMass).toBe(sinkMass);
      cache.truncate(0);
      expect([cache.table(0).sinkMass, fork.table(0).sinkMass]).toEqual([0, sinkMass]);
      cache.close();
      fork.close();
    }
  });

  it('is counted over the ranges of a long history as over one, and not while the page is in f16', () => {
    const random = uniform(17);
    const rows = normals(random, 128 * 70 * 64);
    const q = normals(random, 64);
    // Of what the first page receives, its sinks have the same part, however much follows.
    const parts = [70, 2].map((pages) => {
      const one = { layers: 1, queryHeads: 1, kvHeads: 1, headDim: 64 };
      const cache = openKvCache({ shape: one, pool: openPool(2 ** 30), openFormat: 'q8', threads: 2 });
      cache.append(0, rows.subarray(0, 128 * pages * 64), rows.subarray(0, 128 * pages * 64));
      cache.attend(0, q, new Float32Array(64), {});
      const { mass, sinkMass } = cache.table(0);
      expect(mass.reduce((sum, x) => sum + x, 0)).toBeCloseTo(1, 5);
      cache.close();
      return sinkMass / mass[0]!;
    });
    expect(parts[0]!).toBeGreaterThan(0);
    expect(parts[0]! / parts[1]!).toBeCloseTo(1, 4);
    const exact = filled('f16');
    expect([exact.table(0).sinkMass, filled().table(0).sinkMass > 0]).toEqual([0, true]);
    exact.close();
  });
});
