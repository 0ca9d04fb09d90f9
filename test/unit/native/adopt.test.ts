/**
 * A cache that begins with the pages of another one which is no fork of it: they are held together, counted once and
 * moved for both, and everything else is each one's own. Seen in bytes and in values, also over random lives.
 */
import { describe, expect, it } from 'vitest';
import { type KvCache, KvError, openKvCache, openPool, PAGE_TOKENS, pageBytes } from '../../../native/index.ts';
import { history, normals, pick, uniform } from '../../native/dense.ts';
import { seedFrom, volume } from '../../tier.ts';

const shape = { layers: 2, queryHeads: 3, kvHeads: 1, headDim: 64 };
const LAYERS = [0, 1];
const SIDES = ['k', 'v'] as const;
const STEPS = volume('adopt steps');
const SEED = seedFrom(20261127);

function filled(tokens: number, pool = openPool(10_000_000), seed = 1) {
  const cache = openKvCache({ shape, pool });
  const random = uniform(seed);
  for (const layer of tokens > 0 ? LAYERS : [])
    cache.append(layer, normals(random, tokens * 64), normals(random, tokens * 64));
  return { pool, cache, random };
}

const bytesOf = (rows: Float32Array): Buffer => Buffer.from(rows.buffer, rows.byteOffset, rows.byteLength);
const rowsOf = (cache: KvCache) => LAYERS.flatMap((layer) => SIDES.map((side) => history(cache, layer, side)));

describe('adopt', () => {
  it('costs sinks alone, sees what the other one saw, and lives on without it', () => {
    const { pool, cache } = filled(400);
    const own = openKvCache({ shape, pool });
    const [before, usedBytes] = [pool.usedBytes, cache.usedBytes];
    own.adopt(cache, 2);
    expect(pool.usedBytes - before).toBe(own.memory().sinkBytes);
    expect(pool.auditBytes()).toBe(pool.usedBytes);
    expect([own.length(0), own.length(1)]).toEqual([256, 256]);
    // Each counts what it holds, the pool once.
    const common = 2 * 2 * 2 * pageBytes('q8', 1, 64);
    expect([cache.commonBytes, own.commonBytes]).toEqual([common, common]);
    expect(cache.usedBytes).toBe(usedBytes);
    expect([cache.auditBytes(), own.auditBytes()]).toEqual([cache.usedBytes, own.usedBytes]);
    const expected = rowsOf(cache).map((rows) => rows.slice(0, 256 * 64));
    expect(rowsOf(own)).toEqual(expected);
    cache.close();
    expect(rowsOf(own)).toEqual(expected);
    expect(pool.usedBytes).toBe(own.usedBytes);
    own.close();
    expect([pool.usedBytes, pool.auditBytes()]).toEqual([0, 0]);
  });

  it('attends over it as the other one does, with the same bits', () => {
    const { pool, cache, random } = filled(257);
    cache.truncate(256);
    const own = openKvCache({ shape, pool });
    own.adopt(cache, 2);
    const [k, v] = [normals(random, 40 * 64), normals(random, 40 * 64)];
    const q = normals(random, 40 * 3 * 64);
    const out = [cache, own].map((one) => {
      one.append(0, k, v);
      const attended = new Float32Array(q.length);
      one.attend(0, q, attended);
      return attended;
    });
    expect(out[1]).toEqual(out[0]);
  });

  it('a move of one is one for both, and its bytes fall once', () => {
    const { pool, cache } = filled(400);
    const own = openKvCache({ shape, pool });
    own.adopt(cache, 3);
    const freed = pageBytes('q8', 1, 64) - pageBytes('rot4', 1, 64);
    const before = pool.usedBytes;
    expect(own.transcode(0, 1, 'k', 'rot4')).toBe(freed);
    expect(pool.usedBytes).toBe(before - freed);
    expect(cache.format(0, 1, 'k')).toBe('rot4');
    expect(history(own, 0, 'k')).toEqual(history(cache, 0, 'k').slice(0, 384 * 64));
    cache.startMove(1, 2, 'v', 'rot2');
    expect(() => own.transcode(1, 2, 'v', 'rot3')).toThrow(KvError);
    cache.finishMoves(true);
    expect(own.format(1, 2, 'v')).toBe('rot2');
    // A move that is under way when its cache closes is dropped for both.
    cache.startMove(1, 1, 'kv', 'rot2');
    cache.close();
    expect(own.format(1, 1, 'v')).toBe('q8');
    expect(own.transcode(1, 1, 'kv', 'rot3')).toBeGreaterThan(0);
    expect(pool.auditBytes()).toBe(pool.usedBytes);
  });

  it('moves where a full pool has room for what is less, unless the other one keeps the old bytes', () => {
    const { pool, cache } = filled(400);
    const own = openKvCache({ shape, pool });
    own.adopt(cache, 2);
    own.keepOriginal(1, 1, 'k');
    pool.setBudget(pool.usedBytes);
    cache.transcode(0, 1, 'k', 'rot4');
    const freed = pageBytes('q8', 1, 64) - pageBytes('rot4', 1, 64);
    pool.setBudget(pool.usedBytes);
    cache.startMove(0, 1, 'v', 'rot4');
    expect(cache.finishMoves(true)).toMatchObject([{ freedBytes: freed, refused: null }]);
    pool.setBudget(pool.usedBytes);
    expect(() => cache.transcode(1, 1, 'k', 'rot4')).toThrow(expect.objectContaining({ code: 'budget-exceeded' }));
    cache.exchangeSide(0, 1, 'v', cache.exportSide(0, 1, 'v'));
    expect([pool.usedBytes, pool.auditBytes()]).toEqual([pool.budgetBytes, pool.budgetBytes]);
  });

  it('a move makes its codes of what is there, whatever the other one was trying', () => {
    const moved = (isTried: boolean): Float32Array => {
      const { pool, cache, random } = filled(400);
      const own = openKvCache({ shape, pool });
      own.adopt(cache, 2);
      const q = normals(random, 3 * 64 * 8);
      cache.attend(0, q, new Float32Array(q.length));
      if (isTried) cache.startTrial(0, 1, [{ side: 'k', format: 'trellis2' }]);
      own.transcode(0, 1, 'k', 'rot4');
      if (isTried) cache.finishTrials(true);
      own.transcode(0, 1, 'k', 'trellis2');
      return history(cache, 0, 'k');
    };
    expect(moved(true)).toEqual(moved(false));
  });

  it('originals, rows, evictions and tokens that are taken back are each one’s own', () => {
    const { pool, cache } = filled(400);
    const own = openKvCache({ shape, pool });
    own.adopt(cache, 3);
    own.keepOriginal(0, 0, 'k');
    cache.keepOriginal(0, 0, 'k');
    const whole = history(own, 0, 'k');
    cache.transcode(0, 0, 'k', 'rot2');
    expect(own.usedBytes).toBe(own.memory().totalBytes);
    expect(cache.usedBytes).toBe(cache.memory().totalBytes);
    own.restoreOriginal(0, 0, 'k');
    expect(history(own, 0, 'k')).toEqual(whole);
    expect(cache.format(0, 0, 'k')).toBe('q8');
    cache.evictPage(0, 1);
    expect(history(own, 0, 'k')).toEqual(whole);
    cache.truncate(128);
    expect(history(own, 0, 'k')).toEqual(whole);
    expect(pool.auditBytes()).toBe(pool.usedBytes);
  });

  it('goes on with stored pages that belong behind it, all at once', () => {
    const { pool, cache } = filled(600);
    const own = openKvCache({ shape, pool });
    own.adopt(cache, 2);
    const parts = [2, 3].flatMap((page) => LAYERS.map((layer) => cache.exportPage(layer, page)));
    const bytes = Buffer.concat(parts);
    let at = 0;
    const records = parts.map(({ length }) => ({ at: (at += length) - length, length, formats: null }));
    const others = openKvCache({ shape, pool });
    for (const [one, pages] of [
      [own, records.slice(2)],
      [others, records],
    ] as const)
      expect(() => one.importPages({ bytes, records: pages, predicted: null })).toThrow(KvError);
    expect([own.length(), others.length()]).toEqual([256, 0]);
    own.importPages({ bytes, records, predicted: null });
    expect(rowsOf(own)).toEqual(rowsOf(cache).map((rows) => rows.slice(0, 512 * 64)));
    expect([pool.auditBytes(), own.auditBytes()]).toEqual([pool.usedBytes, own.usedBytes]);
    // With rows in the open page it is as before.
    for (const layer of LAYERS) own.append(layer, new Float32Array(64), new Float32Array(64));
    expect(() => own.importPages({ bytes, records: [], predicted: null })).toThrow(
      expect.objectContaining({ code: 'unsupported' }),
    );
  });

  it('forks of either see it, and count it', () => {
    const { pool, cache } = filled(400);
    const fork = cache.fork();
    const own = openKvCache({ shape, pool });
    const before = cache.usedBytes - fork.memory().openBytes;
    own.adopt(fork, 3);
    const twin = own.fork();
    fork.close();
    expect(cache.usedBytes).toBe(before);
    expect(twin.commonBytes).toBe(cache.commonBytes);
    twin.transcode(0, 0, 'k', 'rot2');
    expect(cache.format(0, 0, 'k')).toBe('rot2');
    for (const one of [cache, own]) expect(one.auditBytes()).toBe(one.usedBytes);
  });

  it('refuses what it cannot begin with, with nothing changed', () => {
    const { pool, cache } = filled(300);
    const own = openKvCache({ shape, pool });
    const refused = (call: () => void, code: string): void => {
      const before = pool.usedBytes;
      expect(call).toThrow(expect.objectContaining({ code }));
      expect([pool.usedBytes, pool.auditBytes()]).toEqual([before, before]);
    };
    refused(() => own.adopt(cache, 3), 'bad-argument');
    refused(() => own.adopt(cache, 0), 'bad-argument');
    refused(() => own.adopt(own, 1), 'bad-argument');
    refused(() => own.adopt({} as KvCache, 1), 'bad-argument');
    refused(() => own.adopt(filled(300).cache, 1), 'bad-argument');
    refused(() => own.adopt(openKvCache({ shape: { ...shape, layers: 1 }, pool }), 1), 'bad-shape');
    refused(() => own.adopt(openKvCache({ shape, pool, windowFormat: 'f16' }), 1), 'bad-argument');
    const full = filled(300, pool).cache;
    refused(() => full.adopt(cache, 1), 'unsupported');
    cache.startMove(0, 1, 'k', 'rot4');
    refused(() => own.adopt(cache, 2), 'unsupported');
    own.adopt(cache, 1);
    cache.finishMoves(true);
    const late = openKvCache({ shape, pool });
    cache.evictPage(0, 1);
    refused(() => late.adopt(cache, 2), 'unsupported');
    pool.setBudget(pool.usedBytes + 1);
    refused(() => late.adopt(cache, 1), 'budget-exceeded');
    cache.close();
    refused(() => late.adopt(cache, 1), 'closed');
  });

  it(`holds what is its own, over ${STEPS} random steps of many`, () => {
    console.log(`adoptions, seed ${SEED}`);
    const random = uniform(SEED);
    const pool = openPool(20_000_000);
    /** With each cache its rows as they were appended, as far as nobody has moved their page. */
    let lives: { readonly cache: KvCache; rows: Float32Array[] }[] = [];
    const count = { adopted: 0, moved: 0, closed: 0, cut: 0, tried: 0, forked: 0, kept: 0, restored: 0, exchanged: 0 };
    const noise = normals(random, 400 * 64);
    const some = () => pick(random, lives);
    const isWhole = (cache: KvCache, layer: number, page: number, side: 'k' | 'v'): boolean =>
      page === cache.table(layer).pages || cache.format(layer, page, side) === 'q8';
    /** NaN where a page has been moved: its original may come back. */
    const wholeRowsOf = (cache: KvCache): Float32Array[] => {
      const all = rowsOf(cache);
      for (const [at, rows] of all.entries())
        for (let page = 0; page < cache.table(0).pages; page++)
          if (!isWhole(cache, at >> 1, page, SIDES[at % 2]!))
            rows.fill(Number.NaN, page * PAGE_TOKENS * 64, (page + 1) * PAGE_TOKENS * 64);
      return all;
    };
    const grow = (life: (typeof lives)[number]): void => {
      if (life.cache.length() > 700) return;
      const tokens = 1 + Math.floor(300 * random());
      const [k, v] = [0, 1].map((at) => noise.subarray(64 * at * 7, 64 * (at * 7 + tokens)));
      for (const layer of LAYERS) life.cache.append(layer, k!, v!);
      life.rows = wholeRowsOf(life.cache);
    };
    const check = ({ cache, rows }: (typeof lives)[number]): void => {
      const now = rowsOf(cache);
      for (const [at, one] of now.entries()) {
        const [layer, side] = [at >> 1, SIDES[at % 2]!];
        for (let page = 0; page * PAGE_TOKENS < cache.length(); page++) {
          if (!isWhole(cache, layer, page, side) || Number.isNaN(rows[at]![page * PAGE_TOKENS * 64])) continue;
          const [from, to] = [page * PAGE_TOKENS * 64, Math.min((page + 1) * PAGE_TOKENS, cache.length()) * 64];
          const isSame = bytesOf(one.subarray(from, to)).equals(bytesOf(rows[at]!.subarray(from, to)));
          expect(isSame).toBe(true);
        }
      }
    };
    const steps: (() => void)[] = [
      () => {
        const cache = openKvCache({ shape, pool });
        const source = some();
        const pages = source.cache.table(0).pages;
        if (pages > 0) cache.adopt(source.cache, 1 + Math.floor(pages * random()));
        count.adopted++;
        lives.push({ cache, rows: wholeRowsOf(cache) });
      },
      () => {
        lives.push({ cache: some().cache.fork(), rows: [] });
        lives.at(-1)!.rows = wholeRowsOf(lives.at(-1)!.cache);
        count.forked++;
      },
      () => grow(some()),
      () => {
        const { cache } = some();
        const pages = cache.table(0).pages;
        if (pages === 0) return;
        const [layer, page, side] = [pick(random, LAYERS), Math.floor(pages * random()), pick(random, SIDES)];
        if (cache.format(layer, page, side) !== 'q8') return;
        cache.startMove(layer, page, side, pick(random, ['rot4', 'rot2', 'trellis3'] as const));
        if (random() < 0.5) cache.finishMoves(true);
        count.moved++;
      },
      () => {
        const { cache } = some();
        const pages = cache.table(0).pages;
        if (pages === 0) return;
        const [layer, page, side] = [pick(random, LAYERS), Math.floor(pages * random()), pick(random, SIDES)];
        if (cache.originalFormat(layer, page, side) !== null) return;
        cache.keepOriginal(layer, page, side);
        count.kept++;
      },
      () => {
        const { cache } = some();
        const sides = LAYERS.flatMap((layer) => SIDES.map((side) => [layer, side] as const));
        const kept = sides.flatMap(([layer, side]) =>
          Array.from({ length: cache.table(0).pages }, (_, page) => [layer, page, side] as const).filter(
            (one) => cache.originalFormat(...one) !== null,
          ),
        );
        if (kept.length === 0) return;
        // Also in a pool that has no byte left.
        if (random() < 0.5) pool.setBudget(pool.usedBytes + pool.reservedBytes);
        cache.restoreOriginal(...pick(random, kept));
        count.restored++;
      },
      () => {
        const { cache } = some();
        const pages = cache.table(0).pages;
        if (pages === 0) return;
        const [layer, page, side] = [pick(random, LAYERS), Math.floor(pages * random()), pick(random, SIDES)];
        cache.exchangeSide(layer, page, side, cache.exportSide(layer, page, side));
        count.exchanged++;
      },
      () => {
        const { cache } = some();
        if (cache.table(0).pages > 0 && cache.length() > 140) {
          const q = normals(random, 3 * 64 * 8);
          cache.attend(0, q, new Float32Array(q.length));
          cache.startTrial(0, 0, [{ side: 'k', format: 'rot1' }]);
          if (random() < 0.5) cache.finishTrials(true);
          count.tried++;
        }
      },
      () => {
        const life = some();
        if (life.cache.movesUnderWay > 0) return;
        life.cache.truncate(PAGE_TOKENS * Math.floor(random() * (life.cache.table(0).pages + 1)));
        life.rows = wholeRowsOf(life.cache);
        count.cut++;
      },
      () => {
        if (lives.length < 3) return;
        const life = some();
        life.cache.close();
        lives = lives.filter((one) => one !== life);
        count.closed++;
      },
    ];
    for (let step = 0; step < STEPS; step++) {
      if (lives.length === 0) lives.push({ ...filled(300, pool), rows: [] });
      if (lives[0]!.rows.length === 0) lives[0]!.rows = wholeRowsOf(lives[0]!.cache);
      try {
        if (lives.length > 8) steps.at(-1)!();
        else pick(random, steps)();
      } catch (error) {
        // Full, or moving elsewhere: nothing has changed then.
        if (!(error instanceof KvError && ['budget-exceeded', 'unsupported'].includes(error.code))) throw error;
      }
      expect(pool.auditBytes()).toBe(pool.usedBytes);
      expect(pool.usedBytes).toBeLessThanOrEqual(pool.budgetBytes);
      pool.setBudget(20_000_000);
      check(some());
    }
    for (const { cache } of lives) cache.close();
    expect([pool.usedBytes, pool.auditBytes()]).toEqual([0, 0]);
    for (const times of Object.values(count)) expect(times).toBeGreaterThan(STEPS / 200);
  });
});
