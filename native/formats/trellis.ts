/**
 * trellis4, trellis3, trellis2, trellis1: the rot family (rot.ts) with a trellis in place of a code for each channel by itself.
 *
 * Mean, rows from zero, rotation, the reference and the unbiased scale of a byte are those of rot, and so are the bytes. Only the codes differ: the level of
 * a code of b bits follows from the 8 bits that end with it, its own and those of the codes before it, so it has 256 levels to choose from and not 2^b, and
 * the encoder looks for the sequence of codes that errs least as a whole.
 *   order    the codes of a page and head in tile order (codec.ts) form rows of 64; codes at the same place in all rows are one sequence, which begins
 *            in window 0
 *   window   w' = (w >> b) | code·2^(8−b)
 *   level    A[i] + B[j], integers over 32. i and j are four bits of the window each, as they lie side by side in the bit planes (windowIndex). Two look-ups
 *            of 16 bytes are what every instruction set has. One of 256 bytes errs 2 to 6% less, and takes sixteen where registers are short
 *   target   X = y / rms(y) in steps of 1/4096, rounded half to even, within ±16384
 *   search   Viterbi's algorithm, with the cost of a level L of round((X − 128·L)²/2^15), in unsigned integers of 16 bits that saturate; of equal costs the
 *            window with the lowest number wins. Every eight steps the least cost is taken off all. So all instruction sets find the same codes
 * Rows that have no codes of their own (sinks, zero rows) have the target 0.
 *
 * Squared error on a Gaussian before the scale: 0.0062, 0.022, 0.083 and 0.30, where single codes have 0.0095, 0.0345, 0.1175 and 0.363, and no code can
 * have less than 0.0039, 0.0156, 0.0625 and 0.25.
 *
 * Codes of different widths have nothing in common: a page with fewer bits is decoded and coded again. Encoding compares 256 windows for every element.
 * Source: trellis-coded quantization, Marcellin and Fischer 1990; QTIP, Tseng et al. 2024, arXiv 2406.11235, which has it for weights, with levels that are
 * computed from the bits; levels that are sums of two look-ups, in this order of codes, were fitted here (scripts/fit-trellis.ts). docs/lab/formats.md has what
 * it does to a model.
 * When not to use it: where pages move often and time is short, and where rot is not to be used.
 */
import { PAGE_TOKENS, SIDES, type Side } from '../layout.ts';
import { type ReferenceCodec, tileOffset } from '../reference/codec.ts';
import { roundHalfEven, treeDot } from '../reference/float32.ts';
import { rotate } from '../reference/rotation.ts';
import { TRELLIS, TRELLIS_DIVISOR } from '../reference/tables.gen.ts';
import { CODED_HEAD_DIMS, defineFormat, type Tier } from './descriptor.ts';
import {
  decodedMean,
  decodeLevels,
  encodeOrigins,
  halfExponent,
  lessOrigin,
  mixLevels,
  packPlanes,
  type RotHead,
  referenceOf,
  rotParts,
  scaleCode,
  scoreLevels,
  storedHead,
  ZERO_ROW,
} from './rot.ts';

export type TrellisBits = 1 | 2 | 3 | 4;
type TrellisName = `trellis${TrellisBits}`;

/** A head of the rot family whose levels follow from its codes in the order of one side. */
export interface TrellisHead extends RotHead {
  readonly side: Side;
}

const WINDOWS = 256;
/** Sequences of one head. */
const SEQUENCES = 64;
const TARGET_ONE = 4096;
const TARGET_MOST = 16384;
const COST_MOST = 65535;
/** Steps after which the least cost is taken off all. */
const LEVELLED = 8;

/** Where the four bits that choose a level of A, and those of B, lie in a window, lowest first. */
const WINDOW_BITS: Readonly<Record<TrellisBits, readonly [a: readonly number[], b: readonly number[]]>> = {
  1: [
    [4, 5, 6, 7],
    [0, 1, 2, 3],
  ],
  2: [
    [4, 5, 6, 7],
    [0, 1, 2, 3],
  ],
  // High bits of this code and the one before; below them the high bits of the one before that, and the low bits of the first two.
  3: [
    [3, 4, 6, 7],
    [0, 1, 2, 5],
  ],
  4: [
    [2, 3, 6, 7],
    [0, 1, 4, 5],
  ],
};

/** The entries of A and B that make the level of a window. */
export const windowIndex = (bits: TrellisBits, window: number): readonly [number, number] => {
  const [a, b] = WINDOW_BITS[bits];
  const gather = (places: readonly number[]): number =>
    places.reduce((index, place, at) => index | (((window >> place) & 1) << at), 0);
  return [gather(a), gather(b)];
};

/** The levels of all windows. */
export const levelsOf = (bits: TrellisBits, a: readonly number[], b: readonly number[]): Int8Array =>
  Int8Array.from({ length: WINDOWS }, (_, window) => {
    const [i, j] = windowIndex(bits, window);
    return a[i]! + b[j]!;
  });

/** The levels of the formats, by bits. */
const LEVELS = Object.fromEntries(
  ([1, 2, 3, 4] as const).map((bits) => [bits, levelsOf(bits, ...TRELLIS[bits])]),
) as Readonly<Record<TrellisBits, Int8Array>>;

/** What a sequence begins with, and what becomes of it with every code. */
export const nextWindow = (window: number, code: number, bits: number): number =>
  (window >> bits) | (code << (8 - bits));

/** Finds the sequence of codes that errs least. One searcher serves many sequences, one after the other. */
export class TrellisSearch {
  readonly #bits: TrellisBits;
  readonly #levels: Int8Array;
  /** By the bits of a window that the next one keeps. */
  #cost: Int32Array;
  #next: Int32Array;

  constructor(bits: TrellisBits, levels: Int8Array = LEVELS[bits]) {
    this.#bits = bits;
    this.#levels = levels;
    this.#cost = new Int32Array(WINDOWS >> bits);
    this.#next = new Int32Array(WINDOWS >> bits);
  }

  /** targets: whole numbers of 1/4096. → the window of each step */
  windows(targets: Int16Array): Uint8Array {
    const bits = this.#bits;
    const kept = WINDOWS >> bits;
    const from = new Uint8Array(targets.length * kept);
    this.#cost.fill(COST_MOST)[0] = 0;
    for (const [step, target] of targets.entries()) {
      this.#step(target, from.subarray(step * kept, (step + 1) * kept));
      if (step % LEVELLED === LEVELLED - 1) this.#level();
    }
    let at = this.#cost.indexOf(this.#least());
    const windows = new Uint8Array(targets.length);
    for (let step = targets.length - 1; step >= 0; step--) {
      windows[step] = (at << bits) | from[step * kept + at]!;
      at = windows[step]! & (kept - 1);
    }
    return windows;
  }

  #step(target: number, from: Uint8Array): void {
    const [bits, levels, cost, next] = [this.#bits, this.#levels, this.#cost, this.#next];
    const kept = next.length;
    const each = 1 << bits;
    for (let at = 0; at < kept; at++) {
      let least = COST_MOST + 1;
      let chosen = 0;
      for (let dropped = 0; dropped < each; dropped++) {
        const window = (at << bits) | dropped;
        const error = target - levels[window]! * (TARGET_ONE / TRELLIS_DIVISOR);
        const total = cost[window & (kept - 1)]! + ((error * error + 0x4000) >> 15);
        if (total < least) [least, chosen] = [total, dropped];
      }
      next[at] = Math.min(COST_MOST, least);
      from[at] = chosen;
    }
    [this.#cost, this.#next] = [next, cost];
  }

  #least(): number {
    return this.#cost.reduce((least, cost) => Math.min(least, cost));
  }

  #level(): void {
    const least = this.#least();
    for (let at = 0; at < this.#cost.length; at++) this.#cost[at]! -= least;
  }
}

/** The bits of a code. */
const bitsOf = (format: string): TrellisBits => Number(format.at(-1)) as TrellisBits;

/** Levels [128, d] of codes [128, d]. */
export function levelsOfCodes({ format, headDim, codes, side }: TrellisHead): Int8Array {
  const bits = bitsOf(format);
  const tile = new Uint8Array(codes.length);
  eachPlace(side, headDim, (place, at) => (tile[at] = codes[place]!));
  const levels = new Int8Array(codes.length);
  for (let sequence = 0; sequence < SEQUENCES; sequence++) {
    for (let at = sequence, window = 0; at < tile.length; at += SEQUENCES) {
      window = nextWindow(window, tile[at]!, bits);
      levels[at] = LEVELS[bits][window]!;
    }
  }
  const rows = new Int8Array(codes.length);
  eachPlace(side, headDim, (place, at) => (rows[place] = levels[at]!));
  return rows;
}

/** Calls `each` with the index of every element in rows [128, d] and in tile order. */
function eachPlace(side: Side, headDim: number, each: (place: number, at: number) => void): void {
  for (let t = 0; t < PAGE_TOKENS; t++)
    for (let c = 0; c < headDim; c++) each(t * headDim + c, tileOffset(side, headDim, t, c));
}

/** y / rms as a target. */
const targetOf = (y: number, rms: number): number => {
  const scaled = Math.fround(Math.fround(y / rms) * TARGET_ONE);
  return roundHalfEven(Math.min(TARGET_MOST, Math.max(-TARGET_MOST, scaled)));
};

/** The codes [128, d] of targets [128, d]. */
function search(bits: TrellisBits, targets: Int16Array, headDim: number, side: Side): Uint8Array {
  const tile = new Int16Array(targets.length);
  eachPlace(side, headDim, (place, at) => (tile[at] = targets[place]!));
  const searcher = new TrellisSearch(bits);
  const coded = new Uint8Array(tile.length);
  for (let sequence = 0; sequence < SEQUENCES; sequence++) {
    const own = Int16Array.from({ length: tile.length / SEQUENCES }, (_, step) => tile[step * SEQUENCES + sequence]!);
    for (const [step, window] of searcher.windows(own).entries())
      coded[step * SEQUENCES + sequence] = window >> (8 - bits);
  }
  const codes = new Uint8Array(tile.length);
  eachPlace(side, headDim, (place, at) => (codes[place] = coded[at]!));
  return codes;
}

/** Every part of a head except its reference, as if that were 0, and ⌊log₂ r⌋ of each row that is not zero. */
function encodeRows(format: TrellisName, rows: Float32Array, headDim: number, firstRow: number, side: Side) {
  const origins = encodeOrigins(rows, headDim, firstRow);
  const mean = decodedMean(origins);
  const turned = new Float32Array(rows.length);
  const squares = new Float32Array(PAGE_TOKENS);
  const targets = new Int16Array(rows.length);
  const octaves: number[] = [];
  for (let t = firstRow; t < PAGE_TOKENS; t++) {
    const y = lessOrigin(rows.subarray(t * headDim, (t + 1) * headDim), mean, origins.fromZero[t]!);
    rotate(y);
    turned.set(y, t * headDim);
    squares[t] = treeDot(y, y);
    if (!(squares[t]! > 0)) continue;
    const square = Math.fround(squares[t]! / headDim);
    octaves.push(halfExponent(square));
    const rms = Math.fround(Math.sqrt(square));
    for (let c = 0; c < headDim; c++) targets[t * headDim + c] = targetOf(y[c]!, rms);
  }
  const codes = search(bitsOf(format), targets, headDim, side);
  const rowScales = new Uint16Array(PAGE_TOKENS).fill(ZERO_ROW & 0xffff);
  const head = { format, headDim, firstRow, side, codes, rowScales, ...origins, reference: 0 };
  const levels = levelsOfCodes(head);
  for (let t = firstRow; t < PAGE_TOKENS; t++) {
    if (!(squares[t]! > 0)) continue;
    const own = (all: Float32Array | Int8Array) => all.subarray(t * headDim, (t + 1) * headDim);
    const along = treeDot(own(turned) as Float32Array, Array.from(own(levels)));
    if (!(along > 0)) continue;
    rowScales[t] = scaleCode(Math.fround(Math.fround(squares[t]! * TRELLIS_DIVISOR) / along)) & 0xffff;
  }
  return { head, octaves };
}

function encode(format: TrellisName, rows: Float32Array, headDim: number, firstRow: number, side: Side): TrellisHead {
  const { head, octaves } = encodeRows(format, rows, headDim, firstRow, side);
  const reference = referenceOf(octaves);
  if (reference === 0) return head;
  const scaled = rows.map((x) => x * 2 ** -reference);
  return { ...encodeRows(format, scaled, headDim, firstRow, side).head, reference };
}

const codedLevels = (head: TrellisHead) => ({ divisor: TRELLIS_DIVISOR, levels: levelsOfCodes(head) });

/** `relative` is the root of the relative squared error on a Gaussian, rounded up. */
const codec = (format: TrellisName, relative: number): ReferenceCodec<TrellisHead> => ({
  format,
  tolerance: { relative, smallest: 1e-6, largest: 1e5 },
  encode: (rows, headDim, firstRow = 0, side = 'k') => encode(format, rows, headDim, firstRow, side),
  decode: (head) => decodeLevels(head, codedLevels(head)),
  scores: (query, head) => scoreLevels(query, head, codedLevels(head)),
  mix: (weights, head) => mixLevels(weights, head, codedLevels(head)),
  stored(head, side) {
    const bits = bitsOf(format);
    const tile = new Uint8Array(head.codes.length);
    eachPlace(side, head.headDim, (place, at) => (tile[at] = head.codes[place]!));
    return storedHead(head, packPlanes(tile, ...planesOf(bits)));
  },
});

/** Bits in the two planes of a code. */
const planesOf = (bits: TrellisBits): readonly [hi: number, lo: number] => (bits === 1 ? [0, 1] : [2, bits - 2]);

const define = <const N extends TrellisName>(name: N, id: number, rank: number, tier: Tier, sides = SIDES) =>
  defineFormat({
    name,
    id,
    rank,
    tier,
    codeBits: bitsOf(name),
    from: 'better',
    sides,
    window: false,
    nested: false,
    headDims: CODED_HEAD_DIMS,
    rope: 'post',
    rotated: true,
    parts: rotParts(planesOf(bitsOf(name)), false),
    source:
      'the rot family with trellis-coded quantization (Marcellin and Fischer 1990; QTIP, arXiv 2406.11235); docs/lab/formats.md',
    layoutVersion: 1,
  });

export const formats = [
  define('trellis4', 34, 17, 'warm'),
  define('trellis3', 35, 25, 'archive'),
  define('trellis2', 36, 31, 'archive'),
  define('trellis1', 37, 49, 'archive', ['v']),
] as const;

export const codecs = {
  trellis4: codec('trellis4', 0.09),
  trellis3: codec('trellis3', 0.16),
  trellis2: codec('trellis2', 0.31),
  trellis1: codec('trellis1', 0.66),
} as const;
