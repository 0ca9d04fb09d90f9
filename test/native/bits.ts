/**
 * What tests of kernels compare with: arrays off their alignment, and equality of bits that names the first difference.
 */
import { expect } from 'vitest';

/** A float array that starts one element off its buffer, so that no vector load is aligned. */
export const misaligned = (values: ArrayLike<number>): Float32Array => {
  const array = new Float32Array(values.length + 1).subarray(1);
  array.set(values);
  return array;
};
export const bits = (x: Float32Array): Uint32Array => new Uint32Array(x.slice().buffer);
type Integers = Uint32Array | Uint16Array | Uint8Array | Int8Array;
/** Same length and bytes; else the first difference. (An equality matcher takes seconds on arrays of this size.) */
export const expectSame = (actual: Integers, expected: Integers, what = ''): void => {
  const bytes = (x: Integers): Buffer => Buffer.from(x.buffer, x.byteOffset, x.byteLength);
  if (bytes(actual).equals(bytes(expected))) return;
  const at = expected.findIndex((value, i) => value !== actual[i]);
  expect.fail(`${what}: element ${at} of ${expected.length} is ${actual[at]}, ${expected[at]} expected`);
};
