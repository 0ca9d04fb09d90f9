/**
 * One head of a page in the rot family, and its rows one by one for methods that must decode a row before they code the
 * next.
 */
import { encode4, FORMATS, fieldBytes, fromHalf, PAGE_TOKENS, ROT_LEVELS, reference, toHalf } from 'palimpsest/lab';

export type RotBits = 1 | 2 | 3 | 4;
export const rotName = (bits: RotBits): reference.RotName => `rot${bits}`;

/** Bytes of a head, without the padding that pages have. */
export const rotHeadBytes = (bits: RotBits, headDim: number): number =>
  FORMATS[rotName(bits)].parts
    .flatMap(({ fields }) => fields)
    .reduce((sum, field) => sum + fieldBytes(field, headDim), 0);

/** Codes and decodes rows [128, d] in place. */
export function codeRot(rows: Float32Array, bits: RotBits, firstRow: number): void {
  const codec = reference.CODECS[rotName(bits)];
  rows.set(codec.decode(codec.encode(rows, rows.length / PAGE_TOKENS, firstRow)));
}

/** What the scales of a head are in units of, so that none of them saturates: a power of two, kept in a byte. */
export function scaleUnit(rows: Float32Array): number {
  const most = rows.reduce((max, one) => Math.max(max, Math.abs(one)), 0);
  return most === 0 ? 1 : 2 ** (Math.ceil(Math.log2(most)) - 6);
}

/**
 * What a row decodes to with a code for each channel over the rotation and one unbiased scale of a byte, as rows of rot
 * without a mean.
 */
export function codedRow(row: Float32Array, bits: RotBits, unit: number): Float32Array {
  const { levels, divisor } = ROT_LEVELS[rotName(bits)];
  const y = row.map((one) => one / unit);
  reference.rotate(y);
  const square = y.reduce((sum, one) => sum + one * one, 0);
  const rms = Math.fround(Math.sqrt(square / y.length));
  const levelOf = y.map((one) => levels[encode4(one, rms) >> (4 - bits)]! / divisor);
  const along = y.reduce((sum, one, c) => sum + one * levelOf[c]!, 0);
  const scale = along > 0 ? reference.rotScale(reference.scaleCode(square / along)) : 0;
  const decoded = levelOf.map((one) => one * scale);
  reference.rotate(decoded, true);
  return decoded.map((one) => one * unit);
}

/** Rounded to float16 and back. */
export const inHalf = (x: Float32Array): Float32Array => fromHalf(toHalf(x));
