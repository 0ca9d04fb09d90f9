/**
 * Rows as differences from the row before them, in a closed loop: what is coded is the difference from what was
 * decoded, so the error of a row is that of its own code and errors do not add up. Keys are taken before their rotary
 * embedding, which turns the same key by other angles at every position.
 *
 *   delta   as it is described for caches: the difference itself, and an anchor, a row in f16, where the difference is
 *   longer than 0.4 of the row or the last
 *           anchor 32 rows away; a bit for each row tells anchors
 *   dpcm    the best that a difference could do: the mean of the page is off, the row before counts ρ, fitted to the
 *   page and head, and every 32nd row is
 *           coded without the one before it, so that 32 rows at most are decoded for one
 */

import { encodeMean, PAGE_TOKENS, reference } from 'palimpsest/lab';
import type { HeadCode } from './headwise.ts';
import { codedRow, inHalf, type RotBits, rotHeadBytes, scaleUnit } from './rot-head.ts';

/** Rows from one anchor to the next, at most. */
export const ANCHOR_ROWS = 32;
/** Length of a difference, over that of the row, from which on the row becomes an anchor. */
const ANCHOR_SHARE = 0.4;

const lengthOf = (x: Float32Array): number => Math.sqrt(x.reduce((sum, one) => sum + one * one, 0));

/** Codes rows with anchors. */
export const deltaCode =
  (bits: RotBits): HeadCode =>
  (rows, { firstRow }) => {
    const d = rows.length / PAGE_TOKENS;
    const unit = scaleUnit(rows);
    let anchors = 0;
    let since = ANCHOR_ROWS;
    let before = new Float32Array(d);
    for (let t = firstRow; t < PAGE_TOKENS; t++, since++) {
      const row = rows.subarray(t * d, (t + 1) * d);
      const difference = row.map((one, c) => one - before[c]!);
      if (since >= ANCHOR_ROWS || lengthOf(difference) > ANCHOR_SHARE * lengthOf(row)) {
        before = new Float32Array(inHalf(row.slice()));
        anchors++;
        since = 0;
      } else {
        const coded = codedRow(difference, bits, unit);
        before = before.map((one, c) => one + coded[c]!);
      }
      row.set(before);
    }
    // Codes and a scale of a byte, or two bytes a channel; which of them, a bit a row; and the unit of the scales.
    return anchors * 2 * d + (PAGE_TOKENS - firstRow - anchors) * ((bits * d) / 8 + 1) + PAGE_TOKENS / 8 + 1;
  };

/** Codes rows less ρ times the row before them, both without the mean of the page. */
export const dpcmCode =
  (bits: RotBits): HeadCode =>
  (rows, { firstRow }) => {
    const d = rows.length / PAGE_TOKENS;
    const { means, meanScale } = encodeMean(rows, d, firstRow);
    const scale = reference.fromHalf(meanScale);
    const mean = Float32Array.from(means, (one) => one * scale);
    const centred = rows.map((one, i) => one - mean[i % d]!);
    const [rho] = inHalf(Float32Array.of(lagOne(centred, d, firstRow)));
    const unit = scaleUnit(centred);
    let before = new Float32Array(d);
    for (let t = firstRow; t < PAGE_TOKENS; t++) {
      if (t % ANCHOR_ROWS === 0) before = new Float32Array(d);
      const predicted = before.map((one) => rho! * one);
      const coded = codedRow(
        predicted.map((one, c) => centred[t * d + c]! - one),
        bits,
        unit,
      );
      before = predicted.map((one, c) => one + coded[c]!);
      for (let c = 0; c < d; c++) rows[t * d + c] = mean[c]! + before[c]!;
    }
    return rotHeadBytes(bits, d) + 2;
  };

/** What rows from firstRow on are of the row before them, in least squares. */
function lagOne(rows: Float32Array, d: number, firstRow: number): number {
  let [along, square] = [0, 0];
  for (let i = (firstRow + 1) * d; i < rows.length; i++) {
    along += rows[i]! * rows[i - d]!;
    square += rows[i - d]! ** 2;
  }
  return square === 0 ? 0 : along / square;
}
