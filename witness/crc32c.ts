/**
 * CRC-32C (Castagnoli; RFC 3720, appendix B.4): the checksum of format 2, which processors compute in hardware. Eight
 * bytes at a time from tables ("slicing by 8"; Kounavis and Berry 2008).
 */

/** 0x1EDC6F41 with its bits in reverse. */
const POLYNOMIAL = 0x82f63b78;

const TABLES = Array.from({ length: 8 }, () => new Int32Array(256));
for (let byte = 0; byte < 256; byte++) {
  let crc = byte;
  for (let bit = 0; bit < 8; bit++) crc = (crc >>> 1) ^ (crc & 1 ? POLYNOMIAL : 0);
  TABLES[0]![byte] = crc;
}
for (let table = 1; table < 8; table++) {
  for (let byte = 0; byte < 256; byte++) {
    const before = TABLES[table - 1]![byte]!;
    TABLES[table]![byte] = (before >>> 8) ^ TABLES[0]![before & 255]!;
  }
}
const [T0, T1, T2, T3, T4, T5, T6, T7] = TABLES as [
  Int32Array,
  Int32Array,
  Int32Array,
  Int32Array,
  Int32Array,
  Int32Array,
  Int32Array,
  Int32Array,
];

/** CRC-32C of `bytes`, continuing `before`, that of the bytes before them. */
export function crc32c(bytes: Uint8Array, before = 0): number {
  let crc = ~before;
  let at = 0;
  for (const end = bytes.length - 7; at < end; at += 8) {
    crc ^= bytes[at]! | (bytes[at + 1]! << 8) | (bytes[at + 2]! << 16) | (bytes[at + 3]! << 24);
    crc =
      T7[crc & 255]! ^
      T6[(crc >>> 8) & 255]! ^
      T5[(crc >>> 16) & 255]! ^
      T4[crc >>> 24]! ^
      T3[bytes[at + 4]!]! ^
      T2[bytes[at + 5]!]! ^
      T1[bytes[at + 6]!]! ^
      T0[bytes[at + 7]!]!;
  }
  for (; at < bytes.length; at++) crc = (crc >>> 8) ^ T0[(crc ^ bytes[at]!) & 255]!;
  return ~crc >>> 0;
}
