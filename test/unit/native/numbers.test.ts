/**
 * Nothing that is not a number gets into a cache or out of it: queries, scales and slopes beyond their bounds are
 * refused with nothing counted; numbers of the largest size that is allowed, in every format, give outputs, masses and
 * trials that are numbers; latents of arbitrary bytes, and those that make keys beyond the range of f16, are refused
 * where that is known.
 */
import { describe, expect, it } from 'vitest';
import {
  decodeLatent,
  encodeLatent,
  FORMAT_NAMES,
  isMove,
  type KvCache,
  KvError,
  LATENT_NAMES,
  openKvCache,
  openPool,
  PARTS,
  SERVED_FORMATS,
} from '../../../native/index.ts';
import { normals, uniform } from '../../native/dense.ts';
import { scalesAt } from '../../native/latent-model.ts';
import { codeOf } from '../../refusal.ts';
import { IS_SHORT, isShare, rounds } from '../../tier.ts';

const shape = { layers: 1, queryHeads: 4, kvHeads: 2, headDim: 64 };
const [ROW, Q_ROW, WIDTH] = [128, 256, 256];
const LARGEST = 65504;

function filled(rows: Float32Array, windowFormat: 'q8' | 'f16' = 'q8'): KvCache {
  const cache = openKvCache({ shape, pool: openPool(2 ** 30), windowFormat });
  cache.append(0, rows, rows);
  return cache;
}

/** Attends and, where page 0 has formats, tries with these queries, and says whether all that comes out are numbers. */
function answers(cache: KvCache, q: Float32Array): boolean {
  const out = new Float32Array(q.length);
  const lse = new Float32Array((q.length / Q_ROW) * 4);
  cache.attend(0, q, out, { lse });
  const { kFormat, vFormat, mass } = cache.table(0);
  const has = [FORMAT_NAMES[kFormat[0]!]!, FORMAT_NAMES[vFormat[0]!]!];
  const formats = SERVED_FORMATS.filter((format) => has.every((from) => isMove(from, format)));
  const candidates = PARTS.flatMap((side) => formats.map((format) => ({ side, format })));
  return [out, lse, mass, cache.trial(0, 0, candidates)].every((numbers) => numbers.every(Number.isFinite));
}

describe('queries', () => {
  it('of 1e38, or of anything that f16 does not hold, are refused, and masses and trials stay what they were', () => {
    const random = uniform(1);
    const cache = filled(normals(random, 400 * ROW));
    const q = normals(random, 64 * Q_ROW);
    const out = new Float32Array(q.length);
    cache.attend(0, q, out);
    const [mass, trial] = [cache.table(0).mass, cache.trial(0, 1, [{ side: 'k', format: 'rot2' }])];
    const norms = new Float32Array(64).fill(1);
    for (const bad of [1e38, -1e38, 65536, Number.POSITIVE_INFINITY, Number.NaN])
      expect(codeOf(() => cache.attend(0, q.with(777, bad), out))).toBe('bad-value');
    for (const bad of [-1, Number.POSITIVE_INFINITY, Number.NaN])
      expect(codeOf(() => cache.attend(0, q, out, { xNorms: norms.with(5, bad) }))).toBe('bad-value');
    expect(cache.table(0).mass).toEqual(mass);
    expect(cache.trial(0, 1, [{ side: 'k', format: 'rot2' }])).toEqual(trial);
    expect(Number.isFinite(trial[0])).toBe(true);
  });

  it('scales and slopes that could make a score infinite are refused', () => {
    const pool = openPool(2 ** 30);
    for (const scale of [1e21, -1e30, Number.NaN, 1e300])
      expect(codeOf(() => openKvCache({ shape, pool, scale }))).toBe('bad-argument');
    const alibiSlopes = new Float32Array(4).fill(1e21);
    expect(codeOf(() => openKvCache({ shape, pool, alibiSlopes }))).toBe('bad-value');
  });

  it.each(SERVED_FORMATS.filter((_, place) => isShare(place, 4)))(
    'of the largest size meet keys and values of the largest size in %s',
    (format) => {
      const random = uniform(2);
      for (const size of IS_SHORT ? [-LARGEST] : [LARGEST, -LARGEST]) {
        for (const same of IS_SHORT ? [false] : [true, false]) {
          const large = (count: number): Float32Array =>
            Float32Array.from({ length: count }, () => (same || random() < 0.5 ? size : -size));
          for (const window of IS_SHORT ? (['q8'] as const) : (['q8', 'f16'] as const)) {
            const cache = filled(large(300 * ROW), window);
            for (const page of [0, 1]) cache.transcode(0, page, 'kv', format);
            for (const q of [large(140 * Q_ROW), normals(random, 140 * Q_ROW)])
              expect([size, same, window, answers(cache, q)]).toEqual([size, same, window, true]);
          }
        }
      }
    },
  );
});

describe('latents', () => {
  const weights = (size: number) => ({
    width: WIDTH,
    wk: normals(uniform(5), ROW * WIDTH, size),
    wv: normals(uniform(6), ROW * WIDTH, 0.05),
  });

  it('of arbitrary bytes are refused, or attend with numbers', () => {
    const random = uniform(7);
    const seen = new Map<string, number>();
    for (const name of LATENT_NAMES) {
      const bytes = encodeLatent(name, normals(random, 128 * WIDTH), WIDTH, 0);
      for (let round = 0; round < rounds(60); round++) {
        const cache = filled(normals(random, 300 * ROW));
        cache.setLatentWeights(0, weights(0.05));
        const any = bytes.slice();
        // All of it, or a few bytes of the scales and of means.
        const at = scalesAt(name, WIDTH);
        const [from, to] =
          round % 3 === 0 ? [0, any.length] : round % 3 === 1 ? [at.mean - 512, at.mean + 4] : [at.rows, any.length];
        for (let i = from; i < to; i++) if (round % 3 === 0 || random() < 0.2) any[i] = 256 * random();
        let code = 'held';
        try {
          cache[round % 2 === 0 ? 'holdLatent' : 'keepLatent'](0, 1, name, any);
          if (round % 4 === 1) cache.restore(0, 1, 'q8');
          if (round % 4 === 3) {
            cache.attend(0, normals(random, 40 * Q_ROW), new Float32Array(40 * Q_ROW));
            const latents = LATENT_NAMES.slice(LATENT_NAMES.indexOf(name));
            const errors = cache.trial(
              0,
              1,
              latents.map((format) => ({ side: 'kv', format })),
            );
            expect(errors.every((error) => error >= 0 || Number.isNaN(error))).toBe(true);
            cache.toLatent(0, 1, 'xq3');
            expect(errors.at(-1)).toBeGreaterThanOrEqual(0);
          }
        } catch (error) {
          if (!(error instanceof KvError)) throw error;
          code = error.code;
        }
        seen.set(code, (seen.get(code) ?? 0) + 1);
        expect(answers(cache, normals(random, 100 * Q_ROW))).toBe(true);
      }
      const { mean } = scalesAt(name, WIDTH);
      const notNumbers = bytes.slice().fill(0xff, mean, mean + 64);
      expect(codeOf(() => decodeLatent(name, notNumbers, WIDTH))).toBe('bad-value');
    }
    expect([...seen.keys()].sort()).toEqual(['bad-value', 'held']);
  });

  it.each(LATENT_NAMES)(
    'in %s that make keys beyond 65,504 are not held, and not restored when they are kept',
    (name) => {
      const random = uniform(8);
      const cache = filled(normals(random, 300 * ROW));
      cache.setLatentWeights(0, weights(2000));
      const bytes = encodeLatent(name, normals(random, 128 * WIDTH, 10), WIDTH, 0);
      const [keys, used] = [cache.decode(0, 1, 'k'), cache.memory().pageBytes];
      expect(codeOf(() => cache.holdLatent(0, 1, name, bytes))).toBe('bad-value');
      expect([cache.decode(0, 1, 'k'), cache.memory().pageBytes]).toEqual([keys, used]);
      cache.keepLatent(0, 1, name, bytes);
      expect(codeOf(() => cache.restore(0, 1, 'f16'))).toBe('bad-value');
      expect(cache.decode(0, 1, 'k')).toEqual(keys);
      expect(answers(cache, normals(random, 100 * Q_ROW))).toBe(true);
    },
  );
});
