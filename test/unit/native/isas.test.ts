/**
 * Attention over coded pages gives the same bits on every instruction set, whichever way its kernels go: codes met in
 * registers or as a tile, one row or many, every head size and group. The one open token has a key of zeros, because
 * f16 dots alone may differ by rounding.
 */
import { afterAll, describe, expect, it } from 'vitest';
import { type FormatName, type Isa, nativeInfo, openKvCache, openPool, setIsa } from '../../../native/index.ts';
import { normals, uniform } from '../../native/dense.ts';
import { isShare } from '../../tier.ts';

const { isa: best, available } = nativeInfo();
afterAll(() => setIsa(best));

const TOKENS = 257;
const KV_HEADS = 2;
const PAIRS: readonly (readonly [FormatName, FormatName])[] = [
  ['rot4', 'rot2'],
  ['rot3', 'rot3'],
  ['rot2', 'q8'],
  ['q8', 'rot4'],
  ['trellis4', 'trellis1'],
  ['trellis3', 'trellis2'],
  ['trellis2', 'trellis3'],
];

/** Outputs of every pair of formats for one query and for five, on one instruction set. */
function outputsOn(isa: Isa, headDim: number, group: number): Float32Array[] {
  setIsa(isa);
  const shape = { layers: 1, queryHeads: KV_HEADS * group, kvHeads: KV_HEADS, headDim };
  const random = uniform(headDim + group);
  const row = KV_HEADS * headDim;
  const k = normals(random, TOKENS * row).fill(0, (TOKENS - 1) * row);
  const v = normals(random, TOKENS * row);
  const q = normals(random, 5 * shape.queryHeads * headDim);
  return PAIRS.flatMap(([keys, values]) => {
    const cache = openKvCache({ shape, pool: openPool(8_000_000) });
    cache.append(0, k, v);
    for (let page = 0; page < 2; page++) {
      cache.transcode(0, page, 'k', keys);
      cache.transcode(0, page, 'v', values);
    }
    // A query sees no more than its own position, so five of them also meet tokens that are masked.
    const outputs = [1, 5].map((count) => {
      const some = q.subarray(0, count * shape.queryHeads * headDim);
      const out = new Float32Array(some.length);
      cache.attend(0, some, out);
      return out;
    });
    cache.close();
    return outputs;
  });
}

describe('the bits of attention over coded pages', () => {
  for (const headDim of [64, 80, 96, 128, 256]) {
    it(`are those of scalar code on ${available.filter((isa) => isa !== 'scalar').join(', ')}: head size ${headDim}`, () => {
      for (const group of [1, 2, 3, 4, 5, 6, 7, 8].filter((group) => isShare(group + headDim / 16, 4))) {
        const expected = outputsOn('scalar', headDim, group);
        for (const isa of available) {
          outputsOn(isa, headDim, group).forEach((out, i) => {
            const differs = out.findIndex((x, at) => !Object.is(x, expected[i]![at]));
            expect({ isa, group, case: i, differs }).toEqual({ isa, group, case: i, differs: -1 });
          });
        }
      }
    });
  }
});
