/** The scale of a row in one byte: k stands for t = 2^(k/16), |k| ≤ 127, and k = −128 for a row of zeros. */
import { SCALE_BOUNDS, SCALE_VALUES } from './tables.gen.ts';

/** k of a zero row. */
export const ZERO_ROW = -128;

/** t of a scale code; 0 for a zero row. */
export function rotScale(k: number): number {
  return k === ZERO_ROW ? 0 : SCALE_VALUES[k + 127]!;
}

/** The scale code of t: −127 + the number of boundaries below t. */
export function scaleCode(t: number): number {
  let k = -127;
  for (const bound of SCALE_BOUNDS) if (t > bound) k++;
  return k;
}

/** k of 16-bit two's complement. */
export const signed = (k: number): number => (k << 16) >> 16;

/** k of a row (16-bit two's complement) after its levels over one divisor became others over another. */
export function scaleOfLevels(
  bits: number,
  fine: Int8Array,
  fineDivisor: number,
  coarse: Int8Array,
  coarseDivisor: number,
): number {
  const k = signed(bits);
  if (k === ZERO_ROW) return bits;
  let square = 0;
  let cross = 0;
  for (const [c, level] of fine.entries()) {
    square += level * level;
    cross += level * coarse[c]!;
  }
  if (cross <= 0) return ZERO_ROW & 0xffff;
  const ratio = Math.fround(Math.fround(square * coarseDivisor) / Math.fround(cross * fineDivisor));
  return scaleCode(Math.fround(rotScale(k) * ratio)) & 0xffff;
}
