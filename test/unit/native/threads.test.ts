/**
 * The thread pool runs every item once and waits for nobody who has nothing to do, and how many threads there are
 * changes no bit of attention. Seen from inside (native/test_threads.cc), because no result depends on it: rounds of
 * random size on more threads than the machine has cores; rounds while every thread but the caller is held in a signal
 * handler, which a caller that waits for them does not survive.
 */
import { spawnSync } from 'node:child_process';
import { createHash } from 'node:crypto';
import { availableParallelism } from 'node:os';
import { join } from 'node:path';
import { describe, expect, it } from 'vitest';
import { nativeInfo, openKvCache, openPool } from '../../../native/index.ts';
import { normals, uniform } from '../../native/dense.ts';
import { FOLDERS, loadKernels } from '../../native/kernels-binding.ts';
import { IS_SHORT } from '../../tier.ts';

const { binding } = nativeInfo();
const hasThreads = binding !== 'wasm';
const SEED = 20261207;

describe('the thread pool', () => {
  it.skipIf(!hasThreads)('runs every item exactly once, whoever is late (needs threads)', () => {
    console.log(`thread rounds, seed ${SEED}`);
    const { threadRounds } = loadKernels();
    for (const [threads, rounds, items] of [
      [1, 200, 9],
      [2, 4000, 3],
      [availableParallelism() + 1, 4000, 9],
      [16, 2000, 60],
      [64, 300, 9],
    ] as const) {
      const { wrong, shared, byOthers } = threadRounds!(threads, rounds, items, SEED);
      expect([threads, wrong]).toEqual([threads, 0]);
      // In these rounds the caller waits until others have come.
      expect(shared).toBeGreaterThan(threads === 1 ? -1 : rounds / 50);
      expect(byOthers).toBeGreaterThanOrEqual(shared);
    }
  });

  // The sanitizer keeps signals back until a thread calls it, and a sleeping thread calls nobody.
  const canStop = process.platform === 'linux' && hasThreads && binding !== 'thread';
  it.skipIf(!canStop)('does not wait for threads that do not run (needs signals: Linux, no thread sanitizer)', () => {
    // In a process of its own: if the caller waits, it waits for ever.
    const file = join(import.meta.dirname, '../../../native/build', FOLDERS[binding], 'kernels_test.node');
    const script = `process.stdout.write(String(require(${JSON.stringify(file)}).stoppedThreads(6, 600)))`;
    const { stdout, signal } = spawnSync(process.execPath, ['-e', script], { timeout: 600_000, encoding: 'utf8' });
    // Every round has 2 to 13 items, 50 times each.
    expect([signal, stdout]).toEqual([null, String(50 * 90)]);
  });

  // In a process of its own, whose threads are counted.
  const canCount = process.platform === 'linux' && hasThreads;
  it.skipIf(!canCount)(
    'is one for all caches of an environment; mover and scratch are one for a pool (needs Linux and threads)',
    () => {
      const program = `
      import { readdirSync } from 'node:fs';
      import { openKvCache, openPool, useBinding } from './native/index.ts';
      useBinding('${binding}');
      const threads = () => readdirSync('/proc/self/task').length;
      const shape = { layers: 1, queryHeads: 4, kvHeads: 2, headDim: 64 };
      const rows = new Float32Array(300 * 128).fill(0.5);
      const first = openKvCache({ shape, pool: openPool(1e8) });
      const before = threads();
      const pool = openPool(1e8);
      const use = (cache) => {
        cache.append(0, rows, rows);
        cache.startMove(0, 0, 'k', 'rot4');
        cache.attend(0, rows.subarray(0, 16 * 256), new Float32Array(16 * 256));
        cache.startTrial(0, 0, [{ side: 'v', format: 'rot4' }]);
        return cache;
      };
      const caches = [1, 4, 2, 3, 4, 1, 2, 4, 3, 4].map((threads) => use(openKvCache({ shape, pool, threads })));
      const most = threads() - before;
      const scratch = caches[0].memory().scratchBytes;
      const alone = use(openKvCache({ shape, pool: openPool(1e8), threads: 4 }));
      const isOne = scratch < 1.5 * alone.memory().scratchBytes;
      alone.close();
      for (const cache of caches.slice(1)) cache.close();
      const errors = caches[0].finishTrials(true)[0];
      caches[0].finishMoves(true);
      caches[0].close();
      while (threads() > before + 3);
      first.close();
      console.log(JSON.stringify([most, isOne, Number.isFinite(errors[0]), caches.length]));
    `;
      const flags = ['--import', 'tsx', '--input-type=module', '-e', program];
      const { stdout, stderr } = spawnSync(process.execPath, flags, {
        cwd: join(import.meta.dirname, '../../..'),
        encoding: 'utf8',
      });
      // Three beside the caller, which wait for the next cache, and the mover, which does not.
      expect([stderr, stdout.trim()]).toEqual(['', JSON.stringify([4, true, true, 10])]);
    },
  );

  it('gives the same bits round after round', () => {
    const shape = { layers: 1, queryHeads: 6, kvHeads: 3, headDim: 64 };
    const random = uniform(SEED);
    const rows = normals(random, 2000 * 192);
    const q = normals(random, 384);
    for (const threads of [2, 7]) {
      const cache = openKvCache({ shape, pool: openPool(40_000_000), threads });
      // Long enough to be worth sharing.
      for (let i = 0; i < 6; i++) cache.append(0, rows, rows);
      const first = new Float32Array(384);
      cache.attend(0, q, first, { observe: false });
      for (let round = 0; round < 200; round++) {
        const again = new Float32Array(384);
        cache.attend(0, q, again, { observe: false });
        if (round % 20 === 0 || !Buffer.from(again.buffer).equals(Buffer.from(first.buffer)))
          expect(again).toEqual(first);
      }
    }
  });

  // Pages of several formats, a window, values that are skipped; histories that are divided by pages, and calls of one
  // token, of a few and of a block. On a slow build two ranges, of one group.
  const histories = [
    ['many groups of queries', { layers: 2, queryHeads: 6, kvHeads: 3, headDim: 64 }, 70_000],
    ['one group of queries', { layers: 2, queryHeads: 8, kvHeads: 1, headDim: 128 }, IS_SHORT ? 10_000 : 30_000],
  ] as const;
  it.skipIf(!hasThreads).each(IS_SHORT ? histories.slice(1) : histories)(
    'gives the same bits for any number of threads, to %s (needs threads)',
    (_, shape, tokens) => {
      console.log(`attention on several threads, seed ${SEED}`);
      const found = (IS_SHORT ? [1, 3] : [1, 2, 3, 7]).map((threads) => {
        const random = uniform(SEED);
        const row = shape.kvHeads * shape.headDim;
        const cache = openKvCache({ shape, pool: openPool(2 ** 30), threads, slidingWindow: [null, 9000] });
        const rows = [normals(random, 5000 * row), normals(random, 5000 * row)] as const;
        const said: string[] = [];
        const counts = IS_SHORT ? [1, 5] : [1, 5, 40, 200];
        const attend = (count: number) => {
          const q = normals(random, count * shape.queryHeads * shape.headDim, 2);
          for (const layer of [0, 1]) {
            const out = new Float32Array(q.length);
            const lse = new Float32Array(count * shape.queryHeads);
            cache.attend(layer, q, out, { lse });
            for (const bits of [out, lse]) said.push(createHash('sha256').update(bits).digest('hex'));
          }
        };
        for (let at = 0; at < tokens; at += 5000) {
          for (const layer of [0, 1]) cache.append(layer, ...rows);
          if (at % 15_000 === 0) for (const count of counts.slice(0, 3)) attend(count);
        }
        for (let page = 0; page < cache.table(0).pages; page += 3) {
          cache.transcode(0, page, 'k', (['rot4', 'rot2', 'f16'] as const)[page % 4] ?? 'rot3');
          cache.transcode(0, page, 'v', 'rot2');
        }
        cache.setSkipShare(IS_SHORT ? 0.1 : 0.01);
        for (const count of counts) attend(count);
        const masses = [0, 1].map((layer) => createHash('sha256').update(cache.table(layer).mass).digest('hex'));
        const skipped = cache.skipped(0);
        cache.close();
        return { said, masses, skipped };
      });
      expect(found[0]!.skipped.skipped).toBeGreaterThan(0);
      for (const other of found.slice(1)) expect(other).toEqual(found[0]);
    },
  );
});
