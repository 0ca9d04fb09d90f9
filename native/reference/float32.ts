/**
 * float32 arithmetic as in the kernels: every operation is rounded once, halves to even, and sums have a fixed order.
 * This arithmetic is part of the formats: change it only together with every kernel.
 */

/** Rounds to the nearest integer, halves to even. For |x| < 2^51. */
export function roundHalfEven(x: number): number {
  const magic = 3 * 2 ** 51;
  return x + magic - magic;
}

/**
 * Sum as a zero-padded halving tree: the values are padded with +0 to a power of two, size; then for half = size/2,
 * size/4 … 1 v[i] = v[i] + v[i + half] for i < half, each addition in float32.
 */
export function treeSum(values: ArrayLike<number>): number {
  let half = 1;
  while (half < values.length) half *= 2;
  const v = new Float32Array(half);
  v.set(values);
  for (half /= 2; half >= 1; half /= 2) {
    for (let i = 0; i < half; i++) v[i] = Math.fround(v[i]! + v[i + half]!);
  }
  return v[0]!;
}

/** Σ fround(a·b) as a halving tree. */
export function treeDot(a: ArrayLike<number>, b: ArrayLike<number>): number {
  return treeSum(Float32Array.from(a, (value, i) => Math.fround(value * b[i]!)));
}
