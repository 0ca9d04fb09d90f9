/**
 * Types of weights that the dense half has no form for, rewritten block by block as types that it has. Nothing is
 * rounded but scales: their codes are those of the file.
 *
 *   IQ4_NL  d·LEVELS[q]               → Q8_0   d, levels as codes                                   exact
 *   MXFP4   2^(x − 127)·E2M1(q)       → Q8_0   2^(x − 128), twice the values as codes               exact from 2^-24
 *   on; above 2^15, which no weight is, not a number
 *   IQ4_XS  d·(s − 32)·LEVELS[q]      → Q8_0   d·(s − 32) as a half, levels as codes                scales to 11 bits
 *   Q3_K    d·(s − 32)·(q − 4)        → Q6_K   d and s − 32, codes of six bits                      exact
 *
 * Q2_K has a minimum for 16 weights, which no form has; it is read as floats and rounded to 8 bits.
 */
import { assert, toHalf } from '../../native/index.ts';
import { E2M1, ELEMENT_TYPES, halves, LEVELS, q3Code, q3Scale, u16, xsScale } from './dequant.ts';
import type { Tensor } from './types.ts';

interface Rewriting {
  readonly to: 'Q8_0' | 'Q6_K';
  /** Whole blocks of the file → blocks of the other type. */
  readonly write: (source: Uint8Array, target: Uint8Array) => void;
}

const Q8_BYTES = 34;
const INFINITE = 0x7c00;

/** A block of Q8_0 at `to`: a scale, and the codes that 16 bytes of nibbles at `at` stand for. */
function writeQ8(
  source: Uint8Array,
  at: number,
  codes: readonly number[],
  scale: number,
  target: Uint8Array,
  to: number,
): void {
  target[to] = scale & 255;
  target[to + 1] = scale >> 8;
  for (let j = 0; j < 16; j++) {
    target[to + 2 + j] = codes[source[at + j]! & 15]!;
    target[to + 18 + j] = codes[source[at + j]! >> 4]!;
  }
}

function writeIQ4_NL(source: Uint8Array, target: Uint8Array): void {
  for (let at = 0, to = 0; at < source.length; at += 18, to += Q8_BYTES)
    writeQ8(source, at + 2, LEVELS, u16(source, at), target, to);
}

/** 2^(x − 128) as a half. Smaller ones than halves have become 0, larger ones infinite. */
function mxScale(x: number): number {
  const exponent = x - 128;
  if (exponent > 15) return INFINITE;
  if (exponent >= -14) return (exponent + 15) << 10;
  return exponent >= -24 ? 1 << (exponent + 24) : 0;
}
const MX_CODES = E2M1.map((value) => 2 * value);

function writeMXFP4(source: Uint8Array, target: Uint8Array): void {
  for (let at = 0, to = 0; at < source.length; at += 17, to += Q8_BYTES)
    writeQ8(source, at + 1, MX_CODES, mxScale(source[at]!), target, to);
}

function writeIQ4_XS(source: Uint8Array, target: Uint8Array): void {
  const half = halves();
  const scales = Float32Array.from({ length: (8 * source.length) / 136 }, (_, i) => {
    const at = 136 * (i >> 3);
    return half[u16(source, at)]! * xsScale(source, at, i & 7);
  });
  const bits = toHalf(scales);
  for (const [i, scale] of bits.entries())
    writeQ8(source, 136 * (i >> 3) + 8 + 16 * (i & 7), LEVELS, scale, target, Q8_BYTES * i);
}

/**
 * Run r of 32 weights: low nibbles in byte j (+32 for odd r) of 64 of its half, high pairs at bit 2r of 32 bytes
 * behind.
 */
function writeQ3_K(source: Uint8Array, target: Uint8Array): void {
  target.fill(0);
  for (let at = 0, to = 0; at < source.length; at += 110, to += 210) {
    for (let g = 0; g < 16; g++) {
      const [run, offset] = [g >> 1, 16 * (g & 1)];
      const [side, r] = [run >> 2, run & 3];
      const low = to + 64 * side + 32 * (r & 1) + offset;
      const high = to + 128 + 32 * side + offset;
      for (let j = 0; j < 16; j++) {
        const code = q3Code(source, at, g, j) + 32;
        target[low + j]! |= (code & 15) << (4 * (r >> 1));
        target[high + j]! |= (code >> 4) << (2 * r);
      }
      target[to + 192 + g] = q3Scale(source, at, g);
    }
    target[to + 208] = source[at + 108]!;
    target[to + 209] = source[at + 109]!;
  }
}

const REWRITTEN: ReadonlyMap<string, Rewriting> = new Map([
  ['IQ4_NL', { to: 'Q8_0', write: writeIQ4_NL }],
  ['MXFP4', { to: 'Q8_0', write: writeMXFP4 }],
  ['IQ4_XS', { to: 'Q8_0', write: writeIQ4_XS }],
  ['Q3_K', { to: 'Q6_K', write: writeQ3_K }],
]);

/** The type that the dense half packs a type as. */
export const packedType = (storedType: string): string => REWRITTEN.get(storedType)?.to ?? storedType;

/** The tensor in the type that it is packed as: itself, or one whose stored bytes are rewritten when they are read. */
export function rewritten(tensor: Tensor): Tensor {
  const { storedType, shape } = tensor;
  const rewriting = REWRITTEN.get(storedType);
  if (rewriting === undefined || tensor.readStored === undefined) return tensor;
  const { to, write } = rewriting;
  const [from, into] = [ELEMENT_TYPES.get(storedType)!, ELEMENT_TYPES.get(to)!];
  return {
    name: tensor.name,
    shape,
    storedType: to,
    readFloat32: (first, last) => tensor.readFloat32(first, last),
    readStored(first, target) {
      const values = (target.length / into.blockBytes) * into.blockValues;
      assert(values % from.blockValues === 0, `${target.length} bytes of ${to} from ${storedType}`);
      const source = new Uint8Array((values / from.blockValues) * from.blockBytes);
      tensor.readStored!(first, source);
      write(source, target);
    },
    giveBack: () => tensor.giveBack?.(),
  };
}
