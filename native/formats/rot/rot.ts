/**
 * rot4, rot3, rot2, rot1: rotated Gaussian codes with an unbiased scale, nested in bit planes.
 *
 * For each head of a page of 128 rows, keys after RoPE, values unchanged, and all rows multiplied by 2^−e:
 *   mean    μ_c = (Σ_t x_tc) / rows, stored as int8 with one f16 scale max|μ|/127 for all channels; μ̂ is the decoded
 *   mean
 *   origin  rows with ⟨x,μ̂⟩ < ½⟨μ̂,μ̂⟩ are nearer to zero than to μ̂, and are coded from zero: one bit of each row
 *   says so. If there are such rows, μ̂
 *           is made again from the others alone. o_t is μ̂ or 0
 *   rotate  y = H·D·(x − o_t)
 *   (rotation.ts)
 *   code    c₄ = number of bounds below y / rms(y): the nearest of 16 Lloyd-Max levels of a Gaussian
 *   (lloydmax.ts)
 *   narrow  c₃ = c₄ >> 1, c₂ = c₄ >> 2, c₁ = c₄ >> 3; each width has decode levels u, integers over a divisor
 *   (tables.gen.ts)
 *   scale   t = ⟨y,y⟩ / ⟨y,u⟩, so that ⟨x̂,x⟩ = ⟨x,x⟩ along y; stored as k, t = 2^(k/16), |k| ≤ 127
 *   decode  x̂ = 2^e·(o_t + t·D·H·u)
 * The scale is larger than that of least squares. It costs squared error but helps attention, where a shrunken key
 * flattens the softmax. Without subtracting the mean it would do harm. Rows from zero are few, and heads look at them
 * most: what they look at where they have nothing to look for has a small value and a key of its own, and coded from
 * the mean it would err as much as the mean is large. rot1 has the levels ±√(π/2), with which t is the rms of a
 * Gaussian row.
 *
 * Zero rows (⟨y,y⟩ = 0 in float32) have k = −128 and codes 0 and decode to o_t exactly. So do sinks (rows before
 * firstRow), which stay out of the mean, have the bit 0 and are kept elsewhere. ⟨y,u⟩ cannot be ≤ 0, because every code
 * has the sign of its y; if it were, the guard would make a zero row.
 *
 * The reference e is 0 unless scales would saturate. Let r be the rms of y in each row that is not zero, computed with
 * e = 0, and L and S the whole octaves ⌊log₂ r⌋ of the largest and the smallest r:
 *   L > 6    e = L − 6
 *   S < −7   e = min(0, L − 3)
 * Only whole octaves move between e and k, so a row that saturates neither with e nor with 0 decodes to the same bits
 * with both. t is r or a little more; for codes as far from a Gaussian as possible it is 12.8·r, which has room above L
 * = 3 and may saturate above L = 6. A row with t < 2^(e−8), which is 2^−14 of the largest where e > 0 and 2^−10 where e
 * < 0, decodes as if t were 2^(e−127/16).
 *
 * Bytes (one head): hi plane, the two high bits of c₄, 128·d/4, rot1 none; lo plane, rot4 the two low bits, 128·d/4,
 * rot3 one bit, 128·d/8, rot2 none, rot1 the code, 128·d/8; k 128; means d, bits of origins 16, scale of the means 2, e
 * 1. That is b + 9/d + (8 + 24/d)/128 bits per element: b + 0.21 at d = 64. Demotion keeps hi, narrows or drops lo, and
 * multiplies t by ⟨u,u⟩/⟨u,u'⟩, from integer sums over codes. Demotion to rot1 moves the sign bits of hi to a lo plane
 * of their own.
 *
 * Source: measured on SmolLM2-135M (README of this room); the randomized Hadamard rotation is that of QuaRot, the
 * Gaussian tables are those of Lloyd and Max, and the unbiased scale comes from the project's own trials. When not to
 * use it: for rows that matter and are 2^10 times smaller than others of their page and head; for keys at 2 bits in
 * layers that do not tolerate it; for keys at 1 bit anywhere.
 */
import { assert } from '../../error.ts';
import { PAGE_TOKENS, SIDES, type Side } from '../../layout.ts';
import { type EncodedHead, toTile } from '../../reference/codec.ts';
import { treeDot } from '../../reference/float32.ts';
import { encode4 } from '../../reference/lloydmax.ts';
import { decodedMean, encodeOrigins, lessOrigin } from '../../reference/origins.ts';
import { packPlanes, planeBits } from '../../reference/planes.ts';
import {
  type CodedLevels,
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
import { ROT_LEVELS } from '../../reference/tables.gen.ts';
import { CODED_HEAD_DIMS, defineFormat, type FormatDescriptor, type Tier } from '../descriptor.ts';

export type RotName = keyof typeof ROT_LEVELS;
/** A head of the family. */
export type RotHead = RotatedHead;

/** Bits per code: 4, 3, 2 or 1. */
export const codeBits = (format: RotName): number => Math.log2(ROT_LEVELS[format].levels.length);
/** t of a rotated row y for codes of one width, or 0 when there is none. */
function unbiasedScale(y: Float32Array, yy: number, codes: Uint8Array, format: RotName): number {
  const { divisor, levels } = ROT_LEVELS[format];
  const yu = treeDot(
    y,
    Array.from(codes, (code) => levels[code]!),
  );
  return yu > 0 ? Math.fround(Math.fround(yy * divisor) / yu) : 0;
}

/** Every part of a head except its reference, as if that were 0, and ⌊log₂ r⌋ of each row that is not zero. */
function encodeRows(format: RotName, rows: Float32Array, headDim: number, firstRow: number) {
  const origins = encodeOrigins(rows, headDim, firstRow);
  const mean = decodedMean(origins);
  const drop = 4 - codeBits(format);
  const codes = new Uint8Array(PAGE_TOKENS * headDim);
  const rowScales = new Uint16Array(PAGE_TOKENS).fill(ZERO_ROW & 0xffff);
  const octaves: number[] = [];
  for (let t = firstRow; t < PAGE_TOKENS; t++) {
    const y = lessOrigin(rows.subarray(t * headDim, (t + 1) * headDim), mean, origins.fromZero[t]!);
    rotate(y);
    const yy = treeDot(y, y);
    if (!(yy > 0)) continue;
    const square = Math.fround(yy / headDim);
    octaves.push(halfExponent(square));
    const r = Math.fround(Math.sqrt(square));
    const row = Uint8Array.from(y, (value) => encode4(value, r) >> drop);
    codes.set(row, t * headDim);
    const factor = unbiasedScale(y, yy, row, format);
    if (factor > 0) rowScales[t] = scaleCode(factor) & 0xffff;
  }
  return { head: { format, headDim, firstRow, codes, rowScales, ...origins, reference: 0 }, octaves };
}

function encode(format: RotName, rows: Float32Array, headDim: number, firstRow: number): RotHead {
  const { head, octaves } = encodeRows(format, rows, headDim, firstRow);
  const reference = referenceOf(octaves);
  if (reference === 0) return head;
  const scaled = rows.map((x) => x * 2 ** -reference);
  return { ...encodeRows(format, scaled, headDim, firstRow).head, reference };
}

/**
 * Narrows codes without the rows: c >> difference, t' = t·⟨u,u⟩/⟨u,u'⟩ with integer sums, each conversion and operation
 * rounded to float32. Means and reference stay the same.
 */
export function demote(head: RotHead, to: RotName): RotHead {
  const from = rotName(head.format);
  const drop = codeBits(from) - codeBits(to);
  assert(drop > 0, `${from} cannot be demoted to ${to}`);
  const codes = head.codes.map((code) => code >> drop);
  const rowScales = head.rowScales.map((bits, t) => {
    const row = head.codes.subarray(t * head.headDim, (t + 1) * head.headDim);
    return narrowedScale(bits, row, from, to);
  });
  return { ...head, format: to, codes, rowScales };
}

/** k of a row (16-bit two's complement) after its codes were narrowed. */
export function narrowedScale(bits: number, codes: Uint8Array, from: RotName, to: RotName): number {
  const drop = codeBits(from) - codeBits(to);
  const [fine, coarse] = [ROT_LEVELS[from], ROT_LEVELS[to]];
  const narrow = Int8Array.from(codes, (code) => coarse.levels[code >> drop]!);
  return scaleOfLevels(
    bits,
    Int8Array.from(codes, (code) => fine.levels[code]!),
    fine.divisor,
    narrow,
    coarse.divisor,
  );
}

const levelsByCode = (head: RotHead): CodedLevels => {
  const { divisor, levels } = ROT_LEVELS[rotName(head.format)];
  return { divisor, levels: Int8Array.from(head.codes, (code) => levels[code]!) };
};

/** The bit planes of a head as stored. */
export function planes(head: EncodedHead, side: Side): { hi: Uint8Array; lo: Uint8Array } {
  return packPlanes(toTile(side, head.headDim, head.codes), ...planeBits(codeBits(rotName(head.format))));
}

export function rotName(format: string): RotName {
  assert(format in ROT_LEVELS, `${format} is not of the rot family`);
  return format as RotName;
}

/**
 * `relative` is the root of the relative squared error on a Gaussian: 0.0091, 0.0345, 0.1324 and 0.57
 * (test/unit/native/rot.test.ts), rounded up.
 */
export const codec = (format: RotName, relative: number) => ({
  format,
  tolerance: { relative, smallest: 1e-6, largest: 1e5 },
  encode: (rows: Float32Array, headDim: number, firstRow = 0) => encode(format, rows, headDim, firstRow),
  decode: (head: RotHead) => decodeLevels(head, levelsByCode(head)),
  scores: (query: Float32Array, head: RotHead) => scoreLevels(query, head, levelsByCode(head)),
  mix: (weights: Float32Array, head: RotHead) => mixLevels(weights, head, levelsByCode(head)),
  demote: (head: RotHead, to: string) => demote(head, rotName(to)),
  stored: (head: RotHead, side: Side) => storedHead(head, planes(head, side)),
});

type More = Pick<FormatDescriptor, 'sides' | 'outlierGauge'>;
const define = <const N extends RotName>(name: N, id: number, rank: number, tier: Tier, more: More = {}) =>
  defineFormat({
    name,
    id,
    rank,
    tier,
    codeBits: codeBits(name),
    from: 'better',
    sides: SIDES,
    ...more,
    window: false,
    nested: true,
    headDims: CODED_HEAD_DIMS,
    rope: 'post',
    rotated: true,
    parts: rotatedParts(planeBits(codeBits(name)), true),
    source: 'randomized Hadamard rotation + Gaussian Lloyd-Max code + unbiased scale; native/README.md',
    layoutVersion: 3,
  });

export const formats = [
  define('rot4', 2, 20, 'warm'),
  define('rot3', 3, 30, 'archive'),
  define('rot2', 4, 40, 'archive', { outlierGauge: 'rotated' }),
  define('rot1', 5, 50, 'archive', { sides: ['v'] }),
] as const;

export const codecs = {
  rot4: codec('rot4', 0.1),
  rot3: codec('rot3', 0.19),
  rot2: codec('rot2', 0.38),
  rot1: codec('rot1', 0.8),
} as const;
