/**
 * Wrong calls of every kind: wrong types, lengths, ids, closed and foreign objects, detached arrays. Through the room's
 * own functions each ends in a KvError; on the bare binding each ends in a status or an exception. Never a crash.
 */
import { Worker } from 'node:worker_threads';
import { afterAll, describe, expect, it } from 'vitest';
import {
  Batch,
  fromHalf,
  type KvCache,
  KvError,
  matmulF64,
  nativeInfo,
  openKvCache,
  openPool,
  PackedPredictor,
  pageBytes,
  rope,
  setIsa,
  toHalf,
} from '../../../native/index.ts';
import { loadBinary } from '../../../native/load.ts';
import { normals, pick, uniform } from '../../native/dense.ts';
import { seedFrom, volume } from '../../tier.ts';

const SEED = seedFrom(4711);
const ROUNDS = volume('misuse rounds');
const shape = { layers: 2, queryHeads: 4, kvHeads: 2, headDim: 64 };
const best = nativeInfo().isa;
afterAll(() => setIsa(best));

function open(): KvCache {
  const cache = openKvCache({ shape, pool: openPool(16_000_000) });
  const rows = normals(uniform(1), 300 * 128);
  cache.append(0, rows, rows);
  cache.attend(0, normals(uniform(2), 20 * 256), new Float32Array(20 * 256));
  return cache;
}

function detached(): Float32Array {
  const array = new Float32Array(256);
  structuredClone(array.buffer, { transfer: [array.buffer] });
  return array;
}

/** One of one layer, whose pages are zeros. */
const side = (width: number, contraction: number) => ({
  weights: new Int8Array(width * contraction),
  scales: new Float32Array(width),
  base: new Float32Array(width),
  factors: new Uint8Array(width).fill(1),
  tables: new Uint8Array(width),
});
const ends = (width: number) => ({ centres: new Float32Array(2 * width), gains: new Float32Array(2 * width) });
const layers = [{ k: side(128, 128), v: side(128, 256), ...ends(128) }];
const shares = new Uint16Array(43).fill(95);
shares[21] = 4096 - 42 * 95;
const predictor = new PackedPredictor({ kvHeads: 2, headDim: 64 }, shares, layers);
afterAll(() => predictor.close());
const turns = { cos: new Float32Array(4096).fill(1), sin: new Float32Array(4096), rotaryDim: 64, interleaved: false };

/** Values that no sane program passes. Sizes stay small: what is asked for is nonsense, not a lot. */
const nonsense: (() => unknown)[] = [
  () => undefined,
  () => null,
  () => Number.NaN,
  () => -1,
  () => 0.5,
  () => 2 ** 31,
  () => 2 ** 53,
  () => Number.POSITIVE_INFINITY,
  () => 0,
  () => 1,
  () => 3,
  () => '1',
  () => 'k',
  () => 'rot4',
  () => true,
  () => 10n,
  () => Symbol('x'),
  () => ({}),
  () => [],
  () => [{ side: 'k', format: 'rot4' }],
  () => [{ side: 'x', format: 'rot4' }],
  () => [{ side: 'v', format: 'f8' }],
  () => [null],
  () => [{ head: 1, token: 5 }],
  () => [{ head: 9, token: 5 }],
  () => [{ head: 0, token: 1 }],
  () => () => 1,
  () => new Float32Array(0),
  () => new Float32Array(1),
  () => new Float32Array(256),
  () => new Float32Array(257),
  () => new Float32Array(128).fill(Number.NaN),
  () => new Float64Array(256),
  () => new Float64Array(1),
  () => new Uint8Array(2),
  () => new Uint8Array([0, 200]),
  () => new Uint16Array(256),
  () => new Int32Array(6),
  () => Int32Array.of(1, 1, 1, 64, 1, 1, 1),
  () => Int32Array.of(-1, 2 ** 31 - 1, 3, 7, 9, 1000, 5),
  () => ({ format: 'rot4', bytes: new Uint8Array(200) }),
  () => ({ format: 'q8', bytes: new Uint8Array(pageBytes('q8', 2, 64)).fill(255) }),
  () => new Uint8Array(pageBytes('q8', 1, 64)),
  () => new DataView(new ArrayBuffer(8)),
  () => new ArrayBuffer(256),
  () => new Float32Array(new SharedArrayBuffer(1024)),
  () => detached(),
  () => openPool(1000),
  () => open(),
  () => Object.create(openPool(1000)),
  () => new Proxy({}, {}),
  () => [{ cache: open(), tokens: 2 }],
  () => [{ cache: open() }, null],
  () => ({ bytes: new Uint8Array(64), records: [], predicted: null }),
  () => ({ bytes: new Uint8Array(64), records: null, predicted: null }),
  () => ({ bytes: new Uint8Array(500), records: [whole, whole], predicted: null }),
  () => ({ bytes: new Uint8Array(500), records: [short, short], predicted: { predictor, rotary: turns } }),
  () => ({ bytes: new Uint8Array(500), records: [short, null], predicted: { predictor: open(), rotary: turns } }),
  () => ({ bytes: new Uint8Array(500), records: [short, { at: 480, length: 21 }], predicted: { predictor } }),
  () => shares,
  () => layers,
  () => layers[0],
];
const whole = { at: 0, length: 500, formats: null };
const short = { at: 3, length: 42, formats: { k: 'rot4', v: 'q8' } };

describe('the face', () => {
  it('answers wrong arguments with a KvError, whichever method and argument (fuzzed)', () => {
    console.log(`seed ${SEED}`);
    const random = uniform(SEED);
    const cache = open();
    const pool = openPool(1_000_000);
    const batch = new Batch();
    batch.begin([{ cache, tokens: 2 }]);
    const targets: [object, string, number][] = [
      ...(
        [
          'length',
          'append',
          'attend',
          'table',
          'trial',
          'setOutputSketch',
          'hasSketch',
          'transcode',
          'startMove',
          'finishMoves',
          'decode',
          'exportPage',
          'exportSide',
          'exchangeSide',
          'freePage',
          'evictPage',
          'holdForeign',
          'foreignBytes',
          'restoreForeign',
          'trialForeign',
          'keepOriginal',
          'originalFormat',
          'dropOriginal',
          'restoreOriginal',
          'trialOriginal',
          'keepRows',
          'keptRows',
          'dropRows',
          'trialRows',
          'sideDigests',
          'importPages',
        ] as const
      ).map((name) => [cache, name, 4] as [object, string, number]),
      [batch, 'begin', 1],
      [batch, 'append', 4],
      [batch, 'attend', 4],
      [pool, 'setBudget', 1],
      [{ openPool }, 'openPool', 1],
      [{ openKvCache }, 'openKvCache', 1],
      [{ rope }, 'rope', 8],
      [{ toHalf }, 'toHalf', 2],
      [{ fromHalf }, 'fromHalf', 2],
      [{ matmulF64 }, 'matmulF64', 4],
      [{ setIsa }, 'setIsa', 1],
      [{ pack: (...given: unknown[]) => new PackedPredictor(...(given as [never, never, never])) }, 'pack', 3],
      [predictor, 'write', 6],
      [predictor, 'setBack', 3],
    ];
    let refused = 0;
    for (let round = 0; round < 4000; round++) {
      const [target, name, arity] = pick(random, targets);
      const given = Array.from({ length: Math.floor(random() * (arity + 1)) }, () => pick(random, nonsense)());
      // A valid layer first makes the deeper checks reachable.
      if (random() < 0.5 && arity === 4) given[0] = 0;
      try {
        (target as Record<string, (...args: unknown[]) => unknown>)[name]!(...given);
      } catch (error) {
        if (!(error instanceof KvError)) throw new Error(`${name} threw ${String(error)}`, { cause: error });
        refused++;
      }
    }
    setIsa(best);
    expect(refused).toBeGreaterThan(2000);
    const out = new Float32Array(256);
    cache.setOutputSketch(0, normals(random, 32 * 256));
    cache.attend(0, normals(random, 256), out);
    expect(out.every(Number.isFinite)).toBe(true);
  });

  it('refuses wrong options of openKvCache one by one, naming the number', () => {
    const pool = openPool(16_000_000);
    const wrong: [object, string][] = [
      [{ shape: { ...shape, layers: 0 } }, 'bad-argument'],
      [{ shape: { ...shape, layers: 1e9 } }, 'bad-argument'],
      [{ shape: { ...shape, queryHeads: 3 } }, 'bad-argument'],
      [{ shape: { ...shape, headDim: 65 } }, 'bad-argument'],
      [{ shape: { ...shape, headDim: 512 } }, 'bad-argument'],
      [{ shape: { ...shape, headDim: 72 } }, 'unsupported'],
      [{ shape: null }, 'bad-argument'],
      [{ pool: {} }, 'bad-argument'],
      [{ windowFormat: 'rot4' }, 'bad-argument'],
      [{ scale: Number.NaN }, 'bad-argument'],
      [{ scale: 1e300 }, 'bad-argument'],
      [{ threads: 0 }, 'bad-argument'],
      [{ threads: 1000 }, 'bad-argument'],
      [{ slidingWindow: [1] }, 'bad-shape'],
      [{ slidingWindow: [0, 1] }, 'bad-argument'],
      [{ alibiSlopes: new Float32Array(3) }, 'bad-shape'],
      [{ scoreCap: 0 }, 'bad-argument'],
      [{ scoreCap: -50 }, 'bad-argument'],
      [{ scoreCap: 1e21 }, 'bad-argument'],
      [{ scoreCap: Number.NaN }, 'bad-argument'],
      [{ scoreCap: '50' }, 'bad-argument'],
      [{ alibiSlopes: new Float32Array(4).fill(Number.NaN) }, 'bad-value'],
    ];
    for (const [change, code] of wrong) {
      let found = 'none';
      try {
        openKvCache({ shape, pool, ...change } as Parameters<typeof openKvCache>[0]);
      } catch (error) {
        found = error instanceof KvError ? error.code : String(error);
      }
      expect([change, found]).toEqual([change, code]);
    }
    expect(pool.usedBytes).toBe(0);
  });

  it('refuses arrays that overlap, norms that are no lengths, and pages that do not exist', () => {
    const cache = open();
    const q = new Float32Array(512);
    const half = q.subarray(0, 256);
    expect(() => cache.attend(0, half, half)).toThrow(/share memory/);
    expect(() => cache.attend(0, half, q.subarray(100, 356))).toThrow(/share memory/);
    const out = new Float32Array(256);
    expect(() => cache.attend(0, half, out, { lse: out.subarray(0, 4) })).toThrow(/share memory/);
    expect(() => cache.attend(0, half, out, { xNorms: Float32Array.of(-1) })).toThrow(/xNorms/);
    expect(() => cache.attend(0, half, out, { xNorms: new Float32Array(2) })).toThrow(/xNorms/);
    for (const bad of [Number.NaN, Number.POSITIVE_INFINITY]) {
      const before = cache.table(0).mass;
      expect(() => cache.attend(0, new Float32Array(256).fill(bad, 7, 8), out)).toThrow(/q holds/);
      expect(cache.table(0).mass).toEqual(before);
    }
    for (const page of [-1, 2, 0.5, Number.NaN]) expect(() => cache.transcode(0, page, 'k', 'rot4')).toThrow(KvError);
    expect(() => cache.decode(0, 3, 'k')).toThrow(KvError);
    expect(() => cache.table(2)).toThrow(/layer must be an integer from 0 to 1/);
  });

  it('refuses every method after close, and a second close', () => {
    const cache = open();
    cache.close();
    const calls: (() => unknown)[] = [
      () => cache.length(),
      () => cache.append(0, new Float32Array(128), new Float32Array(128)),
      () => cache.attend(0, new Float32Array(256), new Float32Array(256)),
      () => cache.table(0),
      () => cache.trial(0, 0, []),
      () => cache.hasSketch(0),
      () => cache.setOutputSketch(0, new Float32Array(32 * 256)),
      () => cache.transcode(0, 0, 'k', 'rot4'),
      () => cache.startMove(0, 0, 'k', 'rot4'),
      () => cache.finishMoves(true),
      () => cache.movesUnderWay,
      () => cache.decode(0, 0, 'k'),
      () => cache.exportPage(0, 0),
      () => cache.exportSide(0, 0, 'k'),
      () => cache.exchangeSide(0, 0, 'k', { format: 'rot4', bytes: new Uint8Array() }),
      () => cache.freePage(0, 0),
      () => cache.evictPage(0, 0),
      () => cache.holdForeign(0, 0, new Uint8Array(1)),
      () => cache.foreignBytes(0, 0),
      () => cache.restoreForeign(0, 0, 'q8', { k: new Float32Array(), v: new Float32Array() }),
      () => cache.trialForeign(0, 0, {}),
      () => cache.importPages({ bytes: new Uint8Array(), records: [], predicted: null }),
      () => cache.memory(),
      () => cache.fork(),
      () => cache.adopt(open(), 1),
      () => cache.close(),
    ];
    for (const call of calls) expect(call).toThrow(/the cache was closed/);
  });

  it('refuses an instruction set that is unknown or not there', () => {
    expect(() => setIsa('mmx' as 'avx2')).toThrow(/unknown instruction set/);
    const missing = (['neon', 'avx2'] as const).find((isa) => !nativeInfo().available.includes(isa));
    if (missing) expect(() => setIsa(missing)).toThrow(/has no/);
    setIsa('scalar');
    expect(nativeInfo().isa).toBe('scalar');
    setIsa(best);
  });
});

describe('the bare binding', () => {
  it('answers a status or throws, whatever it is given and whatever it is called on (fuzzed)', () => {
    const random = uniform(SEED);
    const binary = loadBinary();
    const fresh = () => {
      const pool = new binary.Pool();
      pool.open(4_000_000);
      const cache = new binary.Cache();
      cache.open(pool, Int32Array.of(1, 2, 1, 64, 1, 1, 1), 0.125, new Int32Array(1), new Float32Array(0));
      const rows = new Float32Array(200 * 64).fill(0.25);
      cache.append(0, rows, rows);
      const guess = new binary.Predictor();
      guess.open(1, 64, shares);
      const { weights, scales, base, factors, tables } = side(64, 64);
      const values = side(64, 128);
      const { centres, gains } = ends(64);
      const keys = [weights, scales, base, factors, tables] as const;
      guess.addLayer(...keys, values.weights, scales, base, factors, tables, centres, gains);
      for (const isKey of [true, false]) guess.setBack(0, isKey, new Float32Array(64 * 64));
      const batch = new binary.Batch();
      batch.add(cache, 2);
      return { pool, cache, guess, batch };
    };
    let { pool, cache, guess, batch } = fresh();
    let answers = 0;
    for (let round = 0; round < ROUNDS; round++) {
      const target = pick(random, [
        pool,
        cache,
        guess,
        batch,
        binary,
        new binary.Pool(),
        new binary.Cache(),
        new binary.Batch(),
        new binary.Predictor(),
      ]) as unknown as Record<string, unknown>;
      const names = Object.getOwnPropertyNames(Object.getPrototypeOf(target)).concat(Object.keys(target));
      const method = target[pick(random, names)];
      if (typeof method !== 'function') continue;
      const given = Array.from({ length: Math.floor(random() * 9) }, () =>
        random() < 0.3
          ? pick(random, [
              0,
              1,
              cache,
              pool,
              guess,
              batch,
              new Float64Array(1),
              new Float64Array(4),
              new Float32Array(128),
            ])
          : pick(random, nonsense)(),
      );
      const receiver = random() < 0.9 ? target : pick(random, [cache, pool, {}, null, Object.create(pool)]);
      try {
        const answer: unknown = Reflect.apply(method, receiver, given);
        if (typeof answer === 'number') answers++;
      } catch {
        // An exception of the engine (wrong receiver, class without new) is a fine answer.
      }
      if (round % 400 === 0) ({ pool, cache, guess, batch } = fresh());
    }
    expect(answers).toBeGreaterThan(ROUNDS / 16);
  });

  // An instance of WebAssembly has nothing outside its thread: there is nothing to end in the wrong order.
  const isAddon = nativeInfo().binding !== 'wasm';
  it.skipIf(!isAddon)(
    'serves a worker thread that ends with everything open, in any order (needs an addon)',
    async () => {
      const script = `
      const { Pool, Cache, Batch } = require(process.argv[2]);
      const keep = [];
      for (let i = 0; i < 20; i++) {
        const pool = new Pool();
        pool.open(4000000);
        const cache = new Cache();
        cache.open(pool, Int32Array.of(1, 2, 1, 64, 1, 2, 0), 0.125, new Int32Array(1), new Float32Array(0));
        const rows = new Float32Array(300 * 64).fill(0.25);
        if (cache.append(0, rows, rows) !== 0) throw new Error('append');
        const q = new Float32Array(300 * 128).fill(0.5);
        if (cache.attend(0, q, new Float32Array(q.length), undefined, undefined, true) !== 0) throw new Error('attend');
        const twin = new Cache();
        if (twin.openFork(cache) !== 0) throw new Error('fork');
        const other = new Cache();
        other.open(pool, Int32Array.of(1, 2, 1, 64, 1, 2, 0), 0.125, new Int32Array(1), new Float32Array(0));
        if (other.adopt(cache, 2) !== 0) throw new Error('adopt');
        const batch = new Batch();
        for (const one of [cache, twin]) if (batch.add(one, 1) !== 0) throw new Error('batch');
        const two = q.subarray(0, 256);
        if (batch.attend(0, two, new Float32Array(256), undefined, undefined, true, new Float64Array(1)) !== 0) throw new Error('batch');
        for (const side of [0, 1]) if (cache.startMove(0, i % 2, side, 2 + i % 3) !== 0) throw new Error('move');
        if (twin.startMove(0, 1 - i % 2, 0, 4) !== 0) throw new Error('move');
        if (i % 4 === 0 && cache.finishMoves(i % 8 === 0, new Float64Array(5)) !== 0) throw new Error('finish');
        if (i % 3 === 0) pool.close();
        if (i % 2 === 0) cache.close();
        keep.push(i % 5 === 0 ? [batch, twin] : [twin, cache, other, pool, batch]);
      }`;
      const ends = Array.from({ length: 3 }, () => {
        const worker = new Worker(script, { eval: true, argv: [nativeInfo().file] });
        return new Promise<number>((resolve, reject) => worker.on('error', reject).on('exit', resolve));
      });
      expect(await Promise.all(ends)).toEqual([0, 0, 0]);
    },
  );
});
