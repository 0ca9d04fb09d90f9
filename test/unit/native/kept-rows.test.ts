/**
 * Kept rows of a page side: they are what the window had, in 8 bits; what they take is counted and given back in every
 * way a page can go; and what a trial on them says is what attention over those rows alone says, computed here.
 */
import { describe, expect, it } from 'vitest';
import {
  encodeLatent,
  type KvCache,
  openKvCache,
  openPool,
  type RowPlace,
  SIDES,
  type Side,
} from '../../../native/index.ts';
import { normals, uniform } from '../../native/dense.ts';
import { codeOf } from '../../refusal.ts';

const shape = { layers: 1, queryHeads: 4, kvHeads: 2, headDim: 64 };
const ROW = 128;
const TOKENS = 400;
const PLACES: readonly RowPlace[] = [
  { head: 0, token: 7 },
  { head: 0, token: 100 },
  { head: 1, token: 4 },
  { head: 1, token: 5 },
  { head: 1, token: 127 },
];

interface Filled {
  readonly cache: KvCache;
  /** The last queries, and what they got. */
  readonly q: Float32Array;
  readonly out: Float32Array;
}

function filled(windowFormat: 'q8' | 'f16' = 'q8'): Filled {
  const cache = openKvCache({ shape, pool: openPool(2 ** 30), windowFormat });
  const random = uniform(7);
  cache.append(0, normals(random, TOKENS * ROW), normals(random, TOKENS * ROW));
  const q = normals(random, 140 * 256);
  const out = new Float32Array(q.length);
  cache.attend(0, q, out, {});
  return { cache, q, out };
}

const counted = (cache: KvCache): number => {
  expect(cache.auditBytes()).toBe(cache.usedBytes);
  expect(cache.memory().totalBytes).toBe(cache.usedBytes);
  return cache.usedBytes;
};

/** Softmax attention of the kept queries over all tokens, rows of one page replaced: the mean of |o' - o| / |o|. */
function computed({ cache, q }: Filled, side: Side, page: number, was: Float32Array): number {
  const decoded = { k: [] as Float32Array[], v: [] as Float32Array[] };
  for (let at = 0; at <= 3; at++) for (const each of SIDES) decoded[each].push(cache.decode(0, at, each));
  const row = (each: Side, token: number, head: number): Float32Array =>
    decoded[each][token >> 7]!.subarray((token & 127) * ROW + head * 64, (token & 127) * ROW + head * 64 + 64);
  const isKept = (token: number, head: number): boolean =>
    token >> 7 === page && PLACES.some((place) => place.head === head && place.token === (token & 127));
  const attend = (asked: number, swapped: boolean): Float64Array => {
    const out = new Float64Array(256);
    const position = TOKENS - 140 + asked;
    for (let head = 0; head < 4; head++) {
      const query = q.subarray(asked * 256 + head * 64, asked * 256 + head * 64 + 64);
      const of = (each: Side, token: number): Float32Array => {
        const kv = head >> 1;
        if (!(swapped && each === side && isKept(token, kv))) return row(each, token, kv);
        return was.subarray((token & 127) * ROW + kv * 64, (token & 127) * ROW + kv * 64 + 64);
      };
      const weights = Array.from({ length: position + 1 }, (_, token) =>
        Math.exp(of('k', token).reduce((sum, x, c) => sum + x * query[c]!, 0) / 8),
      );
      const all = weights.reduce((sum, weight) => sum + weight, 0);
      for (const [token, weight] of weights.entries())
        for (const [c, x] of of('v', token).entries()) out[head * 64 + c]! += (weight / all) * x;
    }
    return out;
  };
  let [sum, count] = [0, 0];
  for (let asked = 0; asked < 140; asked++) {
    const position = TOKENS - 140 + asked;
    if (position % 8 !== 7 || position <= TOKENS - 129 || position < (page + 1) * 128) continue;
    const [now, then] = [attend(asked, false), attend(asked, true)];
    sum += Math.hypot(...then.map((x, c) => x - now[c]!)) / Math.hypot(...now);
    count++;
  }
  return sum / count;
}

describe('kept rows', () => {
  it.each(SIDES)('say what the form of their side does to them: %s', (side) => {
    for (const windowFormat of ['q8', 'f16'] as const) {
      const all = filled(windowFormat);
      const { cache } = all;
      const was = cache.decode(0, 1, side);
      cache.keepRows(0, 1, side, PLACES);
      // What is in 8 bits already is kept to the bit, and f16 within the rounding of 8 bits.
      const none = cache.trialRows(0, 1, side);
      if (windowFormat === 'q8') expect(none).toBe(0);
      const errors = (['rot4', 'rot2'] as const).map((format) => {
        cache.transcode(0, 1, side, format);
        return cache.trialRows(0, 1, side);
      });
      expect(errors[0]).toBeGreaterThan(5 * none);
      expect(errors[1]).toBeGreaterThan(2 * errors[0]!);
      // Outputs, log-sum-exps and, for f16, kept rows are rounded.
      expect(errors[1]! / computed(all, side, 1, was)).toBeGreaterThan(windowFormat === 'q8' ? 0.9 : 0.85);
      expect(errors[1]! / computed(all, side, 1, was)).toBeLessThan(windowFormat === 'q8' ? 1.1 : 1.15);
      cache.close();
    }
  });

  it('count what they take, and give it back: dropped, truncated, held as a latent, with the last fork', () => {
    const { cache } = filled();
    const before = counted(cache);
    const taken = cache.keepRows(0, 0, 'k', PLACES);
    // Five rows of 64 codes, each with a scale and a place; parts are multiples of 64 bytes.
    expect(taken).toBe(Math.ceil((5 * (64 + 4)) / 64) * 64);
    expect([counted(cache) - before, cache.keptRows(0, 0, 'k'), cache.keptRows(0, 0, 'v')]).toEqual([taken, 5, 0]);
    expect(cache.dropRows(0, 0, 'k')).toBe(taken);
    expect([counted(cache), cache.keptRows(0, 0, 'k')]).toEqual([before, 0]);
    cache.keepRows(0, 2, 'v', PLACES);
    cache.truncate(256);
    cache.append(0, new Float32Array(144 * ROW), new Float32Array(144 * ROW));
    expect([counted(cache), cache.keptRows(0, 2, 'v')]).toEqual([before, 0]);
    // A move leaves them, and stored bytes leave them out.
    const stored = cache.exportPage(0, 0);
    cache.keepRows(0, 0, 'k', PLACES);
    expect(cache.exportPage(0, 0)).toEqual(stored);
    cache.transcode(0, 0, 'k', 'rot2');
    expect(cache.keptRows(0, 0, 'k')).toBe(5);
    const fork = cache.fork();
    cache.close();
    expect(fork.keptRows(0, 0, 'k')).toBe(5);
    const coded = counted(fork);
    const random = uniform(3);
    fork.setLatentWeights(0, { width: 64, wk: normals(random, ROW * 64), wv: normals(random, ROW * 64) });
    const freed = fork.holdLatent(0, 0, 'xq8', encodeLatent('xq8', normals(random, 128 * 64), 64, 4));
    expect([coded - counted(fork), fork.keptRows(0, 0, 'k')]).toEqual([freed, 0]);
    fork.close();
  });

  it('stay what they were when other bytes are put in place of their side', () => {
    const { cache } = filled();
    cache.keepRows(0, 1, 'v', PLACES);
    cache.transcode(0, 1, 'v', 'rot4');
    const sound = cache.trialRows(0, 1, 'v');
    cache.transcode(0, 0, 'v', 'rot4');
    // Rows of another page: what a damaged page is.
    cache.exchangeSide(0, 1, 'v', cache.exportSide(0, 0, 'v'));
    expect(cache.trialRows(0, 1, 'v')).toBeGreaterThan(5 * sound);
    cache.close();
  });

  it('and a number of each side says whether its codes are what they were', () => {
    const { cache } = filled();
    cache.transcode(0, 0, 'v', 'rot4');
    cache.transcode(0, 1, 'v', 'rot4');
    const before = cache.sideDigests(0);
    expect(new Set(before.filter((_, at) => at % 3 < 2)).size).toBe(2 * 3);
    expect(before.filter((_, at) => at % 3 === 2)).toEqual(new Float64Array(3).fill(Number.NaN));
    expect(cache.sideDigests(0)).toEqual(before);
    const own = cache.exportSide(0, 1, 'v');
    cache.exchangeSide(0, 1, 'v', cache.exportSide(0, 0, 'v'));
    expect([...cache.sideDigests(0)].flatMap((one, at) => (Object.is(one, before[at]) ? [] : [at]))).toEqual([4]);
    expect(cache.sideDigests(0)[4]).toBe(before[1]);
    cache.exchangeSide(0, 1, 'v', own);
    expect(cache.sideDigests(0)).toEqual(before);
    expect([...cache.sideDigests(0, 1)]).toEqual([...before.slice(3, 6)]);
    expect(codeOf(() => cache.sideDigests(1))).toBe('bad-argument');
    expect(codeOf(() => cache.sideDigests(0, 3))).toBe('bad-argument');
    cache.close();
  });

  it('which is CRC-32C, of parts longer and shorter than what the CPU takes at once', () => {
    for (const headDim of [64, 128, 256]) {
      const shape = { layers: 1, queryHeads: 4, kvHeads: 2, headDim };
      const cache = openKvCache({ shape, pool: openPool(2 ** 30) });
      const random = uniform(headDim);
      const rows = normals(random, 300 * 2 * headDim);
      cache.append(0, rows, rows);
      cache.transcode(0, 0, 'v', 'trellis2');
      const digests = cache.sideDigests(0);
      for (const page of [0, 1])
        for (const [at, side] of SIDES.entries())
          expect(digests[3 * page + at]).toBe(crc32c(cache.exportSide(0, page, side).bytes));
      cache.close();
    }
  });

  it('are refused by name: twice, under way, without any, without room, and places that are none', () => {
    const { cache } = filled();
    expect(codeOf(() => cache.dropRows(0, 0, 'v'))).toBe('unsupported');
    expect(codeOf(() => cache.trialRows(0, 0, 'v'))).toBe('unsupported');
    for (const rows of [
      [],
      [{ head: 0, token: 3 }],
      [{ head: 2, token: 5 }],
      [{ head: 0, token: 128 }],
      [{ head: -1, token: 5 }],
      [{ head: 0, token: 5.5 }],
      [PLACES[1]!, PLACES[0]!],
      [PLACES[1]!, PLACES[1]!],
      Array.from({ length: 129 }, (_, at) => ({ head: at >> 7, token: at & 127 })),
    ])
      expect(codeOf(() => cache.keepRows(0, 0, 'v', rows))).toBe('bad-argument');
    expect(codeOf(() => cache.keepRows(0, 9, 'v', PLACES))).toBe('bad-argument');
    cache.setBudget(cache.usedBytes);
    expect(codeOf(() => cache.keepRows(0, 0, 'v', PLACES))).toBe('budget-exceeded');
    cache.setBudget(2 ** 30);
    cache.startMove(0, 0, 'v', 'rot4');
    expect(codeOf(() => cache.keepRows(0, 0, 'v', PLACES))).toBe('unsupported');
    cache.finishMoves(true);
    cache.keepRows(0, 0, 'v', PLACES);
    expect(codeOf(() => cache.keepRows(0, 0, 'v', PLACES))).toBe('unsupported');
    cache.close();
  });
});

/** CRC-32C (RFC 3720), bit by bit. */
function crc32c(bytes: Uint8Array): number {
  let crc = -1;
  for (const byte of bytes) {
    crc ^= byte;
    for (let bit = 0; bit < 8; bit++) crc = (crc >>> 1) ^ ((crc & 1) === 1 ? 0x82f63b78 : 0);
  }
  return ~crc >>> 0;
}
