/**
 * Bytes reported are bytes allocated, after every one of thousands of random steps: three caches and their forks share
 * one pool and append, attend, try, transcode, fork, close, reopen, and are refused by budgets that move: the pool's,
 * and some caches' own. Print the seed, run it again.
 */
import { describe, expect, it } from 'vitest';
import {
  FORMAT_NAMES,
  isMove,
  type KvCache,
  KvError,
  openKvCache,
  openPool,
  PAGE_TOKENS,
  pageBytes,
  SERVED_FORMATS,
  SIDES,
} from '../../native/index.ts';
import { formatOf, normals, pick, uniform } from '../native/dense.ts';
import { seedFrom, volume } from '../tier.ts';

const SEED = Number(process.env['PALIMPSEST_SIM_SEED'] ?? seedFrom(20261121));
const STEPS = volume('pool steps');
const shapes = [
  { layers: 2, queryHeads: 3, kvHeads: 1, headDim: 64 },
  { layers: 1, queryHeads: 4, kvHeads: 4, headDim: 80 },
  { layers: 3, queryHeads: 2, kvHeads: 1, headDim: 16 },
];

describe('one pool, three sessions', () => {
  it(`reports exactly what it allocated after each of ${STEPS} steps`, () => {
    console.log(`pool simulation, seed ${SEED}`);
    const random = uniform(SEED);
    const pool = openPool(1_600_000);
    const noise = normals(random, 400 * 4 * 80);
    const count = { refused: 0, forks: 0, moves: 0, trials: 0, seals: 0, closes: 0 };
    /** With the tokens that the open page of each layer has room for. */
    const caches: { cache: KvCache; session: number; rooms: number[] }[] = [];
    const roomFor = (rows: number) => (rows === 0 ? 0 : Math.max(16, 2 ** Math.ceil(Math.log2(rows))));

    const openSession = (session: number) => {
      const shape = shapes[session]!;
      const windowFormat = shape.headDim === 16 ? 'f16' : pick(random, ['q8', 'f16'] as const);
      const own = random() < 0.5 ? {} : { budgetBytes: Math.floor(120_000 + random() * 300_000) };
      const cache = openKvCache({ shape, pool, windowFormat, threads: session === 1 ? 2 : 1, ...own });
      caches.push({ cache, session, rooms: Array.from({ length: shape.layers }, () => 0) });
    };

    /** A step may be refused for want of room, and then must have changed nothing. */
    const mayBeRefused = (work: () => void) => {
      const before = pool.usedBytes;
      const lengths = caches.map(({ cache }) => cache.length());
      try {
        work();
      } catch (error) {
        if (!(error instanceof KvError) || !['budget-exceeded', 'budget-too-small'].includes(error.code)) throw error;
        count.refused++;
        expect(pool.usedBytes).toBe(before);
        expect(caches.map(({ cache }) => cache.length())).toEqual(lengths);
      }
    };

    const step = () => {
      const one = pick(random, caches);
      const { cache } = one;
      const layer = Math.floor(random() * cache.shape.layers);
      const row = cache.shape.kvHeads * cache.shape.headDim;
      const { pages } = cache.table(layer);
      const kind = random();
      if (kind < 0.4) {
        const tokens = random() < 0.9 ? 1 + Math.floor(random() * 40) : Math.floor(1 + random() * 400);
        const at = Math.floor(random() * (noise.length - tokens * row));
        mayBeRefused(() => {
          cache.append(layer, noise.subarray(at, at + tokens * row), noise.subarray(at, at + tokens * row));
          const open = cache.length(layer) - cache.table(layer).pages * PAGE_TOKENS;
          const most = cache.table(layer).pages > pages ? PAGE_TOKENS : open;
          one.rooms[layer] = Math.max(one.rooms[layer]!, roomFor(most));
        });
        count.seals += cache.table(layer).pages - pages;
      } else if (kind < 0.5) {
        const tokens = Math.min(cache.length(layer), 1 + Math.floor(random() * 20));
        if (tokens === 0) return;
        const q = noise.subarray(0, tokens * cache.shape.queryHeads * cache.shape.headDim);
        cache.attend(layer, q, new Float32Array(q.length));
      } else if (kind < 0.85) {
        if (pages === 0) return;
        const page = Math.floor(random() * pages);
        const side = pick(random, SIDES);
        const to = pick(random, SERVED_FORMATS);
        const from = formatOf(cache, layer, page, side);
        if (!isMove(from, to) || (to !== 'f16' && cache.shape.headDim === 16)) {
          expect(() => cache.transcode(layer, page, side, to)).toThrow(KvError);
          return;
        }
        if (random() < 0.2) {
          cache.trial(layer, page, [{ side, format: to }]);
          count.trials++;
          return;
        }
        mayBeRefused(() => {
          const before = pool.usedBytes;
          expect(cache.transcode(layer, page, side, to)).toBe(before - pool.usedBytes);
          count.moves++;
        });
      } else if (kind < 0.9) {
        if (caches.length < 8) {
          mayBeRefused(() => {
            const fork = cache.fork();
            const rooms = one.rooms.map((_, each) => roomFor(fork.length(each) - fork.table(each).pages * PAGE_TOKENS));
            caches.push({ cache: fork, session: one.session, rooms });
            count.forks++;
          });
        }
      } else if (kind < 0.97) {
        caches.splice(caches.indexOf(one), 1);
        cache.close();
        count.closes++;
        for (const session of [0, 1, 2])
          if (!caches.some((left) => left.session === session)) mayBeRefused(() => openSession(session));
        if (caches.length === 0) openSession(0);
      } else {
        const budget = Math.floor(500_000 + random() * 2_000_000);
        const own = pick(random, [null, Math.floor(budget / 2)]);
        mayBeRefused(() => (random() < 0.5 ? cache.setBudget(own) : pool.setBudget(budget)));
      }
    };

    for (const session of [0, 1, 2]) openSession(session);
    for (let i = 0; i < STEPS; i++) {
      step();
      const used = pool.usedBytes;
      if (used !== pool.auditBytes())
        expect.fail(`seed ${SEED}, step ${i}: reported ${used}, allocated ${pool.auditBytes()}`);
      expect(used).toBeLessThanOrEqual(pool.budgetBytes);
      let apart = 0;
      let counted = 0;
      for (const session of [0, 1, 2]) {
        const cache = caches.find((one) => one.session === session)?.cache;
        if (cache === undefined) continue;
        expect(cache.auditBytes()).toBe(cache.usedBytes);
        expect(cache.usedBytes).toBeLessThanOrEqual(cache.budgetBytes ?? pool.budgetBytes);
        counted += cache.usedBytes;
      }
      expect(counted).toBe(used);
      for (const { cache, rooms } of caches) {
        const { kvHeads, headDim, layers } = cache.shape;
        const memory = cache.memory();
        let pages = 0;
        for (let layer = 0; layer < layers; layer++) {
          const table = cache.table(layer);
          for (const formats of [table.kFormat, table.vFormat]) {
            for (const id of formats) pages += pageBytes(FORMAT_NAMES[id]!, kvHeads, headDim);
          }
        }
        expect(memory.pageBytes).toBe(pages);
        expect(memory.openBytes).toBe(rooms.reduce((sum, room) => sum + room, 0) * 4 * kvHeads * headDim);
        apart += memory.totalBytes;
      }
      // Shared pages count once in the pool, so the caches' own sums may only be larger.
      expect(used).toBeLessThanOrEqual(apart);
    }
    console.log(
      `refused ${count.refused}, forks ${count.forks}, moves ${count.moves}, trials ${count.trials}, seals ${count.seals}, closes ${count.closes}`,
    );
    for (const [what, times] of Object.entries(count)) expect([what, times > 20]).toEqual([what, true]);
    for (const { cache } of caches) cache.close();
    expect([pool.usedBytes, pool.auditBytes()]).toEqual([0, 0]);
  });
});
