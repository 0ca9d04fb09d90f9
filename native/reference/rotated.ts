/**
 * Rows less their origin (origins.ts), rotated (rotation.ts), each with a scale of one byte (row-scale.ts) in units of
 * 2^e, as the families rot and trellis have them. What their codes stand for, integers over a divisor, is theirs.
 */
import type { Allocation } from '../formats/descriptor.ts';
import { PAGE_TOKENS } from '../layout.ts';
import { bytesOf, type EncodedHead } from './codec.ts';
import { fromHalf } from './half.ts';
import { rotate } from './rotation.ts';
import { rotScale, signed } from './row-scale.ts';

export interface RotatedHead extends EncodedHead {
  /** [128] 1 where a row is coded from zero instead of the mean. */
  readonly fromZero: Uint8Array;
}

/** What the codes of a head stand for: integers [128, d] over a divisor. */
export interface CodedLevels {
  readonly divisor: number;
  readonly levels: ArrayLike<number>;
}

/** ⌊log₂ √x⌋ of a float32 above 0; subnormal ones have the exponent −127. */
export const halfExponent = (x: number): number => {
  const [bits] = new Uint32Array(Float32Array.of(x).buffer);
  return ((bits! >> 23) - 127) >> 1;
};

/** e of a page and head from ⌊log₂ rms⌋ of its rows; formats/rot/rot.ts says why. */
export function referenceOf(octaves: readonly number[]): number {
  const largest = Math.max(...octaves);
  if (largest > 6) return largest - 6;
  return Math.min(...octaves) < -7 ? Math.min(0, largest - 3) : 0;
}

/** The value of one integer level in row t: 2^e times the row's scale over the divisor of the levels, in float32. */
function levelWorth(head: RotatedHead, t: number, divisor: number): number {
  const scale = Math.fround(rotScale(signed(head.rowScales[t]!)) * 2 ** head.reference);
  return Math.fround(scale / divisor);
}

/** The value of one unit of the integer means. */
export const meanUnit = (head: RotatedHead): number => Math.fround(fromHalf(head.meanScale) * 2 ** head.reference);

export function decodeLevels(head: RotatedHead, { divisor, levels }: CodedLevels): Float32Array {
  const { headDim, firstRow, means, fromZero } = head;
  const scale = meanUnit(head);
  const rows = new Float32Array(PAGE_TOKENS * headDim);
  for (let t = firstRow; t < PAGE_TOKENS; t++) {
    const worth = levelWorth(head, t, divisor);
    const row = Float32Array.from({ length: headDim }, (_, c) => Math.fround(levels[t * headDim + c]! * worth));
    rotate(row, true);
    for (let c = 0; c < headDim; c++)
      rows[t * headDim + c] = fromZero[t] ? row[c]! : Math.fround(Math.fround(means[c]! * scale) + row[c]!);
  }
  return rows;
}

/** q·k̂_t = worth_t·⟨HDq, level⟩ + ⟨q, o_t⟩: the query is rotated once, no key is. Rows before firstRow give 0. */
export function scoreLevels(query: Float32Array, head: RotatedHead, { divisor, levels }: CodedLevels): Float64Array {
  const rotated = query.slice();
  rotate(rotated);
  const scale = meanUnit(head);
  const onMean = head.means.reduce((sum, mean, c) => sum + query[c]! * mean * scale, 0);
  return Float64Array.from({ length: PAGE_TOKENS }, (_, t) => {
    if (t < head.firstRow) return 0;
    let sum = 0;
    for (let c = 0; c < head.headDim; c++) sum += rotated[c]! * levels[t * head.headDim + c]!;
    return levelWorth(head, t, divisor) * sum + (head.fromZero[t] ? 0 : onMean);
  });
}

/**
 * Σ w_t·v̂_t = D·H·Σ (w_t·worth_t)·level + Σ w_t·o_t: the sum is rotated back once. Rows before firstRow do not count.
 */
export function mixLevels(weights: Float32Array, head: RotatedHead, { divisor, levels }: CodedLevels): Float64Array {
  const sum = new Float64Array(head.headDim);
  let mass = 0;
  for (let t = head.firstRow; t < PAGE_TOKENS; t++) {
    const weight = weights[t]! * levelWorth(head, t, divisor);
    if (!head.fromZero[t]) mass += weights[t]!;
    for (let c = 0; c < head.headDim; c++) sum[c]! += weight * levels[t * head.headDim + c]!;
  }
  const back = Float32Array.from(sum);
  rotate(back, true);
  const scale = meanUnit(head);
  return Float64Array.from(back, (value, c) => value + mass * head.means[c]! * scale);
}

/** The fields of a head whose codes lie in these planes. */
export const storedHead = (head: RotatedHead, { hi, lo }: { hi: Uint8Array; lo: Uint8Array }) => ({
  high: hi,
  low: lo,
  exponents: bytesOf(Int8Array.from(head.rowScales, signed)),
  mean: bytesOf(head.means),
  fromZero: rowBits(head.fromZero),
  meanScale: bytesOf(Uint16Array.of(head.meanScale)),
  reference: bytesOf(Int8Array.of(head.reference)),
});

/** Bit t & 7 of byte t >> 3 is that of row t. */
const rowBits = (flags: Uint8Array): Uint8Array =>
  Uint8Array.from({ length: PAGE_TOKENS / 8 }, (_, byte) =>
    flags.subarray(8 * byte, 8 * byte + 8).reduce((bits, flag, i) => bits | (flag << i), 0),
  );

/**
 * The parts of such a format, whose C++ finds its fields by this order (kernels/rotated.h). `kept`: whether a demotion
 * keeps what does not depend on the width.
 */
export const rotatedParts = ([hi, lo]: readonly [hi: number, lo: number], kept: boolean): readonly Allocation[] => [
  { fields: [{ name: 'high', elementBits: hi, kept }] },
  { fields: [{ name: 'low', elementBits: lo }] },
  {
    fields: [
      { name: 'exponents', tokenBytes: 1 },
      { name: 'mean', channelBytes: 1, kept },
      { name: 'fromZero', headBytes: PAGE_TOKENS / 8, kept },
      { name: 'meanScale', headBytes: 2, kept },
      { name: 'reference', headBytes: 1, kept },
    ],
  },
];
