/**
 * Weights as floats → the bytes of a type that a file may have them in (dequant.ts has the blocks). Scales are rounded
 * to what the file holds before codes are chosen for them, so that no code is chosen for a scale that nobody will read.
 */
import { assert, KvError, toHalf } from '../../../native/index.ts';
import { ELEMENT_TYPES, halves } from '../dequant.ts';

/** Types that are written. K types and those of fewer bits need a search for good codes, and are not. */
export const WRITTEN_TYPES = ['F32', 'F16', 'BF16', 'Q8_0', 'Q5_1', 'Q5_0', 'Q4_1', 'Q4_0'] as const;
export type WrittenType = (typeof WRITTEN_TYPES)[number];

const BLOCK = 32;

/** The bytes of whole blocks. Throws 'unsupported' for a weight that F16 does not reach. */
export function quantize(type: WrittenType, values: Float32Array): Uint8Array {
  const { blockValues, blockBytes } = ELEMENT_TYPES.get(type)!;
  assert(values.length % blockValues === 0, `${values.length} weights in blocks of ${blockValues}`);
  const bytes = new Uint8Array((values.length / blockValues) * blockBytes);
  ENCODERS[type](values, bytes);
  return bytes;
}

const ENCODERS: Readonly<Record<WrittenType, (values: Float32Array, bytes: Uint8Array) => void>> = {
  F32(values, bytes) {
    const view = new DataView(bytes.buffer);
    for (let i = 0; i < values.length; i++) view.setFloat32(4 * i, values[i]!, true);
  },
  F16(values, bytes) {
    for (const [i, bits] of toHalf(values).entries()) {
      if ((bits & 0x7fff) === 0x7c00)
        throw new KvError('unsupported', `F16 does not reach a weight of ${values[i]}`, {
          values: { type: 'F16', value: values[i] },
          hint: 'write BF16 or F32',
        });
      put16(bytes, 2 * i, bits);
    }
  },
  BF16(values, bytes) {
    const bits = new Uint32Array(values.buffer, values.byteOffset, values.length);
    // To nearest, of two that are as near the even one; the loader has refused what is no number.
    for (let i = 0; i < bits.length; i++) put16(bytes, 2 * i, (bits[i]! + 0x7fff + ((bits[i]! >>> 16) & 1)) >>> 16);
  },
  Q8_0(values, bytes) {
    for (let from = 0, at = 0; from < values.length; from += BLOCK, at += 34) {
      const block = values.subarray(from, from + BLOCK);
      const scale = putHalf(bytes, at, largestOf(block) / 127);
      const inverse = scale === 0 ? 0 : 1 / scale;
      for (let j = 0; j < BLOCK; j++) bytes[at + 2 + j] = clamp(Math.round(block[j]! * inverse), -127, 127);
    }
  },
  Q4_0: symmetric(4),
  Q5_0: symmetric(5),
  Q4_1: affine(4),
  Q5_1: affine(5),
};

/**
 * w = d·(q − middle). The largest magnitude gets the code that reaches furthest, as all writers do it; where the scale
 * of least squares for these codes does better it is taken, with the codes that are nearest for it.
 */
function symmetric(bits: 4 | 5): (values: Float32Array, bytes: Uint8Array) => void {
  const middle = 2 ** (bits - 1);
  const codes = new Float64Array(BLOCK);
  const choose = (block: Float32Array, scale: number): number => {
    let error = 0;
    for (let j = 0; j < BLOCK; j++) {
      codes[j] = scale === 0 ? 0 : clamp(Math.round(block[j]! / scale), -middle, middle - 1);
      error += (block[j]! - scale * codes[j]!) ** 2;
    }
    return error;
  };
  return (values, bytes) => {
    const layout = layoutOf(bits, 2);
    for (let from = 0, at = 0; from < values.length; from += BLOCK, at += layout.blockBytes) {
      const block = values.subarray(from, from + BLOCK);
      const first = putHalf(bytes, at, signedLargest(block) / -middle);
      const error = choose(block, first);
      let [above, below] = [0, 0];
      for (let j = 0; j < BLOCK; j++) {
        above += block[j]! * codes[j]!;
        below += codes[j]! ** 2;
      }
      const better = putHalf(bytes, at, below === 0 ? first : above / below);
      if (!(choose(block, better) < error)) choose(block, putHalf(bytes, at, first));
      for (let j = 0; j < BLOCK; j++) layout.put(bytes, at, j, codes[j]! + middle);
    }
  };
}

/** w = d·q + m from the least to the largest. */
function affine(bits: 4 | 5): (values: Float32Array, bytes: Uint8Array) => void {
  const most = 2 ** bits - 1;
  return (values, bytes) => {
    const layout = layoutOf(bits, 4);
    for (let from = 0, at = 0; from < values.length; from += BLOCK, at += layout.blockBytes) {
      const block = values.subarray(from, from + BLOCK);
      const least = putHalf(
        bytes,
        at + 2,
        block.reduce((a, b) => Math.min(a, b)),
      );
      const scale = putHalf(bytes, at, (block.reduce((a, b) => Math.max(a, b)) - least) / most);
      const inverse = scale === 0 ? 0 : 1 / scale;
      for (let j = 0; j < BLOCK; j++)
        layout.put(bytes, at, j, clamp(Math.round((block[j]! - least) * inverse), 0, most));
    }
  };
}

interface Layout {
  readonly blockBytes: number;
  /** Puts code j of the block at `at`. */
  put(bytes: Uint8Array, at: number, j: number, code: number): void;
}

/** Low nibbles behind `head` bytes of numbers and, of five bits, 32 high bits. */
function layoutOf(bits: 4 | 5, head: number): Layout {
  const nibbles = head + (bits === 5 ? 4 : 0);
  return {
    blockBytes: nibbles + BLOCK / 2,
    put(bytes, at, j, code) {
      bytes[at + nibbles + (j % 16)]! |= (code & 15) << (j < 16 ? 0 : 4);
      if (code >= 16) bytes[at + head + (j >> 3)]! |= 1 << (j & 7);
    },
  };
}

const clamp = (value: number, least: number, most: number): number => Math.min(most, Math.max(least, value));

const largestOf = (block: Float32Array): number => Math.abs(signedLargest(block));

/** The value with the largest magnitude. */
function signedLargest(block: Float32Array): number {
  let largest = 0;
  for (const value of block) if (Math.abs(value) > Math.abs(largest)) largest = value;
  return largest;
}

function put16(bytes: Uint8Array, at: number, bits: number): void {
  bytes[at] = bits & 255;
  bytes[at + 1] = bits >> 8;
}

const one = new Float32Array(1);

/** Writes a number as a half. → what it became; beyond the range, the largest there is. */
function putHalf(bytes: Uint8Array, at: number, value: number): number {
  one[0] = clamp(value, -65504, 65504);
  const [bits] = toHalf(one);
  put16(bytes, at, bits!);
  return halves()[bits!]!;
}
