// A cache that holds pages as latents answers like dense attention over what those pages decode to, whatever else is in
// it: with room for all blocks, for some, for none; on every instruction set; with biases, key norm and both rotary
// layouts; in forks; after pages were restored.

import { afterAll, describe, expect, test } from 'vitest';
import {
  encodeLatent,
  type FormatName,
  type KvCache,
  LATENT_NAMES,
  type LatentName,
  latentBytes,
  nativeInfo,
  openKvCache,
  openPool,
  PAGE_TOKENS,
  pageBytes,
  rope,
  setIsa,
} from '../../native/index.ts';
import { CODED_TOLERANCE, denseOf, relativeError } from '../native/dense.ts';
import { gaussian } from '../native/rows.ts';
import { seeded } from '../random.ts';
import { codeOf } from '../refusal.ts';

const SEED = 60_317;
const { available, isa: best } = nativeInfo();
afterAll(() => setIsa(best));

interface World {
  readonly cache: KvCache;
  readonly x: Float32Array;
  readonly width: number;
  readonly tokens: number;
  /** Keys and values of every token as they were appended. */
  readonly k: Float32Array;
  readonly v: Float32Array;
  close(): void;
}

const WIDTH = 128;
const SHAPE = { layers: 2, queryHeads: 4, kvHeads: 2, headDim: 64 };

function world(
  tokens: number,
  isInterleaved: boolean,
  latentScratchBytes: number,
  { threads = 1, window = null }: { threads?: number; window?: number | null } = {},
): World {
  const random = seeded(SEED);
  const normals = (count: number, size = 1): Float32Array =>
    Float32Array.from({ length: count }, () => size * gaussian(random));
  const { kvHeads, headDim } = SHAPE;
  const row = kvHeads * headDim;
  const x = normals(tokens * WIDTH);
  for (let i = 0; i < x.length; i++) x[i]! += i % WIDTH === 5 ? 4 : 0;
  const wk = normals(row * WIDTH, 1 / Math.sqrt(WIDTH));
  const wv = normals(row * WIDTH, 1 / Math.sqrt(WIDTH));
  const kBias = normals(row);
  const vBias = normals(row);
  const kNorm = { gains: normals(headDim).map((g) => 1 + 0.1 * g), epsilon: 1e-6 };
  const rotaryDim = headDim;
  const angle = (i: number): number => Math.floor(i / (rotaryDim / 2)) * 10_000 ** (-((2 * i) % rotaryDim) / rotaryDim);
  const cos = Float32Array.from({ length: (tokens * rotaryDim) / 2 }, (_, i) => Math.cos(angle(i)));
  const sin = cos.map((_, i) => Math.sin(angle(i)));
  const k = new Float32Array(tokens * row);
  const v = new Float32Array(tokens * row);
  for (let t = 0; t < tokens; t++) {
    for (let o = 0; o < row; o++) {
      let key = kBias[o]!;
      let value = vBias[o]!;
      for (let c = 0; c < WIDTH; c++) {
        key += x[t * WIDTH + c]! * wk[o * WIDTH + c]!;
        value += x[t * WIDTH + c]! * wv[o * WIDTH + c]!;
      }
      k[t * row + o] = key;
      v[t * row + o] = value;
    }
    for (let head = 0; head < kvHeads; head++) {
      const key = k.subarray(t * row + head * headDim, t * row + (head + 1) * headDim);
      const square = key.reduce((sum, value) => sum + value * value, 0) / headDim;
      for (let c = 0; c < headDim; c++) key[c] = (key[c]! / Math.sqrt(square + kNorm.epsilon)) * kNorm.gains[c]!;
    }
  }
  rope(k, tokens, kvHeads, headDim, rotaryDim, cos, sin, isInterleaved);
  const pool = openPool(2 ** 26);
  const cache = openKvCache({
    shape: SHAPE,
    pool,
    windowFormat: 'f16',
    latentScratchBytes,
    threads,
    slidingWindow: [window, window],
  });
  cache.setRotary({ cos, sin, rotaryDim, interleaved: isInterleaved });
  for (let layer = 0; layer < SHAPE.layers; layer++) {
    cache.append(layer, k, v);
    cache.setLatentWeights(layer, { width: WIDTH, wk, wv, kBias, vBias, kNorm });
  }
  return {
    cache,
    x,
    width: WIDTH,
    tokens,
    k,
    v,
    close() {
      cache.close();
      expect(pool.usedBytes).toBe(0);
      pool.close();
    },
  };
}

const latentOf = ({ x, width }: World, page: number, format: LatentName): Uint8Array =>
  encodeLatent(
    format,
    x.subarray(page * PAGE_TOKENS * width, (page + 1) * PAGE_TOKENS * width),
    width,
    page === 0 ? 4 : 0,
  );

const dense = (cache: KvCache, layer: number, q: Float32Array, window: number | null = null): Float64Array =>
  denseOf(cache, layer, q, { window }).out;

const queries = (tokens: number, seed: number): Float32Array => {
  const random = seeded(seed);
  return Float32Array.from({ length: tokens * SHAPE.queryHeads * SHAPE.headDim }, () => gaussian(random));
};
const attend = (cache: KvCache, layer: number, q: Float32Array): Float32Array => {
  const out = new Float32Array(q.length);
  cache.attend(layer, q, out);
  return out;
};
const BLOCK_BYTES = 2 * SHAPE.kvHeads * SHAPE.headDim * PAGE_TOKENS * 2;

describe.each(available)(`%s (seed ${SEED})`, (isa) => {
  test.each([true, false])(
    'recomputed keys and values are those that were appended, up to the code (interleaved %s)',
    (isInterleaved) => {
      setIsa(isa);
      expect(nativeInfo().isa).toBe(isa);
      const it = world(2 * PAGE_TOKENS + 3, isInterleaved, 0);
      const row = SHAPE.kvHeads * SHAPE.headDim;
      for (const [format, most] of [
        ['xq8', 0.02],
        ['xq4', 0.13],
        ['xq3', 0.25],
      ] as const) {
        for (const page of [0, 1]) {
          if (it.cache.table(0).latent[page] !== 0) it.cache.restore(0, page, 'f16');
          it.cache.holdLatent(0, page, format, latentOf(it, page, format));
          for (const side of ['k', 'v'] as const) {
            const source = side === 'k' ? it.k : it.v;
            const expected = source.subarray(page * PAGE_TOKENS * row, (page + 1) * PAGE_TOKENS * row);
            const rows = it.cache.decode(0, page, side);
            // The codes lose 1% (8 bits) or 10% (4 bits) of what is not the mean of the latent rows.
            expect(relativeError(rows, expected)).toBeLessThan(most);
            if (page === 0)
              expect(relativeError(rows.subarray(0, 4 * row), expected.subarray(0, 4 * row))).toBeLessThan(5e-4);
          }
        }
      }
      it.close();
    },
  );

  test('attention over held, coded and open pages is dense attention on decoded values; the room for blocks changes no bit', () => {
    setIsa(isa);
    const results: Float32Array[] = [];
    for (const room of [0, 1, 2, 9]) {
      const it = world(5 * PAGE_TOKENS + 40, false, room * BLOCK_BYTES);
      it.cache.holdLatent(1, 0, 'xq4', latentOf(it, 0, 'xq4'));
      it.cache.holdLatent(1, 2, 'xq8', latentOf(it, 2, 'xq8'));
      it.cache.holdLatent(1, 3, 'xq4', latentOf(it, 3, 'xq4'));
      it.cache.transcode(1, 1, 'k', 'rot4');
      it.cache.transcode(1, 1, 'v', 'q8');
      expect([...it.cache.table(1).latent]).toEqual([2, 0, 1, 2, 0]);
      const before = it.cache.memory().scratchBytes;
      for (const tokens of [1, 7]) {
        const q = queries(tokens, tokens);
        const out = attend(it.cache, 1, q);
        expect(relativeError(out, dense(it.cache, 1, q))).toBeLessThan(CODED_TOLERANCE);
        expect([...attend(it.cache, 1, q)]).toEqual([...out]);
        results.push(out);
      }
      // Blocks stay within what was stated; the rest of the scratch is that of any attention and of one page being
      // recomputed.
      expect(it.cache.memory().scratchBytes - before).toBeLessThanOrEqual(room * BLOCK_BYTES + 600_000);
      it.close();
    }
    for (let i = 2; i < results.length; i++) expect([...results[i]!]).toEqual([...results[i % 2]!]);
  });
});

test('two threads recompute what one does', () => {
  for (const room of [0, 2, 9]) {
    const outputs = [1, 2].map((threads) => {
      const it = world(9 * PAGE_TOKENS + 10, false, room * BLOCK_BYTES, { threads });
      for (const page of [0, 1, 4, 5, 8]) it.cache.holdLatent(0, page, 'xq8', latentOf(it, page, 'xq8'));
      const out = attend(it.cache, 0, queries(130, 5));
      it.close();
      return out;
    });
    expect(relativeError(outputs[1]!, outputs[0]!)).toBeLessThan(1e-5);
  }
});

test('under a sliding window the held pages that nobody sees are not recomputed, and the others count as they should', () => {
  const it = world(6 * PAGE_TOKENS + 9, true, 2 * BLOCK_BYTES, { window: 200 });
  for (const page of [0, 1, 3, 4, 5]) it.cache.holdLatent(0, page, 'xq8', latentOf(it, page, 'xq8'));
  const q = queries(3, 8);
  const out = attend(it.cache, 0, q);
  expect(relativeError(out, dense(it.cache, 0, q, 200))).toBeLessThan(CODED_TOLERANCE);
  // The last 202 tokens reach back into page 4: two blocks, which is all there is room for.
  const scratch = it.cache.memory().scratchBytes;
  expect([...attend(it.cache, 0, q)]).toEqual([...out]);
  expect(it.cache.memory().scratchBytes).toBe(scratch);
  it.close();
});

test('bytes: what is held is what the latent takes, restoring takes what its formats take, the pool agrees at every step', () => {
  const pool = openPool(2 ** 26);
  const it = world(3 * PAGE_TOKENS, false, BLOCK_BYTES);
  const { cache } = it;
  const { kvHeads, headDim } = SHAPE;
  const f16 = 2 * pageBytes('f16', kvHeads, headDim);
  const start = cache.memory().pageBytes;
  expect(cache.holdLatent(0, 1, 'xq4', latentOf(it, 1, 'xq4'))).toBe(f16 - latentBytes('xq4', WIDTH));
  expect(cache.memory().pageBytes).toBe(start - f16 + latentBytes('xq4', WIDTH));
  const fork = cache.fork();
  const q = queries(1, 3);
  const before = attend(fork, 0, q);
  expect(relativeError(before, dense(fork, 0, q))).toBeLessThan(CODED_TOLERANCE);
  // The page is one object: it is restored for both, and its latent goes once.
  expect(cache.restore(0, 1, 'q8')).toBe(latentBytes('xq4', WIDTH) - 2 * pageBytes('q8', kvHeads, headDim));
  for (const one of [cache, fork]) {
    expect([[...one.table(0).kind], [...one.table(0).latent]]).toEqual([
      [0, 0],
      [0, 0],
    ]);
    expect(relativeError(attend(one, 0, q), before)).toBeLessThan(0.02); // q8 of the same rows
  }
  fork.close();
  it.close();
  pool.close();
});

test('a page that lost its values to rot2 has them back, to a hundredth, once it is restored from xq8', () => {
  const it = world(2 * PAGE_TOKENS + 1, false, 0);
  const row = SHAPE.kvHeads * SHAPE.headDim;
  const expected = it.v.subarray(PAGE_TOKENS * row, 2 * PAGE_TOKENS * row);
  it.cache.transcode(0, 1, 'v', 'rot2');
  const coarse = relativeError(it.cache.decode(0, 1, 'v'), expected);
  it.cache.holdLatent(0, 1, 'xq8', latentOf(it, 1, 'xq8'));
  it.cache.restore(0, 1, 'f16');
  expect(relativeError(it.cache.decode(0, 1, 'v'), expected)).toBeLessThan(coarse / 20);
  expect(coarse).toBeGreaterThan(0.2);
  it.close();
});

test('wrong calls end in one KvError and change nothing', () => {
  const it = world(2 * PAGE_TOKENS + 1, false, 0);
  const { cache } = it;
  const latent = latentOf(it, 1, 'xq4');
  const weights = { width: WIDTH, wk: new Float32Array(128 * WIDTH), wv: new Float32Array(128 * WIDTH) };
  const table = { cos: new Float32Array(32), sin: new Float32Array(32), rotaryDim: 64, interleaved: false };
  expect(codeOf(() => cache.holdLatent(0, 2, 'xq4', latent))).toBe('bad-argument'); // the open page
  expect(codeOf(() => cache.holdLatent(2, 0, 'xq4', latent))).toBe('bad-argument');
  expect(codeOf(() => cache.holdLatent(0, 1, 'xq8', latent))).toBe('bad-shape');
  expect(codeOf(() => cache.holdLatent(0, 1, 'xq4', latent.subarray(1)))).toBe('bad-shape');
  expect(codeOf(() => cache.holdLatent(0, 1, 'rot4' as LatentName, latent))).toBe('unsupported');
  expect(codeOf(() => cache.holdLatent(0, 1, 'xq4', [] as unknown as Uint8Array))).toBe('bad-argument');
  expect(codeOf(() => cache.restore(0, 1, 'f16'))).toBe('unsupported'); // not held
  cache.holdLatent(0, 1, 'xq4', latent);
  expect(codeOf(() => cache.holdLatent(0, 1, 'xq4', latent))).toBe('unsupported'); // held already
  expect(codeOf(() => cache.transcode(0, 1, 'k', 'rot2'))).toBe('unsupported');
  expect(codeOf(() => cache.trial(0, 1, [{ side: 'k', format: 'rot2' }]))).toBe('unsupported');
  expect(codeOf(() => cache.restore(0, 1, 'rot9' as FormatName))).toBe('unsupported');
  expect(codeOf(() => cache.setLatentWeights(0, weights))).toBe('unsupported');
  expect(codeOf(() => cache.setRotary(table))).toBe('unsupported');
  expect([...cache.table(0).latent]).toEqual([0, 2]);
  cache.restore(0, 1, 'q8');
  expect(codeOf(() => cache.setLatentWeights(0, { ...weights, width: 72 }))).toBe('unsupported');
  expect(codeOf(() => cache.setLatentWeights(0, { ...weights, wk: new Float32Array(5) }))).toBe('bad-shape');
  expect(codeOf(() => cache.setLatentWeights(0, { ...weights, wv: weights.wv.with(9, Number.NaN) }))).toBe('bad-value');
  expect(
    codeOf(() => cache.setLatentWeights(0, { ...weights, kNorm: { gains: new Float32Array(64), epsilon: -1 } })),
  ).toBe('bad-argument');
  expect(codeOf(() => cache.setRotary({ ...table, rotaryDim: 65 }))).toBe('bad-argument');
  expect(codeOf(() => cache.setRotary({ ...table, sin: new Float32Array(31) }))).toBe('bad-shape');
  cache.setRotary(table); // one position: no page can be recomputed
  expect(codeOf(() => cache.holdLatent(0, 1, 'xq4', latent))).toBe('unsupported');
  expect(codeOf(() => openKvCache({ shape: SHAPE, pool: openPool(2 ** 20), latentScratchBytes: -1 }))).toBe(
    'bad-argument',
  );
  it.close();
  expect(codeOf(() => cache.restore(0, 1, 'f16'))).toBe('closed');
  expect(LATENT_NAMES.length).toBe(3);
});

test('a latent that is kept leaves keys and values where they are; wrong calls about it end in one KvError', () => {
  const it = world(2 * PAGE_TOKENS + 1, false, 0);
  const { cache } = it;
  const latent = latentOf(it, 1, 'xq4');
  expect(codeOf(() => cache.keepLatent(0, 2, 'xq4', latent))).toBe('bad-argument'); // the open page
  expect(codeOf(() => cache.keepLatent(0, 1, 'xq8', latent))).toBe('bad-shape');
  expect(codeOf(() => cache.keepLatent(0, 1, 'rot4' as LatentName, latent))).toBe('unsupported');
  expect(codeOf(() => cache.keepLatent(0, 1, 'xq4', undefined as unknown as Uint8Array))).toBe('bad-argument');
  expect(codeOf(() => cache.restore(0, 1, 'f16'))).toBe('unsupported');
  const rows = cache.decode(0, 1, 'k');
  const bytes = cache.memory().pageBytes;
  cache.keepLatent(0, 1, 'xq4', latent);
  expect([[...cache.table(0).latent], [...cache.table(0).kind]]).toEqual([
    [0, 2],
    [0, 0],
  ]);
  expect(cache.memory().pageBytes).toBe(bytes + latentBytes('xq4', WIDTH));
  expect([...cache.decode(0, 1, 'k')]).toEqual([...rows]);
  expect(codeOf(() => cache.keepLatent(0, 1, 'xq4', latent))).toBe('unsupported'); // it has one
  expect(codeOf(() => cache.holdLatent(0, 1, 'xq4', latent))).toBe('unsupported');
  const weights = { width: WIDTH, wk: new Float32Array(128 * WIDTH), wv: new Float32Array(128 * WIDTH) };
  expect(codeOf(() => cache.setLatentWeights(0, weights))).toBe('unsupported');
  cache.startMove(0, 1, 'k', 'rot4');
  expect(codeOf(() => cache.restore(0, 1, 'f16'))).toBe('unsupported'); // a move is under way
  cache.finishMoves(true);
  expect(codeOf(() => cache.restore(0, 1, 'rot9' as FormatName))).toBe('unsupported');
  cache.restore(0, 1, 'f16');
  expect([...cache.table(0).latent]).toEqual([0, 2]);
  it.close();
  expect(codeOf(() => cache.keepLatent(0, 1, 'xq4', latent))).toBe('closed');
});
