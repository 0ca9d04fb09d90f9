/**
 * The by-products and edges of attend: mass, log-sum-exp, kept queries, windows, and the same answer however it is
 * called.
 */
import { describe, expect, it } from 'vitest';
import { openKvCache, openPool, SERVED_FORMATS } from '../../../native/index.ts';
import { denseOf, normals, relativeError, uniform } from '../../native/dense.ts';

const shape = { layers: 1, queryHeads: 6, kvHeads: 2, headDim: 64 };
const QUERY = 6 * 64;
const ROW = 2 * 64;

interface Options {
  threads?: number;
  slidingWindow?: (number | null)[];
  alibiSlopes?: Float32Array;
}

function filled(tokens: number, options: Options = {}) {
  const cache = openKvCache({ shape, pool: openPool(64_000_000), ...options });
  const random = uniform(tokens);
  if (tokens > 0) cache.append(0, normals(random, tokens * ROW), normals(random, tokens * ROW));
  return { cache, random };
}

describe('attend', () => {
  it('of one token over itself gives its value back', () => {
    const { cache, random } = filled(1);
    const out = new Float32Array(QUERY);
    const lse = new Float32Array(6);
    cache.attend(0, normals(random, QUERY), out, { lse });
    const v = cache.decode(0, 0, 'v');
    for (let h = 0; h < 6; h++) {
      for (let c = 0; c < 64; c++) expect(out[h * 64 + c]).toBeCloseTo(v[Math.floor(h / 3) * 64 + c]!, 6);
    }
  });

  it('over an empty layer is refused, as are more queries than tokens', () => {
    const { cache, random } = filled(0);
    expect(() => cache.attend(0, normals(random, QUERY), new Float32Array(QUERY))).toThrow(/holds 0/);
    const some = filled(3);
    expect(() => some.cache.attend(0, normals(random, 4 * QUERY), new Float32Array(4 * QUERY))).toThrow(/holds 3/);
  });

  it('gives every query head a mass of one per token, spread over the pages (T23)', () => {
    const { cache, random } = filled(500);
    const q = normals(random, 7 * QUERY);
    cache.attend(0, q, new Float32Array(q.length));
    const { mass } = cache.table(0);
    expect(mass.length).toBe(4);
    expect(mass.reduce((a, b) => a + b)).toBeCloseTo(7 * 6, 4);
    cache.attend(0, q, new Float32Array(q.length), { observe: false });
    expect(cache.table(0).mass).toEqual(mass);
  });

  it('keeps its mass with the page when the open page is sealed and when it changes format (T23)', () => {
    const { cache, random } = filled(128);
    cache.attend(0, normals(random, QUERY), new Float32Array(QUERY));
    const open = cache.table(0).mass[0]!;
    expect(open).toBeCloseTo(6, 5);
    cache.append(0, normals(random, ROW), normals(random, ROW));
    expect([...cache.table(0).mass]).toEqual([open, 0]);
    cache.transcode(0, 0, 'k', 'rot2');
    expect([...cache.table(0).mass]).toEqual([open, 0]);
  });

  it('gives the same bits for the same thread count, and the same numbers for another', () => {
    const outputs = [1, 1, 2, 2, 3].map((threads) => {
      const { cache, random } = filled(2000, { threads });
      const q = normals(random, 40 * QUERY);
      const out = new Float32Array(q.length);
      cache.attend(0, q, out);
      return { out, mass: cache.table(0).mass };
    });
    expect(outputs[1]).toEqual(outputs[0]);
    expect(outputs[3]).toEqual(outputs[2]);
    expect(relativeError(outputs[2]!.out, outputs[0]!.out)).toBeLessThan(1e-4);
    expect(relativeError(outputs[4]!.out, outputs[0]!.out)).toBeLessThan(1e-4);
  });

  it('of one token over a history long enough to be shared equals dense attention, with any number of threads', () => {
    const slopes = Float32Array.from({ length: 6 }, (_, h) => 2 ** -(h + 4));
    for (const threads of [1, 2, 3, 7]) {
      for (const options of [{}, { slidingWindow: [9000] }, { alibiSlopes: slopes }]) {
        const { cache, random } = filled(12_000, { threads, ...options });
        for (let page = 0; page < 40; page++) {
          cache.transcode(0, page, 'k', page % 2 === 0 ? 'rot4' : 'rot2');
          cache.transcode(0, page, 'v', page % 3 === 0 ? 'rot3' : 'q8');
        }
        const q = normals(random, QUERY);
        const out = new Float32Array(QUERY);
        cache.attend(0, q, out);
        const window = options.slidingWindow?.[0] ?? null;
        const expected = denseOf(cache, 0, q, { window, ...(options.alibiSlopes ? { slopes } : {}) });
        expect(relativeError(out, expected.out)).toBeLessThan(3e-4);
        const { mass } = cache.table(0);
        for (const [page, share] of mass.entries()) expect(Math.abs(share - expected.mass[page]!)).toBeLessThan(1e-3);
        expect(mass.reduce((a, b) => a + b)).toBeCloseTo(6, 4);
      }
    }
  });

  it('with a window of one token sees only itself, with a window longer than the history all of it', () => {
    for (const [window, tokens] of [
      [1, 300],
      [10_000, 300],
      [129, 300],
    ] as const) {
      const { cache, random } = filled(tokens, { slidingWindow: [window] });
      const q = normals(random, 5 * QUERY);
      const out = new Float32Array(q.length);
      cache.attend(0, q, out);
      expect(relativeError(out, denseOf(cache, 0, q, { window }).out)).toBeLessThan(3e-4);
    }
  });

  it('stays exact when scores are large enough to leave one key standing', () => {
    const { cache } = filled(400);
    const key = cache.decode(0, 1, 'k').subarray(50 * ROW, 50 * ROW + 64);
    const q = new Float32Array(QUERY);
    for (let h = 0; h < 3; h++) q.set(key, h * 64);
    const sharp = q.map((x) => x * 40);
    const out = new Float32Array(QUERY);
    const lse = new Float32Array(6);
    cache.attend(0, sharp, out, { lse });
    const expected = denseOf(cache, 0, sharp);
    expect(relativeError(out, expected.out)).toBeLessThan(3e-4);
    expect(relativeError(lse, expected.lse)).toBeLessThan(1e-4);
  });

  it('survives rows of zeros, constants and the largest numbers that f16 holds', () => {
    const rows = new Float32Array(400 * ROW);
    rows.fill(65504, 5 * ROW, 8 * ROW);
    rows.fill(-0.3, 20 * ROW, 150 * ROW);
    rows.fill(6e-8, 200 * ROW, 220 * ROW);
    rows.fill(-0, 300 * ROW, 310 * ROW);
    for (const format of SERVED_FORMATS) {
      const cache = openKvCache({ shape, pool: openPool(64_000_000), windowFormat: 'f16' });
      cache.append(0, rows, rows);
      for (let page = 0; page < cache.table(0).pages; page++) {
        cache.transcode(0, page, 'k', format);
        cache.transcode(0, page, 'v', format);
      }
      const q = normals(uniform(1), 3 * QUERY, 1e-6);
      const out = new Float32Array(q.length);
      cache.attend(0, q, out);
      expect(out.every(Number.isFinite)).toBe(true);
      expect(relativeError(out, denseOf(cache, 0, q).out), format).toBeLessThan(1e-3);
      cache.close();
    }
  });
});
