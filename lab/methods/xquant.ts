/**
 * XQuant (Tomar et al., arXiv 2508.10395) as published: a page keeps the coded inputs of its layer, from which keys and
 * values are computed again.
 *
 *   xquantB      the normed inputs x themselves, in groups of 128 channels of a token
 *   xquantB-svd  for models whose query heads share KV heads: x·U_k in groups of the tokens of a page, a channel each,
 *   and x·U_v in groups of 128 channels of a
 *                token. U_k and U_v are the left singular vectors of the weights, and keys are (x·U_k)·(U_kᵀ·W_k)
 *   xquantB-cl   across layers: what x differs in from what was decoded of the layer below, and where that is narrower,
 *   its part in the column space of
 *                [W_k | W_v]. The first three layers have 4 bits, and the third begins the chain. x has no gains here,
 *   because those of two layers differ;
 *                the weights have them
 *   xquantB-kv   keys before RoPE in groups of the tokens of a page, a channel each, and values in groups of 128
 *   channels of a token: KIVI as the paper has it
 *                beside the others, with their groups
 *   xquantB+4    the first three layers in 4 bits, as in a chain
 *   xq8, xq4-svd …  the same with the latents of this project (native/reference/latent.ts) in place of the published
 *   grid
 *
 * Legend: m channels of x, T rows, r singular vectors, nd channels of all KV heads. Matrices are row-major, weights
 * [outputs, inputs].
 */

import {
  assert,
  decodeLatent,
  encodeLatent,
  fromHalf,
  joined,
  type LatentName,
  latentBytes,
  narrowedScale,
  PAGE_TOKENS,
  ROT_LEVELS,
  reference,
  toHalf,
} from 'palimpsest/lab';

export type XQuantBits = 2 | 3 | 4 | 8;

export interface XQuant {
  readonly variant: 'direct' | 'svd' | 'cl' | 'kv';
  readonly bits: XQuantBits;
  /** The bits of the first three layers. */
  readonly firstBits: XQuantBits;
  /** True if pages are latents of this project instead of the published grid. */
  readonly isRotated: boolean;
}

/** Channels, or tokens, that share a scale and a least value. */
const GROUP = 128;
/** A scale and a least value, in f16. */
const GROUP_BYTES = 4;
/** Layers from the first on that may have bits of their own, and begin anew in a chain. */
const FIRST_LAYERS = 3;
const FIRST_BITS = 4;

/** The method that a cache names; null for any other cache. */
export function xquantOf(cache: string): XQuant | null {
  const [, published, own, kind = '-direct', first] =
    /^(?:xquant([2348])|xq([2348]))(-svd|-cl|-kv)?(\+4)?$/.exec(cache) ?? [];
  if (published === undefined && own === undefined) return null;
  const bits = Number(published ?? own) as XQuantBits;
  const variant = kind.slice(1) as XQuant['variant'];
  const isFirstApart = first !== undefined || variant === 'cl';
  return {
    variant,
    bits,
    firstBits: isFirstApart && bits < FIRST_BITS ? FIRST_BITS : bits,
    isRotated: own !== undefined,
  };
}

/** All that are published. Eight bits need no chain. */
export const xquantCaches = (): string[] => [
  ...['xquant8', 'xquant4', 'xquant3', 'xquant2'],
  ...['xquant4-svd', 'xquant3-svd', 'xquant2-svd'],
  ...['xquant4-cl', 'xquant3-cl', 'xquant2-cl'],
  ...['xquant4-kv', 'xquant3-kv', 'xquant2-kv'],
];

/**
 * Codes the rows of a page from firstRow on and decodes them in place: uniform steps from the least to the largest of a
 * group, both ends in f16.
 */
export function quantizeUniform(
  rows: Float32Array,
  width: number,
  bits: number,
  along: 'token' | 'channel',
  firstRow = 0,
  group = GROUP,
): void {
  const count = rows.length / width;
  if (along === 'channel') {
    for (let channel = 0; channel < width; channel++)
      quantizeGroup(rows, firstRow * width + channel, width, count - firstRow, bits);
    return;
  }
  for (let row = firstRow; row < count; row++)
    for (let from = 0; from < width; from += group)
      quantizeGroup(rows, row * width + from, 1, Math.min(group, width - from), bits);
}

function quantizeGroup(x: Float32Array, from: number, step: number, count: number, bits: number): void {
  let [low, high] = [Number.POSITIVE_INFINITY, Number.NEGATIVE_INFINITY];
  for (let i = 0, at = from; i < count; i++, at += step) {
    low = Math.min(low, x[at]!);
    high = Math.max(high, x[at]!);
  }
  const most = 2 ** bits - 1;
  const ends = fromHalf(toHalf(Float32Array.of(low, (high - low) / most)));
  const [base, scale] = [ends[0]!, ends[1]!];
  for (let i = 0, at = from; i < count; i++, at += step) {
    const code = scale === 0 ? 0 : Math.min(most, Math.max(0, Math.round((x[at]! - base) / scale)));
    x[at] = base + code * scale;
  }
}

/**
 * Bytes of a page of so many channels: codes, and a scale and a least value for each group. `group`: channels of a
 * token that share them.
 */
export function uniformBytes(width: number, bits: number, along: 'token' | 'channel', group = GROUP): number {
  const groups = along === 'channel' ? width : PAGE_TOKENS * Math.ceil(width / group);
  return (PAGE_TOKENS * width * bits) / 8 + GROUP_BYTES * groups;
}

/** x [T, m] · wᵀ, w [outputs, m] → [T, outputs] */
export function product(x: Float32Array, w: Float32Array, m: number): Float32Array {
  const [rows, outputs] = [x.length / m, w.length / m];
  const out = new Float32Array(rows * outputs);
  // Four rows share what is read of the weights.
  for (let row = 0; row < rows; row += 4) {
    const left = Math.min(4, rows - row);
    const at = [0, 1, 2, 3].map((one) => (row + Math.min(one, left - 1)) * m);
    const [i0, i1, i2, i3] = at as [number, number, number, number];
    for (let o = 0; o < outputs; o++) {
      let [a, b, c, d] = [0, 0, 0, 0];
      const from = o * m;
      for (let i = 0; i < m; i++) {
        const one = w[from + i]!;
        a += one * x[i0 + i]!;
        b += one * x[i1 + i]!;
        c += one * x[i2 + i]!;
        d += one * x[i3 + i]!;
      }
      const sums = [a, b, c, d];
      for (let one = 0; one < left; one++) out[(row + one) * outputs + o] = sums[one]!;
    }
  }
  return out;
}

/** [rows, width] → [width, rows] */
export function transposed(x: Float32Array, width: number): Float32Array {
  const rows = x.length / width;
  return Float32Array.from({ length: x.length }, (_, i) => x[(i % rows) * width + Math.floor(i / rows)]!);
}

/**
 * What is less than this share of the largest singular value is none, and what rows have in common below it is nothing.
 */
const LEAST_SHARE = 1e-7;
const SWEEPS_MAX = 40;

/**
 * The left singular vectors of wᵀ, largest first, as rows [r, m] of length 1: an orthonormal basis of what rows of w
 * [outputs, m] span. r is at most m, and less where w has a lower rank. One-sided Jacobi: pairs of rows are turned
 * until all are orthogonal.
 */
export function singularVectors(w: Float32Array, m: number): Float32Array {
  const count = w.length / m;
  const rows = Array.from({ length: count }, (_, row) => Float64Array.from(w.subarray(row * m, (row + 1) * m)));
  const dot = (a: Float64Array, b: Float64Array): number => {
    let [even, odd] = [0, 0];
    for (let i = 0; i < m; i += 2) {
      even += a[i]! * b[i]!;
      odd += a[i + 1]! * b[i + 1]!;
    }
    return even + odd;
  };
  const squares = rows.map((row) => dot(row, row));
  const least = LEAST_SHARE ** 2 * Math.max(...squares) * count;
  for (let sweep = 0, isDone = false; !isDone; sweep++) {
    assert(sweep < SWEEPS_MAX, `rows are not orthogonal after ${sweep} sweeps`);
    isDone = true;
    // What rounding has done to them since the last sweep.
    for (const [at, row] of rows.entries()) squares[at] = dot(row, row);
    for (let p = 0; p < count; p++)
      for (let q = p + 1; q < count; q++) {
        if (squares[p]! <= least || squares[q]! <= least) continue;
        const [a, b] = [rows[p]!, rows[q]!];
        const both = dot(a, b);
        if (Math.abs(both) <= LEAST_SHARE * Math.sqrt(squares[p]! * squares[q]!)) continue;
        isDone = false;
        const half = (squares[q]! - squares[p]!) / (2 * both);
        const tangent = (half < 0 ? -1 : 1) / (Math.abs(half) + Math.sqrt(1 + half * half));
        const cosine = 1 / Math.sqrt(1 + tangent * tangent);
        const sine = cosine * tangent;
        for (let i = 0; i < m; i++) {
          const [x, y] = [a[i]!, b[i]!];
          a[i] = cosine * x - sine * y;
          b[i] = sine * x + cosine * y;
        }
        squares[p]! -= tangent * both;
        squares[q]! += tangent * both;
      }
  }
  const found = rows
    .map((row, at) => ({ row, square: squares[at]! }))
    .filter(({ square }) => square > least)
    .sort((one, other) => other.square - one.square)
    .slice(0, m);
  const basis = new Float32Array(found.length * m);
  for (const [at, { row, square }] of found.entries())
    basis.set(
      row.map((one) => one / Math.sqrt(square)),
      at * m,
    );
  return basis;
}

/** A basis and its way back. */
interface Basis {
  /** [r, m] */
  readonly rows: Float32Array;
  /** [m, r] */
  readonly columns: Float32Array;
  readonly rank: number;
}

const basisOf = (w: Float32Array, m: number): Basis => {
  const rows = singularVectors(w, m);
  return { rows, columns: transposed(rows, m), rank: rows.length / m };
};

/**
 * How keys and values of a layer are computed from normed inputs [T, m], with the bases of its weights, which take
 * seconds and are kept.
 */
export class Projection {
  readonly m: number;
  /** [nd, m] each. */
  readonly wk: Float32Array;
  readonly wv: Float32Array;
  #sides: { readonly k: Basis; readonly v: Basis } | null = null;
  #both: Basis | null = null;

  constructor(m: number, wk: Float32Array, wv: Float32Array) {
    this.m = m;
    this.wk = wk;
    this.wv = wv;
  }

  /** The bases of W_k and of W_v. */
  get sides(): { readonly k: Basis; readonly v: Basis } {
    return (this.#sides ??= { k: basisOf(this.wk, this.m), v: basisOf(this.wv, this.m) });
  }

  /** The basis of both; null where it would not be narrower than inputs are. */
  get both(): Basis | null {
    const { m, wk, wv } = this;
    if (wk.length + wv.length >= m * m) return null;
    return (this.#both ??= basisOf(joined([wk, wv]), m));
  }
}

export interface Remade {
  /** Before RoPE and without biases, [128, nd] each. */
  readonly k: Float32Array;
  readonly v: Float32Array;
}

/** How pages of one layer are coded. */
export interface LayerCode {
  /** Channels that are kept of a token, which is as many as wait in the window. */
  readonly width: number;
  /** Bytes of a page. */
  readonly pageBytes: number;
  /** Keys and values of a page from what its code keeps of x [128, m]. Rows before firstRow come out as anything. */
  readonly remake: (x: Float32Array, firstRow: number) => Remade;
}

/** Grid or latent of a page, decoded in place. */
export interface Coder {
  readonly bytes: (width: number, along: 'token' | 'channel') => number;
  readonly code: (rows: Float32Array, width: number, along: 'token' | 'channel', firstRow: number) => void;
}

/** What xq2 would be: the high two bits of the codes of xq4, as rot2 is of rot4. No page of a session has it. */
const coder2: Coder = {
  bytes: (width) => latentBytes('xq3', width) - (PAGE_TOKENS * width) / 8,
  code: (rows, width, _along, firstRow) => {
    const { codes, rowScales, means, meanScale } = reference.encodeLatent('xq4', rows, width, firstRow);
    const { levels, divisor } = ROT_LEVELS.rot2;
    for (let t = firstRow; t < PAGE_TOKENS; t++) {
      const row = codes.subarray(t * width, (t + 1) * width);
      const bitsOfScale = narrowedScale(rowScales[t]!, row, 'rot4', 'rot2');
      const worth = reference.rotScale((bitsOfScale << 16) >> 16) / divisor;
      const decoded = rows.subarray(t * width, (t + 1) * width);
      for (const [c, code] of row.entries()) decoded[c] = means[c]! * meanScale + worth * levels[code >> 2]!;
      reference.rotateLatent(decoded, true);
    }
  },
};

/** What codes pages in so many bits. */
export function coderOf(isRotated: boolean, bits: XQuantBits): Coder {
  if (!isRotated)
    return {
      bytes: (width, along) => uniformBytes(width, bits, along),
      code: (rows, width, along, firstRow) => quantizeUniform(rows, width, bits, along, firstRow),
    };
  if (bits === 2) return coder2;
  const format = `xq${bits}` as LatentName;
  return {
    bytes: (width) => latentBytes(format, width),
    code: (rows, width, _along, firstRow) =>
      rows.set(decodeLatent(format, encodeLatent(format, rows, width, firstRow), width)),
  };
}

/** The inputs themselves. */
export function directCode({ m, wk, wv }: Projection, coder: Coder): LayerCode {
  return {
    width: m,
    pageBytes: coder.bytes(m, 'token'),
    remake: (x, firstRow) => {
      const rows = x.slice();
      coder.code(rows, m, 'token', firstRow);
      return { k: product(rows, wk, m), v: product(rows, wv, m) };
    },
  };
}

/** The inputs in the bases of keys and of values. */
export function svdCode({ m, wk, wv, sides: { k, v } }: Projection, coder: Coder): LayerCode {
  const side = (w: Float32Array, { rows, rank }: Basis, along: 'token' | 'channel') => {
    // [nd, r]: the small square that takes the place of the weights.
    const square = product(w, rows, m);
    return (x: Float32Array, firstRow: number): Float32Array => {
      const latent = product(x, rows, m);
      coder.code(latent, rank, along, firstRow);
      return product(latent, square, rank);
    };
  };
  const [remakeK, remakeV] = [side(wk, k, 'channel'), side(wv, v, 'token')];
  return {
    width: k.rank + v.rank,
    pageBytes: coder.bytes(k.rank, 'channel') + coder.bytes(v.rank, 'token'),
    remake: (x, firstRow) => ({ k: remakeK(x, firstRow), v: remakeV(x, firstRow) }),
  };
}

/** Keys and values, with nothing to compute again. */
export function plainCode({ m, wk, wv }: Projection, coder: Coder): LayerCode {
  const nd = wk.length / m;
  const side = (x: Float32Array, w: Float32Array, along: 'token' | 'channel', firstRow: number): Float32Array => {
    const rows = product(x, w, m);
    coder.code(rows, nd, along, firstRow);
    return rows;
  };
  return {
    width: 2 * nd,
    pageBytes: coder.bytes(nd, 'channel') + coder.bytes(nd, 'token'),
    remake: (x, firstRow) => ({ k: side(x, wk, 'channel', firstRow), v: side(x, wv, 'token', firstRow) }),
  };
}

/**
 * Layers in a chain. `remake` of a page must be called layer by layer from the first on, because each codes what is
 * missing in what the layer below has decoded. The loop is closed: errors of a layer are part of the next difference,
 * so they do not add up. The first three layers have nothing below them.
 */
export function chainCodes(projections: readonly Projection[], coderOfLayer: (layer: number) => Coder): LayerCode[] {
  let below = new Float32Array(0);
  return projections.map(({ m, wk, wv, both: basis }, layer) => {
    const coder = coderOfLayer(layer);
    const width = basis?.rank ?? m;
    return {
      width,
      pageBytes: coder.bytes(width, 'token'),
      remake: (x, firstRow) => {
        if (layer < FIRST_LAYERS) below = new Float32Array(x.length);
        const missing = x.map((one, i) => one - below[i]!);
        const difference = basis === null ? missing : product(missing, basis.rows, m);
        coder.code(difference, width, 'token', firstRow);
        const change = basis === null ? difference : product(difference, basis.columns, width);
        below = below.map((one, i) => one + change[i]!);
        return { k: product(below, wk, m), v: product(below, wv, m) };
      },
    };
  });
}

/** The codes of all layers. */
export function layerCodes(
  projections: readonly Projection[],
  { variant, bits, firstBits, isRotated }: XQuant,
): LayerCode[] {
  const coder = (layer: number): Coder => coderOf(isRotated, layer < FIRST_LAYERS ? firstBits : bits);
  if (variant === 'cl') return chainCodes(projections, coder);
  const code = { direct: directCode, svd: svdCode, kv: plainCode }[variant];
  return projections.map((projection, layer) => code(projection, coder(layer)));
}
