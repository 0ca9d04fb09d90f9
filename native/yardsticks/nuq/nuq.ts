/**
 * nuq4, nuq3, nuq2: non-uniform levels and 1% of the elements kept apart, keys per channel and values per token, after
 * KVQuant.
 *
 * A vector is the 128 tokens of one channel (keys, after RoPE) or the channels of one token (values), sinks (rows
 * before firstRow) left out. With the mean of a vector and its deviation (the mean of |x − mean|), the 1.25·d elements
 * of a page and head that are largest in |x − mean| / deviation, the earliest of equals, are outliers: 0.98% of all. Of
 * what is left of a vector,
 *   offset  keys: (least + most) / 2 as f16; values: 0, because 16 bits more for each token of 64 channels are a
 *   quarter of a bit
 *   scale   s = max|x − offset| / 127, rounded up to f16
 *   code    the nearest of the levels of that width and side to (x − offset) / s: whole numbers within ±127
 *   decode  x̂ = s·level + offset
 * and of an outlier what is missing, x − x̂ as f16 within ±65504, is kept with its place and added (float32 arithmetic,
 * sums as halving trees).
 *
 * The levels are the centres of a one-dimensional k-means over keys and values of the reference model, normalized as
 * above, on all kinds of text of the calibration (scripts/fit-nuq.ts). They serve every model, layer and side.
 *
 * This is not KVQuant: it codes keys before RoPE, and pages here hold them after RoPE; its levels belong to a layer and
 * side and weigh every element by its gradient; its thresholds for keys come from a calibration; its values have an
 * offset; and its 2-bit levels are stretched to keep mean and deviation (Q-Norm).
 *
 * Bytes (one head): codes in the order of the i8 tile in rows of 64: nuq4 two rows in 64 bytes, nuq3 its two high bits
 * and its low bit in planes as rot3, nuq2 four rows; then scales and offsets, f16: keys [d] and [d], values [128], and
 * zeros to 2·d; then 1.25·d times 4 bytes: token, channel, f16. b + 0.25 + 0.31 bits per element. When not to use it:
 * on CPU, beside the rot family (docs/lab/formats.md).
 */
import { assert } from '../../error.ts';
import { defineYardstick, type Tier } from '../../formats/descriptor.ts';
import { PAGE_TOKENS, type Side } from '../../layout.ts';
import { bytesOf, type Head, type ReferenceCodec, toTile } from '../../reference/codec.ts';
import { treeSum } from '../../reference/float32.ts';
import { fromHalf, halfAbove, toHalf } from '../../reference/half.ts';
import { packPlanes } from '../../reference/planes.ts';

/** Written by scripts/fit-nuq.ts; nuq.h has the same. */
export const NUQ_LEVELS = {
  nuq4: [-120, -96, -78, -61, -46, -32, -19, -7, 6, 18, 31, 45, 60, 77, 96, 119],
  nuq3: [-107, -70, -40, -13, 12, 39, 69, 106],
  nuq2: [-82, -26, 25, 81],
} as const satisfies Readonly<Record<string, readonly number[]>>;
/** The formats of the family. */
export type NuqName = keyof typeof NUQ_LEVELS;
const BITS: Readonly<Record<NuqName, number>> = { nuq4: 4, nuq3: 3, nuq2: 2 };
const LARGEST_HALF = 65504;

/** An element that is kept apart. */
export interface Outlier {
  readonly token: number;
  readonly channel: number;
  /** f16 bits of what the codes lack. */
  readonly half: number;
}

/** One head of a page as codes, with the scale of every vector and what is kept apart. */
export interface NuqHead extends Head {
  readonly format: NuqName;
  readonly side: Side;
  /** [128, d] */
  readonly codes: Uint8Array;
  /** f16 bits as stored, [2·d]. */
  readonly scales: Uint16Array;
  readonly outliers: readonly Outlier[];
}

const outlierCount = (headDim: number): number => (headDim * 5) / 4;
const clamped = (x: number): number => Math.max(-LARGEST_HALF, Math.min(LARGEST_HALF, x));

/** The rows of one head as vectors: which elements share a scale. */
class Vectors {
  readonly count: number;
  readonly #length: number;
  readonly #isKey: boolean;
  readonly #headDim: number;

  constructor(side: Side, headDim: number) {
    this.#isKey = side === 'k';
    this.#headDim = headDim;
    [this.count, this.#length] = this.#isKey ? [headDim, PAGE_TOKENS] : [PAGE_TOKENS, headDim];
  }

  /** Index in [128, d] of each element of a vector. */
  places(vector: number): number[] {
    return Array.from({ length: this.#length }, (_, i) =>
      this.#isKey ? i * this.#headDim + vector : vector * this.#headDim + i,
    );
  }

  of(i: number): number {
    return this.#isKey ? i % this.#headDim : Math.floor(i / this.#headDim);
  }
}

/** |x − mean| of every element over the deviation of its vector; −1 in sinks. */
function strangeness(rows: Float32Array, headDim: number, firstRow: number, vectors: Vectors): Float32Array {
  const out = new Float32Array(rows.length).fill(-1);
  const isSink = (i: number): boolean => i < firstRow * headDim;
  for (let v = 0; v < vectors.count; v++) {
    const places = vectors.places(v);
    const count = places.filter((i) => !isSink(i)).length;
    if (count === 0) continue;
    const mean = Math.fround(treeSum(places.map((i) => (isSink(i) ? 0 : rows[i]!))) / count);
    const away = Float32Array.from(places, (i) => (isSink(i) ? 0 : Math.abs(Math.fround(rows[i]! - mean))));
    const deviation = Math.fround(treeSum(away) / count);
    for (const [at, i] of places.entries()) {
      if (!isSink(i)) out[i] = deviation > 0 ? Math.fround(away[at]! / deviation) : 0;
    }
  }
  return out;
}

/** Indices in [128, d] of the elements that are kept apart, the strangest first. */
function outlierPlaces(rows: Float32Array, headDim: number, firstRow: number, vectors: Vectors): number[] {
  const strange = strangeness(rows, headDim, firstRow, vectors);
  return Array.from(strange.keys())
    .sort((a, b) => strange[b]! - strange[a]! || a - b)
    .slice(0, outlierCount(headDim));
}

/** The scales and offsets of a page and head, and which elements are kept apart. */
function fit(rows: Float32Array, headDim: number, firstRow: number, side: Side) {
  const vectors = new Vectors(side, headDim);
  const apart = outlierPlaces(rows, headDim, firstRow, vectors);
  const isLeft = Uint8Array.from(rows, (_, i) => (i < firstRow * headDim ? 0 : 1));
  for (const i of apart) isLeft[i] = 0;
  const scales = new Uint16Array(2 * headDim);
  for (let v = 0; v < vectors.count; v++) {
    const left = vectors.places(v).flatMap((i) => (isLeft[i] ? [rows[i]!] : []));
    if (left.length === 0) continue;
    const [least, most] = [Math.min(...left), Math.max(...left)];
    if (side === 'k') scales[headDim + v] = toHalf(Math.fround(Math.fround(least / 2) + Math.fround(most / 2)) + 0);
    const offset = side === 'k' ? fromHalf(scales[headDim + v]!) : 0;
    const range = Math.max(Math.fround(most - offset), Math.fround(offset - least)) + 0;
    scales[v] = halfAbove(Math.fround(range / 127));
  }
  return { vectors, apart, isLeft, scales };
}

/** (x − offset) / s of every element; 0 where s is 0 and in sinks. */
function inSteps(rows: Float32Array, head: Grid, vectors: Vectors): Float32Array {
  return rows.map((x, i) => {
    const { scale, offset } = gridAt(head, vectors, i);
    return scale === 0 || i < head.firstRow * head.headDim ? 0 : Math.fround(x - offset) / scale;
  });
}

/** What is quantized of a page and head, in units of s: levels are fitted to these numbers. */
export function normalized(rows: Float32Array, headDim: number, firstRow: number, side: Side): Float32Array {
  const { vectors, isLeft, scales } = fit(rows, headDim, firstRow, side);
  return inSteps(rows, { format: 'nuq4', headDim, firstRow, side, scales }, vectors).filter((_, i) => isLeft[i] === 1);
}

function encode(format: NuqName, given: Float32Array, headDim: number, firstRow: number, side: Side): NuqHead {
  // Rows that another format gave back may be a little beyond the range of f16.
  const rows = given.map(clamped);
  const { vectors, apart, scales } = fit(rows, headDim, firstRow, side);
  const head = { format, headDim, firstRow, side, scales };
  const levels: readonly number[] = NUQ_LEVELS[format];
  const bounds = levels.slice(1).map((level, at) => (level + levels[at]!) / 2);
  const codes = Uint8Array.from(inSteps(rows, head, vectors), (y) => bounds.filter((bound) => y > bound).length);
  const dense = decodeDense({ ...head, codes });
  const outliers = apart.map((i) => ({
    token: Math.floor(i / headDim),
    channel: i % headDim,
    half: toHalf(clamped(Math.fround(rows[i]! - dense[i]!))),
  }));
  return { ...head, codes, outliers };
}

type Grid = Omit<NuqHead, 'codes' | 'outliers'>;

function gridAt({ headDim, side, scales }: Grid, vectors: Vectors, i: number): { scale: number; offset: number } {
  const v = vectors.of(i);
  return { scale: fromHalf(scales[v]!), offset: side === 'k' ? fromHalf(scales[headDim + v]!) : 0 };
}

/** The rows without what is kept apart. */
function decodeDense(head: Omit<NuqHead, 'outliers'>): Float32Array {
  const { format, headDim, firstRow, side, codes } = head;
  const vectors = new Vectors(side, headDim);
  const levels: readonly number[] = NUQ_LEVELS[format];
  return Float32Array.from(codes, (code, i) => {
    if (i < firstRow * headDim) return 0;
    const { scale, offset } = gridAt(head, vectors, i);
    return Math.fround(Math.fround(levels[code]! * scale) + offset);
  });
}

function decode(head: NuqHead): Float32Array {
  const rows = decodeDense(head);
  for (const { token, channel, half } of head.outliers) {
    const i = token * head.headDim + channel;
    rows[i] = Math.fround(rows[i]! + fromHalf(half));
  }
  return rows;
}

/**
 * q·k̂: levels times the query with the scales of channels folded in (keys) or in turn with those of tokens (values),
 * offsets, and what was kept apart.
 */
function scores(query: Float32Array, head: NuqHead): Float64Array {
  const { format, headDim, firstRow, side, codes, outliers } = head;
  const vectors = new Vectors(side, headDim);
  const levels: readonly number[] = NUQ_LEVELS[format];
  const sums = Float64Array.from({ length: PAGE_TOKENS }, (_, t) => {
    if (t < firstRow) return 0;
    return query.reduce((sum, x, c) => {
      const i = t * headDim + c;
      const { scale, offset } = gridAt(head, vectors, i);
      return sum + x * scale * levels[codes[i]!]! + x * offset;
    }, 0);
  });
  for (const { token, channel, half } of outliers) sums[token]! += query[channel]! * fromHalf(half);
  return sums;
}

function mix(weights: Float32Array, head: NuqHead): Float64Array {
  const { format, headDim, firstRow, side, codes, outliers } = head;
  const vectors = new Vectors(side, headDim);
  const levels: readonly number[] = NUQ_LEVELS[format];
  const mixed = Float64Array.from({ length: headDim }, (_, c) => {
    let sum = 0;
    for (let t = firstRow; t < PAGE_TOKENS; t++) {
      const i = t * headDim + c;
      const { scale, offset } = gridAt(head, vectors, i);
      sum += weights[t]! * scale * levels[codes[i]!]! + weights[t]! * offset;
    }
    return sum;
  });
  for (const { token, channel, half } of outliers) mixed[channel]! += weights[token]! * fromHalf(half);
  return mixed;
}

function isNuq(format: string): asserts format is NuqName {
  assert(format in BITS, `${format} is not of the nuq family`);
}

/** `relative`: measured on Gaussian rows (test/unit/native/nuq.test.ts), rounded up. */
const codec = (format: NuqName, relative: number): ReferenceCodec<NuqHead> => ({
  format,
  tolerance: { relative, smallest: 1e-3, largest: 1e4 },
  encode: (rows, headDim, firstRow = 0, side = 'k') => encode(format, rows, headDim, firstRow, side),
  decode,
  scores,
  mix,
  stored(head, side) {
    isNuq(head.format);
    const low = BITS[head.format] % 2;
    const { hi, lo } = packPlanes(toTile(side, head.headDim, head.codes), BITS[head.format] - low, low);
    return {
      high: hi,
      low: lo,
      scales: bytesOf(head.scales),
      outliers: Uint8Array.from(
        head.outliers.flatMap(({ token, channel, half }) => [token, channel, half & 255, half >> 8]),
      ),
    };
  },
});

const define = <const N extends NuqName>(name: N, id: number, rank: number, tier: Tier) =>
  defineYardstick({
    name,
    id,
    rank,
    tier,
    codeBits: BITS[name],
    nested: false,
    rotated: false,
    parts: [
      { fields: [{ name: 'high', elementBits: BITS[name] - (BITS[name] % 2) }] },
      { fields: [{ name: 'low', elementBits: BITS[name] % 2 }] },
      {
        fields: [
          { name: 'scales', channelBytes: 4 },
          { name: 'outliers', channelBytes: 5 },
        ],
      },
    ],
    source: 'after KVQuant, Hooper et al. 2024, with keys after RoPE and one table of levels; docs/lab/formats.md',
    layoutVersion: 1,
  });

export const formats = [
  define('nuq4', 11, 26, 'warm'),
  define('nuq3', 12, 36, 'archive'),
  define('nuq2', 13, 46, 'archive'),
] as const;

export const codecs = {
  nuq4: codec('nuq4', 0.085),
  nuq3: codec('nuq3', 0.17),
  nuq2: codec('nuq2', 0.33),
} as const;
