// Transform coding on the bench: bases are undone, their components are what queries see, bits go where dynamic
// programming would put them, an entropy coder's lengths are those of chances, its pages keep to their bits and err
// what theory says, and sequences hold the bytes that are counted.
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { Runtime } from '../../engine/transformer/runtime/runtime.ts';
import { everyCache, kindOf } from '../../lab/evaluate/every-cache.ts';
import { CHRONICLE, passagesOf } from '../../lab/evaluate/passages.ts';
import { pageMethodOf } from '../../lab/methods/methods.ts';
import { momentsOf } from '../../lab/methods/own-rows.ts';
import { f16Bytes, readPaged } from '../../lab/methods/paged.ts';
import { codeRot } from '../../lab/methods/rot-head.ts';
import {
  allocation,
  type Basis,
  codeTransformed,
  lengthsOf,
  levelsOf,
  principal,
  seen,
  transformCaches,
  transformOf,
} from '../../lab/methods/transform.ts';
import { gaussians } from '../../lab/methods/words.ts';
import { product } from '../../lab/methods/xquant.ts';
import { PAGE_TOKENS, SINK_TOKENS } from '../../native/index.ts';
import { MODEL } from '../unit/engine/on-reference.ts';

const D = 64;
const energy = (x: Float32Array): number => x.reduce((sum, one) => sum + one * one, 0);
const errorOf = (coded: Float32Array, rows: Float32Array): number => energy(coded.map((one, i) => one - rows[i]!));
const identity: Basis = (() => {
  const rows = Float32Array.from({ length: D * D }, (_, i) => (i % (D + 1) === 0 ? 1 : 0));
  return { forth: rows, back: rows };
})();
/** Rows of few directions and some noise. */
function narrow(seed: number): Float32Array {
  const directions = gaussians(6 * D, 400);
  const shares = gaussians(PAGE_TOKENS * 6, seed);
  const noise = gaussians(PAGE_TOKENS * D, seed + 50);
  const columns = Float32Array.from({ length: 6 * D }, (_, i) => directions[(i % 6) * D + Math.floor(i / 6)]!);
  return product(shares, columns, 6).map((one, i) => one + 0.3 * noise[i]!);
}

describe('bases', () => {
  it('are undone by their way back, and put what varies first', () => {
    const rows = narrow(1);
    const moments = momentsOf(rows, D, true);
    const sight = momentsOf(
      gaussians(300 * D, 8).map((one, i) => one * (1 + (i % D) / 8)),
      D,
      false,
    );
    for (const basis of [principal(moments, D), seen(moments, sight, D)]) {
      const y = product(rows, basis.forth, D);
      expect(errorOf(product(y, basis.back, D), rows) / energy(rows)).toBeLessThan(1e-8);
    }
    const y = product(rows, principal(moments, D).forth, D);
    const first = y.reduce((sum, one, i) => sum + (i % D < 6 ? one * one : 0), 0);
    expect(first / energy(y)).toBeGreaterThan(0.95);
  });

  it('of what queries see have the mean square error of scores as their own square error', () => {
    const queries = gaussians(400 * D, 3).map((one, i) => one * (1 + (i % D) / 4));
    const basis = seen(momentsOf(narrow(2), D, true), momentsOf(queries, D, false), D);
    // The little power that every direction has at least is a hundredth on average.
    for (let seed = 0; seed < 4; seed++) {
      const error = gaussians(D, 60 + seed);
      const scores = product(queries, error, D);
      const inside = energy(product(error, basis.forth, D));
      expect(inside / (energy(scores) / 400)).toBeGreaterThan(0.99);
      expect(inside / (energy(scores) / 400)).toBeLessThan(1.06);
    }
  });
});

describe('bits of components', () => {
  it('are so many in all, and no other choice errs less', () => {
    const distortion = [1, 0.3634, 0.1175, 0.03454, 0.009497];
    const deviations = [3, 1, 0.4, 2];
    const errorFor = (bits: readonly number[]): number =>
      bits.reduce((sum, one, i) => sum + deviations[i]! ** 2 * distortion[one]!, 0);
    for (const whole of [3, 5, 8]) {
      const found = [...allocation(deviations, whole)];
      expect(found.reduce((sum, one) => sum + one, 0)).toBe(whole);
      let least = Number.POSITIVE_INFINITY;
      for (let code = 0; code < 5 ** 4; code++) {
        const bits = [code % 5, Math.floor(code / 5) % 5, Math.floor(code / 25) % 5, Math.floor(code / 125)];
        if (bits.reduce((sum, one) => sum + one, 0) === whole) least = Math.min(least, errorFor(bits));
      }
      expect(errorFor(found)).toBeCloseTo(least, 9);
    }
  });

  it('have the levels of a normal, with the error that bits are counted by', () => {
    const x = gaussians(40_000, 9);
    for (const [bits, error] of [
      [1, 0.3634],
      [2, 0.1175],
      [3, 0.03454],
      [4, 0.009497],
      [5, 0.002499],
      [6, 0.000644],
    ] as const) {
      const levels = levelsOf(bits);
      expect(levels.length).toBe(2 ** bits);
      const found = x.reduce(
        (sum, one) => sum + levels.reduce((least, level) => Math.min(least, (level - one) ** 2), 9),
        0,
      );
      expect(found / x.length / error).toBeGreaterThan(0.95);
      expect(found / x.length / error).toBeLessThan(1.05);
    }
  });
});

describe('an entropy coder', () => {
  it('has lengths of which a decodable code can be made', () => {
    for (const shape of ['gaussian', 'laplacian'] as const)
      for (const deviation of [0.05, 0.4, 3, 60]) {
        const lengths = lengthsOf(deviation, shape, 2000);
        const kraft = lengths.reduce((sum, bits, q) => sum + (q === 0 ? 1 : 2) * 2 ** -bits, 0);
        expect(kraft).toBeLessThan(1 + 1e-9);
        expect(kraft).toBeGreaterThan(0.999);
      }
  });

  it('keeps a page within its bits, errs less than the best code of fixed length, and no less than it can', () => {
    const rows = gaussians(PAGE_TOKENS * D, 5);
    for (const [bits, scalar] of [
      [2, 0.1175],
      [3, 0.03454],
    ] as const) {
      const coded = rows.slice();
      const bytes = codeTransformed(coded, identity, { bits, basis: 'ec', isEntropyCoded: true }, 0);
      const rest = D + 2 + D + 2;
      expect(8 * (bytes - rest)).toBeLessThanOrEqual(PAGE_TOKENS * D * bits);
      // Steps are a sixteenth of an octave apart, so a page may have 0.06 bits less than it could.
      expect(8 * (bytes - rest)).toBeGreaterThan(PAGE_TOKENS * D * (bits - 0.08));
      const error = errorOf(coded, rows) / energy(rows);
      expect(error).toBeGreaterThan(4 ** -bits);
      expect(error).toBeLessThan(0.9 * scalar);
    }
  });

  it('spends bits where rows vary, so that a basis of what they have in common and steps alone beat a rotation', () => {
    const basis = principal(momentsOf(narrow(2), D, true), D);
    const rows = narrow(3);
    const error = (code: (own: Float32Array) => unknown): number => {
      const own = rows.slice();
      code(own);
      return errorOf(own, rows) / energy(rows);
    };
    const rot = error((own) => codeRot(own, 2, 0));
    const coded = error((own) => codeTransformed(own, basis, { bits: 2, basis: 'pca', isEntropyCoded: true }, 0));
    const fixed = error((own) => codeTransformed(own, basis, { bits: 2, basis: 'pca', isEntropyCoded: false }, 0));
    expect(fixed / rot).toBeLessThan(0.5);
    expect(coded / rot).toBeLessThan(0.3);
  });
});

it('zeros stay zeros and sinks what they are', () => {
  for (const isEntropyCoded of [true, false]) {
    const zeros = new Float32Array(PAGE_TOKENS * D);
    codeTransformed(zeros, identity, { bits: 2, basis: 'ec', isEntropyCoded }, SINK_TOKENS);
    expect(energy(zeros)).toBe(0);
    const rows = gaussians(PAGE_TOKENS * D, 6);
    const own = rows.slice();
    codeTransformed(own, identity, { bits: 2, basis: 'ec', isEntropyCoded }, SINK_TOKENS);
    expect(own.subarray(0, SINK_TOKENS * D)).toEqual(rows.subarray(0, SINK_TOKENS * D));
    expect(errorOf(own, rows)).toBeGreaterThan(0);
  }
});

describe('sequences', () => {
  let runtime: Runtime;
  beforeAll(async () => {
    runtime = await Runtime.open({ model: MODEL, dense: 'exact', threads: 1 });
  });
  afterAll(() => runtime.close());

  it('hold codes, means, deviations and scales, and what an entropy coder has left unused is not counted', async () => {
    const { config } = runtime.model;
    const { layers, kvHeads, headDim } = config;
    const width = kvHeads * headDim;
    const [passage] = passagesOf(runtime.model.tokenizer, CHRONICLE, 1, 256);
    const rest = f16Bytes(config, SINK_TOKENS + PAGE_TOKENS);
    const atRest = async (cache: string): Promise<number> =>
      (await readPaged(runtime, pageMethodOf(cache)!, { ids: passage!.ids, scored: 64 })).bytesAtRest - rest;
    expect(await atRest('pca2')).toBe(2 * layers * ((PAGE_TOKENS * width * 2) / 8 + 2 * width + 2 + PAGE_TOKENS));
    const steps = await atRest('ec2');
    const most = 2 * layers * kvHeads * ((PAGE_TOKENS * headDim * 2) / 8 + 2 * headDim + 4);
    expect(steps).toBeLessThanOrEqual(most);
    expect(steps).toBeGreaterThan(0.9 * most);
  });
});

it('names are those of methods, and no others', () => {
  for (const cache of transformCaches()) {
    expect(pageMethodOf(cache), cache).not.toBeNull();
    expect(everyCache()).toContain(cache);
    expect(kindOf(cache)).toBe('transform');
  }
  expect(transformOf('qpca3-ec')).toEqual({ bits: 3, basis: 'qpca', isEntropyCoded: true });
  for (const other of ['pca', 'pca8', 'ec2-ec', 'qpca', 'qec2']) expect(pageMethodOf(other), other).toBeNull();
});
