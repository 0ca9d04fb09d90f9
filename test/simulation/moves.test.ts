/**
 * Random sessions whose pages move in the background, each beside a shadow that does the same by transcode(), in one
 * call, at the moment the move ends: thousands of steps of append, attend, truncate, start, finish with and without
 * waiting, transcode, fork, close, budgets that are too small. After every step bytes reported are bytes allocated; now
 * and then a session and its shadow must hold and answer the same bits.
 */
import { describe, expect, it } from 'vitest';
import { FORMATS } from '../../native/format.ts';
import {
  isMove,
  type KvCache,
  KvError,
  openKvCache,
  openPool,
  SERVED_FORMATS,
  SIDES,
  type Side,
} from '../../native/index.ts';
import { formatOf, history, normals, pick, sameBits, uniform } from '../native/dense.ts';
import { seedFrom, volume } from '../tier.ts';

const SEED = Number(process.env['PALIMPSEST_SIM_SEED'] ?? seedFrom(20261122));
const STEPS = volume('move steps');
const SHAPES = [
  { layers: 2, queryHeads: 4, kvHeads: 2, headDim: 64 },
  { layers: 1, queryHeads: 2, kvHeads: 2, headDim: 80 },
];
const TOKENS_MAX = 1500;
/**
 * A move to a steered format has the queries of when it began, and its shadow would have those of when it ends
 * (test/unit/native/steering.test.ts).
 */
const UNSTEERED = SERVED_FORMATS.filter((name) => FORMATS[name].steered === undefined);

interface Session {
  readonly cache: KvCache;
  readonly shadow: KvCache;
  readonly shape: number;
}

describe('moves in the background', () => {
  it(`are what transcode() does, over ${STEPS} random steps`, () => {
    console.log(`moves simulation, seed ${SEED}`);
    const random = uniform(SEED);
    const pool = openPool(3_000_000);
    const shadows = openPool(2 ** 40);
    const noise = normals(random, 60_000);
    const count = {
      refused: 0,
      started: 0,
      finished: 0,
      failed: 0,
      late: 0,
      blocked: 0,
      forks: 0,
      closes: 0,
      transcoded: 0,
    };
    let sessions: Session[] = [];

    /** What was refused must have changed nothing. */
    const tried = <Result>(work: () => Result): Result | undefined => {
      const before = pool.usedBytes;
      try {
        return work();
      } catch (error) {
        if (!(error instanceof KvError) || !error.code.startsWith('budget-')) throw error;
        count.refused++;
        expect(pool.usedBytes).toBe(before);
        return undefined;
      }
    };
    const open = (which: number): void => {
      const options = { shape: SHAPES[which]!, threads: 1 + which, windowFormat: which === 0 ? 'q8' : 'f16' } as const;
      const openFormat = pick(random, ['f16', options.windowFormat] as const);
      const cache = tried(() => openKvCache({ ...options, openFormat, pool }));
      if (cache !== undefined)
        sessions.push({ cache, shadow: openKvCache({ ...options, openFormat, pool: shadows }), shape: which });
    };
    const finish = ({ cache, shadow }: Session, wait: boolean): void => {
      const before = pool.usedBytes;
      const ended = cache.finishMoves(wait);
      expect(ended.reduce((sum, { freedBytes }) => sum + freedBytes, 0)).toBe(before - pool.usedBytes);
      for (const { layer, page, side, to, refused } of ended) {
        if (refused === null) shadow.transcode(layer, page, side, to);
        count[refused === null ? 'finished' : 'failed']++;
      }
    };
    /** Page sides in 8 bits, of every session. */
    const inEightBits = (): { one: Session; layer: number; page: number; side: Side }[] =>
      sessions.flatMap((one) =>
        Array.from({ length: one.cache.shape.layers }, (_, layer) => layer).flatMap((layer) => {
          const pages = Array.from({ length: one.cache.table(layer).pages }, (_, page) => page);
          const places = pages.flatMap((page) => SIDES.map((side) => ({ one, layer, page, side })));
          return places.filter(({ page, side }) => formatOf(one.cache, layer, page, side) === 'q8');
        }),
      );
    /**
     * Starts a move that makes a page larger, alone, and lowers the budget beneath it: whenever it is encoded, it is
     * refused in the end. Whether others are depends on how far the thread is when they are asked for, so that these
     * alone are sure to be met.
     */
    const refuseLate = (): void => {
      for (const each of sessions) finish(each, true);
      const places = inEightBits();
      if (places.length === 0) return;
      const { one, layer, page, side } = pick(random, places);
      const { cache } = one;
      tried(() => cache.startMove(layer, page, side, 'f16'));
      if (cache.movesUnderWay === 0) return;
      const [given, failed] = [pool.budgetBytes, count.failed];
      pool.setBudget(pool.usedBytes);
      finish(one, true);
      pool.setBudget(given);
      expect(count.failed).toBe(failed + 1);
      count.late++;
    };
    const compare = ({ cache, shadow }: Session): void => {
      const layer = Math.floor(random() * cache.shape.layers);
      expect(cache.table(layer)).toEqual(shadow.table(layer));
      for (const side of SIDES) {
        const same = sameBits(history(cache, layer, side), history(shadow, layer, side));
        expect([layer, side, same]).toEqual([layer, side, true]);
      }
    };

    const step = (): void => {
      const one = pick(random, sessions);
      const { cache, shadow } = one;
      const { layers, queryHeads, kvHeads, headDim } = cache.shape;
      const layer = Math.floor(random() * layers);
      const kind = random();
      if (kind < 0.2) {
        const tokens = 1 + Math.floor(random() * 150);
        if (cache.length(layer) + tokens > TOKENS_MAX) return;
        const size = tokens * kvHeads * headDim;
        const at = Math.floor(random() * (noise.length - size));
        const rows = noise.subarray(at, at + size);
        tried(() => {
          cache.append(layer, rows, rows);
          shadow.append(layer, rows, rows);
        });
      } else if (kind < 0.35) {
        const tokens = Math.min(cache.length(layer), 1 + Math.floor(random() * 12));
        if (tokens === 0) return;
        const q = noise.subarray(7, 7 + tokens * queryHeads * headDim);
        const [mine, theirs] = [new Float32Array(q.length), new Float32Array(q.length)];
        cache.attend(layer, q, mine);
        shadow.attend(layer, q, theirs);
        expect(sameBits(mine, theirs)).toBe(true);
      } else if (kind < 0.75) {
        const { pages } = cache.table(layer);
        if (pages === 0) return;
        const [page, side, to] = [Math.floor(random() * pages), pick(random, SIDES), pick(random, UNSTEERED)];
        const from = formatOf(cache, layer, page, side);
        if (!isMove(from, to)) return;
        try {
          tried(() => {
            if (random() < 0.8) {
              cache.startMove(layer, page, side, to);
              count.started++;
            } else {
              cache.transcode(layer, page, side, to);
              shadow.transcode(layer, page, side, to);
              count.transcoded++;
            }
          });
        } catch (error) {
          if (!(error instanceof KvError) || !/under way/.test(error.message)) throw error;
          count.blocked++;
        }
      } else if (kind < 0.87) {
        // A budget that was lowered meanwhile is what refuses a move in the end.
        const given = pool.budgetBytes;
        if (random() < 0.7) pool.setBudget(pool.usedBytes);
        finish(one, random() < 0.4);
        pool.setBudget(given);
      } else if (kind < 0.875) {
        refuseLate();
      } else if (kind < 0.9) {
        if (sessions.length >= 5) return;
        const fork = tried(() => cache.fork());
        if (fork === undefined) return;
        sessions.push({ cache: fork, shadow: shadow.fork(), shape: one.shape });
        count.forks++;
      } else if (kind < 0.93) {
        cache.close();
        shadow.close();
        sessions = sessions.filter((other) => other !== one);
        count.closes++;
        if (!sessions.some(({ shape }) => shape === one.shape)) open(one.shape);
        while (sessions.length === 0) {
          pool.setBudget(3_000_000);
          open(0);
        }
      } else if (kind < 0.97) {
        const least = Math.max(...Array.from({ length: layers }, (_, i) => cache.table(i).pages * 128));
        const most = Math.min(...Array.from({ length: layers }, (_, i) => cache.length(i)));
        if (least > most) return;
        const tokens = least + Math.floor(random() * (most - least + 1));
        cache.truncate(tokens);
        shadow.truncate(tokens);
      } else {
        const budget = random() < 0.3 ? pool.usedBytes : Math.floor(1_000_000 + random() * 3_000_000);
        tried(() => pool.setBudget(budget));
      }
    };

    for (const which of [0, 1]) open(which);
    for (let i = 0; i < STEPS; i++) {
      step();
      const used = pool.usedBytes;
      if (used !== pool.auditBytes() || used > pool.budgetBytes)
        expect.fail(`seed ${SEED}, step ${i}: reported ${used}, allocated ${pool.auditBytes()}`);
      if (i % 40 === 0) compare(pick(random, sessions));
    }
    for (const one of sessions) {
      finish(one, true);
      compare(one);
      one.cache.close();
      one.shadow.close();
    }
    console.log(Object.entries(count).join('; '));
    for (const [what, times] of Object.entries(count)) expect([what, times > 5]).toEqual([what, true]);
    expect([pool.usedBytes, pool.auditBytes(), shadows.usedBytes]).toEqual([0, 0, 0]);
    // Seconds; minutes under a sanitizer on a busy machine.
  });
});
