/**
 * A kept original is the earlier form of a page side, to the bit: what it costs, seen in bytes; what a trial against it
 * says, beside the trial that was made when the side moved; putting it back; forks, latents, stored pages and moves
 * under way.
 */
import { describe, expect, it } from 'vitest';
import {
  encodeLatent,
  type KvCache,
  latentBytes,
  openKvCache,
  openPool,
  pageBytes,
  SIDES,
} from '../../../native/index.ts';
import { normals, sameBits, uniform } from '../../native/dense.ts';
import { codeOf } from '../../refusal.ts';

const shape = { layers: 1, queryHeads: 4, kvHeads: 2, headDim: 64 };
const ROW = 128;
const Q8 = pageBytes('q8', 2, 64);
const ROT4 = pageBytes('rot4', 2, 64);
const ROT2 = pageBytes('rot2', 2, 64);

function filled(budgetBytes?: number): KvCache {
  const cache = openKvCache({ shape, pool: openPool(2 ** 30), ...(budgetBytes === undefined ? {} : { budgetBytes }) });
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

describe('a kept original', () => {
  it('takes bytes only once the side has moved, and comes back to the bit', () => {
    for (const side of SIDES) {
      const cache = filled();
      const before = counted(cache);
      const rows = cache.decode(0, 1, side);
      expect(cache.originalFormat(0, 1, side)).toBeNull();
      cache.keepOriginal(0, 1, side);
      expect([counted(cache), cache.originalFormat(0, 1, side)]).toEqual([before, 'q8']);
      expect(cache.transcode(0, 1, side, 'rot4')).toBe(-ROT4);
      // From rot4 to rot2 nothing of the original is in play: the move frees what it always frees.
      expect(cache.transcode(0, 1, side, 'rot2')).toBe(ROT4 - ROT2);
      expect(counted(cache)).toBe(before + ROT2);
      expect(cache.restoreOriginal(0, 1, side)).toBe(ROT2);
      expect([counted(cache), cache.format(0, 1, side), cache.originalFormat(0, 1, side)]).toEqual([
        before,
        'q8',
        null,
      ]);
      expect(sameBits(cache.decode(0, 1, side), rows)).toBe(true);
      // A form that shares planes with what the side becomes costs only what it does not share.
      cache.transcode(0, 1, side, 'rot4');
      cache.keepOriginal(0, 1, side);
      const coded = counted(cache);
      cache.transcode(0, 1, side, 'rot2');
      expect(counted(cache) - coded).toBeLessThan(ROT2);
      cache.dropOriginal(0, 1, side);
      expect(counted(cache)).toBe(before - Q8 + ROT2);
      cache.close();
    }
  });

  it('is what a trial of the present form is measured against', () => {
    const cache = filled();
    for (const side of SIDES) {
      const promised = cache.trial(0, 1, [{ side, format: 'rot2' }])[0]!;
      cache.keepOriginal(0, 1, side);
      expect(cache.trialOriginal(0, 1, side)).toBe(0);
      cache.transcode(0, 1, side, 'rot2');
      const now = cache.trialOriginal(0, 1, side);
      // The same queries: the two trials differ in which of the two forms the divisor contains.
      expect(now / promised).toBeGreaterThan(0.9);
      expect(now / promised).toBeLessThan(1.1);
      cache.restoreOriginal(0, 1, side);
    }
    cache.close();
  });

  it('belongs to the page: forks share it, a latent ends it, stored bytes leave it out', () => {
    const cache = filled();
    const stored = cache.exportPage(0, 0);
    cache.keepOriginal(0, 0, 'k');
    cache.transcode(0, 0, 'k', 'rot4');
    cache.transcode(0, 0, 'v', 'rot4');
    expect(cache.exportPage(0, 0).length).toBeLessThan(stored.length);
    const fork = cache.fork();
    expect(fork.originalFormat(0, 0, 'k')).toBe('q8');
    cache.close();
    expect(fork.auditBytes()).toBe(fork.usedBytes);
    const width = 64;
    const random = uniform(3);
    const [wk, wv] = [normals(random, ROW * width), normals(random, ROW * width)];
    fork.setLatentWeights(0, { width, wk, wv });
    const bytes = encodeLatent('xq8', normals(random, 128 * width), width, 4);
    expect(fork.holdLatent(0, 0, 'xq8', bytes)).toBe(2 * ROT4 + Q8 - latentBytes('xq8', width));
    expect(fork.originalFormat(0, 0, 'k')).toBeNull();
    fork.close();
  });

  it('is refused by name: twice, under way, without one, without room', () => {
    const cache = filled();
    expect(codeOf(() => cache.dropOriginal(0, 0, 'v'))).toBe('unsupported');
    expect(codeOf(() => cache.restoreOriginal(0, 0, 'v'))).toBe('unsupported');
    expect(codeOf(() => cache.trialOriginal(0, 0, 'v'))).toBe('unsupported');
    cache.keepOriginal(0, 0, 'v');
    expect(codeOf(() => cache.keepOriginal(0, 0, 'v'))).toBe('unsupported');
    cache.startMove(0, 0, 'v', 'rot4');
    expect(codeOf(() => cache.restoreOriginal(0, 0, 'v'))).toBe('unsupported');
    cache.finishMoves(true);
    expect(cache.restoreOriginal(0, 0, 'v')).toBe(ROT4);
    expect(codeOf(() => cache.keepOriginal(0, 9, 'v'))).toBe('bad-argument');
    const full = cache.usedBytes;
    cache.setBudget(full);
    cache.keepOriginal(0, 0, 'v');
    expect(codeOf(() => cache.transcode(0, 0, 'v', 'rot4'))).toBe('budget-exceeded');
    cache.dropOriginal(0, 0, 'v');
    expect(cache.transcode(0, 0, 'v', 'rot4')).toBe(Q8 - ROT4);
    cache.close();
  });
});
