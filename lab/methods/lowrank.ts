/**
 * Low-rank correction: what coding a head has left, as the product of two narrow matrices in f16. The singular vectors
 * come from a randomized search (Halko et al. 2011): ten more directions than are kept, and two powers.
 */
import { PAGE_TOKENS } from 'palimpsest/lab';
import { inHalf } from './rot-head.ts';
import { gaussians } from './words.ts';
import { product, singularVectors, transposed } from './xquant.ts';

const MORE_DIRECTIONS = 10;
const POWERS = 2;
const SEED = 7;

/** Bytes of the two matrices, [128, rank] and [rank, d]. */
export const lowRankBytes = (rank: number, headDim: number): number => 2 * rank * (PAGE_TOKENS + headDim);

/** The nearest matrix of so low a rank, of rows [T, width], with both factors in f16. */
export function lowRankOf(rows: Float32Array, width: number, rank: number): Float32Array {
  const columns = transposed(rows, width);
  const count = rows.length / width;
  const tested = Math.min(rank + MORE_DIRECTIONS, count, width);
  // Each row is a direction in which the rows are seen: [tested, width], orthonormal, of what random mixtures of rows
  // span.
  let directions = singularVectors(product(gaussians(tested * count, SEED), columns, count), width);
  for (let power = 0; power < POWERS && directions.length > 0; power++)
    directions = singularVectors(product(product(directions, rows, width), columns, count), width);
  if (directions.length === 0) return new Float32Array(rows.length);
  // In the basis of these directions the rows are few columns, whose singular vectors are cheap.
  const found = directions.length / width;
  const seen = product(rows, directions, width);
  const turns = singularVectors(transposed(seen, found), count);
  const kept = Math.min(rank, turns.length / count);
  const left = turns.subarray(0, kept * count);
  const right = inHalf(product(left, columns, count));
  return product(transposed(inHalf(left), count), transposed(right, width), kept);
}
