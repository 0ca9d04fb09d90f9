/**
 * What rows of a page and head are coded from: their mean, or zero where they are nearer to it. Rows from zero are few,
 * and heads look at them most (formats/rot/rot.ts).
 */
import { PAGE_TOKENS } from '../layout.ts';
import { roundHalfEven, treeDot, treeSum } from './float32.ts';
import { fromHalf, toHalf } from './half.ts';

/**
 * The mean of each channel over the rows from firstRow on that are not left out, as int8 with one f16 scale for all.
 */
export function encodeMean(
  rows: Float32Array,
  headDim: number,
  firstRow: number,
  leftOut: Uint8Array = new Uint8Array(PAGE_TOKENS),
): { means: Int8Array; meanScale: number } {
  const counts = (t: number): boolean => t >= firstRow && leftOut[t] === 0;
  const count = leftOut.filter((_, t) => counts(t)).length;
  const average = Float32Array.from({ length: headDim }, (_, c) => {
    const column = Float32Array.from({ length: PAGE_TOKENS }, (_, t) => (counts(t) ? rows[t * headDim + c]! : 0));
    return Math.fround(treeSum(column) / Math.max(1, count));
  });
  const max = average.reduce((most, value) => Math.max(most, Math.abs(value)), 0);
  const meanScale = toHalf(Math.fround(max / 127));
  const scale = fromHalf(meanScale);
  const means = Int8Array.from(average, (value) =>
    scale === 0 ? 0 : roundHalfEven(Math.min(127, Math.max(-127, Math.fround(value / scale)))),
  );
  return { means, meanScale };
}

export const decodedMean = ({ means, meanScale }: { means: Int8Array; meanScale: number }): Float32Array => {
  const scale = fromHalf(meanScale);
  return Float32Array.from(means, (mean) => mean * scale);
};

/** 1 for each row from firstRow on that is nearer to zero than to the mean. */
function rowsFromZero(rows: Float32Array, mean: Float32Array, firstRow: number): Uint8Array {
  const d = mean.length;
  const half = Math.fround(treeDot(mean, mean) * 0.5);
  return Uint8Array.from({ length: PAGE_TOKENS }, (_, t) =>
    t >= firstRow && treeDot(rows.subarray(t * d, (t + 1) * d), mean) < half ? 1 : 0,
  );
}

/** The mean, and which rows are coded from zero instead. */
export function encodeOrigins(rows: Float32Array, headDim: number, firstRow: number) {
  const whole = encodeMean(rows, headDim, firstRow);
  const fromZero = rowsFromZero(rows, decodedMean(whole), firstRow);
  return { ...(fromZero.includes(1) ? encodeMean(rows, headDim, firstRow, fromZero) : whole), fromZero };
}

/** A row without what it is coded from. */
export const lessOrigin = (row: Float32Array, mean: Float32Array, isFromZero: number): Float32Array =>
  row.map((x, c) => (isFromZero ? x : Math.fround(x - mean[c]!)));
