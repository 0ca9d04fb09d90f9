/**
 * Attention over pages in the codec of a pack is what float64 makes of the decoded rows; where there is no room, pages
 * go to the least that a session allows, whether they are in the pack or have left it.
 */
import { describe, expect, it } from 'vitest';
import { PackPages } from '../../../../engine/cache/pack-pages.ts';
import { type KvCache, openKvCache, openPool } from '../../../../native/index.ts';
import { denseAttention, history, normals, relativeError, uniform } from '../../../native/dense.ts';
import { coarse, packOf } from './pack-codecs.ts';

const LOWEST = { k: 'trellis2', v: 'trellis1' } as const;

describe('attention over pages in a pack', () => {
  const shapes = [
    { layers: 1, queryHeads: 4, kvHeads: 4, headDim: 64, window: null, scoreCap: null, slopes: null, scale: 0.125 },
    { layers: 1, queryHeads: 8, kvHeads: 2, headDim: 128, window: 330, scoreCap: 4, slopes: null, scale: 0.2 },
    {
      layers: 1,
      queryHeads: 4,
      kvHeads: 2,
      headDim: 64,
      window: null,
      scoreCap: 6,
      slopes: [1, 0.25, 0.1, 0.01],
      scale: 0.1,
    },
  ];
  it.each(shapes)('is what float64 makes of the decoded rows ($queryHeads:$kvHeads of $headDim)', (one) => {
    const { window, scoreCap, slopes, scale, ...shape } = one;
    const attention = {
      ...{ slidingWindow: [window], scale },
      ...(scoreCap !== null && { scoreCap }),
      ...(slopes !== null && { alibiSlopes: Float32Array.from(slopes) }),
    };
    const random = uniform(3);
    const row = shape.kvHeads * shape.headDim;
    const kv: KvCache = openKvCache({ shape, pool: openPool(2 ** 28), windowFormat: 'f16', ...attention });
    kv.append(0, normals(random, 600 * row), normals(random, 600 * row));
    const pack = packOf('coarse', 'a', () => coarse());
    const packs = new PackPages({
      pack,
      kv,
      attention,
      lowest: LOWEST,
      mayGoBack: () => false,
      isShared: () => false,
      onLeft: () => {},
    });
    const [k, v] = [history(kv, 0, 'k'), history(kv, 0, 'v')];
    const codec = coarse();
    const dense = { window, scoreCap, scale, ...(slopes !== null && { slopes: Float32Array.from(slopes) }) };
    for (const page of [0, 1, 3]) {
      packs.hold(0, page);
      for (const rows of [k, v]) decodedInto(codec, rows.subarray(page * 128 * row), page, shape);
    }
    for (const tokens of [1, 37]) {
      const q = normals(uniform(5), tokens * shape.queryHeads * shape.headDim);
      const [out, lse, mixed] = [new Float32Array(q.length), new Float32Array(tokens * shape.queryHeads), q.slice()];
      expect(packs.beside(0, q, 600 - tokens, lse, mixed)).toBe(true);
      kv.attend(0, q, out, { beside: { lse, out: mixed } });
      expect(relativeError(out, denseAttention(shape, q, k, v, dense).out)).toBeLessThan(1e-5);
    }
    packs.close();
  });

  /** Rows of a page become what a codec makes of them; the sinks stay. */
  function decodedInto(
    codec: ReturnType<typeof coarse>,
    rows: Float32Array,
    page: number,
    { kvHeads, headDim }: { kvHeads: number; headDim: number },
  ): void {
    for (let head = 0; head < kvHeads; head++) {
      const at = (t: number): number => (t * kvHeads + head) * headDim;
      const x = new Float32Array(128 * headDim);
      for (let t = 0; t < 128; t++) x.set(rows.subarray(at(t), at(t) + headDim), t * headDim);
      const back = codec.decode(codec.encode(x, 128, headDim), 128, headDim);
      for (let t = page === 0 ? 4 : 0; t < 128; t++) rows.set(back.subarray(t * headDim, (t + 1) * headDim), at(t));
    }
  }
});

describe('pages that give back room', () => {
  const shape = { layers: 2, queryHeads: 2, kvHeads: 2, headDim: 64 };
  function held(): { kv: KvCache; packs: PackPages; left: string[] } {
    const random = uniform(7);
    const kv: KvCache = openKvCache({ shape, pool: openPool(2 ** 28), windowFormat: 'f16' });
    for (const layer of [0, 1]) kv.append(layer, normals(random, 600 * 128), normals(random, 600 * 128));
    const left: string[] = [];
    const options = { pack: packOf('coarse', 'a', () => coarse()), kv, attention: {}, lowest: LOWEST };
    const onLeft = (why: string, pages: number): void => void left.push(`${why} ${pages}`);
    const packs = new PackPages({ ...options, mayGoBack: () => false, isShared: () => false, onLeft });
    for (const layer of [0, 1]) for (const page of [1, 2]) packs.hold(layer, page);
    return { kv, packs, left };
  }
  const formats = (kv: KvCache, layer: number, page: number): string =>
    (['k', 'v'] as const).map((side) => kv.format(layer, page, side)).join(':');

  it('the oldest first, keys and values each as far down as the session allows', () => {
    const { kv, packs, left } = held();
    expect(packs.lowerable).toBe(4);
    packs.giveBack(() => packs.count <= 2);
    expect([0, 1].map((layer) => formats(kv, layer, 1))).toEqual(['trellis2:trellis1', 'trellis2:trellis1']);
    expect(packs.lowerable).toBe(2);
    packs.giveBack(() => false);
    expect([packs.count, packs.lowerable]).toEqual([0, 0]);
    expect(left).toEqual(['room 2', 'room 2']);
    expect(kv.auditBytes()).toBe(kv.usedBytes);
    packs.close();
  });

  it('those that left the pack for a finer format too', () => {
    const { kv, packs } = held();
    packs.leave();
    expect(formats(kv, 0, 1)).not.toBe('trellis2:trellis1');
    expect([packs.count, packs.lowerable]).toEqual([0, 4]);
    const before = kv.usedBytes;
    packs.giveBack(() => kv.usedBytes < before);
    expect(packs.lowerable).toBe(2);
    packs.giveBack(() => false);
    expect(packs.lowerable).toBe(0);
    expect([1, 2].map((page) => formats(kv, 1, page))).toEqual(['trellis2:trellis1', 'trellis2:trellis1']);
    packs.close();
  });
});
