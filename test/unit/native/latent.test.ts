// Latent pages: bytes equal to the readable reference on every instruction set for rows that break naive code; what
// recomputing them gives is what float64 gives on the decoded rows, up to the rounding of the weights; values gathered
// before the product are values after it.

import { afterAll, describe, expect, test } from 'vitest';
import {
  decodeLatent,
  encodeLatent,
  type Isa,
  isLatentWidth,
  LATENT_NAMES,
  type LatentName,
  LatentWeights,
  latentBytes,
  mixLatent,
  nativeInfo,
  PAGE_TOKENS,
  reference,
  setIsa,
} from '../../../native/index.ts';
import { relativeError } from '../../native/dense.ts';
import { scalesAt } from '../../native/latent-model.ts';
import { AWKWARD, awkwardRows, gaussian, gaussianRows } from '../../native/rows.ts';
import { seeded } from '../../random.ts';
import { codeOf } from '../../refusal.ts';

const SEED = 9321;
const { available, isa: best } = nativeInfo();
afterAll(() => setIsa(best));

const onEvery = (work: (isa: Isa) => void): void => {
  for (const isa of available) {
    setIsa(isa);
    expect(nativeInfo().isa).toBe(isa);
    work(isa);
  }
};
const expectSame = (actual: Uint8Array, expected: Uint8Array, what: string): void => {
  if (Buffer.from(actual).equals(Buffer.from(expected))) return;
  const at = expected.findIndex((value, i) => value !== actual[i]);
  expect.fail(`${what}: byte ${at} of ${expected.length} is ${actual[at]}, ${expected[at]} expected`);
};
const normals = (count: number, seed: number): Float32Array => {
  const random = seeded(seed);
  return Float32Array.from({ length: count }, () => gaussian(random));
};
/** rows [128, m] · w [o, m]ᵀ in float64. */
function product(rows: Float32Array, w: Float32Array, width: number, bias?: Float32Array): Float64Array {
  const outputs = w.length / width;
  const out = new Float64Array((rows.length / width) * outputs);
  for (let i = 0; i < out.length; i++) {
    const t = Math.floor(i / outputs);
    const o = i % outputs;
    let sum = bias?.[o] ?? 0;
    for (let c = 0; c < width; c++) sum += rows[t * width + c]! * w[o * width + c]!;
    out[i] = sum;
  }
  return out;
}

describe.each(LATENT_NAMES)('%s', (format) => {
  test.each(Object.keys(AWKWARD))('bytes are those of the reference on every instruction set: %s', (name) => {
    for (const [width, firstRow] of [
      [64, 0],
      [112, 4],
      [160, 0],
    ] as const) {
      const x = awkwardRows(name, width, SEED);
      const expected = reference.latentPage(reference.encodeLatent(format, x, width, firstRow));
      expect(expected.length).toBe(latentBytes(format, width));
      onEvery((isa) => expectSame(encodeLatent(format, x, width, firstRow), expected, `${isa}, width ${width}`));
    }
  });

  test(`widths from 64 to 2048 (seed ${SEED})`, () => {
    for (const width of [80, 96, 128, 192, 240, 272, 384, 512, 576, 2048]) {
      const x = gaussianRows(width, SEED + width);
      const latent = reference.encodeLatent(format, x, width);
      const expected = reference.latentPage(latent);
      onEvery((isa) => {
        expectSame(encodeLatent(format, x, width), expected, `${isa}, width ${width}`);
        const decoded = decodeLatent(format, expected, width);
        const wanted = reference.decodeLatent(latent);
        expectSame(new Uint8Array(decoded.buffer), new Uint8Array(wanted.buffer), `decoded, ${isa}, width ${width}`);
      });
    }
  });

  test('the error is that of the code on the part beside the mean: 0.00975 (4 bits), 0.0359 (3 bits), under 1e-4 (8 bits) of its variance', () => {
    const width = 576;
    const x = gaussianRows(width, SEED);
    for (let i = 0; i < x.length; i++) x[i]! += i % width === 7 ? 60 : (i % width) % 5; // a mean that dwarfs the rest
    const decoded = decodeLatent(format, encodeLatent(format, x, width), width);
    const error = x.reduce((sum, value, i) => sum + (value - decoded[i]!) ** 2, 0) / x.length;
    // xq8: step = max/127, about 3.7/127, squared over 12: 7e-5. xq4: D = 0.0095 of Lloyd and Max; the unbiased scale
    // makes D/(1 − D) of it, and its byte, good to ±1/32 of an octave, adds (2^(1/32) − 1)²/3: together 0.00975. xq3:
    // the same of D = 0.0345.
    if (format === 'xq8') expect(error).toBeLessThan(1e-4);
    else expect(Math.abs(error / (format === 'xq4' ? 0.00975 : 0.0359) - 1)).toBeLessThan(0.03);
  });

  test('one plane and two: recomputed rows against float64 on decoded rows, with bias, on every instruction set the same bits', () => {
    for (const [width, outputs] of [
      [64, 1],
      [96, 40],
      [192, 50],
      [576, 128],
    ] as const) {
      const x = gaussianRows(width, SEED + outputs);
      for (let i = 0; i < x.length; i++) x[i]! += (i % width) % 9 === 2 ? 3 : 0;
      const page = encodeLatent(format, x, width);
      const w = normals(outputs * width, SEED + width);
      const bias = normals(outputs, SEED);
      const expected = product(decodeLatent(format, page, width), w, width, bias);
      for (const planes of [1, 2] as const) {
        let first: Float32Array | undefined;
        onEvery((isa) => {
          const weights = new LatentWeights(w, outputs, width);
          const rows = weights.materialize(format, page, { planes, bias });
          weights.close();
          first ??= rows;
          expectSame(new Uint8Array(rows.buffer), new Uint8Array(first.buffer), isa);
        });
        // Uniform rounding of a rotated column: max/127/√12 ≈ 0.7% (1/256 of that with two planes), of the part beside
        // the mean alone.
        expect(relativeError(first!, expected)).toBeLessThan(planes === 1 ? 0.009 : 6e-5);
      }
    }
  });

  test('values gathered from latents are the values of gathered probabilities, on every instruction set the same bits', () => {
    const [width, outputs, n] = [192, 64, 5];
    const random = seeded(SEED);
    const w = normals(outputs * width, SEED);
    const bias = normals(outputs, SEED + 1);
    const pages = [0, 1].map((i) => encodeLatent(format, gaussianRows(width, SEED + i), width, i === 0 ? 4 : 0));
    const p = pages.map((_, page) =>
      Float32Array.from({ length: n * PAGE_TOKENS }, (_, i) =>
        page === 0 && i % PAGE_TOKENS < 4 ? 0 : Math.exp(4 * gaussian(random)),
      ),
    );
    const mass = Float32Array.from({ length: n }, (_, i) =>
      p.reduce((sum, row) => sum + row.subarray(i * PAGE_TOKENS, (i + 1) * PAGE_TOKENS).reduce((a, b) => a + b, 0), 0),
    );
    const expected = new Float64Array(n * outputs);
    for (const [page, bytes] of pages.entries()) {
      const values = product(decodeLatent(format, bytes, width), w, width, bias);
      for (let i = 0; i < n; i++) {
        for (let t = 0; t < PAGE_TOKENS; t++) {
          for (let o = 0; o < outputs; o++)
            expected[i * outputs + o]! += p[page]![i * PAGE_TOKENS + t]! * values[t * outputs + o]!;
        }
      }
    }
    let first: Float32Array | undefined;
    onEvery((isa) => {
      const weights = new LatentWeights(w, outputs, width);
      const mixed = new Float32Array(n * width);
      for (const [page, bytes] of pages.entries()) mixLatent(format, bytes, width, p[page]!, mixed);
      const values = weights.finishMix(mixed, bias, mass);
      first ??= values;
      expectSame(new Uint8Array(values.buffer), new Uint8Array(first.buffer), isa);
    });
    // Weights of two planes and mixed rows of int16: a few 1e-5 each; float32 sums of 256 rows.
    expect(relativeError(first!, expected)).toBeLessThan(2e-4);
  });
});

test('the rotation keeps lengths, spreads one channel over at least half of them, and its inverse undoes it', () => {
  for (const width of [64, 80, 192, 576, 960]) {
    const x = new Float32Array(width);
    for (const at of [0, 3, Math.floor(width / 2), width - 1]) {
      x.fill(0);
      x[at] = 1;
      reference.rotateLatent(x);
      expect(Math.abs(x.reduce((sum, value) => sum + value * value, 0) - 1)).toBeLessThan(1e-5);
      expect(x.filter((value) => value !== 0).length).toBeGreaterThanOrEqual(width / 2);
      reference.rotateLatent(x, true);
      for (const [i, value] of x.entries()) expect(Math.abs(value - (i === at ? 1 : 0))).toBeLessThan(1e-5);
    }
  }
});

test('wrong calls end in one KvError', () => {
  const x = new Float32Array(PAGE_TOKENS * 64);
  const page = encodeLatent('xq4', x, 64);
  const weights = new LatentWeights(new Float32Array(64 * 3), 3, 64);
  expect([63, 72, 16_400, 0, 64.5, Number.NaN].map(isLatentWidth)).toEqual([false, false, false, false, false, false]);
  expect(codeOf(() => encodeLatent('xq4', new Float32Array(PAGE_TOKENS * 72), 72))).toBe('unsupported');
  expect(codeOf(() => encodeLatent('xq2' as LatentName, x, 64))).toBe('unsupported');
  expect(codeOf(() => encodeLatent('xq4', x.subarray(1), 64))).toBe('bad-shape');
  expect(codeOf(() => encodeLatent('xq4', x, 64, 5))).toBe('bad-argument');
  for (const bad of [Number.NaN, Number.POSITIVE_INFINITY, 65_505, -65_505]) {
    expect(codeOf(() => encodeLatent('xq8', x.with(700, bad), 64))).toBe('bad-value');
  }
  expect(codeOf(() => decodeLatent('xq8', page, 64))).toBe('bad-shape');
  expect(codeOf(() => decodeLatent('xq4', new Uint8Array(page.length + 1).subarray(1), 64))).toBe('bad-argument');
  expect(codeOf(() => decodeLatent('xq4', [] as unknown as Uint8Array, 64))).toBe('bad-argument');
  expect(codeOf(() => new LatentWeights(new Float32Array(72), 1, 72))).toBe('unsupported');
  expect(codeOf(() => weights.materialize('xq4', page.subarray(64)))).toBe('bad-shape');
  expect(codeOf(() => weights.materialize('xq4', page, { bias: new Float32Array(4) }))).toBe('bad-shape');
  expect(codeOf(() => weights.materialize('xq4', page, { out: new Float32Array(4) }))).toBe('bad-shape');
  expect(codeOf(() => weights.finishMix(new Float32Array(65)))).toBe('bad-shape');
  expect(codeOf(() => weights.finishMix(new Float32Array(64), new Float32Array(3)))).toBe('bad-argument');
  expect(codeOf(() => mixLatent('xq4', page, 64, new Float32Array(127), new Float32Array(64)))).toBe('bad-shape');
  expect(codeOf(() => mixLatent('xq4', page, 64, new Float32Array(128), new Float32Array(128)))).toBe('bad-shape');
  weights.close();
  expect(codeOf(() => weights.materialize('xq4', page))).toBe('closed');
});

test(`any bytes whose scales are numbers are a page, and all others are refused (seed ${SEED})`, () => {
  const random = seeded(SEED);
  const weights = new LatentWeights(normals(64 * 20, SEED), 20, 64);
  const counts = [0, 0];
  for (let round = 0; round < 50; round++) {
    for (const format of LATENT_NAMES) {
      const page = Uint8Array.from({ length: latentBytes(format, 64) }, () => Math.floor(random() * 256));
      // Half of them with row scales of xq8 that are numbers: exponents below the last one.
      const at = scalesAt(format, 64);
      if (round % 2 === 0 && format === 'xq8') for (let t = 0; t < PAGE_TOKENS; t++) page[at.rows + 2 * t + 1]! &= 0xbf;
      const scales = format === 'xq8' ? new Uint16Array(page.buffer, at.rows, PAGE_TOKENS) : new Uint16Array();
      const mean = new Float32Array(page.buffer, at.mean, 1)[0]!;
      const isPage = Number.isFinite(mean) && scales.every((bits) => (bits & 0x7c00) !== 0x7c00);
      counts[isPage ? 1 : 0]!++;
      onEvery(() => {
        for (const work of [() => decodeLatent(format, page, 64), () => weights.materialize(format, page)]) {
          if (isPage) expect(work().length % PAGE_TOKENS).toBe(0);
          else expect(work).toThrowError(expect.objectContaining({ code: 'bad-value' }));
        }
      });
    }
  }
  expect(counts.every((count) => count > 10)).toBe(true);
});
