// XQuant on the bench: the grid errs no more than it may, bases are orthonormal and whole, nothing is lost where
// nothing is quantized (T13), errors of a chain do not add up (T14), and a model that is read with it diverges less the
// more bits it has and holds the bytes that the formulas say.

import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { Runtime } from '../../engine/transformer/runtime/runtime.ts';
import { withOutliers } from '../../lab/evaluate/outliers.ts';
import { CHRONICLE, passagesOf } from '../../lab/evaluate/passages.ts';
import { Scorer } from '../../lab/evaluate/score.ts';
import { readPaged } from '../../lab/methods/paged.ts';
import { xquantPages } from '../../lab/methods/rematerialize.ts';
import {
  type Coder,
  chainCodes,
  coderOf,
  directCode,
  type LayerCode,
  Projection,
  plainCode,
  product,
  quantizeUniform,
  singularVectors,
  svdCode,
  transposed,
  uniformBytes,
  xquantCaches,
  xquantOf,
} from '../../lab/methods/xquant.ts';
import { fromHalf, latentBytes, PAGE_TOKENS, SINK_TOKENS, toHalf } from '../../native/index.ts';
import { gaussian } from '../native/rows.ts';
import { seeded } from '../random.ts';
import { MODEL } from '../unit/engine/on-reference.ts';

const M = 64;
const normals = (count: number, seed: number, scale = 1): Float32Array => {
  const random = seeded(seed);
  return Float32Array.from({ length: count }, () => scale * gaussian(random));
};
const rms = (x: Float32Array): number => Math.sqrt(x.reduce((sum, one) => sum + one * one, 0) / x.length);
const between = (x: Float32Array, y: Float32Array): Float32Array => x.map((one, i) => one - y[i]!);
const expectClose = (actual: Float32Array, expected: Float32Array, what: string): void => {
  expect(actual.length, what).toBe(expected.length);
  expect(rms(between(actual, expected)) / rms(expected), what).toBeLessThan(1e-5);
};
/** Keeps what it is given. */
const identity: Coder = { bytes: () => 1, code: () => {} };

describe('the grid', () => {
  it('errs by half a step at most, has as many levels as its bits say, and changes next to nothing the second time', () => {
    for (const along of ['token', 'channel'] as const)
      for (const bits of [2, 3, 4, 8]) {
        const width = 160;
        const x = normals(PAGE_TOKENS * width, bits);
        const once = x.slice();
        quantizeUniform(once, width, bits, along, SINK_TOKENS);
        for (let i = 0; i < x.length; i += 97) {
          const [row, channel] = [Math.floor(i / width), i % width];
          if (row < SINK_TOKENS) {
            expect(once[i]).toBe(x[i]);
            continue;
          }
          const first = 128 * Math.floor(channel / 128);
          const group =
            along === 'token'
              ? x.subarray(row * width + first, row * width + Math.min(width, first + 128))
              : transposed(x, width).subarray(channel * PAGE_TOKENS + SINK_TOKENS, (channel + 1) * PAGE_TOKENS);
          const most = Math.max(...group.map(Math.abs));
          const step = (Math.max(...group) - Math.min(...group)) / (2 ** bits - 1);
          // Low and step are rounded to f16, the step as often as it is taken.
          expect(Math.abs(once[i]! - x[i]!)).toBeLessThanOrEqual(step / 2 + 3 * most * 2 ** -11);
        }
        const levels = new Set(transposed(once, width).subarray(SINK_TOKENS, PAGE_TOKENS));
        if (along === 'channel') expect(levels.size).toBeLessThanOrEqual(2 ** bits);
        const twice = once.slice();
        quantizeUniform(twice, width, bits, along, SINK_TOKENS);
        expect(rms(between(twice, once))).toBeLessThan(2 ** -10);
      }
  });

  it('has the error on Gaussian rows that groups of 128 have, and none on constant ones', () => {
    for (const [bits, mse] of [
      [2, 0.25],
      [3, 0.0457],
      [4, 0.0099],
    ] as const)
      for (const along of ['token', 'channel'] as const) {
        const x = normals(PAGE_TOKENS * 1024, 77);
        const coded = x.slice();
        quantizeUniform(coded, 1024, bits, along);
        expect(rms(between(coded, x)) ** 2 / mse, `${bits} bits a ${along}`).toBeCloseTo(1, 1);
      }
    const constant = new Float32Array(PAGE_TOKENS * M).fill(fromHalf(toHalf(Float32Array.of(-3.7)))[0]!);
    const coded = constant.slice();
    quantizeUniform(coded, M, 2, 'token');
    expect(coded).toEqual(constant);
  });

  it('takes m·(b/8 + 4/128) bytes a token', () => {
    for (const bits of [2, 3, 4, 8])
      for (const along of ['token', 'channel'] as const)
        expect(uniformBytes(512, bits, along)).toBe(PAGE_TOKENS * 512 * (bits / 8 + 4 / 128));
    // A group that is not full has a scale as well.
    expect(uniformBytes(576, 4, 'token')).toBe(PAGE_TOKENS * (288 + 5 * 4));
  });
});

describe('bases', () => {
  const w = normals(40 * M, 5);

  it('are orthonormal, hold all of the weights, and begin with what is largest', () => {
    const basis = singularVectors(w, M);
    expect(basis).toHaveLength(40 * M);
    const unit = Float32Array.from({ length: 40 * 40 }, (_, i) => (i % 41 === 0 ? 1 : 0));
    expectClose(product(basis, basis, M), unit, 'UᵀU');
    expectClose(product(product(w, basis, M), transposed(basis, M), 40), w, 'W·U·Uᵀ');
    const columns = transposed(product(w, basis, M), 40);
    const values = Array.from({ length: 40 }, (_, at) => rms(columns.subarray(at * 40, (at + 1) * 40)));
    for (let at = 1; at < 40; at++) expect(values[at]!).toBeLessThanOrEqual(values[at - 1]! * (1 + 1e-6));
  });

  it('are no larger than the rank, nor than the width', () => {
    const twice = new Float32Array(2 * w.length);
    twice.set(w);
    twice.set(w, w.length);
    expect(singularVectors(twice, M)).toHaveLength(40 * M);
    expect(singularVectors(normals(100 * M, 6), M)).toHaveLength(M * M);
  });
});

/** Layers whose KV heads are so wide, and inputs of a page for each, which change little from layer to layer. */
function layersOf(count: number, nd: number): { projections: Projection[]; inputs: Float32Array[] } {
  let x = normals(PAGE_TOKENS * M, 11);
  const inputs = Array.from({ length: count }, (_, layer) => {
    const change = normals(x.length, 100 + layer, 0.2);
    x = x.map((one, i) => one + change[i]!);
    return x;
  });
  const projections = inputs.map(
    (_, layer) => new Projection(M, normals(nd * M, 200 + layer), normals(nd * M, 300 + layer)),
  );
  return { projections, inputs };
}

describe('nothing is lost where nothing is quantized', () => {
  for (const nd of [16, 64]) {
    const { projections, inputs } = layersOf(6, nd);
    const methods: Record<string, LayerCode[]> = {
      direct: projections.map((projection) => directCode(projection, identity)),
      svd: projections.map((projection) => svdCode(projection, identity)),
      cl: chainCodes(projections, () => identity),
      kv: projections.map((projection) => plainCode(projection, identity)),
    };
    it.each(Object.entries(methods))(`%s, with ${nd} channels of keys`, (name, codes) => {
      for (const [layer, { wk, wv }] of projections.entries()) {
        const { k, v } = codes[layer]!.remake(inputs[layer]!, 0);
        expectClose(k, product(inputs[layer]!, wk, M), `keys of layer ${layer}`);
        expectClose(v, product(inputs[layer]!, wv, M), `values of layer ${layer}`);
      }
      const narrow = { direct: M, svd: 2 * nd, cl: Math.min(M, 2 * nd), kv: 2 * nd }[name];
      expect(codes[5]!.width).toBe(narrow);
    });
  }
});

describe('singular vectors', () => {
  const { projections, inputs } = layersOf(1, 32);
  const [x, { wk, wv }] = [inputs[0]!, projections[0]!];
  const { k, v } = svdCode(projections[0]!, coderOf(false, 4)).remake(x, 0);

  it('let values be mixed before they are computed', () => {
    const basis = singularVectors(wv, M);
    const latent = product(x, basis, M);
    quantizeUniform(latent, 32, 4, 'token');
    const shares = normals(PAGE_TOKENS, 8).map(Math.abs);
    const mix = (rows: Float32Array): Float32Array => product(shares, transposed(rows, 32), PAGE_TOKENS);
    expectClose(product(mix(latent), product(wv, basis, M), 32), mix(v), 'mixed values');
  });

  it('make keys err no more than their latents by the norm of the weights', () => {
    const basis = singularVectors(wk, M);
    const exact = product(x, basis, M);
    const latent = exact.slice();
    quantizeUniform(latent, 32, 4, 'channel');
    const norm = Math.sqrt(32) * rms(transposed(product(wk, basis, M), 32).subarray(0, 32));
    const exactK = product(x, wk, M);
    for (let row = 0; row < PAGE_TOKENS; row++) {
      const of = (one: Float32Array): Float32Array => one.subarray(row * 32, (row + 1) * 32);
      const [errorK, error] = [rms(between(of(k), of(exactK))), rms(between(of(latent), of(exact)))];
      expect(errorK).toBeLessThanOrEqual(norm * error * (1 + 1e-4));
      expect(errorK).toBeGreaterThan(0);
    }
  });
});

it('errors of a chain stay what they are from layer to layer, and would add up if differences were those of exact inputs', () => {
  const count = 30;
  const { inputs } = layersOf(count, M);
  const unit = Float32Array.from({ length: M * M }, (_, i) => (i % (M + 1) === 0 ? 1 : 0));
  const coder = coderOf(false, 2);
  const closed = chainCodes(
    inputs.map(() => new Projection(M, unit, unit)),
    () => coder,
  );
  const errors = closed.map(({ remake }, layer) => rms(between(remake(inputs[layer]!, 0).k, inputs[layer]!))).slice(4);
  expect(Math.max(...errors) / Math.min(...errors)).toBeLessThan(2);
  let below = inputs[3]!;
  const open = inputs.slice(4).map((x, at) => {
    const difference = between(x, inputs[at + 3]!);
    coder.code(difference, M, 'token', 0);
    below = below.map((one, i) => one + difference[i]!);
    return rms(between(below, x));
  });
  expect(open.at(-1)! / open[0]!).toBeGreaterThan(3);
});

describe('the reference model', () => {
  const CONTEXT = 640;
  let runtime: Runtime;
  beforeAll(async () => {
    runtime = await Runtime.open({ model: MODEL, dense: 'exact', threads: 1 });
  });
  afterAll(() => runtime.close());

  const read = async (of: Runtime, cache: string) => {
    const [passage] = passagesOf(of.model.tokenizer, CHRONICLE, 1, CONTEXT);
    const { hidden, ...bytes } = await readPaged(of, xquantPages(xquantOf(cache)!), {
      ids: passage!.ids,
      scored: CONTEXT / 2,
    });
    return { ...bytes, kld: (await new Scorer(of).against(passage!, hidden)).meanKld };
  };

  it('diverges less the more bits the inputs have, and holds what the formulas say', async () => {
    const { layers, kvHeads, headDim, hiddenSize } = runtime.model.config;
    const sinks = SINK_TOKENS * 4 * kvHeads * headDim;
    const coded = CONTEXT / PAGE_TOKENS - 1;
    let last = 1e-6;
    for (const bits of [8, 4, 3, 2]) {
      const { kld, bytes, bytesAtRest, bytesF16 } = await read(runtime, `xquant${bits}`);
      expect(kld, `${bits} bits`).toBeGreaterThan(bits === 8 ? 0 : last);
      if (bits === 8) expect(kld).toBeLessThan(1e-5);
      last = kld;
      const page = uniformBytes(hiddenSize, bits, 'token');
      const window = PAGE_TOKENS * 2 * hiddenSize;
      expect(bytesAtRest).toBe(layers * (sinks + coded * page + window));
      expect(bytes).toBe(layers * (sinks + (coded - 1) * page + 2 * window));
      expect(bytesF16).toBe(layers * CONTEXT * 4 * kvHeads * headDim);
    }
  });

  it('is read by the latents of this project too, and with outliers in its keys', async () => {
    const { kld } = await read(runtime, 'xq4');
    expect(kld).toBeGreaterThan(0);
    expect(kld).toBeLessThan((await read(runtime, 'xquant4')).kld);
    // Inputs are the same, and keys are computed with the weights that have the outliers.
    expect((await read(withOutliers(runtime), 'xq4')).kld / kld).toBeCloseTo(1, 1);
  });
});

it('two bits of the latents of this project err as those of rot2 do, and cost a plane less than three', () => {
  const x = normals(PAGE_TOKENS * 128, 21);
  const coded = x.slice();
  const coder = coderOf(true, 2);
  coder.code(coded, 128, 'token', SINK_TOKENS);
  const from = SINK_TOKENS * 128;
  // The unbiased scale makes 0.117, the least there is, 0.132.
  expect(rms(between(coded.subarray(from), x.subarray(from))) ** 2).toBeCloseTo(0.132, 2);
  expect(coder.bytes(128, 'token')).toBe(latentBytes('xq3', 128) - PAGE_TOKENS * 16);
});

it('names are those of methods, and no others', () => {
  for (const cache of xquantCaches()) expect(xquantOf(cache), cache).not.toBeNull();
  expect(xquantOf('xquant2-cl')).toEqual({ variant: 'cl', bits: 2, firstBits: 4, isRotated: false });
  expect(xquantOf('xquant2+4')).toEqual({ variant: 'direct', bits: 2, firstBits: 4, isRotated: false });
  expect(xquantOf('xq3-svd')).toEqual({ variant: 'svd', bits: 3, firstBits: 3, isRotated: true });
  for (const other of ['xquant5', 'xq5', 'xquant4-SVD', 'price@20%+xq4', 'rot4:rot4'])
    expect(xquantOf(other)).toBeNull();
});
