/**
 * Conversion to and from IEEE 754 binary16, rounded half to even. Subnormals are kept. From 65520 on a value becomes
 * infinite, but the cache refuses such values before it stores anything.
 */

const word = new DataView(new ArrayBuffer(4));

/** Bits of the nearest binary16. x is first rounded to float32. */
export function toHalf(x: number): number {
  word.setFloat32(0, x);
  const bits = word.getUint32(0);
  const sign = (bits >>> 16) & 0x8000;
  const size = bits & 0x7fffffff;
  if (size > 0x7f800000) return sign | 0x7e00 | ((size >>> 13) & 0x3ff); // NaN stays NaN
  const value = Math.abs(Math.fround(x));
  if (value >= 65520) return sign | 0x7c00;
  // The grid around value: 2^-24 for subnormals, else 10 bits below the leading one.
  const exponent = Math.max((size >>> 23) - 127, -14);
  const steps = value * 2 ** (10 - exponent); // exact: a power of two
  const floor = Math.floor(steps);
  const rest = steps - floor;
  const rounded = rest > 0.5 || (rest === 0.5 && floor % 2 === 1) ? floor + 1 : floor;
  // rounded is at most 2048; the addition carries into the exponent.
  return sign | (rounded + (exponent + 14) * 1024);
}

/** The value of a binary16, exact. */
export function fromHalf(bits: number): number {
  const sign = bits & 0x8000 ? -1 : 1;
  const exponent = (bits >>> 10) & 0x1f;
  const mantissa = bits & 0x3ff;
  if (exponent === 31) return mantissa === 0 ? sign * Number.POSITIVE_INFINITY : Number.NaN;
  if (exponent === 0) return sign * mantissa * 2 ** -24;
  return sign * (1024 + mantissa) * 2 ** (exponent - 25);
}

/** Bits of the largest binary16 that is not above x, for |x| ≤ 65504. */
export function halfBelow(x: number): number {
  const bits = toHalf(x);
  if (fromHalf(bits) <= x) return bits;
  return bits & 0x8000 ? bits + 1 : bits - 1;
}

/** Bits of the smallest binary16 that is not below x, for 0 ≤ x ≤ 65504. */
export function halfAbove(x: number): number {
  const bits = toHalf(x);
  return fromHalf(bits) < x ? bits + 1 : bits;
}
