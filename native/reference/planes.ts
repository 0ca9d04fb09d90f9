/**
 * Bit planes: codes of 1 to 4 bits, the two high bits apart from the low ones, so that a format of fewer bits can drop
 * a plane. The order of codes is that of a tile (codec.ts), which forms rows of 64. 64 bytes of a 2-bit plane hold rows
 * 4j..4j+3: bits 2f, 2f+1 of byte i are lane i of row 4j+f. 64 bytes of a 1-bit plane hold rows 8j..8j+7: bit f of byte
 * i is lane i of row 8j+f.
 */

/** Bits in the hi plane and in the lo plane of codes of so many bits. */
export const planeBits = (bits: number): readonly [hi: number, lo: number] => (bits < 2 ? [0, bits] : [2, bits - 2]);

/** The planes of codes in tile order. */
export function packPlanes(tile: Uint8Array, highBits: number, lowBits: number): { hi: Uint8Array; lo: Uint8Array } {
  const hi = new Uint8Array((tile.length * highBits) / 8);
  const lo = new Uint8Array((tile.length * lowBits) / 8);
  const put = (plane: Uint8Array, bits: number, index: number, value: number): void => {
    const perByte = 8 / bits;
    const row = Math.floor(index / 64);
    plane[Math.floor(row / perByte) * 64 + (index % 64)]! |= value << (bits * (row % perByte));
  };
  for (const [i, code] of tile.entries()) {
    if (highBits > 0) put(hi, highBits, i, code >> lowBits);
    if (lowBits > 0) put(lo, lowBits, i, code & (2 ** lowBits - 1));
  }
  return { hi, lo };
}
