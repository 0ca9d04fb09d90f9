// Every kernel on every instruction set that this CPU runs, against the TypeScript reference or float64: awkward
// lengths, strides, misaligned arrays, values that break naive code. Integer and unfused kernels must give equal bits;
// the fused dot a derived bound.

import { describe, expect, test } from 'vitest';
import { CODECS, CODED_HEAD_DIMS, FORMATS, PAGE_TOKENS, SIDES } from '../../../native/format.ts';
import { levelsOfCodes } from '../../../native/formats/trellis/trellis.ts';
import { fromHalf, type RotName, rotate, toHalf, toTile } from '../../../native/reference/index.ts';
import { ROT_LEVELS } from '../../../native/reference/tables.gen.ts';
import { must } from '../../must.ts';
import { bits, expectSame, misaligned } from '../../native/bits.ts';
import { availableIsas, loadKernels } from '../../native/kernels-binding.ts';
import { AWKWARD, awkwardRows, gaussian } from '../../native/rows.ts';
import { packSide } from '../../native/sides.ts';
import { seeded } from '../../random.ts';

const kernels = loadKernels();
const ISAS = availableIsas(kernels);
const ROT = Object.keys(ROT_LEVELS) as readonly RotName[];
const SEED = 71;
/** What a head of trellis codes has beside them. */
const TRELLIS_HEAD = CODECS.trellis4.encode(new Float32Array(PAGE_TOKENS * 64), 64);

const normals = (count: number, random: () => number): Float32Array =>
  Float32Array.from({ length: count }, () => gaussian(random));

test('the scalar build is always there, and the best one is among those tested', () => {
  expect(ISAS.map(([name]) => name)).toContain('scalar');
  expect(ISAS.map(([, id]) => id)).toContain(kernels.best());
});

test('the binding refuses short arrays, wrong kinds, unknown instruction sets and shapes that contradict themselves', () => {
  expect(() => kernels.rotate(0, 64, 2, 64, false, new Float32Array(127))).toThrow(RangeError);
  expect(() => kernels.rotate(0, 64, 1, 63, false, new Float32Array(64))).toThrow(RangeError);
  expect(() => kernels.rotate(0, 65, 1, 65, false, new Float32Array(65))).toThrow(RangeError);
  expect(() => kernels.rotate(99, 64, 1, 64, false, new Float32Array(64))).toThrow(RangeError);
  expect(() => kernels.rotate(0, 64, 1, 64, false, new Float64Array(64) as unknown as Float32Array)).toThrow(TypeError);
});

describe.each(ISAS)('%s', (_name, isa) => {
  test(`dotF16: sum of products within the rounding of its terms (seed ${SEED})`, () => {
    const random = seeded(SEED);
    for (const contraction of [0, 1, 3, 8, 64, 80, 128]) {
      for (const outputs of [8, 16, 24, 40, 64, 72, 128, 136]) {
        for (const n of [1, 2, 3, 4, 5, 6, 7, 8, 9, 13]) {
          const rowStride = outputs + 8;
          const xStride = contraction + 3;
          const yStride = outputs + 5;
          const m = new Uint16Array(contraction * rowStride + 1)
            .subarray(1)
            .map(() => toHalf(gaussian(random) * (random() < 0.1 ? 1e-6 : 1)));
          const x = misaligned(normals(n * xStride, random));
          const y = misaligned(new Float32Array(n * yStride).fill(7));
          kernels.dotF16(isa, contraction, outputs, rowStride, n, xStride, yStride, m, x, y);
          for (let i = 0; i < n; i++) {
            for (let o = 0; o < yStride; o++) {
              let exact = 0;
              let size = 0;
              for (let c = 0; o < outputs && c < contraction; c++) {
                const term = x[i * xStride + c]! * fromHalf(m[c * rowStride + o]!);
                exact += term;
                size += Math.abs(term);
              }
              if (o >= outputs) exact = 7; // beyond the row: untouched
              // One rounding for each product and each addition: contraction · 2^-23 of the sum of magnitudes.
              const bound = contraction * 2 ** -23 * size;
              if (Math.abs(y[i * yStride + o]! - exact) > bound) {
                expect.fail(`c ${contraction} o ${outputs} n ${n} at ${i},${o}: ${y[i * yStride + o]} for ${exact}`);
              }
            }
          }
        }
      }
    }
  });

  test(`dotI8 is exact, extremes included (seed ${SEED})`, () => {
    const random = seeded(SEED);
    for (const contraction of [4, 12, 64, 80, 96, 128, 252, 256]) {
      for (const outputs of [16, 48, 64, 80, 96, 128, 256]) {
        for (const n of [1, 2, 3, 4, 5, 7, 8]) {
          const extreme = n === 2 || n === 5;
          const xStride = contraction + 1;
          const yStride = outputs + 3;
          const tile = new Int8Array(contraction * outputs + 1)
            .subarray(1)
            .map(() => (extreme ? (random() < 0.9 ? 127 : -127) : Math.floor(random() * 255) - 127));
          const x = new Int16Array(n * xStride + 1)
            .subarray(1)
            .map(() => (extreme ? (random() < 0.9 ? 32512 : -32512) : Math.floor(random() * 65025) - 32512));
          const y = new Int32Array(n * yStride).fill(7);
          kernels.dotI8(isa, contraction, outputs, n, xStride, yStride, tile, x, y);
          for (let i = 0; i < n; i++) {
            for (let o = 0; o < yStride; o++) {
              let exact = o < outputs ? 0 : 7;
              for (let c = 0; o < outputs && c < contraction; c++) {
                const at = Math.floor(c / 4) * outputs * 4 + o * 4 + (c % 4);
                exact += x[i * xStride + c]! * tile[at]!;
              }
              if (y[i * yStride + o] !== exact) {
                expect.fail(`c ${contraction} o ${outputs} n ${n} at ${i},${o}: ${y[i * yStride + o]} for ${exact}`);
              }
            }
          }
        }
      }
    }
  });

  test.each(CODED_HEAD_DIMS)(`levels of the rot family at d = %i lie in tile order (seed ${SEED})`, (d) => {
    const random = seeded(SEED);
    for (const format of ROT) {
      const { codeBits, id } = FORMATS[format];
      const { levels } = ROT_LEVELS[format];
      const codes = new Uint8Array(PAGE_TOKENS * d).map(() => Math.floor(random() * 2 ** codeBits));
      const head = CODECS[format].encode(new Float32Array(PAGE_TOKENS * d), d);
      for (const side of SIDES) {
        const packed = packSide(format, d, CODECS[format].stored({ ...head, codes }, side));
        const tile = new Int8Array(codes.length + 1).subarray(1);
        expect(kernels.levelsOfSide(isa, id, d, packed, tile)).toBe(1);
        expectSame(
          tile,
          Int8Array.from(toTile(side, d, codes), (code) => levels[code]!),
        );
      }
    }
  });

  test.each(CODED_HEAD_DIMS)(`levels of any trellis codes at d = %i lie in tile order (seed ${SEED})`, (d) => {
    const random = seeded(SEED);
    for (const format of ['trellis4', 'trellis3', 'trellis2', 'trellis1'] as const) {
      const { codeBits, id } = FORMATS[format];
      const codes = new Uint8Array(PAGE_TOKENS * d).map(() => Math.floor(random() * 2 ** codeBits));
      for (const side of SIDES) {
        const head = { ...TRELLIS_HEAD, format, headDim: d, side, codes, means: new Int8Array(d) };
        const packed = packSide(format, d, CODECS[format].stored(head, side));
        const tile = new Int8Array(codes.length + 1).subarray(1);
        expect(kernels.levelsOfSide(isa, id, d, packed, tile)).toBe(1);
        expectSame(tile, new Int8Array(toTile(side, d, new Uint8Array(levelsOfCodes(head).buffer)).buffer), format);
      }
    }
  });

  test.each(CODED_HEAD_DIMS)('rotate at d = %i gives the bits of the reference, both ways', (d) => {
    for (const name of Object.keys(AWKWARD)) {
      const rows = awkwardRows(name, d).subarray(60 * d, 73 * d);
      for (const inverse of [false, true]) {
        const stride = d + 3;
        const x = misaligned(new Float32Array(13 * stride).fill(9));
        for (let t = 0; t < 13; t++) x.set(rows.subarray(t * d, (t + 1) * d), t * stride);
        kernels.rotate(isa, d, 13, stride, inverse, x);
        for (let t = 0; t < 13; t++) {
          const row = rows.slice(t * d, (t + 1) * d);
          rotate(row, inverse);
          expectSame(bits(x.subarray(t * stride, t * stride + d)), bits(row), name);
          expect([...x.subarray(t * stride + d, (t + 1) * stride)]).toEqual([9, 9, 9]);
        }
      }
    }
  });

  test(`quantizeI16 rounds x·(32512/max) half to even (seed ${SEED})`, () => {
    const random = seeded(SEED);
    const cases: Float32Array[] = [
      new Float32Array(20),
      new Float32Array(20).fill(-0),
      new Float32Array(33).fill(2 ** -100),
      new Float32Array(33).fill(2 ** -101),
      new Float32Array(16).fill(3e38),
      Float32Array.from({ length: 64 }, (_, i) => (i === 0 ? 32512 : i - 20.5)),
    ];
    for (let count = 0; count < 70; count++) cases.push(normals(count, random).map((x) => x * 10 ** (count % 30)));
    for (const values of cases) {
      const x = misaligned(values);
      const out = new Int16Array(x.length + 2).fill(99).subarray(1);
      const scale = kernels.quantizeI16(isa, x.length, x, out);
      const max = x.reduce((most, value) => Math.max(most, Math.abs(value)), 0);
      const zero = max < 2 ** -100;
      const inverse = Math.fround(32512 / max);
      expect(scale).toBe(zero ? 0 : Math.fround(max / 32512));
      for (const [i, value] of x.entries()) {
        const magic = 12582912;
        const rounded = Math.fround(Math.fround(value * inverse) + magic) - magic;
        must(out[i] === (zero ? 0 : rounded + 0) && Math.abs(out[i]!) <= 32512, () => `${out[i]} for ${rounded}`);
      }
      expect(out[x.length]).toBe(99);
    }
  });

  test('quantizeI16 of a row with NaN or infinity anywhere has the scale NaN, and zeros', () => {
    for (const value of [NaN, Infinity, -Infinity]) {
      for (let count = 1; count < 70; count++) {
        for (let at = 0; at < count; at++) {
          const x = misaligned(normals(count, seeded(SEED + count)));
          x[at] = value;
          const out = new Int16Array(count).fill(99);
          expect(kernels.quantizeI16(isa, count, x, out), `${value} at ${at} of ${count}`).toBeNaN();
          expect(out.some((code) => code !== 0)).toBe(false);
        }
      }
    }
  });

  test('the power of two is within 3e-7 from 0 down to -100, and 0 below', () => {
    for (let page = 0; page < 100; page++) {
      const scores = Float32Array.from({ length: PAGE_TOKENS }, (_, t) => (t === 0 ? 0 : -(page + t / 128) * 0.87));
      const p = scores.slice();
      const one = (value: number): Float32Array => new Float32Array([value]);
      const max = one(-Infinity);
      kernels.softmaxPage(
        isa,
        1,
        128,
        p,
        new Int32Array([0]),
        new Int32Array([128]),
        max,
        one(0),
        one(0),
        one(0),
        one(0),
      );
      expect(max[0]).toBe(0);
      for (const [t, x] of scores.entries()) {
        if (x < -100) expect(p[t]).toBe(0);
        else expect(Math.abs(p[t]! / 2 ** x - 1)).toBeLessThan(3.2e-6);
      }
    }
  });

  test(`softmaxPage: pages with masks equal one softmax over what is seen (seed ${SEED})`, () => {
    const random = seeded(SEED);
    const n = 6;
    const stride = 131;
    const pages = 5;
    const max = new Float32Array(n).fill(-Infinity);
    const sum = new Float32Array(n);
    const seen: number[][] = Array.from({ length: n }, () => []);
    const masses: number[][] = Array.from({ length: n }, () => []);
    const maxima: number[][] = Array.from({ length: n }, () => []);
    for (let page = 0; page < pages; page++) {
      const scores = misaligned(normals(n * stride, random).map((x) => x * 8 + page * (page % 2 === 0 ? 5 : -5)));
      // Row 0 sees all; row 1 nothing of page 0; row 2 a window; row 3 one token; row 4 bounds beyond the page; row 5
      // never anything.
      const first = new Int32Array([0, page === 0 ? 128 : 0, 17, 77, -300, 5]);
      const last = new Int32Array([128, 128, 90, 78, 4000, 5]);
      const before = scores.slice();
      const rescale = new Float32Array(n);
      const share = new Float32Array(n);
      const mass = new Float32Array(n);
      const oldMax = max.slice();
      kernels.softmaxPage(isa, n, stride, scores, first, last, max, sum, rescale, share, mass);
      for (let i = 0; i < n; i++) {
        const visible = (t: number): boolean => t >= first[i]! && t < last[i]!;
        for (let t = 0; t < PAGE_TOKENS; t++) {
          const score = before[i * stride + t]!;
          if (visible(t)) seen[i]!.push(score);
          else must(Object.is(scores[i * stride + t], 0), () => `query ${i} sees token ${t}`);
        }
        masses[i]!.push(mass[i]!);
        maxima[i]!.push(max[i]!);
        expect([...scores.subarray(i * stride + 128, Math.min((i + 1) * stride, n * stride))]).toEqual([
          ...before.subarray(i * stride + 128, Math.min((i + 1) * stride, n * stride)),
        ]);
        if (oldMax[i] === max[i]) expect(rescale[i]).toBe(1);
        const shown = before.subarray(i * stride, i * stride + PAGE_TOKENS).filter((_, t) => visible(t));
        const top = Math.max(...shown);
        if (shown.length === 0) expect(share[i]).toBe(0);
        else expect(Math.abs(share[i]! / 2 ** (top - max[i]!) - 1)).toBeLessThan(1e-5);
        // The largest of a page is 1 whatever the pages before it held.
        for (let t = 0; t < PAGE_TOKENS; t++) {
          const factor = scores[i * stride + t]! / 2 ** (before[i * stride + t]! - top);
          must(
            !visible(t) || Math.abs(factor - 1) < 1e-5,
            () => `query ${i}, token ${t} is off by a factor of ${factor}`,
          );
        }
        const inPage = scores.subarray(i * stride, i * stride + PAGE_TOKENS).reduce((all, x) => all + x, 0);
        expect(Math.abs(mass[i]! - share[i]! * inPage)).toBeLessThan(1e-5 * (1 + mass[i]!));
      }
    }
    for (let i = 0; i < 5; i++) {
      const top = Math.max(...seen[i]!);
      const exact = seen[i]!.reduce((total, score) => total + 2 ** (score - top), 0);
      expect(max[i]).toBe(top);
      // score − max is rounded once (|difference| < 100: 4e-6 absolute, so 4e-6 relative in exp), the rest is smaller
      expect(Math.abs(sum[i]! / exact - 1)).toBeLessThan(1e-5);
      const total = masses[i]!.reduce((all, mass, p) => all + mass * 2 ** (maxima[i]![p]! - top), 0);
      expect(Math.abs(total / sum[i]! - 1)).toBeLessThan(1e-5);
    }
    expect([max[5], sum[5]]).toEqual([-Infinity, 0]);
  });

  test('toHalf and fromHalf are the reference, for every half and for floats around every edge', () => {
    const halves = Uint16Array.from({ length: 0x10000 }, (_, i) => i);
    const floats = new Float32Array(halves.length);
    kernels.fromHalf(isa, halves.length, halves, floats);
    for (const [i, value] of floats.entries()) {
      if (!Object.is(value, fromHalf(i))) expect.fail(`half ${i}: ${value}`);
    }
    const random = seeded(SEED);
    const words = Uint32Array.from({ length: 60_001 }, (_, i) => {
      const anyWord = Math.floor(random() * 2 ** 32);
      // two thirds within the range of halves, with mantissas near ties
      if (i % 3 === 0) return anyWord;
      return ((anyWord & 0x80000000) | ((100 + (i % 46)) << 23) | (anyWord & 0x7fe000) | (0xfff + (i % 3))) >>> 0;
    });
    const x = misaligned(new Float32Array(words.buffer));
    const out = new Uint16Array(x.length);
    kernels.toHalf(isa, x.length, x, out);
    for (const [i, value] of x.entries()) {
      if (Number.isNaN(value)) continue;
      if (out[i] !== toHalf(value)) expect.fail(`${value}: ${out[i]} for ${toHalf(value)}`);
    }
  });

  test(`axpy, scaleRow and dot give the bits of plain float32, for every short length (seed ${SEED})`, () => {
    const random = seeded(SEED);
    for (let count = 0; count <= 70; count++) {
      const x = misaligned(normals(count, random));
      const y = misaligned(normals(count + 1, random));
      const a = Math.fround(gaussian(random));
      const expected = y.map((value, i) => (i < count ? value + Math.fround(a * x[i]!) : value));
      const moved = misaligned(y);
      kernels.axpy(isa, count, a, x, moved);
      expect(bits(moved)).toEqual(bits(expected));

      const scaled = misaligned(y);
      kernels.scaleRow(isa, count, a, scaled);
      expect(bits(scaled)).toEqual(bits(y.map((value, i) => (i < count ? value * a : value))));

      // 16 interleaved sums, halved, then the tail
      const parts = new Float32Array(16);
      const whole = count - (count % 16);
      for (let i = 0; i < whole; i++) parts[i % 16] = parts[i % 16]! + Math.fround(x[i]! * y[i]!);
      for (let half = 8; half >= 1; half /= 2) for (let i = 0; i < half; i++) parts[i] = parts[i]! + parts[i + half]!;
      let total = parts[0]!;
      for (let i = whole; i < count; i++) total = Math.fround(total + Math.fround(x[i]! * y[i]!));
      expect(kernels.dot(isa, count, x, y)).toBe(total);
    }
  });

  test.each([
    [64, 64, false],
    [64, 64, true],
    [80, 32, false],
    [8, 8, false],
    [16, 4, true],
    [256, 256, false],
  ] as const)(
    `rope at head_dim %i, %i rotary channels, interleaved %s (seed ${SEED})`,
    (headDim, rotaryDim, interleaved) => {
      const random = seeded(SEED);
      const [tokens, heads, pairs] = [3, 2, rotaryDim / 2];
      const x = misaligned(normals(tokens * heads * headDim, random));
      const angles = Array.from({ length: tokens * pairs }, () => random() * 6);
      const cos = Float32Array.from(angles, Math.cos);
      const sin = Float32Array.from(angles, Math.sin);
      const expected = x.slice();
      for (let t = 0; t < tokens; t++) {
        for (let h = 0; h < heads; h++) {
          for (let i = 0; i < pairs; i++) {
            const at = (t * heads + h) * headDim;
            const [p, q] = interleaved ? [at + 2 * i, at + 2 * i + 1] : [at + i, at + i + pairs];
            const [a, b, c, s] = [x[p]!, x[q]!, cos[t * pairs + i]!, sin[t * pairs + i]!];
            expected[p] = Math.fround(a * c) - Math.fround(b * s);
            expected[q] = Math.fround(a * s) + Math.fround(b * c);
          }
        }
      }
      kernels.rope(isa, tokens, heads, headDim, rotaryDim, interleaved, x, cos, sin);
      expect(bits(x)).toEqual(bits(expected));
    },
  );

  test.each([
    [32, 576, 576],
    [8, 40, 33],
    [5, 7, 16],
    [1, 1, 1],
    [9, 0, 3],
  ])(`products of %i x %i and %i columns have the sums of doubles in order (seed ${SEED})`, (rows, inner, columns) => {
    const random = seeded(SEED);
    const x = misaligned(normals(rows * inner, random));
    const m = misaligned(normals(inner * columns, random));
    const expected = new Float32Array(rows * columns);
    for (let row = 0; row < rows; row++) {
      for (let column = 0; column < columns; column++) {
        let sum = 0;
        for (let i = 0; i < inner; i++) sum += x[row * inner + i]! * m[i * columns + column]!;
        expected[row * columns + column] = sum;
      }
    }
    const y = misaligned(new Float32Array(rows * columns));
    kernels.matmulF64(isa, rows, inner, columns, x, m, y);
    expect(bits(y)).toEqual(bits(expected));
  });
});
