// Levels that are stored as plain codes of 8, 4 or 2 bits, in rows of 64: 64 bytes hold one row, two or four, the first in the low bits. Which
// element a place in a row belongs to is up to the format.
#pragma once

// table: the level of each code, for 4 bits or fewer; a code of 8 bits is its level plus 128.
INLINE void unpackCodes(int codeBits, const uint8_t* codes, int elements, const int8_t* table, int8_t* levels) {
  if (codeBits == 8) {
    for (int i = 0; i < elements; i += kVectorBytes) storeBytes(levels + i, loadBytes(codes + i) ^ splatByte(128));
    return;
  }
  const Bytes entries = loadTable(table), mask = splatByte((1 << codeBits) - 1);
  const int fields = 8 / codeBits;
  for (int chunk = 0; chunk < elements / (64 * fields); chunk++) {
    for (int part = 0; part < 64; part += kVectorBytes) {
      Bytes v = loadBytes(codes + chunk * 64 + part);
      for (int field = 0; field < fields; field++, v = v >> codeBits) {
        storeBytes(levels + (chunk * fields + field) * 64 + part, lookUp(entries, v & mask));
      }
    }
  }
}

// Codes, one a byte, packed. out may be codes.
INLINE void packCodes(int codeBits, const uint8_t* codes, int elements, uint8_t* out) {
  const int fields = 8 / codeBits;
  for (int chunk = 0; chunk < elements / (64 * fields); chunk++) {
    for (int part = 0; part < 64; part += kVectorBytes) {
      Bytes v{};
      for (int field = fields; field-- > 0;) v = v << codeBits | loadBytes(codes + (chunk * fields + field) * 64 + part);
      storeBytes(out + chunk * 64 + part, v);
    }
  }
}
