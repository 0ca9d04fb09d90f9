/**
 * Several caches in one call: every one holds and answers what a twin does that is called alone, to the bit, whatever
 * stands beside it and however many threads there are. All append or none; what cannot be in a batch is refused, and
 * the error says which member it is of.
 */
import { createHash } from 'node:crypto';
import { afterAll, describe, expect, it } from 'vitest';
import {
  Batch,
  encodeLatent,
  FORMAT_NAMES,
  type FormatName,
  type KvCache,
  type KvCacheOptions,
  nativeInfo,
  openKvCache,
  openPool,
  PAGE_KINDS,
  PAGE_TOKENS,
  type PagePool,
  type PageTable,
  type RotaryTable,
  SIDES,
  SINK_TOKENS,
  setIsa,
} from '../../../native/index.ts';
import { normals, pick, sameBits, uniform } from '../../native/dense.ts';
import { codeOf, refusal } from '../../refusal.ts';
import { IS_SHORT, rounds, seedFrom } from '../../tier.ts';

const shape = { layers: 2, queryHeads: 6, kvHeads: 3, headDim: 64 };
const [ROW, QUERY, WIDTH] = [3 * 64, 6 * 64, 64];
const TO: readonly FormatName[] = ['f16', 'trellis4', 'rot3', 'trellis2', 'rot1', 'kivi2'];
const SEED = seedFrom(20261201);
const { isa: best, available } = nativeInfo();
afterAll(() => setIsa(best));

type Random = () => number;
const whole = (random: Random, least: number, most: number): number =>
  least + Math.floor(random() * (most - least + 1));

const noise = normals(uniform(5), 6500 * ROW);
const rotary: RotaryTable = {
  cos: normals(uniform(6), 8000 * 32),
  sin: normals(uniform(7), 8000 * 32),
  rotaryDim: 64,
  interleaved: false,
};
const weights = { width: WIDTH, wk: normals(uniform(8), ROW * WIDTH, 0.1), wv: normals(uniform(9), ROW * WIDTH, 0.1) };
const latentOf = (page: number) =>
  encodeLatent('xq8', noise.subarray(page * 77, page * 77 + PAGE_TOKENS * WIDTH), WIDTH, page === 0 ? SINK_TOKENS : 0);

const KINDS: readonly Partial<KvCacheOptions>[] = [
  {},
  { openFormat: 'q8' },
  { slidingWindow: [300, null], openFormat: 'q8' },
  { alibiSlopes: Float32Array.of(0.5, 0.25, 0.1, 0.05, 0.02, 0.01), scale: 0.2 },
  { scoreCap: 5, windowFormat: 'f16' },
  { latentScratchBytes: 300_000 },
];

/** A cache of the batch and one that does the same alone. */
interface Pair {
  readonly mine: KvCache;
  readonly alone: KvCache;
}

const both = ({ mine, alone }: Pair, work: (cache: KvCache) => unknown): void => {
  work(mine);
  work(alone);
};

/** With so many tokens; pages in every form that a page has. */
function pairOf(random: Random, pool: PagePool, threads: number, tokens: number): Pair {
  const options = { shape, threads, ...pick(random, KINDS) };
  const pair: Pair = {
    mine: openKvCache({ ...options, pool }),
    alone: openKvCache({ ...options, pool: openPool(2 ** 32) }),
  };
  const skips = random() < 0.3;
  both(pair, (cache) => {
    cache.setRotary(rotary);
    if (skips) cache.setSkipShare(0.2);
  });
  for (let layer = 0; layer < shape.layers; layer++) {
    if (tokens === 0) continue;
    const from = whole(random, 0, 3) * ROW;
    const rows = noise.subarray(from, from + tokens * ROW);
    both(pair, (cache) => {
      cache.setLatentWeights(layer, weights);
      cache.append(layer, rows, rows);
    });
    const pages = Math.floor((tokens - 1) / PAGE_TOKENS);
    for (let page = 0; page < pages; page++) if (random() < 8 / pages) change(random, pair, layer, page);
  }
  return pair;
}

/** Another form of a page; what is not legal is refused by both. */
function change(random: Random, pair: Pair, layer: number, page: number): void {
  const kind = random();
  const [side, to] = [pick(random, SIDES), pick(random, TO)];
  both(pair, (cache) => {
    if (kind < 0.6) codeOf(() => cache.transcode(layer, page, side, to));
    else if (kind < 0.75) cache.holdLatent(layer, page, 'xq8', latentOf(page));
    else if (kind < 0.82) cache.evictPage(layer, page);
    else if (kind < 0.87) codeOf(() => cache.freePage(layer, page));
  });
}

/** Everything of a layer that can be seen, trials of some pages among it; numbers by their digest. */
function seen(cache: KvCache, layer: number) {
  const table = cache.table(layer);
  const digest = createHash('sha1');
  const isThere = (page: number): boolean =>
    page === table.pages || ['resident', 'latent'].includes(kindOf(table, page));
  for (let page = 0; page <= table.pages; page++)
    if (isThere(page)) for (const side of SIDES) digest.update(cache.decode(layer, page, side));
  const tried = Array.from({ length: Math.min(table.pages, 3) }, (_, page) =>
    kindOf(table, page) === 'resident' && table.kFormat[page] === FORMAT_NAMES.indexOf('q8')
      ? cache.trial(layer, page, [{ side: 'k', format: 'rot2' }])
      : null,
  );
  const rows = digest.digest('hex');
  return { length: cache.length(layer), table, rows, tried, skipped: cache.skipped(layer), used: cache.usedBytes };
}
const kindOf = (table: PageTable, page: number) => PAGE_KINDS[table.kind[page]!]!;

/** A step of all pairs, in one batch and each alone. */
function step(random: Random, batch: Batch, pairs: readonly Pair[], counts: readonly number[], layer: number): void {
  stepBits(random, batch, pairs, counts, layer);
  for (const { mine, alone } of pairs) expect(seen(mine, layer)).toEqual(seen(alone, layer));
}

/** The same, where caches need not take the same bytes: who begins with pages of another has no open page yet. */
function stepBits(
  random: Random,
  batch: Batch,
  pairs: readonly Pair[],
  counts: readonly number[],
  layer: number,
): void {
  const tokens = counts.reduce((sum, count) => sum + count, 0);
  const [k, v] = [normals(random, tokens * ROW), normals(random, tokens * ROW)];
  const q = normals(random, tokens * QUERY);
  const xNorms = random() < 0.5 ? normals(random, tokens).map(Math.abs) : undefined;
  const [observe, hasLse] = [random() < 0.8, random() < 0.8];
  const given = { ...(xNorms && { xNorms }), observe };
  batch.begin(pairs.map(({ mine }, i) => ({ cache: mine, tokens: counts[i]! })));
  expect(batch.tokens).toBe(tokens);
  batch.append(layer, k, v);
  const [out, lse] = [new Float32Array(q.length), new Float32Array(tokens * shape.queryHeads)];
  batch.attend(layer, q, out, { ...given, ...(hasLse && { lse }) });
  let at = 0;
  for (const [i, { alone }] of pairs.entries()) {
    const end = at + counts[i]!;
    const of = (rows: Float32Array, width: number): Float32Array => rows.subarray(at * width, end * width);
    alone.append(layer, of(k, ROW), of(v, ROW));
    const [hisOut, hisLse] = [new Float32Array(counts[i]! * QUERY), new Float32Array(counts[i]! * shape.queryHeads)];
    alone.attend(layer, of(q, QUERY), hisOut, { ...given, ...(xNorms && { xNorms: of(xNorms, 1) }), lse: hisLse });
    expect(sameBits(of(out, QUERY), hisOut)).toBe(true);
    if (hasLse) expect(sameBits(of(lse, shape.queryHeads), hisLse)).toBe(true);
    at = end;
  }
}

const close = (pairs: readonly Pair[]): void => {
  for (const pair of pairs) both(pair, (cache) => cache.close());
};

describe('a batch', () => {
  it.each(IS_SHORT ? [2] : [1, 2])('gives each cache the bits that it gets alone, on %i thread(s)', (threads) => {
    console.log(`batches, seed ${SEED}`);
    const random = uniform(SEED + threads);
    const batch = new Batch();
    for (let round = 0; round < rounds(12); round++) {
      setIsa(pick(random, available));
      const pool = openPool(2 ** 32);
      const pairs = Array.from({ length: whole(random, 1, 6) }, () =>
        pairOf(random, pool, threads, random() < 0.2 ? 0 : whole(random, 1, 900)),
      );
      // Forks share pages, and the room for what is recomputed from latents.
      for (const { mine, alone } of random() < 0.5 ? [pick(random, pairs)] : [])
        pairs.push({ mine: mine.fork(), alone: alone.fork() });
      for (let at = 0; at < 3; at++) {
        const some = pairs.filter(() => random() < 0.8);
        const counts = some.map(() => pick(random, [1, 1, 2, whole(random, 3, 40), 128]));
        if (some.length > 0) step(random, batch, some, counts, whole(random, 0, 1));
      }
      close(pairs);
      expect(pool.usedBytes).toBe(0);
    }
  });

  it.each(IS_SHORT ? [2] : [1, 2])('does so over pages that they hold together, on %i thread(s)', (threads) => {
    setIsa(best);
    const random = uniform(SEED + 20 + threads);
    const pool = openPool(2 ** 32);
    const opened = (pool: PagePool) => openKvCache({ shape, threads, pool });
    const pairs = [600, 512, 512, 384].map(() => ({ mine: opened(pool), alone: opened(openPool(2 ** 32)) }));
    const [first, ...others] = pairs;
    const read = (cache: KvCache, tokens: number): void => {
      const rows = noise.subarray(0, tokens * ROW);
      for (let layer = 0; layer < shape.layers; layer++) cache.append(layer, rows, rows);
    };
    both(first!, (cache) => read(cache, 600));
    for (const [at, { mine, alone }] of others.entries()) {
      const pages = 4 - (at >> 1);
      mine.adopt(first!.mine, pages);
      read(alone, pages * PAGE_TOKENS);
    }
    const batch = new Batch();
    // One reads a prompt beside three that write, while a page of all of them moves in the background.
    for (const [page, to] of [
      [1, 'trellis4'],
      [2, 'rot3'],
    ] as const) {
      first!.mine.startMove(1, page, 'kv', to);
      stepBits(random, batch, pairs, [1, 1, 37, 128], 0);
      expect(first!.mine.finishMoves(true)).toMatchObject([{ refused: null }]);
      for (const { alone } of pairs) alone.transcode(1, page, 'kv', to);
      stepBits(random, batch, pairs, [1, 128, 1, 2], 1);
    }
    close(pairs);
    expect(pool.usedBytes).toBe(0);
  });

  // Long enough that histories are divided into ranges, whose results are put together.
  it.each(IS_SHORT ? [2] : [1, 2])('does so with long histories beside short ones, on %i thread(s)', (threads) => {
    setIsa(best);
    const random = uniform(SEED + 10 + threads);
    const pool = openPool(2 ** 32);
    const pairs = [6300, 30, 6200, 500].map((tokens) => pairOf(random, pool, threads, tokens));
    const batch = new Batch();
    step(random, batch, pairs, [1, 1, 2, 1], 1);
    step(random, batch, pairs, [1, 128, 3, 9], 1);
    close(pairs);
  });
});

describe('what is refused', () => {
  const open = (pool: PagePool, tokens: number, more: Partial<KvCacheOptions> = {}): KvCache => {
    const cache = openKvCache({ shape, pool, openFormat: 'q8', ...more });
    const rows = noise.subarray(0, tokens * ROW);
    for (let layer = 0; layer < shape.layers; layer++) if (tokens > 0) cache.append(layer, rows, rows);
    return cache;
  };
  const attended = (cache: KvCache, layer: number): Float32Array => {
    const out = new Float32Array(2 * QUERY);
    cache.attend(layer, noise.subarray(0, out.length), out, { observe: false });
    return out;
  };

  it('an append of one member leaves all as they were, with the rows that the next attention reads', () => {
    const pool = openPool(2 ** 30);
    const caches = [5, 140, 300].map((tokens) => open(pool, tokens));
    const batch = new Batch();
    const counts = [100, 1, 2];
    const before = caches.map((cache) => [seen(cache, 0), seen(cache, 1), attended(cache, 1)]);
    const rows = () => noise.slice(0, 103 * ROW);
    const kept = () =>
      expect(caches.map((cache) => [seen(cache, 0), seen(cache, 1), attended(cache, 1)])).toEqual(before);
    batch.begin(caches.map((cache, i) => ({ cache, tokens: counts[i]! })));
    // The second of the last member's two rows.
    const bad = rows();
    bad[102 * ROW + 7] = Number.NaN;
    for (const [k, v, name] of [
      [bad, rows(), 'k'],
      [rows(), bad, 'v'],
    ] as const) {
      const error = refusal(() => batch.append(0, k, v));
      expect(error).toMatchObject({
        code: 'bad-value',
        values: { layer: 0, member: 2, side: name, row: 1, column: 7 },
      });
      kept();
    }
    // Room for the first one's larger open page, but not for that of a second that grows.
    const more = open(pool, 16);
    batch.begin([...caches, more].map((cache, i) => ({ cache, tokens: counts[i] ?? 1 })));
    const needed = caches.map((cache, i) => cache.appendBytes(counts[i]!) / 2);
    const budget = pool.budgetBytes;
    pool.setBudget(pool.usedBytes + needed[0]! + needed[1]! + needed[2]! + more.appendBytes(1) / 2 - 1);
    const k = noise.slice(0, 104 * ROW);
    const error = refusal(() => batch.append(0, k, k));
    expect(error).toMatchObject({ code: 'budget-exceeded', values: { member: 3, layer: 0, tokens: 1 } });
    expect(error.message).toBe(refusal(() => batch.append(0, k, k)).message);
    kept();
    pool.setBudget(pool.budgetBytes + 1);
    batch.append(0, k, k);
    expect(pool.usedBytes).toBe(pool.budgetBytes);
    pool.setBudget(budget);
    expect(caches.map((cache) => cache.length(0))).toEqual([105, 141, 302]);
    for (const cache of [...caches, more]) cache.close();
  });

  it('a budget of caches that have one together counts what each of them adds', () => {
    const pool = openPool(2 ** 30);
    const parent = open(pool, 16);
    const fork = parent.fork();
    const batch = new Batch();
    batch.begin([parent, fork].map((cache) => ({ cache, tokens: 1 })));
    const each = parent.appendBytes(1) / 2;
    expect(each).toBeGreaterThan(0);
    const k = noise.slice(0, 2 * ROW);
    parent.setBudget(parent.usedBytes + 2 * each - 1);
    expect(refusal(() => batch.append(1, k, k))).toMatchObject({ code: 'budget-exceeded', values: { member: 1 } });
    expect([parent.length(1), fork.length(1)]).toEqual([16, 16]);
    parent.setBudget(parent.usedBytes + 2 * each);
    batch.append(1, k, k);
    expect([parent.length(1), fork.length(1)]).toEqual([17, 17]);
  });

  it('attention of one member counts nothing of any, and says what that member alone would', () => {
    const pool = openPool(2 ** 30);
    const caches = [200, 400, 3].map((tokens) => open(pool, tokens, { slidingWindow: [150, null] }));
    const batch = new Batch();
    const before = () => caches.map((cache) => cache.table(0));
    const was = before();
    const refuse = (counts: readonly number[], change?: (q: Float32Array, xNorms: Float32Array) => void) => {
      const tokens = counts.reduce((sum, count) => sum + count, 0);
      const [q, xNorms] = [normals(uniform(3), tokens * QUERY), new Float32Array(tokens)];
      change?.(q, xNorms);
      batch.begin(caches.map((cache, i) => ({ cache, tokens: counts[i]! })));
      const error = refusal(() => batch.attend(0, q, new Float32Array(q.length), { xNorms }));
      expect(before()).toEqual(was);
      return error;
    };
    expect(refuse([1, 2, 4])).toMatchObject({ code: 'bad-shape', values: { member: 2, tokens: 4, held: 3 } });
    expect(
      refuse([1, 2, 3], (q) => {
        q[2 * QUERY + 5] = Number.POSITIVE_INFINITY;
      }),
    ).toMatchObject({ code: 'bad-value', values: { member: 1, row: 1, column: 5 } });
    expect(
      refuse([1, 2, 3], (_, xNorms) => {
        xNorms[5] = -1;
      }),
    ).toMatchObject({ code: 'bad-value', values: { member: 2 } });
    caches[1]!.freePage(0, 0);
    was[1] = caches[1]!.table(0);
    expect(refuse([1, 300, 3])).toMatchObject({ code: 'unsupported', values: { member: 1, tokens: 300 } });
  });

  it('caches that cannot be together, and calls before or after', () => {
    const pool = openPool(2 ** 30);
    const cache = open(pool, 20);
    const other = open(pool, 30);
    const batch = new Batch();
    const begin = (...members: unknown[]) => refusal(() => batch.begin(members as never));
    const one = { cache, tokens: 1 };
    const [k, q] = [noise.slice(0, ROW), noise.slice(0, QUERY)];
    const isEmpty = () => {
      expect([batch.tokens, batch.members]).toEqual([0, []]);
      expect(codeOf(() => batch.append(0, k, k))).toBe('bad-argument');
      expect(codeOf(() => batch.attend(0, q, new Float32Array(QUERY)))).toBe('bad-argument');
    };
    isEmpty();
    const closed = open(pool, 1);
    closed.close();
    const narrow = openKvCache({ shape: { ...shape, queryHeads: 3 }, pool });
    for (const [members, code, member] of [
      [[one, { cache: other, tokens: 2 }, { cache, tokens: 3 }], 'bad-argument', 2],
      [[one, { cache: open(openPool(2 ** 30), 20), tokens: 1 }], 'bad-argument', 1],
      [[one, { cache: narrow, tokens: 1 }], 'bad-shape', 1],
      [[one, { cache: closed, tokens: 1 }], 'closed', 1],
      [[{ cache: {}, tokens: 1 }], 'bad-argument', 0],
      [[one, null], 'bad-argument', 1],
      [[one, { cache: other, tokens: 0 }], 'bad-argument', 1],
      [[one, { cache: other, tokens: 1.5 }], 'bad-argument', 1],
      [[], 'bad-argument', undefined],
    ] as const) {
      batch.begin([one]);
      const error = begin(...members);
      expect([error.code, error.values['member']]).toEqual([code, member]);
      isEmpty();
    }
    const another = available.find((isa) => isa !== best);
    if (another !== undefined) {
      setIsa(another);
      const foreign = open(pool, 20);
      setIsa(best);
      expect(begin(one, { cache: foreign, tokens: 1 })).toMatchObject({ code: 'unsupported', values: { member: 1 } });
    }
    batch.begin([one, { cache: other, tokens: 2 }]);
    const [k3, q3] = [noise.slice(0, 3 * ROW), noise.slice(0, 3 * QUERY)];
    const out = new Float32Array(3 * QUERY);
    for (const [work, code] of [
      [() => batch.append(0, k, k), 'bad-shape'],
      [() => batch.append(0, k3, k), 'bad-shape'],
      [() => batch.append(2, k3, k3), 'bad-argument'],
      [() => batch.append(0, k3, null as never), 'bad-argument'],
      [() => batch.attend(0, q, new Float32Array(QUERY)), 'bad-shape'],
      [() => batch.attend(0, q3, new Float32Array(QUERY)), 'bad-shape'],
      [() => batch.attend(0, q3, q3), 'bad-argument'],
      [() => batch.attend(0, q3, out, { xNorms: new Float32Array(2) }), 'bad-shape'],
      [() => batch.attend(0, q3, out, { lse: new Float32Array(2) }), 'bad-shape'],
      [() => batch.attend(0, q3, out, { observe: 1 as never }), 'bad-argument'],
      [() => batch.attend(-1, q3, out), 'bad-argument'],
    ] as const)
      expect([String(work), codeOf(work)]).toEqual([String(work), code]);
    batch.append(0, k3, k3);
    batch.attend(0, q3, out);
    other.close();
    for (const work of [() => batch.append(0, k3, k3), () => batch.attend(0, q3, out)])
      expect(refusal(work)).toMatchObject({ code: 'closed', values: { member: 1 } });
    expect(cache.length(0)).toBe(21);
  });
});
