/**
 * xq8, xq4, xq3: a page of layer inputs (latents), from which keys and values are recomputed. The idea is that of
 * XQuant (Tomar et al., arXiv 2508.10395), whose linear groups are far less accurate than the rotation used here
 * (README of this room).
 *
 * Per page of 128 rows of `width` channels (the normed layer input for MHA, its part in the column space of [W_k | W_v]
 * for GQA):
 *   rotate  y = R·x: signs, then a Hadamard transform of the first p channels, p being the largest power of two that
 *   fits; if that is not
 *           all of them, signs and a transform of the last p. R is orthonormal. The weights are rotated once, so no
 *   page is rotated back.
 *   mean    μ_c = (Σ_t y_tc) / rows as int16 over max|μ|/32512: the largest channels of normed inputs hardly vary
 *   code    of z = y − μ̂. xq4: the 4-bit Lloyd-Max code and unbiased scale of rot4 (rot.ts); xq3: the high three bits
 *   of that code, with the
 *           levels of rot3 and a scale of its own; xq8: int8, s = f16(max|z| / 127)
 *   decode  x̂ = Rᵀ(μ̂ + worth_t·level)
 * Rows before firstRow (sinks) stay out of mean and codes; they decode to the mean.
 *
 * xq4 becomes xq3 as rot4 becomes rot3, from the codes alone: c >> 1, t' = t·⟨u,u⟩/⟨u,u'⟩.
 *
 * Bytes, with codes in tile order [128/8][width/4][8][4]: the codes of xq8, or the plane of the two high bits of the
 * others, means, the scale of the means; then the plane of the low bits (xq4 two, xq3 one), row scales. Planes are
 * those of planes.ts, and each field starts at a multiple of 64. 4 + 8/width + 16/128 bits per element (xq3: one less,
 * xq8: 8 + 16/width + 1/8).
 * When not to use it: to attend at every step over a long history, where recomputing costs far more than reading coded
 * keys and values.
 */
import { assert } from '../error.ts';
import { narrowedScale } from '../formats/rot/rot.ts';
import { type LatentName, PAGE_PART_ALIGN, PAGE_TOKENS, padded } from '../layout.ts';
import { roundHalfEven, treeDot, treeSum } from './float32.ts';
import { fromHalf, toHalf } from './half.ts';
import { encode4 } from './lloydmax.ts';
import { packPlanes } from './planes.ts';
import { randomSigns } from './rotation.ts';
import { rotScale, scaleCode, ZERO_ROW } from './row-scale.ts';
import { ROT_LEVELS } from './tables.gen.ts';

export type { LatentName };

/** The rot format whose codes and levels a latent has. */
const rotOf = (format: LatentName): 'rot4' | 'rot3' => (format === 'xq4' ? 'rot4' : 'rot3');

export interface EncodedLatent {
  readonly format: LatentName;
  readonly width: number;
  /** [128, width]. xq8: the int8 value + 128. xq4: 0..15. xq3: 0..7. */
  readonly codes: Uint8Array;
  /** [128]. xq8: f16 bits. Others: k as 16-bit two's complement. */
  readonly rowScales: Uint16Array;
  /** [width], in units of meanScale. */
  readonly means: Int16Array;
  readonly meanScale: number;
}

const kept = new Map<string, Float32Array>();
/** The signs of a seed, kept because the same few diagonals are used again and again. */
function diagonal(seed: number, count: number): Float32Array {
  const key = `${seed} ${count}`;
  let found = kept.get(key);
  if (found === undefined) kept.set(key, (found = randomSigns(seed, count)));
  return found;
}

function hadamard(x: Float32Array): void {
  for (let half = 1; half < x.length; half *= 2) {
    for (let i = 0; i < x.length; i += 2 * half) {
      for (let j = i; j < i + half; j++) {
        const a = x[j]!;
        const b = x[j + half]!;
        x[j] = Math.fround(a + b);
        x[j + half] = Math.fround(a - b);
      }
    }
  }
  const norm = Math.fround(1 / Math.sqrt(x.length));
  for (let i = 0; i < x.length; i++) x[i] = Math.fround(x[i]! * norm);
}

function multiply(x: Float32Array, by: Float32Array): void {
  for (let i = 0; i < x.length; i++) x[i]! *= by[i]!;
}

/** x ← R·x, or with `inverse` x ← Rᵀ·x, in place. */
export function rotateLatent(x: Float32Array, inverse = false): void {
  const width = x.length;
  const p = 2 ** Math.floor(Math.log2(width));
  const start = x.subarray(0, p);
  const end = x.subarray(width - p);
  if (!inverse) {
    multiply(x, diagonal(1, width));
    hadamard(start);
    if (p === width) return;
    multiply(end, diagonal(2, p));
    hadamard(end);
    return;
  }
  if (p < width) {
    hadamard(end);
    multiply(end, diagonal(2, p));
  }
  hadamard(start);
  multiply(x, diagonal(1, width));
}

/** x: [128, width] float32, |x| ≤ 65504. */
export function encodeLatent(format: LatentName, x: Float32Array, width: number, firstRow = 0): EncodedLatent {
  const y = x.slice();
  for (let t = firstRow; t < PAGE_TOKENS; t++) rotateLatent(y.subarray(t * width, (t + 1) * width));
  const average = Float32Array.from({ length: width }, (_, c) => {
    const column = Float32Array.from({ length: PAGE_TOKENS }, (_, t) => (t < firstRow ? 0 : y[t * width + c]!));
    return Math.fround(treeSum(column) / (PAGE_TOKENS - firstRow));
  });
  const { values: means, scale: meanScale } = quantizeI16(average);
  const codes = new Uint8Array(PAGE_TOKENS * width).fill(format === 'xq8' ? 128 : 0);
  const rowScales = new Uint16Array(PAGE_TOKENS).fill(format === 'xq8' ? 0 : ZERO_ROW & 0xffff);
  for (let t = firstRow; t < PAGE_TOKENS; t++) {
    const z = Float32Array.from(means, (mean, c) => Math.fround(y[t * width + c]! - Math.fround(mean * meanScale)));
    const row = format === 'xq8' ? codeRow8(z) : codeRow(z, format);
    codes.set(row.codes, t * width);
    rowScales[t] = row.scale;
  }
  return { format, width, codes, rowScales, means, meanScale };
}

/** Quantizes to int16 in steps of max/32512, or to all zeros when the largest magnitude is below 2^-100. */
function quantizeI16(x: Float32Array): { values: Int16Array; scale: number } {
  const max = x.reduce((most, value) => Math.max(most, Math.abs(value)), 0);
  if (!(max >= 2 ** -100)) return { values: new Int16Array(x.length), scale: 0 };
  const inverse = Math.fround(32512 / max);
  return {
    values: Int16Array.from(x, (value) => roundHalfEven(Math.fround(value * inverse))),
    scale: Math.fround(max / 32512),
  };
}

function codeRow8(z: Float32Array): { codes: Uint8Array; scale: number } {
  const scale = toHalf(Math.fround(z.reduce((most, value) => Math.max(most, Math.abs(value)), 0) / 127));
  const step = fromHalf(scale);
  const codes = Uint8Array.from(z, (value) =>
    step === 0 ? 128 : roundHalfEven(Math.min(127, Math.max(-127, Math.fround(value / step)))) + 128,
  );
  return { codes, scale };
}

function codeRow(z: Float32Array, format: LatentName): { codes: Uint8Array; scale: number } {
  const { divisor, levels } = ROT_LEVELS[rotOf(format)];
  const zz = treeDot(z, z);
  if (!(zz > 0)) return { codes: new Uint8Array(z.length), scale: ZERO_ROW & 0xffff };
  const r = Math.fround(Math.sqrt(Math.fround(zz / z.length)));
  const codes = Uint8Array.from(z, (value) => encode4(value, r) >> (format === 'xq4' ? 0 : 1));
  const zu = treeDot(
    z,
    Array.from(codes, (code) => levels[code]!),
  );
  const k = zu > 0 ? scaleCode(Math.fround(Math.fround(zz * divisor) / zu)) : ZERO_ROW;
  return { codes, scale: k & 0xffff };
}

/** xq3 from the codes of xq4, without the rows. */
export function demoteLatent(latent: EncodedLatent): EncodedLatent {
  assert(latent.format === 'xq4', `${latent.format} is not demoted by its codes`);
  const { width, codes } = latent;
  const rowScales = latent.rowScales.map((bits, t) =>
    narrowedScale(bits, codes.subarray(t * width, (t + 1) * width), 'rot4', 'rot3'),
  );
  return { ...latent, format: 'xq3', codes: codes.map((code) => code >> 1), rowScales };
}

/** The value of one level in row t, in float32. */
export function latentWorth({ format, rowScales }: EncodedLatent, t: number): number {
  const bits = rowScales[t]!;
  if (format === 'xq8') return fromHalf(bits);
  return Math.fround(rotScale((bits << 16) >> 16) / ROT_LEVELS[rotOf(format)].divisor);
}

/** The integer level of an element. */
export function latentLevel({ format, width, codes }: EncodedLatent, t: number, c: number): number {
  const code = codes[t * width + c]!;
  return format === 'xq8' ? code - 128 : ROT_LEVELS[rotOf(format)].levels[code]!;
}

/** μ̂ + worth·level, in the rotated basis: [128, width]. */
export function latentRows(latent: EncodedLatent): Float32Array {
  const { width, means, meanScale } = latent;
  return Float32Array.from({ length: PAGE_TOKENS * width }, (_, i) => {
    const t = Math.floor(i / width);
    const part = Math.fround(latentLevel(latent, t, i % width) * latentWorth(latent, t));
    return Math.fround(Math.fround(means[i % width]! * meanScale) + part);
  });
}

/** x̂: [128, width]. */
export function decodeLatent(latent: EncodedLatent): Float32Array {
  const rows = latentRows(latent);
  for (let t = 0; t < PAGE_TOKENS; t++) rotateLatent(rows.subarray(t * latent.width, (t + 1) * latent.width), true);
  return rows;
}

/** The page as it is stored. */
export function latentPage(latent: EncodedLatent): Uint8Array {
  const { format, width, codes, rowScales, means, meanScale } = latent;
  assert(width >= 64 && width % 16 === 0, `no latents of ${width} channels`);
  const tile = new Uint8Array(codes.length);
  for (const [i, code] of codes.entries()) {
    const [t, c] = [Math.floor(i / width), i % width];
    tile[Math.floor(t / 8) * 8 * width + Math.floor(c / 4) * 32 + (t % 8) * 4 + (c % 4)] = code;
  }
  const isWide = format === 'xq8';
  const low = isWide ? 0 : format === 'xq4' ? 2 : 1;
  const planes = isWide ? { hi: tile.map((code) => code - 128), lo: new Uint8Array() } : packPlanes(tile, 2, low);
  const fields = [
    planes.hi,
    new Uint8Array(means.buffer),
    new Uint8Array(Float32Array.of(meanScale).buffer),
    planes.lo,
    isWide ? new Uint8Array(rowScales.buffer) : Uint8Array.from(rowScales),
  ];
  const page = new Uint8Array(fields.reduce((sum, field) => sum + padded(field.length, PAGE_PART_ALIGN), 0));
  let at = 0;
  for (const field of fields) {
    page.set(field, at);
    at += padded(field.length, PAGE_PART_ALIGN);
  }
  return page;
}
