// A page whose keys and values went to two bits is made again from the latent that was kept beside it: within the bound
// of the latent's format of the exact rows, element by element, whatever the pieces in which tokens came; and bytes
// reported are bytes allocated after every step.
import { describe, expect, test } from 'vitest';
import { Latents } from '../../engine/cache/latents.ts';
import {
  decodeLatent,
  encodeLatent,
  latentBytes,
  openBytes,
  openKvCache,
  openPool,
  PAGE_TOKENS,
  pageBytes,
} from '../../native/index.ts';
import { normals, relativeError, uniform } from '../native/dense.ts';
import { inputs, model, QUERY, ROW, SHAPE, WIDTH } from '../native/latent-model.ts';
import { isForHome } from '../tier.ts';

const SEEDS = [11, 12, 13].filter((_, place) => isForHome(place, 3));

describe.each(['xq8', 'xq4'] as const)('%s', (format) => {
  test.each(SEEDS)('a restored page is the exact one within the bound of the format (seed %i)', (seed) => {
    const of = model(format, seed);
    const random = uniform(seed);
    const pool = openPool(2 ** 26);
    const sealLatentBytes = latentBytes(format, WIDTH);
    const cache = openKvCache({ shape: SHAPE, pool, sealLatentBytes });
    const latents = new Latents(of.latents, cache, SHAPE);
    const sealBytes = 2 * pageBytes('q8', SHAPE.kvHeads, SHAPE.headDim) + sealLatentBytes;
    expect(cache.sealBytes).toBe(sealBytes);
    const all = Array.from({ length: SHAPE.layers }, () => ({
      rows: [] as number[],
      k: [] as number[],
      v: [] as number[],
    }));
    let length = 0;
    const audit = (): void => {
      expect(pool.usedBytes).toBe(pool.auditBytes());
      expect(cache.memory().totalBytes).toBe(pool.usedBytes);
    };
    while (length < 3 * PAGE_TOKENS + 1) {
      const tokens = Math.ceil(random() * (random() < 0.3 ? 200 : 40));
      const promised = pool.usedBytes + cache.appendBytes(tokens);
      for (let layer = 0; layer < SHAPE.layers; layer++) {
        const x = inputs(random, tokens);
        const { rows, k, v } = of.project(layer, x, length);
        const checked = latents.check(layer, x, tokens, length);
        cache.append(layer, k, v);
        latents.add(layer, checked, tokens, length);
        const q = normals(random, tokens * QUERY);
        cache.attend(layer, q, new Float32Array(q.length));
        all[layer]!.rows.push(...rows);
        all[layer]!.k.push(...k);
        all[layer]!.v.push(...v);
        audit();
      }
      expect(pool.usedBytes).toBe(promised);
      length += tokens;
    }
    const { pages } = cache.table(0);
    expect(pool.usedBytes).toBe(openBytes(SHAPE, length) + SHAPE.layers * pages * sealBytes);
    expect(latents.keptBytes).toBe(SHAPE.layers * pages * sealLatentBytes);

    for (let layer = 0; layer < SHAPE.layers; layer++) {
      for (let page = 0; page < 3; page++) {
        const cut = (rows: readonly number[], width: number): Float32Array =>
          Float32Array.from(rows.slice(page * PAGE_TOKENS * width, (page + 1) * PAGE_TOKENS * width));
        const rows = cut(all[layer]!.rows, WIDTH);
        const firstRow = page === 0 ? 4 : 0;
        const coded = decodeLatent(format, encodeLatent(format, rows, WIDTH, firstRow), WIDTH);
        cache.transcode(layer, page, 'v', 'rot2');
        cache.transcode(layer, page, 'k', 'rot2');
        const coarse = { k: cache.decode(layer, page, 'k'), v: cache.decode(layer, page, 'v') };
        audit();
        const grown =
          2 * (pageBytes('f16', SHAPE.kvHeads, SHAPE.headDim) - pageBytes('rot2', SHAPE.kvHeads, SHAPE.headDim));
        expect(latents.restore(layer, page, 'f16')).toBe(grown);
        audit();
        const { kind, kFormat, vFormat, latent } = cache.table(layer);
        expect([kind[page], kFormat[page], vFormat[page], latent[page]]).toEqual([0, 0, 0, format === 'xq8' ? 1 : 2]);
        for (const side of ['k', 'v'] as const) {
          const exact = cut(all[layer]![side], ROW);
          const restored = cache.decode(layer, page, side);
          const w = of.latents.layers[layer]![side === 'k' ? 'wk' : 'wv'];
          for (let t = firstRow; t < PAGE_TOKENS; t++) {
            let [off, size] = [0, 0];
            for (let c = 0; c < WIDTH; c++) {
              off += (coded[t * WIDTH + c]! - rows[t * WIDTH + c]!) ** 2;
              size += coded[t * WIDTH + c]! ** 2;
            }
            for (let o = 0; o < ROW; o++) {
              const weights = Math.hypot(...w.subarray(o * WIDTH, (o + 1) * WIDTH));
              // |w · (x̂ − x)| by Cauchy and Schwarz; then weights that are off by at most half a step of |w|/127
              // (xq4) or of |w|/32512 (xq8) each; then f16, of numbers below 16. A pair that the rotary embedding
              // turns mixes two such errors.
              const rounding = (Math.sqrt(WIDTH) * Math.sqrt(size)) / (format === 'xq4' ? 254 : 65024);
              const bound = Math.SQRT2 * weights * (Math.sqrt(off) + rounding) + 2 ** -7;
              const [a, b] = [restored[t * ROW + o]!, exact[t * ROW + o]!];
              if (!(Math.abs(a - b) <= bound)) expect(`${side} row ${t}, ${o}: ${a} for ${b}`).toBe(`within ${bound}`);
            }
          }
          // As a whole: what native/README.md says of the format, and far from two bits. Sinks are exact.
          const error = relativeError(restored, exact);
          expect(error).toBeLessThan(format === 'xq8' ? 0.01 : 0.11);
          expect(relativeError(coarse[side], exact)).toBeGreaterThan(2.5 * error);
          const sinks = firstRow * ROW;
          if (page === 0)
            expect(relativeError(restored.subarray(0, sinks), exact.subarray(0, sinks))).toBeLessThan(5e-4);
        }
      }
    }
    // A fork shares pages and their latents: what is restored is restored for both.
    const fork = cache.fork();
    const f16 = fork.decode(0, 1, 'k');
    const f16Bytes = pageBytes('f16', SHAPE.kvHeads, SHAPE.headDim);
    expect(cache.restore(0, 1, 'rot4')).toBe(2 * (f16Bytes - pageBytes('rot4', SHAPE.kvHeads, SHAPE.headDim)));
    expect([...fork.decode(0, 1, 'k')]).toEqual([...cache.decode(0, 1, 'k')]);
    expect([...fork.decode(0, 1, 'k')]).not.toEqual([...f16]);
    expect(fork.table(0).latent[1]).toBe(cache.table(0).latent[1]);
    expect(pool.usedBytes).toBe(pool.auditBytes());
    fork.close();
    audit();
    cache.close();
    expect(pool.usedBytes).toBe(0);
    pool.close();
  });
});
