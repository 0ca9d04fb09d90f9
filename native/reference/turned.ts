/**
 * Rows that are rotated and divided by their root mean square, as several published methods do: without a mean, with
 * one f16 scale for each.
 */
import { PAGE_TOKENS } from '../layout.ts';
import type { Head } from './codec.ts';
import { treeDot } from './float32.ts';
import { fromHalf, toHalf } from './half.ts';
import { rotate } from './rotation.ts';
import { SPHERE } from './tables.gen.ts';

/** A head whose rows are codes over a rotation, with a scale each. */
export interface TurnedHead extends Head {
  /** [128, d]. */
  readonly codes: Uint8Array;
  /** [128] f16 bits: the root mean square of each row, which is its norm over √d. */
  readonly scales: Uint16Array;
}

/** The largest float16. Rows that another format gave back may be a little beyond it. */
const HALF_MOST = 65504;

/**
 * Calls `each` with every rotated row from firstRow on and its root mean square in float32. Returns the f16 bits of the
 * latter, [128].
 */
export function eachTurned(
  rows: Float32Array,
  headDim: number,
  firstRow: number,
  each: (y: Float32Array, rms: number, t: number) => void,
): Uint16Array {
  const scales = new Uint16Array(PAGE_TOKENS);
  for (let t = firstRow; t < PAGE_TOKENS; t++) {
    const y = rows.slice(t * headDim, (t + 1) * headDim);
    rotate(y);
    const rms = Math.fround(Math.sqrt(Math.fround(treeDot(y, y) / headDim)));
    scales[t] = toHalf(Math.min(rms, HALF_MOST));
    each(y, rms, t);
  }
  return scales;
}

/** The number of bounds b with y > fround(rms·b). */
export const codeOf = (y: number, rms: number, bounds: readonly number[]): number =>
  bounds.reduce((code, bound) => code + (y > Math.fround(rms * bound) ? 1 : 0), 0);

/**
 * What rows over a rotation need besides their scales: the value of row t at channel c for a scale of 1, as an integer
 * and what one unit is worth.
 */
export interface Levels {
  readonly divisor: number;
  readonly at: (t: number, c: number) => number;
}

/** The codebook of a coordinate of a random unit vector in d dimensions, times √d. */
export const sphereCodebook = (bits: number, headDim: number) => SPHERE[bits - 1]![headDim]!;

/** What codes of so many bits [128, d] of that codebook stand for. */
export function sphereLevels({ headDim, codes }: Pick<TurnedHead, 'headDim' | 'codes'>, bits: number): Levels {
  const { divisor, levels } = sphereCodebook(bits, headDim);
  return { divisor, at: (t, c) => levels[codes[t * headDim + c]!]! };
}

/** The value of one unit of the levels of row t. */
const worthOf = (head: { readonly scales: Uint16Array }, t: number, divisor: number): number =>
  Math.fround(fromHalf(head.scales[t]!) / divisor);

/** x̂_t = D·H·(worth_t·level); rows before firstRow are zeros. */
export function decodeTurned(head: TurnedHead, { divisor, at }: Levels): Float32Array {
  const { headDim, firstRow } = head;
  const rows = new Float32Array(PAGE_TOKENS * headDim);
  for (let t = firstRow; t < PAGE_TOKENS; t++) {
    const worth = worthOf(head, t, divisor);
    const row = Float32Array.from({ length: headDim }, (_, c) => Math.fround(at(t, c) * worth));
    rotate(row, true);
    // A negative zero becomes a positive one, as where a mean is added.
    for (let c = 0; c < headDim; c++) rows[t * headDim + c] = 0 + row[c]!;
  }
  return rows;
}

/** Decoding, scores and mixed values of codes that stand for such levels. */
export const readTurned = (levelsOf: (head: TurnedHead) => Levels) => ({
  decode: (head: TurnedHead): Float32Array => decodeTurned(head, levelsOf(head)),
  scores: (query: Float32Array, head: TurnedHead): Float64Array => scoresTurned(query, head, levelsOf(head)),
  mix: (weights: Float32Array, head: TurnedHead): Float64Array => mixTurned(weights, head, levelsOf(head)),
});

/** q·k̂_t = worth_t·⟨HDq, level⟩: the query is rotated once, no key is. */
export function scoresTurned(query: Float32Array, head: TurnedHead, { divisor, at }: Levels): Float64Array {
  const rotated = query.slice();
  rotate(rotated);
  return Float64Array.from({ length: PAGE_TOKENS }, (_, t) => {
    if (t < head.firstRow) return 0;
    const sum = rotated.reduce((total, q, c) => total + q * at(t, c), 0);
    return worthOf(head, t, divisor) * sum;
  });
}

/** Σ w_t·v̂_t = D·H·Σ (w_t·worth_t)·level: the sum is rotated back once. */
export function mixTurned(weights: Float32Array, head: TurnedHead, { divisor, at }: Levels): Float64Array {
  const sum = new Float64Array(head.headDim);
  for (let t = head.firstRow; t < PAGE_TOKENS; t++) {
    const weight = weights[t]! * worthOf(head, t, divisor);
    for (let c = 0; c < head.headDim; c++) sum[c]! += weight * at(t, c);
  }
  const back = Float32Array.from(sum);
  rotate(back, true);
  return Float64Array.from(back);
}
