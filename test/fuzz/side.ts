/** A side of a page of one head as the kernels encode it, with any bytes in its codes. */
import { FORMATS, type FormatName } from '../../native/format.ts';
import { loadKernels } from '../native/kernels-binding.ts';
import { placesOf, sideBytes } from '../native/sides.ts';
import type { Random } from './case.ts';

const SCALAR = 0;
const kernels = loadKernels();

/** Scales, means and whatever else a format has are those of the rows [128, d]; its codes are too, or random. */
export function randomSide(random: Random, format: FormatName, isKey: boolean, d: number, x: Float32Array): Uint8Array {
  const side = new Uint8Array(sideBytes(d));
  kernels.encodeSides(SCALAR, Int32Array.of(FORMATS[format].id), isKey, d, d, 0, x, side);
  if (random() < 0.5) return side;
  for (const { at, bytes, elementBits } of placesOf(format, d)) {
    // Not of f16, which has no codes: all of its bits are numbers or none. -128 is no level of eight bits.
    if (elementBits === 0 || elementBits === 16) continue;
    for (let i = at; i < at + bytes; i++) {
      const byte = Math.floor(random() * 256);
      side[i] = elementBits === 8 && byte === 128 ? 129 : byte;
    }
  }
  return side;
}

/** The largest of what a side decodes to, on the scalar kernels. */
export function largestOf(format: FormatName, isKey: boolean, d: number, side: Uint8Array): number {
  const x = new Float32Array(128 * d);
  kernels.decodeSide(SCALAR, FORMATS[format].id, isKey, d, d, 0, side, x);
  return x.reduce((most, value) => Math.max(most, Math.abs(value)), 0);
}
