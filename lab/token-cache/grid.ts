/**
 * Rows of numbers as codes of 2, 3, 4 or 8 bits on an even grid, packed. Offsets and steps are f16, rounded
 * outwards and chosen before codes are, so that a grid holds all of its row.
 */
import { assert, fromHalf, KvError, reference } from 'palimpsest/lab';

export const GRID_BITS = [2, 3, 4, 8] as const;
export type GridBits = (typeof GRID_BITS)[number];

/** Bytes of an f16 number. */
const HALF_BYTES = 2;

/** Codes of a row, packed from the lowest bit on; groups of equal length have a step and an offset. */
export interface GridRow {
  readonly codes: Uint8Array;
  readonly bits: GridBits;
  readonly length: number;
  /** f16, one for each group. */
  readonly steps: Uint16Array;
  readonly offsets: Uint16Array;
}

/** Throws 'bad-value' for a number that f16 cannot hold. */
function checkRow(row: Float32Array): void {
  const at = row.findIndex((x) => !(Math.abs(x) <= 65504));
  if (at >= 0)
    throw new KvError('bad-value', `number ${at} of a row is ${row[at]}`, {
      values: { at, given: String(row[at]) },
      hint: 'rows hold numbers that fit f16',
    });
}

/**
 * Codes of a row in `groups` of equal length, each between its own least and largest number (KIVI, arXiv 2402.02750,
 * has such groups). Throws 'bad-value'.
 */
export function encodeGrid(row: Float32Array, groups: number, bits: GridBits): GridRow {
  assert(row.length % groups === 0, `${row.length} numbers are not ${groups} groups of equal length`);
  checkRow(row);
  const size = row.length / groups;
  const parts = Array.from({ length: groups }, (_, group) => row.subarray(group * size, (group + 1) * size));
  const top = 2 ** bits - 1;
  // + 0 makes −0 to 0.
  const offsets = Uint16Array.from(parts, (part) => reference.halfBelow(Math.min(...part) + 0));
  const least = fromHalf(offsets);
  const steps = Uint16Array.from(parts, (part, group) =>
    reference.halfAbove(Math.fround((Math.max(...part) - least[group]!) / top)),
  );
  const step = fromHalf(steps);
  const codes = parts.flatMap((part, group) =>
    Array.from(part, (x) => {
      const code = step[group] === 0 ? 0 : reference.roundHalfEven((x - least[group]!) / step[group]!);
      return Math.min(top, code);
    }),
  );
  return { codes: pack(codes, bits), bits, length: row.length, steps, offsets };
}

/** The numbers that codes stand for. */
export function decodeRow({ codes, bits, length, steps, offsets }: GridRow): Float32Array {
  const size = length / steps.length;
  const [step, least] = [fromHalf(steps), fromHalf(offsets)];
  return Float32Array.from({ length }, (_, i) => {
    const group = Math.floor(i / size);
    return least[group]! + step[group]! * codeAt(codes, bits, i);
  });
}

/** All bytes of a row of codes with a step and an offset for each group. */
export function rowBytes(length: number, groups: number, bits: GridBits): number {
  return Math.ceil((length * bits) / 8) + 2 * HALF_BYTES * groups;
}

function pack(codes: readonly number[], bits: GridBits): Uint8Array {
  const packed = new Uint8Array(Math.ceil((codes.length * bits) / 8));
  for (const [i, code] of codes.entries())
    for (let bit = 0; bit < bits; bit++) {
      const at = i * bits + bit;
      packed[at >> 3]! |= ((code >> bit) & 1) << (at & 7);
    }
  return packed;
}

function codeAt(packed: Uint8Array, bits: GridBits, i: number): number {
  let code = 0;
  for (let bit = 0; bit < bits; bit++) {
    const at = i * bits + bit;
    code |= ((packed[at >> 3]! >> (at & 7)) & 1) << bit;
  }
  return code;
}
