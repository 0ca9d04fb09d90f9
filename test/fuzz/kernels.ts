/**
 * Single kernels: each gets the same arguments on every machine, and answers bits, but for dotF16, which fuses where it
 * can.
 */
import { CODED_HEAD_DIMS, FORMATS, isServed, PAGE_TOKENS, servedFamilies } from '../../native/format.ts';
import { fromHalf } from '../../native/reference/index.ts';
import { steeringOf } from '../../native/reference/steering.ts';
import { gaussian } from '../native/rows.ts';
import { isDemotion, sideBytes } from '../native/sides.ts';
import { bytes, type Cases, floats, one, type Random, shifted, signed, whole } from './case.ts';
import { randomSide } from './side.ts';

/** A page of one head: within f16, as caches get it, or of any magnitude that codecs serve. */
/** The formats that this build computes. */
const SERVED = Object.values(FORMATS).filter(({ name }) => isServed(name));

const rows = (random: Random, stride: number): Float32Array => {
  const size = one(random, [1, 1, 10 ** (11 * random() - 6)]);
  return floats(random, PAGE_TOKENS * stride, 65504).map((x) => Math.max(-65504, Math.min(65504, x * size)));
};

export const KERNEL_CASES: Cases = {
  dotF16(random) {
    const c = whole(random, 0, 160);
    const o = 8 * whole(random, 1, 18);
    const n = whole(random, 0, 9);
    const stride = o + 8 * whole(random, 0, 2);
    const m = Uint16Array.from({ length: c * stride }, () => whole(random, 0, 0xffff) & 0xfbff); // no infinities
    for (let i = 0; i < m.length; i++) if ((m[i]! & 0x7c00) === 0x7c00) m[i]! &= 0xbfff;
    const x = floats(random, n * c, 2 ** 20);
    const bound = new Float64Array(n * o);
    for (let i = 0; i < n; i++) {
      for (let j = 0; j < c; j++) {
        const size = Math.abs(x[i * c + j]!);
        for (let k = 0; k < o; k++) bound[i * o + k]! += size * Math.abs(fromHalf(m[j * stride + k]!));
      }
    }
    // Two results, each within contraction * 2^-23 of the sum of sizes (and of the smallest number that float32 keeps).
    for (let i = 0; i < bound.length; i++) bound[i] = 2 * c * (bound[i]! * 2 ** -23 + 2 ** -149);
    return {
      shape: `contraction ${c}, outputs ${o}, rows ${n}`,
      bounds: () => [bound],
      run({ kernels, isa }) {
        const y = new Float32Array(n * o);
        kernels.dotF16(isa, c, o, stride, n, c, o, m, x, y);
        return [y];
      },
    };
  },

  dotI8(random) {
    const c = 4 * whole(random, 1, 64);
    const o = 16 * whole(random, 1, 16);
    const n = whole(random, 0, 9);
    const tile = signed(random, c * o);
    const most = one(random, [32512, 32512, 100]);
    const x = shifted(
      random,
      Int16Array.from({ length: n * c }, () => whole(random, -most, most)),
    );
    return {
      shape: `contraction ${c}, outputs ${o}, rows ${n}`,
      run({ kernels, isa }) {
        const y = new Int32Array(n * o);
        kernels.dotI8(isa, c, o, n, c, o, tile, x, y);
        return [y];
      },
    };
  },

  // Sums are exact, and product and sum are rounded once each, so every build gives the same bits.
  addDotI8(random) {
    const c = 4 * whole(random, 1, 64);
    const o = whole(random, 1, 256);
    const n = whole(random, 0, 9);
    const [xStride, yStride] = [c + whole(random, 0, 5), o + whole(random, 0, 5)];
    const tile = signed(random, c * Math.ceil(o / 16) * 16);
    const x = shifted(
      random,
      Int16Array.from({ length: n * xStride }, () => whole(random, -32512, 32512)),
    );
    const steps = floats(random, n);
    const y = floats(random, n * yStride);
    return {
      shape: `contraction ${c}, outputs ${o}, rows ${n}`,
      run({ kernels, isa }) {
        const sums = y.slice();
        kernels.addDotI8(isa, c, o, n, xStride, yStride, tile, x, steps, sums);
        return [sums];
      },
    };
  },

  rotate(random) {
    const d = one(random, CODED_HEAD_DIMS);
    const n = whole(random, 0, 5);
    const inverse = random() < 0.5;
    const x = floats(random, n * d);
    return {
      shape: `d ${d}, rows ${n}`,
      run({ kernels, isa }) {
        const y = x.slice();
        kernels.rotate(isa, d, n, d, inverse, y);
        return [y];
      },
    };
  },

  quantizeI16(random) {
    const count = whole(random, 0, 300);
    const x = floats(random, count);
    return {
      shape: `count ${count}`,
      run({ kernels, isa }) {
        const out = new Int16Array(count);
        return [out, Float32Array.of(kernels.quantizeI16(isa, count, x, out))];
      },
    };
  },

  softmaxPage(random) {
    const n = whole(random, 1, 5);
    const scores = floats(random, n * PAGE_TOKENS, 1e4);
    const first = Int32Array.from({ length: n }, () => (random() < 0.5 ? 0 : whole(random, 0, PAGE_TOKENS)));
    const last = Int32Array.from({ length: n }, () => (random() < 0.5 ? PAGE_TOKENS : whole(random, 0, PAGE_TOKENS)));
    const isFirst = random() < 0.5;
    const before = Float32Array.from({ length: n }, () => (isFirst ? Number.NEGATIVE_INFINITY : gaussian(random) * 10));
    const sums = Float32Array.from({ length: n }, () => (isFirst ? 0 : 1 + random() * 100));
    return {
      shape: `rows ${n}, first ${first.join(' ')}, last ${last.join(' ')}`,
      run({ kernels, isa }) {
        const [p, max, sum, rescale, share, mass] = [
          scores.slice(),
          before.slice(),
          sums.slice(),
          before.slice(),
          before.slice(),
          sums.slice(),
        ];
        kernels.softmaxPage(isa, n, PAGE_TOKENS, p, first, last, max, sum, rescale, share, mass);
        // Which of two equal zeros is the largest depends on the width of a vector, and changes nothing that follows.
        return [p, max.map((x) => x + 0), sum, rescale, share, mass];
      },
    };
  },

  sums(random) {
    const count = whole(random, 0, 300);
    const x = floats(random, count, 2 ** 50);
    const y = floats(random, count, 2 ** 50);
    const a = gaussian(random);
    return {
      shape: `count ${count}`,
      run({ kernels, isa }) {
        const moved = y.slice();
        const scaled = y.slice();
        kernels.axpy(isa, count, a, x, moved);
        kernels.scaleRow(isa, count, a, scaled);
        return [moved, scaled, Float32Array.of(kernels.dot(isa, count, x, y))];
      },
    };
  },

  halves(random) {
    const count = whole(random, 0, 100);
    const x = new Float32Array(bytes(random, 4 * count).buffer); // any bits at all
    const h = shifted(random, new Uint16Array(bytes(random, 2 * count).buffer));
    return {
      shape: `count ${count}`,
      run({ kernels, isa }) {
        const narrow = new Uint16Array(count);
        const wide = new Float32Array(count);
        kernels.toHalf(isa, count, x, narrow);
        kernels.fromHalf(isa, count, h, wide);
        // A NaN stays one; which one is not promised.
        return [narrow.map((bits) => ((bits & 0x7fff) > 0x7c00 ? 0x7e00 : bits)), wide];
      },
    };
  },

  rope(random) {
    const tokens = whole(random, 0, 4);
    const heads = whole(random, 1, 3);
    const headDim = 2 * whole(random, 1, 64);
    const rotaryDim = 2 * whole(random, 1, headDim / 2);
    const x = floats(random, tokens * heads * headDim);
    const cos = floats(random, (tokens * rotaryDim) / 2, 1);
    const sin = floats(random, (tokens * rotaryDim) / 2, 1);
    const interleaved = random() < 0.5;
    return {
      shape: `tokens ${tokens}, heads ${heads}, d ${headDim}, rotary ${rotaryDim}`,
      run({ kernels, isa }) {
        const y = x.slice();
        kernels.rope(isa, tokens, heads, headDim, rotaryDim, interleaved, y, cos, sin);
        return [y];
      },
    };
  },

  matmulF64(random) {
    const rows = whole(random, 1, 20);
    const inner = whole(random, 0, 70);
    const columns = whole(random, 1, 70);
    const x = floats(random, rows * inner);
    const m = floats(random, inner * columns);
    return {
      shape: `rows ${rows}, inner ${inner}, columns ${columns}`,
      run({ kernels, isa }) {
        const y = new Float32Array(rows * columns);
        kernels.matmulF64(isa, rows, inner, columns, x, m, y);
        return [y];
      },
    };
  },

  encodeSides(random) {
    const d = one(random, CODED_HEAD_DIMS);
    const stride = d + 4 * whole(random, 0, 3);
    const x = rows(random, stride);
    const members = one(random, servedFamilies())[1];
    // Any of the family, in any order.
    const ids = Int32Array.from(members.map(({ id }) => id).sort(() => random() - 0.5)).slice(
      0,
      whole(random, 1, members.length),
    );
    const isKey = random() < 0.5;
    const firstRow = one(random, [0, 0, 1, 4]);
    const steering = random() < 0.5 ? steeringOf(floats(random, 8 * d, 16), d, false) : null;
    return {
      shape: `formats ${ids.join(' ')}, d ${d}, key ${isKey}, first row ${firstRow}, steered ${steering !== null}`,
      run({ kernels, isa }) {
        const sides = new Uint8Array(ids.length * sideBytes(d));
        kernels.encodeSides(isa, ids, isKey, d, stride, firstRow, x, sides, steering?.feedback, steering?.weights);
        return [sides];
      },
    };
  },

  demoteSide(random) {
    const d = one(random, CODED_HEAD_DIMS);
    const nested = SERVED.filter((format) => format.nested);
    const from = one(
      random,
      nested.filter((format) => nested.some((to) => isDemotion(format.name, to.name))),
    );
    const to = one(
      random,
      nested.filter((format) => isDemotion(from.name, format.name)),
    );
    const isKey = random() < 0.5;
    const side = randomSide(random, from.name, isKey, d, rows(random, d));
    return {
      shape: `${from.name} to ${to.name}, d ${d}, key ${isKey}`,
      run({ kernels, isa }) {
        const out = new Uint8Array(sideBytes(d));
        kernels.demoteSide(isa, from.id, to.id, isKey, d, side, out);
        return [out];
      },
    };
  },

  decodeSide(random) {
    const d = one(random, CODED_HEAD_DIMS);
    const { id, name } = one(random, SERVED);
    const isKey = random() < 0.5;
    const side = randomSide(random, name, isKey, d, rows(random, d));
    const tokens = Uint8Array.from({ length: whole(random, 0, 20) }, () => whole(random, 0, PAGE_TOKENS - 1)).sort();
    return {
      shape: `${name}, d ${d}, key ${isKey}`,
      run({ kernels, isa }) {
        const x = new Float32Array(PAGE_TOKENS * d);
        kernels.decodeSide(isa, id, isKey, d, d, 0, side, x);
        const alone = new Float32Array(tokens.length * d);
        kernels.decodeSideRows(isa, id, isKey, d, tokens.length, tokens, side, alone);
        const tile = new Int8Array(PAGE_TOKENS * d);
        return kernels.levelsOfSide(isa, id, d, side, tile) === 1 ? [x, alone, tile] : [x, alone];
      },
    };
  },
};
