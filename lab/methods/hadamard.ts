/**
 * Hadamard transforms of rows as wide as several heads: Sylvester's matrix, or its product with one of Paley's of 12 or
 * 20 rows.
 */
import { KvError, reference } from 'palimpsest/lab';

interface Factors {
  /** Rows of the dense factor; 1: there is none. */
  readonly outer: readonly (readonly number[])[];
  /** Size of Sylvester's factor. */
  readonly inner: number;
}

/** Throws 'unsupported' for sizes that no such matrix has. */
function factorsOf(width: number): Factors {
  for (const outer of [[[1]], reference.paley(11), reference.paley(19)]) {
    const inner = width / outer.length;
    if (Number.isInteger(Math.log2(inner))) return { outer, inner };
  }
  throw new KvError('unsupported', `there is no Hadamard matrix here of ${width} rows`, { values: { width } });
}

/**
 * Multiplies each row of x [rows, width] by the orthonormal matrix, in place. The matrix is symmetric, so doing it
 * twice changes nothing.
 */
export function hadamard(x: Float32Array, width: number): void {
  const { outer, inner } = factorsOf(width);
  const norm = 1 / Math.sqrt(width);
  for (let from = 0; from < x.length; from += width) {
    const row = x.subarray(from, from + width);
    for (let half = 1; half < inner; half *= 2)
      for (let i = 0; i < width; i += 2 * half)
        for (let j = i; j < i + half; j++) {
          const [a, b] = [row[j]!, row[j + half]!];
          row[j] = a + b;
          row[j + half] = a - b;
        }
    const blocks = row.slice();
    for (const [at, signs] of outer.entries())
      for (let i = 0; i < inner; i++)
        row[at * inner + i] = norm * signs.reduce((sum, sign, block) => sum + sign * blocks[block * inner + i]!, 0);
  }
}
