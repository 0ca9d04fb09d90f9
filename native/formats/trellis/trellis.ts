/**
 * trellis4, trellis3, trellis2, trellis1: rotated rows (reference/rotated.ts), as the family rot has them, with
 * trellises in place of a code for each channel by itself.
 *
 * Mean, rows from zero, rotation, the reference and the unbiased scale of a byte are those of rot, and so are the
 * bytes. Only the codes differ: the level of a code of b bits follows from the 6 bits that end with it, its own and
 * those of the codes before it, so it has 64 levels to choose from and not 2^b, and the encoder looks for the sequence
 * of codes that errs least as a whole.
 *   order    the codes of a page and head in tile order (codec.ts) form rows of 64; codes at the same place in all rows
 *   are one sequence, which begins
 *            in window 0
 *   window   w' = (w >> b) | code·2^(6−b)
 *   level    A[w >> 2] + B[w & 15], integers over 32: four bits each, as they lie side by side in the bit planes.
 *   Look-ups of 16 bytes are what every
 *            instruction set has
 *   target   X = y / rms(y) in steps of 1/4096, rounded half to even, within ±16384
 *   search   Viterbi's algorithm, with the cost of a level L of round((X − 128·L)²/2^15), in unsigned integers of 16
 *   bits that saturate; of equal costs the
 *            window with the lowest number wins. Every eight steps the least cost is taken off all. So all instruction
 *   sets find the same codes
 *   nest     trellis2 is one such sequence, of two bits. trellis3 and trellis4 have the same, and one of 1 or 2 bits
 *   for what it leaves: X − 128·L is the
 *            target, and both levels are added. Its windows have 4 bits and its levels one table. trellis1 is a
 *   sequence of one bit
 * Rows that have no codes of their own (sinks, zero rows) have the target 0.
 *
 * Squared error on a Gaussian before the scale: 0.0087, 0.0277, 0.087 and 0.304, where single codes have 0.0095,
 * 0.0345, 0.1175 and 0.363, and no code can have less than 0.0039, 0.0156, 0.0625 and 0.25. Windows of 8 bits have
 * 0.083 at 2 bits, and take four times as long to search.
 *
 * Demotion to trellis2 drops the second sequence. To trellis3 and trellis1 it looks for a new one, whose targets are
 * the levels as they are: 128 times those of trellis4 that the first sequence leaves, or 128 times all of them. The
 * scale becomes t·⟨u,u⟩/⟨u,u'⟩, as in rot. Source: trellis-coded quantization, Marcellin and Fischer 1990; QTIP, Tseng
 * et al. 2024, arXiv 2406.11235, which has it for weights, with levels that are computed from the bits; levels that are
 * sums of two look-ups, this order of codes and the nesting were found here (scripts/fit-trellis.ts).
 * docs/lab/formats.md has what it does to a model. When not to use it: where pages move often and time is short, for
 * encoding compares 64 windows for every code; and where rot is not to be used.
 */
import { assert } from '../../error.ts';
import { PAGE_TOKENS, SIDES, type Side } from '../../layout.ts';
import { type ReferenceCodec, tileOffset } from '../../reference/codec.ts';
import { roundHalfEven, treeDot } from '../../reference/float32.ts';
import { decodedMean, encodeOrigins, lessOrigin } from '../../reference/origins.ts';
import { packPlanes, planeBits } from '../../reference/planes.ts';
import {
  decodeLevels,
  halfExponent,
  mixLevels,
  type RotatedHead,
  referenceOf,
  rotatedParts,
  scoreLevels,
  storedHead,
} from '../../reference/rotated.ts';
import { rotate } from '../../reference/rotation.ts';
import { scaleCode, scaleOfLevels, ZERO_ROW } from '../../reference/row-scale.ts';
import { TRELLIS, TRELLIS_DIVISOR } from '../../reference/tables.gen.ts';
import { CODED_HEAD_DIMS, defineFormat, type FormatDescriptor, type Tier } from '../descriptor.ts';

type TrellisName = `trellis${1 | 2 | 3 | 4}`;
/**
 * The sequences of codes: that of two bits by which a page is coded first, those of 2 or 1 bits for what it leaves, and
 * that of one bit alone.
 */
export type Sequence = keyof typeof TRELLIS;

/** A head of rotated rows whose levels follow from its codes in the order of one side. */
export interface TrellisHead extends RotatedHead {
  readonly side: Side;
}

/** Sequences of one head. */
const SEQUENCES = 64;
const TARGET_ONE = 4096;
const TARGET_MOST = 16384;
/** What one of a level is in targets. */
const LEVEL_ONE = TARGET_ONE / TRELLIS_DIVISOR;
const COST_MOST = 65535;
/** Steps after which the least cost is taken off all. */
const LEVELLED = 8;

/** Bits of a code of each sequence, and of its windows. */
export const SEQUENCE_BITS: Readonly<Record<Sequence, number>> = { high: 2, low2: 2, low1: 1, single: 1 };
export const WINDOW_BITS: Readonly<Record<Sequence, number>> = { high: 6, low2: 4, low1: 4, single: 6 };

/** The entries of the tables that make the level of a window. */
export const windowIndex = (sequence: Sequence, window: number): readonly number[] =>
  WINDOW_BITS[sequence] === 4 ? [window] : [window >> 2, window & 15];

/** The levels of all windows. */
export const levelsOf = (sequence: Sequence, tables: readonly (readonly number[])[] = TRELLIS[sequence]): Int8Array =>
  Int8Array.from({ length: 2 ** WINDOW_BITS[sequence] }, (_, window) =>
    windowIndex(sequence, window).reduce((sum, entry, table) => sum + tables[table]![entry]!, 0),
  );

const LEVELS = Object.fromEntries(
  (Object.keys(TRELLIS) as Sequence[]).map((sequence) => [sequence, levelsOf(sequence)]),
) as Readonly<Record<Sequence, Int8Array>>;

/** What becomes of a window with every code; a sequence begins with 0. */
export const nextWindow = (sequence: Sequence, window: number, code: number): number =>
  (window >> SEQUENCE_BITS[sequence]) | (code << (WINDOW_BITS[sequence] - SEQUENCE_BITS[sequence]));

/** Finds the sequence of codes that errs least. One searcher serves many sequences, one after the other. */
export class TrellisSearch {
  readonly #bits: number;
  /** Levels as the search aims at them. */
  readonly #levels: Int32Array;
  /** By the bits of a window that the next one keeps. */
  #cost: Int32Array;
  #next: Int32Array;

  constructor(sequence: Sequence, levels: Int8Array = LEVELS[sequence]) {
    this.#bits = SEQUENCE_BITS[sequence];
    this.#levels = Int32Array.from(levels, (level) => LEVEL_ONE * level);
    this.#cost = new Int32Array(levels.length >> this.#bits);
    this.#next = new Int32Array(levels.length >> this.#bits);
  }

  /** targets: whole numbers of 1/4096. → the window of each step */
  windows(targets: Int16Array): Uint8Array {
    const bits = this.#bits;
    const kept = this.#cost.length;
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
        const error = target - levels[window]!;
        const total = Math.min(COST_MOST, cost[window & (kept - 1)]! + ((error * error + 0x4000) >> 15));
        if (total >= least) continue;
        least = total;
        chosen = dropped;
      }
      next[at] = least;
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

/** The sequences of a format, the one with the high bits of its codes first. */
const SEQUENCES_OF: Readonly<Record<TrellisName, readonly Sequence[]>> = {
  trellis4: ['high', 'low2'],
  trellis3: ['high', 'low1'],
  trellis2: ['high'],
  trellis1: ['single'],
};
const nameOf = (format: string): TrellisName => {
  assert(format in SEQUENCES_OF, `${format} is not of the trellis family`);
  return format as TrellisName;
};
const codeBits = (name: TrellisName): number => Number(name.at(-1));

/** Levels in tile order of the codes of one sequence. */
function levelsOfSequence(sequence: Sequence, codes: Uint8Array): Int16Array {
  const levels = new Int16Array(codes.length);
  for (let first = 0; first < SEQUENCES; first++) {
    for (let at = first, window = 0; at < codes.length; at += SEQUENCES) {
      window = nextWindow(sequence, window, codes[at]!);
      levels[at] = LEVELS[sequence][window]!;
    }
  }
  return levels;
}

/** Levels [128, d] of codes [128, d]. */
export function levelsOfCodes({ format, headDim, codes, side }: TrellisHead): Int8Array {
  const tile = new Uint8Array(codes.length);
  eachPlace(side, headDim, (place, at) => (tile[at] = codes[place]!));
  const sequences = SEQUENCES_OF[nameOf(format)];
  let shift = codeBits(nameOf(format));
  const sums = new Int16Array(codes.length);
  for (const sequence of sequences) {
    shift -= SEQUENCE_BITS[sequence];
    const own = tile.map((code) => (code >> shift) & (2 ** SEQUENCE_BITS[sequence] - 1));
    for (const [at, level] of levelsOfSequence(sequence, own).entries()) sums[at]! += level;
  }
  const rows = new Int8Array(codes.length);
  eachPlace(side, headDim, (place, at) => (rows[place] = sums[at]!));
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

/** The codes of targets, both in tile order, by one sequence for each place in a row. */
function searchSequence(sequence: Sequence, targets: Int16Array): Uint8Array {
  const searcher = new TrellisSearch(sequence);
  const codes = new Uint8Array(targets.length);
  for (let first = 0; first < SEQUENCES; first++) {
    const own = targets.filter((_, at) => at % SEQUENCES === first);
    for (const [step, window] of searcher.windows(own).entries())
      codes[step * SEQUENCES + first] = window >> (WINDOW_BITS[sequence] - SEQUENCE_BITS[sequence]);
  }
  return codes;
}

/** What the levels of codes leave of targets. */
const leftOf = (targets: Int16Array, sequence: Sequence, codes: Uint8Array): Int16Array => {
  const levels = levelsOfSequence(sequence, codes);
  return targets.map((target, at) => target - LEVEL_ONE * levels[at]!);
};

/** The codes [128, d] of targets [128, d]. */
function search(name: TrellisName, targets: Int16Array, headDim: number, side: Side): Uint8Array {
  let left: Int16Array = new Int16Array(targets.length);
  eachPlace(side, headDim, (place, at) => (left[at] = targets[place]!));
  let whole = new Uint8Array(targets.length);
  for (const sequence of SEQUENCES_OF[name]) {
    const codes = searchSequence(sequence, left);
    left = leftOf(left, sequence, codes);
    whole = whole.map((code, at) => (code << SEQUENCE_BITS[sequence]) | codes[at]!);
  }
  const rows = new Uint8Array(targets.length);
  eachPlace(side, headDim, (place, at) => (rows[place] = whole[at]!));
  return rows;
}

/** The codes [128, d] in a lower format: those that are kept, and those that are found anew from the levels. */
function narrowed({ format, headDim, codes, side }: TrellisHead, to: TrellisName, levels: Int8Array): Uint8Array {
  if (to === 'trellis2') return codes.map((code) => code >> (codeBits(nameOf(format)) - 2));
  if (to === 'trellis1') return search(to, asTargets(levels), headDim, side);
  // What the first sequence leaves of the levels is the level of the second.
  const second = new Uint8Array(codes.length);
  eachPlace(side, headDim, (place, at) => (second[at] = codes[place]! & 3));
  const low = searchSequence('low1', asTargets(levelsOfSequence('low2', second)));
  const rows = new Uint8Array(codes.length);
  eachPlace(side, headDim, (place, at) => (rows[place] = ((codes[place]! >> 2) << 1) | low[at]!));
  return rows;
}

const asTargets = (levels: ArrayLike<number>): Int16Array => Int16Array.from(levels, (level) => LEVEL_ONE * level);

/** The head with fewer bits, from its codes alone. */
export function demoteTrellis(head: TrellisHead, to: TrellisName): TrellisHead {
  assert(codeBits(nameOf(head.format)) > codeBits(to), `${head.format} cannot be demoted to ${to}`);
  const fine = levelsOfCodes(head);
  const lower = { ...head, format: to, codes: narrowed(head, to, fine) };
  const coarse = levelsOfCodes(lower);
  const rowScales = head.rowScales.map((scale, t) => {
    const own = (levels: Int8Array): Int8Array => levels.subarray(t * head.headDim, (t + 1) * head.headDim);
    return scaleOfLevels(scale, own(fine), TRELLIS_DIVISOR, own(coarse), TRELLIS_DIVISOR);
  });
  return { ...lower, rowScales };
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
  const codes = search(format, targets, headDim, side);
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
  demote: (head, to) => demoteTrellis(head, nameOf(to)),
  stored(head, side) {
    const tile = new Uint8Array(head.codes.length);
    eachPlace(side, head.headDim, (place, at) => (tile[at] = head.codes[place]!));
    return storedHead(head, packPlanes(tile, ...planeBits(codeBits(format))));
  },
});

type Placed = Pick<FormatDescriptor, 'sides' | 'rungs'>;
const define = <const N extends TrellisName>(name: N, id: number, rank: number, tier: Tier, placed: Placed) =>
  defineFormat({
    name,
    id,
    rank,
    tier,
    codeBits: codeBits(name),
    from: 'better',
    sides: SIDES,
    ...placed,
    replaces: `rot${codeBits(name)}`,
    window: false,
    nested: true,
    headDims: CODED_HEAD_DIMS,
    rope: 'post',
    rotated: true,
    parts: rotatedParts(planeBits(codeBits(name)), true),
    source:
      'the rot family with trellis-coded quantization (Marcellin and Fischer 1990; QTIP, arXiv 2406.11235); docs/lab/formats.md',
    layoutVersion: 1,
  });

export const formats = [
  define('trellis4', 34, 17, 'warm', { rungs: { k: 10, v: 10 } }),
  define('trellis3', 35, 25, 'archive', { rungs: { k: 30 } }),
  define('trellis2', 36, 31, 'archive', { rungs: { k: 50, v: 20 } }),
  define('trellis1', 37, 49, 'archive', { sides: ['v'], rungs: { v: 40 } }),
] as const;

export const codecs = {
  trellis4: codec('trellis4', 0.09),
  trellis3: codec('trellis3', 0.16),
  trellis2: codec('trellis2', 0.31),
  trellis1: codec('trellis1', 0.66),
} as const;
