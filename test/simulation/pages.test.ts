/**
 * Random lives of caches with several layers, one or two threads, both window formats, sliding windows, forks, and rows
 * of sizes from 1e-6 to 6e4: pages move by side or both, at once and in the background, are held, kept and restored as
 * latents, exported and imported, tried at once and beside. Attention must be what float64 makes of the decoded rows; a
 * twin made of stored bytes must attend with equal bits; a trial that was started must answer what one at once answers;
 * bytes reported are bytes allocated. Print the seed, run it again.
 */
import { describe, expect, it } from 'vitest';
import {
  encodeLatent,
  FORMAT_NAMES,
  fromHalf,
  isEvicted,
  isMove,
  type KvCache,
  type KvCacheOptions,
  KvError,
  LATENT_NAMES,
  openKvCache,
  openPool,
  PAGE_KINDS,
  PAGE_TOKENS,
  PARTS,
  SERVED_FORMATS,
  type TrialCandidate,
  toHalf,
} from '../../native/index.ts';
import { denseAttention, history, normals, pick, sameBits, uniform } from '../native/dense.ts';
import { twinOf } from '../native/twin.ts';
import { seedFrom } from '../tier.ts';

const WORLDS = 12;
// Each commit has twelve worlds of its own.
const SEED = Number(process.env['PALIMPSEST_SIM_SEED'] ?? 20261123 + WORLDS * seedFrom(0));
const STEPS = 160;
const WIDTH = 64;
const TOKENS_MAX = 900;
const SPREADS = [1e-6, 1e-3, 0.1, 1, 30, 1000, 1.5e4];

describe('pages', () => {
  it(`of ${WORLDS} random caches attend, move, try and travel as they should`, () => {
    console.log(`pages simulation, seed ${SEED}`);
    const count = {
      attended: 0,
      moved: 0,
      refused: 0,
      latents: 0,
      restored: 0,
      tried: 0,
      twins: 0,
      forks: 0,
      freed: 0,
      evicted: 0,
    };
    for (let world = 0; world < WORLDS; world++) {
      const random = uniform(SEED + world);
      const headDim = pick(random, [64, 80, 128]);
      const shape = { layers: 1 + (world % 3), queryHeads: 4, kvHeads: 2, headDim };
      const pool = openPool(2 ** 30);
      const slidingWindow = Array.from({ length: shape.layers }, () => (random() < 0.3 ? 200 : null));
      const windowFormat = pick(random, ['q8', 'f16'] as const);
      const options = {
        ...{ shape, pool, slidingWindow, windowFormat },
        openFormat: pick(random, ['f16', windowFormat] as const),
        threads: 1 + (world % 2),
        latentScratchBytes: pick(random, [0, 100_000, 2 ** 24]),
      } satisfies KvCacheOptions;
      const spreads = Array.from({ length: shape.layers }, () => ({
        k: pick(random, SPREADS),
        v: pick(random, SPREADS),
      }));
      const weights = spreads.map(({ k, v }) => ({
        width: WIDTH,
        wk: normals(random, 2 * headDim * WIDTH, k / 16),
        wv: normals(random, 2 * headDim * WIDTH, v / 16),
      }));
      const row = 2 * headDim;
      const first = openKvCache(options);
      for (const [layer, given] of weights.entries()) first.setLatentWeights(layer, given);
      let caches: KvCache[] = [first];
      /**
       * What was appended to each of them last: where open pages are coded, these rows are attended as they were given.
       */
      const last = new Map<KvCache, { layer: number; k: Float32Array; v: Float32Array }>();
      const within = (x: Float32Array): Float32Array => x.map((value) => Math.max(-65504, Math.min(65504, value)));
      const rows = (layer: number, tokens: number) => ({
        k: within(normals(random, tokens * row, spreads[layer]!.k)),
        v: within(normals(random, tokens * row, spreads[layer]!.v)),
      });
      /** Queries of a size that makes scores of some units. */
      const queries = (layer: number, tokens: number): Float32Array =>
        within(normals(random, tokens * 2 * row, Math.min(6e4, 1 / spreads[layer]!.k)));
      const attend = (cache: KvCache, layer: number, q: Float32Array, observe = true): Float32Array => {
        const out = new Float32Array(q.length);
        cache.attend(layer, q, out, { observe });
        return out;
      };
      const check = (cache: KvCache, layer: number, q: Float32Array): void => {
        const out = attend(cache, layer, q);
        const [k, v] = [history(cache, layer, 'k'), history(cache, layer, 'v')];
        const table = cache.table(layer);
        const fresh = last.get(cache);
        if (options.openFormat !== 'f16' && fresh?.layer === layer) {
          const open = k.length - cache.table(layer).pages * PAGE_TOKENS * row;
          for (const [whole, part] of [
            [k, fresh.k],
            [v, fresh.v],
          ] as const) {
            const tail = part.subarray(Math.max(0, part.length - open));
            whole.set(fromHalf(toHalf(tail)), whole.length - tail.length);
          }
        }
        const expected = denseAttention(shape, q, k, v, {
          window: slidingWindow[layer] ?? null,
          skips: (at) => isEvicted(table, Math.floor(at / PAGE_TOKENS)),
        }).out;
        const largest = v.reduce((most, x) => Math.max(most, Math.abs(x)), 1e-30);
        const off = out.reduce((most, x, i) => Math.max(most, Math.abs(x - expected[i]!)), 0);
        const ok = out.every(Number.isFinite) && off <= 4e-3 * largest;
        if (!ok) expect.fail(`seed ${SEED}, world ${world}, layer ${layer}: off by ${off} of values up to ${largest}`);
        count.attended++;
      };
      const tried = (work: () => void): void => {
        const used = pool.usedBytes;
        try {
          work();
        } catch (error) {
          if (!(error instanceof KvError) || error.code !== 'unsupported') throw error;
          expect(pool.usedBytes).toBe(used);
          count.refused++;
        }
      };

      const step = (): void => {
        const cache = pick(random, caches);
        const layer = Math.floor(random() * shape.layers);
        const { pages, kind, latent } = cache.table(layer);
        const page = Math.floor(random() * pages);
        const what = random();
        if (what < 0.25 || pages === 0) {
          const tokens = 1 + Math.floor(random() * 200);
          if (cache.length(layer) + tokens > TOKENS_MAX) return;
          const { k, v } = rows(layer, tokens);
          cache.append(layer, k, v);
          last.set(cache, { layer, k, v });
        } else if (what < 0.4) {
          const tokens = Math.min(cache.length(layer), pick(random, [1, 1, 7, 70]));
          // Older ones of them may see what has been freed.
          if (tokens === 1) check(cache, layer, queries(layer, 1));
          else tried(() => check(cache, layer, queries(layer, tokens)));
        } else if (what < 0.43) {
          // The oldest page of a layer that has a window, where one has.
          const windowed = Math.max(0, slidingWindow.indexOf(200));
          const { kind, pages } = cache.table(windowed);
          const oldest = kind.findIndex((one) => PAGE_KINDS[one] !== 'freed');
          tried(() => {
            const before = pool.usedBytes;
            const freed = pages === 0 ? 0 : cache.freePage(windowed, Math.max(0, oldest));
            expect(pool.usedBytes).toBe(before - freed);
            count.freed++;
          });
        } else if (what < 0.45) {
          // The sinks of the first page would stay, and nothing says what they are.
          tried(() => {
            if (page === 0) return;
            const before = pool.usedBytes;
            const freed = cache.evictPage(layer, page);
            expect(pool.usedBytes).toBe(before - freed);
            count.evicted++;
          });
        } else if (what < 0.65) {
          tried(() => {
            const [part, to] = [pick(random, PARTS), pick(random, SERVED_FORMATS)];
            if (random() < 0.5) cache.transcode(layer, page, part, to);
            else cache.startMove(layer, page, part, to);
            count.moved++;
          });
          if (random() < 0.5) cache.finishMoves(random() < 0.5);
        } else if (what < 0.75) {
          const name = pick(random, LATENT_NAMES);
          const bytes = encodeLatent(name, normals(random, PAGE_TOKENS * WIDTH), WIDTH, page === 0 ? 4 : 0);
          const change = pick(random, [
            () => cache.keepLatent(layer, page, name, bytes),
            () => cache.holdLatent(layer, page, name, bytes),
            () => cache.toLatent(layer, page, name),
            () => cache.dropLatent(layer, page),
          ]);
          tried(() => {
            change();
            count.latents++;
          });
        } else if (what < 0.82) {
          tried(() => {
            const options = pick(random, [{}, { keepLatent: true }, { keepLatent: false }]);
            cache.restore(layer, page, pick(random, SERVED_FORMATS), options);
            count.restored++;
          });
        } else if (what < 0.9) {
          tried(() => {
            attend(cache, layer, queries(layer, Math.min(cache.length(layer), 130)));
            const { kFormat, vFormat, latent } = cache.table(layer);
            // A page that is held as a latent has no formats, and only latents to become.
            const has = [FORMAT_NAMES[kFormat[page]!], FORMAT_NAMES[vFormat[page]!]];
            const formats = SERVED_FORMATS.filter((to) => has.every((from) => from !== undefined && isMove(from, to)));
            const latents = latent[page] === 0 ? [] : LATENT_NAMES.slice(latent[page]! - 1);
            const candidates: TrialCandidate[] = PARTS.flatMap((side) => formats.map((format) => ({ side, format })));
            candidates.push(...latents.map((format) => ({ side: 'kv', format }) as const));
            const expected = cache.trial(layer, page, candidates);
            cache.startTrial(layer, page, candidates);
            // Beneath it another holder may move the page.
            if (random() < 0.5) {
              const others = caches.filter((one) => one.table(layer).pages > page);
              tried(() => pick(random, others).transcode(layer, page, 'kv', 'rot2'));
            }
            expect(cache.finishTrials(true)).toEqual([expected]);
            count.tried++;
          });
        } else if (what < 0.94) {
          if (caches.length < 4) {
            caches.push(cache.fork());
            count.forks++;
          } else {
            caches = caches.filter((one) => one !== cache);
            cache.close();
          }
        } else {
          cache.finishMoves(true);
          const same = twinOf(cache, { ...options, pool: openPool(2 ** 30) }, weights);
          expect(same.table(layer).kind).toEqual(kind);
          expect(same.table(layer).latent).toEqual(latent);
          const q = queries(layer, 1);
          if (options.openFormat === 'f16')
            expect(sameBits(attend(same, layer, q, false), attend(cache, layer, q, false))).toBe(true);
          same.close();
          count.twins++;
        }
      };

      for (let i = 0; i < STEPS; i++) {
        step();
        if (pool.usedBytes !== pool.auditBytes()) expect.fail(`seed ${SEED}, world ${world}, step ${i}: bytes differ`);
      }
      for (const cache of caches) {
        cache.finishMoves(true);
        for (let layer = 0; layer < shape.layers; layer++) {
          const { pages, kind, kFormat } = cache.table(layer);
          if (cache.length(layer) > 0) check(cache, layer, queries(layer, 1));
          for (let page = 0; page < pages; page++)
            expect(kFormat[page] === 255).toBe(PAGE_KINDS[kind[page]!] !== 'resident');
        }
        cache.close();
      }
      expect([pool.usedBytes, pool.auditBytes()]).toEqual([0, 0]);
    }
    console.log(Object.entries(count).join('; '));
    for (const [what, times] of Object.entries(count)) expect([what, times > 5]).toEqual([what, true]);
  });
});
