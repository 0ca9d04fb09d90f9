/**
 * Whether latents are still what they were: one that is held is compared at every look, one that waits beside keys and
 * values when it takes their place, and a lower one that is made of damaged codes is damaged.
 */
import { describe, expect, it } from 'vitest';
import { PageDigests } from '../../../../engine/cache/page-digests.ts';
import { encodeLatent, type KvCache, openKvCache, openPool, PAGE_TOKENS } from '../../../../native/index.ts';
import { normals, uniform } from '../../../native/dense.ts';

const WIDTH = 96;
const ROW = 128;
const shape = { layers: 1, queryHeads: 4, kvHeads: 2, headDim: 64 };
const latent = (seed: number): Uint8Array => encodeLatent('xq8', normals(uniform(seed), PAGE_TOKENS * WIDTH), WIDTH);
const ofPage = (page: number) => [{ layer: 0, page, side: 'kv' }];

/** Three sealed pages, of which the second has a latent beside it. */
function filled(): { readonly cache: KvCache; readonly digests: PageDigests } {
  const cache = openKvCache({ shape, pool: openPool(2 ** 30) });
  const random = uniform(7);
  const weights = (): Float32Array => normals(random, ROW * WIDTH, 0.1);
  cache.setLatentWeights(0, { width: WIDTH, wk: weights(), wv: weights() });
  cache.append(0, normals(random, 400 * ROW), normals(random, 400 * ROW));
  const digests = new PageDigests(cache, 'q8');
  cache.keepLatent(0, 1, 'xq8', latent(1));
  digests.after(0, 1, 'kv');
  return { cache, digests };
}

function replaced(cache: KvCache): void {
  cache.dropLatent(0, 1);
  cache.keepLatent(0, 1, 'xq8', latent(2));
}

const found = (digests: PageDigests): readonly unknown[] => {
  digests.check();
  return digests.take();
};

describe('a latent', () => {
  it('that is held and changes is found once', () => {
    const { cache, digests } = filled();
    cache.toLatent(0, 1, 'xq8');
    digests.after(0, 1, 'kv');
    expect(found(digests)).toEqual([]);
    cache.restore(0, 1, 'q8', { keepLatent: false });
    cache.holdLatent(0, 1, 'xq8', latent(2));
    expect(digests.isSound(0, 1, 'kv')).toBe(false);
    expect(found(digests)).toEqual(ofPage(1));
    expect(found(digests)).toEqual([]);
    cache.toLatent(0, 1, 'xq4');
    digests.after(0, 1, 'kv', digests.isSound(0, 1, 'kv'));
    expect(found(digests)).toEqual([]);
  });

  it.each(['xq8', 'xq4'] as const)('that waits and changes is found when its page is held as %s', (name) => {
    const { cache, digests } = filled();
    expect(found(digests)).toEqual([]);
    replaced(cache);
    expect(found(digests)).toEqual([]);
    const isSound = digests.isSound(0, 1, 'kv');
    expect(isSound).toBe(false);
    cache.toLatent(0, 1, name);
    digests.after(0, 1, 'kv', isSound);
    expect(found(digests)).toEqual(ofPage(1));
    expect(found(digests)).toEqual([]);
  });

  it('that is gone or of a page that is gone is not missed', () => {
    const { cache, digests } = filled();
    cache.dropLatent(0, 1);
    expect(found(digests)).toEqual([]);
    cache.keepLatent(0, 1, 'xq8', latent(2));
    expect(found(digests)).toEqual([]);
    cache.truncate(128);
    digests.cut(1);
    expect(found(digests)).toEqual([]);
  });
});
