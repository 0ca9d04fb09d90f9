/**
 * Splits blocks of 4-bit types into the codes, scales and minima that the kernels use, w = scale·code + minimum, without rounding.
 * dequant.ts describes the layouts. In Q4_K each of the eight groups of a block has a scale and a minimum.
 */
import { assert, type NarrowMatrix } from '../../native/index.ts';
import { type ElementType, halves, minimumOf, scaleOf, u16 } from './dequant.ts';

const GROUP = 32;

type Read = (source: Uint8Array, to: NarrowMatrix) => void;

/** Q4_0, whose minima follow from its scales, and Q4_1. The low nibble of byte j is weight j, the high one weight j + 16. */
const readLegacy =
  (hasMinimum: boolean): Read =>
  (source, { codes, scales, minima }) => {
    const half = halves();
    const head = hasMinimum ? 4 : 2;
    for (let group = 0, at = 0; group < scales.length; group++, at += head + 16) {
      const d = half[u16(source, at)]!;
      scales[group] = d;
      minima[group] = hasMinimum ? half[u16(source, at + 2)]! : -8 * d;
      for (let j = 0, to = group * GROUP; j < 16; j++, to++) {
        codes[to] = source[at + head + j]! & 15;
        codes[to + 16] = source[at + head + j]! >> 4;
      }
    }
  };

function readQ4_K(source: Uint8Array, { codes, scales, minima }: NarrowMatrix): void {
  const half = halves();
  for (let first = 0, at = 0; first < scales.length; first += 8, at += 144) {
    const d = half[u16(source, at)]!;
    const e = half[u16(source, at + 2)]!;
    for (let g = 0; g < 8; g++) {
      scales[first + g] = d * scaleOf(source, at + 4, g);
      minima[first + g] = -e * minimumOf(source, at + 4, g);
      const from = at + 16 + 32 * (g >> 1);
      const to = (first + g) * GROUP;
      for (let j = 0; j < GROUP; j++) codes[to + j] = (source[from + j]! >> (4 * (g & 1))) & 15;
    }
  }
}

const READERS: ReadonlyMap<string, Read> = new Map([
  ['Q4_0', readLegacy(false)],
  ['Q4_1', readLegacy(true)],
  ['Q4_K', readQ4_K],
]);

export const hasNibbles = ({ name }: ElementType): boolean => READERS.has(name);

/** Reads whole blocks of one 4-bit type. */
export function nibblesOf({ name, blockValues, blockBytes }: ElementType, source: Uint8Array): NarrowMatrix {
  const values = (source.length / blockBytes) * blockValues;
  const read = READERS.get(name);
  assert(read !== undefined && Number.isInteger(values), `${source.length} bytes of ${name}`);
  const groups = values / GROUP;
  const codes = new Uint8Array(values);
  const matrix = { codes, scales: new Float32Array(groups), minima: new Float32Array(groups) };
  read(source, matrix);
  return matrix;
}
