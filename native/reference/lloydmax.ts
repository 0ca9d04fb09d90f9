/**
 * The Lloyd-Max quantizer of N(0,1): levels are the means of their cells, and bounds are the midpoints between levels.
 * S. Lloyd 1957/1982, J. Max 1960. The tables in tables.gen.ts hold its 16 levels to five decimals.
 */
import { ROT_BOUNDS } from './tables.gen.ts';

/** The 4-bit code of y in a row of root mean square r: the number of bounds b with y > fround(r·b). */
export function encode4(y: number, r: number): number {
  let code = 0;
  for (const bound of ROT_BOUNDS) if (y > Math.fround(r * bound)) code++;
  return code;
}
