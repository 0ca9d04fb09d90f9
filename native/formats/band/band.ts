/**
 * band3, band2: channels of a head ordered by how much queries make of them, in three bands with one bit more, as many,
 * and one bit less.
 *
 * An error of channel c of a key costs a score in proportion to what queries have there: the sum over channels of
 * w_c·error_c², where w_c is the mean square of the queries. With codes of equal width over a rotation every channel
 * gets the same error. Here the product w_c·σ_c² decides which channels get more bits (reverse water-filling), and
 * within a band the rotation mixes channels that are scaled so that equal errors are the cheapest.
 *
 * For each head of a page of 128 rows, keys after RoPE, with w_c = 1 where no queries are known:
 *   mean     μ̂_c as in the rot family; y = x − μ̂
 *   apart    the two rows with the least ⟨x,μ̂⟩, where that is below ½⟨μ̂,μ̂⟩: they are kept as int8 with an f16 scale
 *   each, and left out of all that follows
 *   power    p_c = Σ_t y_tc² / rows, at least 2^−24 of the largest; w_c likewise. Both are divided by the largest, P
 *   and W
 *   order    a_c = √(w_c·p_c), descending, earlier channels first among equals. The first E channels are band 0, the
 *   last E band 2, the others
 *            band 1, where E = 16·⌊d/64⌋; m_i is the mean of a_c over band i
 *   unit     û_c = 2^((e − s_c)/4), nearest on the scale of quarter octaves to √P·√(m_i·p_c/a_c): it makes each band's
 *   mean square 1 and balances
 *            channels within it by √(w_c/p_c). e is that of the largest unit of the page, s_c ≤ 63
 *   place    the channels of band 0, then of 1, then of 2, each in ascending order
 *   rotate   z = H₁₆·D·(y/û) for every 16 places in turn
 *   code     c₄ of z over the rms of its row, as in the rot family; the code is c₄ without its 0, 1 or 2 low bits
 *   (band3), 1, 2 or 3 (band2)
 *   scale    t = Σ_i m_i²·⟨z,z⟩_i / Σ_i m_i²·⟨z,u⟩_i, the unbiased scale where an error weighs as in a score; stored as
 *   k, t = 2^(k/16)
 *   decode   x̂ = μ̂ + û·(D·H₁₆·t·u)
 *
 * Zero rows and sinks have k = −128 and codes 0, and decode to the mean; so do all rows of a page whose powers vanish
 * (P < 2^−63).
 *
 * Bytes (one head): the codes of each band in turn, as planes of the rot family, 128·d·b/8; k 128; means d; one byte
 * per channel, 64·band + s; the scale of the means 2, e 1; rows apart 2·(d + 3). That is b + 8/d + 1/4 + 9/16d bits per
 * element: b + 0.38 at d = 64.
 *
 * Rows that stand apart are few, and most of the attention of some layers goes to them: they are what such layers rest
 * on where there is nothing to look at, as on the first tokens, and like those they are small and lie off the mean.
 *
 * Source: the project's own (docs/lab/formats.md). Allocation of bits to channels by the product of both powers is that
 * of Block-GTQ (arXiv 2606.24033), which fixes it per model and rotates no channels of equal width together. When not
 * to use it: for values, whose errors no query weighs; there it is a rot format with some bits misplaced.
 */
import { assert } from '../../error.ts';
import { PAGE_TOKENS, type Side } from '../../layout.ts';
import { bytesOf, type EncodedHead, type ReferenceCodec, toTile } from '../../reference/codec.ts';
import { roundHalfEven, treeDot, treeSum } from '../../reference/float32.ts';
import { fromHalf, toHalf } from '../../reference/half.ts';
import { encode4 } from '../../reference/lloydmax.ts';
import { encodeMean } from '../../reference/origins.ts';
import { packPlanes, planeBits } from '../../reference/planes.ts';
import { rotationSigns } from '../../reference/rotation.ts';
import { rotScale, scaleCode, ZERO_ROW } from '../../reference/row-scale.ts';
import type { Steering } from '../../reference/steering.ts';
import { ROT_LEVELS } from '../../reference/tables.gen.ts';
import { defineForOutlierKeys } from '../descriptor.ts';
import { codeBits, type RotName } from '../rot/rot.ts';

type BandName = 'band3' | 'band2';

/** The formats whose levels the codes of each band have. */
const WIDTHS: Readonly<Record<BandName, readonly RotName[]>> = {
  band3: ['rot4', 'rot3', 'rot2'],
  band2: ['rot3', 'rot2', 'rot1'],
};
const BLOCK = 16;
const STEPS_MAX = 63;
/** The least power beside the largest. */
const FAINT = 2 ** -24;
/** Boundaries of quarter octaves within an octave: 2^((j + ½)/4). */
const QUARTER_BOUNDS = [0, 1, 2, 3].map((j) => Math.fround(2 ** ((j + 0.5) / 4)));
/** 2^(j/4). */
const QUARTERS = [0, 1, 2, 3].map((j) => Math.fround(2 ** (j / 4)));

/** A head of a page as the codes and the shape of its channels say it. */
export interface BandHead extends EncodedHead {
  readonly format: BandName;
  /** [d] 64·band + s of each channel. */
  readonly shape: Uint8Array;
  /** Rows that stand apart, [2]; NO_ROW where there is none. */
  readonly apart: Uint8Array;
  /** [2, d] int8, and the f16 bits of their scales, [2]. */
  readonly apartCodes: Int8Array;
  readonly apartScales: Uint16Array;
}

/** The places at which each band ends. */
function endsOf(headDim: number): readonly number[] {
  const outer = BLOCK * Math.floor(headDim / 64);
  return [outer, headDim - outer, headDim];
}

/** round(4·log₂ x) for a normal x > 0. */
function quarterOctaves(x: number): number {
  const octave = Math.floor(Math.log2(x));
  // Math.log2 may be off by one at a power of two.
  const exact = 2 ** octave > x ? octave - 1 : 2 ** (octave + 1) <= x ? octave + 1 : octave;
  const mantissa = x * 2 ** -exact;
  return 4 * exact + QUARTER_BOUNDS.filter((bound) => mantissa > bound).length;
}

/** 2^(n/4) in float32. */
const quarterPower = (n: number): number => Math.fround(QUARTERS[n & 3]! * 2 ** (n >> 2));

/** The channel at each place, from the bands. */
function placesOf(shape: Uint8Array): number[] {
  const channels = Array.from(shape, (_, c) => c);
  return [0, 1, 2].flatMap((band) => channels.filter((c) => shape[c]! >> 6 === band));
}

/** H₁₆ of every 16 numbers in turn, orthonormal. */
function mixBlocks(x: Float32Array): void {
  for (let half = 1; half < BLOCK; half *= 2) {
    for (let i = 0; i < x.length; i += 2 * half) {
      for (let j = i; j < i + half; j++) {
        const [a, b] = [x[j]!, x[j + half]!];
        x[j] = Math.fround(a + b);
        x[j + half] = Math.fround(a - b);
      }
    }
  }
  for (let i = 0; i < x.length; i++) x[i]! *= 0.25;
}

interface Shape {
  readonly shape: Uint8Array;
  readonly e: number;
  /** m_i² of each band. */
  readonly weights: readonly number[];
}

/** Null where the powers vanish. */
function shapeOf(powers: Float32Array, asked: Float32Array | null): Shape | null {
  const d = powers.length;
  const most = powers.reduce((top, p) => Math.max(top, p), 0);
  if (!(most >= 2 ** -63)) return null;
  const mostAsked = asked?.reduce((top, w) => Math.max(top, w), 0) ?? 0;
  const p = powers.map((power) => Math.max(FAINT, Math.fround(power / most)));
  const w = powers.map((_, c) => (mostAsked > 0 ? Math.max(FAINT, Math.fround(asked![c]! / mostAsked)) : 1));
  const a = p.map((power, c) => Math.fround(Math.sqrt(Math.fround(power * w[c]!))));
  const order = Array.from(a, (_, c) => c).sort((one, other) => a[other]! - a[one]! || one - other);
  const shape = new Uint8Array(d);
  const octaves = new Int32Array(d);
  const weights: number[] = [];
  let from = 0;
  for (const [band, end] of endsOf(d).entries()) {
    const channels = order.slice(from, end);
    const mean = Math.fround(treeSum(channels.map((c) => a[c]!)) / channels.length);
    weights.push(Math.fround(mean * mean));
    for (const c of channels) {
      shape[c] = band << 6;
      octaves[c] = quarterOctaves(Math.fround(Math.sqrt(Math.fround(Math.fround(mean * p[c]!) / a[c]!))));
    }
    from = end;
  }
  const highest = octaves.reduce((top, n) => Math.max(top, n), Number.NEGATIVE_INFINITY);
  for (let c = 0; c < d; c++) shape[c]! |= Math.min(STEPS_MAX, highest - octaves[c]!);
  return { shape, e: highest + quarterOctaves(Math.fround(Math.sqrt(most))), weights };
}

const APART = 2;
const NO_ROW = 255;

/** The rows whose projection on the mean is the least, and less than half of it; the earlier of equals first. */
function rowsApart(rows: Float32Array, mean: Float32Array, firstRow: number): number[] {
  const d = mean.length;
  const half = Math.fround(treeDot(mean, mean) * 0.5);
  const along = Array.from({ length: PAGE_TOKENS }, (_, t) => treeDot(rows.subarray(t * d, (t + 1) * d), mean));
  return along
    .flatMap((projection, t) => (t >= firstRow && projection < half ? [t] : []))
    .sort((one, other) => along[one]! - along[other]! || one - other)
    .slice(0, APART);
}

/** What a shape of nothing has: the first channels in the first band. */
function plainShape(headDim: number): Uint8Array {
  const ends = endsOf(headDim);
  return Uint8Array.from({ length: headDim }, (_, c) => ends.findIndex((end) => c < end) << 6);
}

/** û of each channel. */
const unitsOf = (shape: Uint8Array, e: number): Float32Array =>
  Float32Array.from(shape, (one) => quarterPower(e - (one & STEPS_MAX)));

/** The format whose levels each place has. */
const widthsOf = (format: BandName, headDim: number): RotName[] =>
  Array.from({ length: headDim }, (_, place) => WIDTHS[format][endsOf(headDim).findIndex((end) => place < end)]!);

/** A level as a fraction of its divisor. */
const levelOf = (width: RotName, code: number): number => {
  const { levels, divisor } = ROT_LEVELS[width];
  return Math.fround(levels[code]! / divisor);
};
/** How many low bits of c₄ a width drops. */
const dropOf = (width: RotName): number => 4 - codeBits(width);

function encode(
  format: BandName,
  rows: Float32Array,
  headDim: number,
  firstRow: number,
  asked: Float32Array | null,
): BandHead {
  const { means, meanScale } = encodeMean(rows, headDim, firstRow);
  const scale = fromHalf(meanScale);
  const mean = Float32Array.from(means, (one) => one * scale);
  const alone = rowsApart(rows, mean, firstRow);
  const y = rows.map((x, i) => {
    const t = Math.floor(i / headDim);
    return t < firstRow || alone.includes(t) ? 0 : Math.fround(x - mean[i % headDim]!);
  });
  const powers = Float32Array.from({ length: headDim }, (_, c) => {
    const squares = Float32Array.from({ length: PAGE_TOKENS }, (_, t) => y[t * headDim + c]! ** 2);
    return Math.fround(treeSum(squares) / (PAGE_TOKENS - firstRow - alone.length));
  });
  const codes = new Uint8Array(PAGE_TOKENS * headDim);
  const rowScales = new Uint16Array(PAGE_TOKENS).fill(ZERO_ROW & 0xffff);
  const found = shapeOf(powers, asked);
  const apart = new Uint8Array(APART).fill(NO_ROW);
  const apartCodes = new Int8Array(APART * headDim);
  const apartScales = new Uint16Array(APART);
  for (const [i, t] of alone.entries()) {
    const row = rows.subarray(t * headDim, (t + 1) * headDim);
    apart[i] = t;
    apartScales[i] = toHalf(Math.fround(row.reduce((most, x) => Math.max(most, Math.abs(x)), 0) / 127));
    const unit = fromHalf(apartScales[i]!);
    if (unit > 0)
      apartCodes.set(
        Array.from(row, (x) => roundHalfEven(Math.min(127, Math.max(-127, Math.fround(x / unit))))),
        i * headDim,
      );
  }
  const whole = { format, headDim, firstRow, codes, rowScales, means, meanScale, apart, apartCodes, apartScales };
  if (found === null) return { ...whole, shape: plainShape(headDim), reference: 0 };
  const { shape, e, weights } = found;
  const places = placesOf(shape);
  const widths = widthsOf(format, headDim);
  const ends = endsOf(headDim);
  const weight = Float32Array.from(places, (_, place) => weights[ends.findIndex((end) => place < end)]!);
  const inverses = Float32Array.from(shape, (one) => quarterPower((one & STEPS_MAX) - e));
  const signs = rotationSigns(headDim);
  for (let t = firstRow; t < PAGE_TOKENS; t++) {
    const z = Float32Array.from(places, (c, place) => Math.fround(y[t * headDim + c]! * inverses[c]!) * signs[place]!);
    mixBlocks(z);
    // A row that stands apart is zero here.
    const zz = treeDot(z, z);
    if (!(zz > 0)) continue;
    const r = Math.fround(Math.sqrt(Math.fround(zz / headDim)));
    const row = Uint8Array.from(z, (value, place) => encode4(value, r) >> dropOf(widths[place]!));
    codes.set(row, t * headDim);
    const weighed = z.map((value, place) => Math.fround(value * weight[place]!));
    const cross = treeDot(
      weighed,
      Array.from(row, (code, place) => levelOf(widths[place]!, code)),
    );
    if (cross > 0) rowScales[t] = scaleCode(Math.fround(treeDot(weighed, z) / cross)) & 0xffff;
  }
  return { ...whole, shape, reference: e };
}

/** The rows that stand apart. */
const rowsOf = ({ apart, apartCodes, apartScales, headDim }: BandHead) =>
  [...apart].flatMap((t, i) => {
    const codes = apartCodes.subarray(i * headDim, (i + 1) * headDim);
    return t === NO_ROW ? [] : [{ t, row: Float32Array.from(codes, (code) => code * fromHalf(apartScales[i]!)) }];
  });

const scaleOf = (head: BandHead, t: number): number => rotScale((head.rowScales[t]! << 16) >> 16);

function decode(head: BandHead): Float32Array {
  const { headDim, firstRow, codes, means, shape } = head;
  const scale = fromHalf(head.meanScale);
  const places = placesOf(shape);
  const widths = widthsOf(head.format, headDim);
  const units = unitsOf(shape, head.reference);
  const signs = rotationSigns(headDim);
  const rows = new Float32Array(PAGE_TOKENS * headDim);
  for (let t = firstRow; t < PAGE_TOKENS; t++) {
    const factor = scaleOf(head, t);
    const z = Float32Array.from(places, (_, i) => Math.fround(levelOf(widths[i]!, codes[t * headDim + i]!) * factor));
    mixBlocks(z);
    for (const [place, c] of places.entries()) {
      const value = Math.fround(z[place]! * signs[place]! * units[c]!);
      rows[t * headDim + c] = Math.fround(Math.fround(means[c]! * scale) + value);
    }
  }
  for (const { t, row } of rowsOf(head)) rows.set(row, t * headDim);
  return rows;
}

/** What a query is multiplied with: q in the places of a head, each number times what its levels count in. */
function foldedQuery(query: Float32Array, head: BandHead): Float32Array {
  const units = unitsOf(head.shape, head.reference);
  const signs = rotationSigns(head.headDim);
  const folded = Float32Array.from(
    placesOf(head.shape),
    (c, place) => Math.fround(query[c]! * units[c]!) * signs[place]!,
  );
  mixBlocks(folded);
  return folded;
}

/** q·k̂_t = t·⟨H₁₆D(û·q), u⟩ + ⟨q, μ̂⟩: the query is folded once per page, no key is. Rows before firstRow give 0. */
function scores(query: Float32Array, head: BandHead): Float64Array {
  const folded = foldedQuery(query, head);
  const widths = widthsOf(head.format, head.headDim);
  const scale = fromHalf(head.meanScale);
  const onMean = head.means.reduce((sum, mean, c) => sum + query[c]! * mean * scale, 0);
  const alone = new Map(rowsOf(head).map(({ t, row }) => [t, row]));
  return Float64Array.from({ length: PAGE_TOKENS }, (_, t) => {
    if (t < head.firstRow) return 0;
    const whole = alone.get(t);
    if (whole !== undefined) return whole.reduce((sum, x, c) => sum + query[c]! * x, 0);
    const row = head.codes.subarray(t * head.headDim, (t + 1) * head.headDim);
    const sum = row.reduce((total, code, place) => total + folded[place]! * levelOf(widths[place]!, code), 0);
    return scaleOf(head, t) * sum + onMean;
  });
}

function mix(weights: Float32Array, head: BandHead): Float64Array {
  const rows = decode(head);
  return Float64Array.from({ length: head.headDim }, (_, c) =>
    weights.reduce((sum, weight, t) => sum + weight * rows[t * head.headDim + c]!, 0),
  );
}

/**
 * The planes of each band in turn. Keys and values are both stored in the order of keys, because values are decoded
 * before they are mixed.
 */
function planesOf(head: BandHead): Uint8Array {
  const tile = toTile('k', head.headDim, head.codes);
  let from = 0;
  const parts = endsOf(head.headDim).flatMap((end, band) => {
    const codes = tile.subarray(from * PAGE_TOKENS, end * PAGE_TOKENS);
    from = end;
    const { hi, lo } = packPlanes(codes, ...planeBits(codeBits(WIDTHS[head.format][band]!)));
    return [hi, lo];
  });
  return Buffer.concat(parts);
}

/** `relative` is the root of the relative squared error on a Gaussian (test/unit/native/band.test.ts), rounded up. */
const codec = (format: BandName, relative: number): ReferenceCodec<BandHead> => ({
  format,
  tolerance: { relative, smallest: 1e-6, largest: 1e5 },
  encode: (rows, headDim, firstRow = 0, side: Side = 'k', steering: Steering | null = null) =>
    encode(format, rows, headDim, firstRow, side === 'k' ? (steering?.weights ?? null) : null),
  decode,
  scores,
  mix,
  stored(head) {
    assert(head.format === format, `${head.format} is not ${format}`);
    return {
      codes: planesOf(head),
      exponents: bytesOf(Int8Array.from(head.rowScales, (k) => (k << 16) >> 16)),
      mean: bytesOf(head.means),
      shape: head.shape,
      apartCodes: bytesOf(head.apartCodes),
      apartScales: bytesOf(head.apartScales),
      apart: head.apart,
      meanScale: bytesOf(Uint16Array.of(head.meanScale)),
      reference: bytesOf(Int8Array.of(head.reference)),
    };
  },
});

const define = <const N extends BandName>(name: N, id: number, rank: number, codeBits: number) =>
  defineForOutlierKeys({
    name,
    id,
    rank,
    tier: 'archive',
    codeBits,
    nested: false,
    rotated: true,
    steered: 'channels',
    sides: ['k'],
    parts: [
      {
        fields: [
          { name: 'codes', elementBits: codeBits },
          { name: 'exponents', tokenBytes: 1 },
          { name: 'mean', channelBytes: 1 },
          { name: 'shape', channelBytes: 1 },
          { name: 'apartCodes', channelBytes: APART },
          { name: 'apartScales', headBytes: 2 * APART },
          { name: 'apart', headBytes: APART },
          { name: 'meanScale', headBytes: 2 },
          { name: 'reference', headBytes: 1 },
        ],
      },
    ],
    source: 'bits by the powers of queries and keys per channel, rotated in blocks; native/formats/band/band.ts',
    layoutVersion: 1,
  });

export const formats = [define('band3', 32, 27, 3), define('band2', 33, 35, 2)] as const;

export const codecs = { band3: codec('band3', 0.22), band2: codec('band2', 0.48) } as const;
