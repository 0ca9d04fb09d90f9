/**
 * V8 knows how much there is outside its heap: whatever the binding holds is told when it is made and taken back when
 * it is closed or collected, so that what is dropped without being closed is collected in time. Asked of V8 itself, and
 * of a process that drops sixty dense halves.
 */
import { spawnSync } from 'node:child_process';
import { setFlagsFromString } from 'node:v8';
import { runInNewContext } from 'node:vm';
import { beforeEach, describe, expect, it } from 'vitest';
import {
  DenseHalf,
  encodeLatent,
  GemmWeights,
  LatentWeights,
  nativeInfo,
  openKvCache,
  openPool,
  PackedPredictor,
} from '../../../native/index.ts';
import { loadKernels } from '../../native/kernels-binding.ts';
import { IS_SHORT } from '../../tier.ts';

const MIB = 2 ** 20;
const SHAPE = {
  ...{ layers: 1, hiddenSize: 1024, intermediateSize: 64, queryHeads: 1, kvHeads: 1, headDim: 64 },
  ...{ vocabSize: 20_000, normEpsilon: 1e-5 },
};

// Slow builds take minutes for hundreds of megabytes, and what is told is the same there.
describe.skipIf(nativeInfo().binding === 'wasm' || IS_SHORT)(
  'what V8 is told (needs an addon, and no slow build)',
  () => {
    const kernels = loadKernels();
    setFlagsFromString('--expose-gc');
    const collect = runInNewContext('gc') as () => void;
    /** What others have dropped must not go while something is counted. */
    beforeEach(async () => {
      for (let i = 0; i < 3; i++) {
        collect();
        await new Promise(setImmediate);
      }
    });
    const told = (): number => kernels.externalBytes();
    const rows = new Float32Array(4 * MIB);

    /** Makes something, and expects V8 to know of its bytes, within what heaps keep beside them, until it is closed. */
    function expectTold(make: () => { readonly close: () => void; readonly bytes: number }): void {
      const before = told();
      const it = make();
      expect(it.bytes).toBeGreaterThan(4 * MIB);
      expect(told() - before).toBeGreaterThan(it.bytes - MIB);
      expect(told() - before).toBeLessThan(1.25 * it.bytes + 4 * MIB);
      it.close();
      expect(Math.abs(told() - before)).toBeLessThan(MIB);
    }

    it('of a dense half, its scratch included', () => {
      const bytes = new Uint8Array((SHAPE.vocabSize * SHAPE.hiddenSize * 34) / 32);
      expectTold(() => {
        const half = new DenseHalf(SHAPE);
        half.setRows(1, 'q', 'Q8_0', bytes);
        return half;
      });
      const half = new DenseHalf({ ...SHAPE, vocabSize: 16, intermediateSize: 2 ** 14 });
      for (const slot of ['q', 'k', 'v', 'o', 'gate', 'up', 'down'] as const) {
        const [outputs, inputs] = half.sizes(0, slot);
        half.setRows(0, slot, 'Q8_0', bytes.subarray(0, (outputs * inputs * 34) / 32));
      }
      half.setRows(1, 'q', 'Q8_0', bytes.subarray(0, (16 * 1024 * 34) / 32));
      for (const [layer, norm] of [
        [0, 'attnNorm'],
        [0, 'mlpNorm'],
        [1, 'attnNorm'],
      ] as const)
        half.setNorm(layer, norm, new Float32Array(1024).fill(1));
      const [x, attention, out] = [
        rows.subarray(0, 128 * 1024),
        rows.subarray(0, 128 * 64),
        new Float32Array(128 * 1024),
      ];
      const before = told();
      half.last(attention, x, 128, out);
      // Gates and ups of 128 rows in four bytes each, and the gates once more in two.
      expect(told() - before).toBeGreaterThan(128 * 2 ** 14 * (4 + 4 + 2) - MIB);
      half.close();
      expect(told()).toBeLessThan(before);
    });

    it('of packed weights, and of what multiplies them', () => {
      for (const Weights of [GemmWeights, LatentWeights]) expectTold(() => new Weights(rows, 2048, 2048));
      const weights = new GemmWeights(rows.subarray(0, 16 * 4096), 16, 4096);
      const [levels, out] = [new Int8Array(4096 * 4096), new Float32Array(16 * 4096)];
      const before = told();
      weights.multiply(levels, rows.subarray(0, 4096), { out });
      expect(told() - before).toBeGreaterThan(levels.length - MIB);
      weights.close();
      expect(Math.abs(told() - before)).toBeLessThan(MIB);
    });

    it('of a predictor', () => {
      const w = 1024;
      const shares = Uint16Array.from({ length: 43 }, (_, symbol) => (symbol === 0 ? 4096 - 42 : 1));
      const side = (contraction: number) => ({
        ...{ weights: new Int8Array(w * contraction), scales: rows.subarray(0, w), base: rows.subarray(0, w) },
        ...{ factors: new Uint8Array(w).fill(1), tables: new Uint8Array(w) },
      });
      const layer = { k: side(w), v: side(2 * w), centres: rows.subarray(0, 2 * w), gains: rows.subarray(0, 2 * w) };
      expectTold(() => new PackedPredictor({ kvHeads: 8, headDim: 128 }, shares, [layer]));
    });

    it('of a cache: scratch of its threads, rows that it has just read, blocks of latents and their weights', () => {
      const shape = { layers: 1, queryHeads: 32, kvHeads: 8, headDim: 128 };
      const width = 1024;
      const q = new Float32Array(900 * 32 * 128);
      const out = q.slice();
      const pool = openPool(2 ** 28);
      const start = told();
      const cache = openKvCache({ shape, pool, latentScratchBytes: 2 ** 24, openFormat: 'q8' });
      const step = (work: () => void, least: number): void => {
        const [before, reserved] = [told(), pool.reservedBytes];
        work();
        expect(told() - before - (pool.reservedBytes - reserved)).toBeGreaterThan(least);
      };
      const weights = { width, wk: rows.subarray(0, width * width), wv: rows.subarray(0, width * width) };
      step(() => cache.setLatentWeights(0, weights), 4 * width * width - MIB);
      const some = rows.subarray(0, 1000 * width);
      cache.append(0, some, some);
      for (let page = 0; page < 7; page++)
        cache.holdLatent(0, page, 'xq4', encodeLatent('xq4', rows.subarray(0, 128 * width), width));
      // Seven blocks of both sides in f16.
      step(() => cache.attend(0, q, out, { observe: false }), 7 * 2 * 128 * width * 2 - MIB);
      const twin = cache.fork();
      twin.append(0, some.subarray(0, width), some.subarray(0, width));
      cache.close();
      twin.append(0, some.subarray(0, width), some.subarray(0, width));
      expect(told() - start).toBeGreaterThan(4 * width * width);
      twin.close();
      pool.close();
      collect();
      expect(Math.abs(told() - start)).toBeLessThan(MIB);
    });

    const LIMIT = 700 * MIB;
    // Address sanitizers keep what was freed.
    const isPlain = !['debug', 'thread'].includes(nativeInfo().binding);
    it.skipIf(!isPlain)(
      'sixty dense halves of 50 MB that nobody closes are collected (needs a build without sanitizers)',
      { timeout: 120_000 },
      () => {
        const program = `
      const { Dense } = require(process.argv[1]);
      const [vocab, hidden] = [46080, 1024];
      const bytes = new Uint8Array(vocab * hidden * 34 / 32);
      const shape = Int32Array.of(1, hidden, 64, 1, 1, 64, vocab, 1, 0, 0, 0);
      const run = async () => {
        const before = process.memoryUsage.rss();
        let [most, made] = [0, 0];
        for (; made < 60 && most < ${LIMIT}; made++) {
          const half = new Dense();
          if (half.open(shape, 1e-5) !== 0 || half.setRows(1, 0, 3, bytes, 0, vocab, 0) !== 0) throw new Error('not set');
          most = Math.max(most, process.memoryUsage.rss() - before);
          await new Promise(setImmediate);
        }
        console.log(JSON.stringify({ made, most }));
      };
      run();`;
        const ran = spawnSync(process.execPath, ['-e', program, nativeInfo().file], { encoding: 'utf8' });
        expect(ran.stderr).toBe('');
        const { made, most } = JSON.parse(ran.stdout) as { made: number; most: number };
        expect(made).toBe(60);
        expect(most).toBeLessThan(LIMIT);
      },
    );
  },
);
