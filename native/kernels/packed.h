// What formats with plain grids share: ranges and steps of groups, and codes packed in rows of 64. Which element a
// place in a row belongs to is up to the format.
#pragma once

// Bits of the largest half that is not above x, and of the smallest that is not below it (x >= 0).
INLINE uint16_t halfBelow(float x) {
  const uint16_t half = floatToHalf(x);
  if (halfToFloat(half) <= x) return half;
  return static_cast<uint16_t>((half & 0x8000) != 0 ? half + 1 : half - 1);
}
INLINE uint16_t halfAbove(float x) {
  const uint16_t half = floatToHalf(x);
  return static_cast<uint16_t>(halfToFloat(half) < x ? half + 1 : half);
}

// Rows that another format gave back may be a little beyond the range of f16.
INLINE VecF withinHalf(VecF v) { return -larger(-larger(v, splat(-65504.0f)), splat(-65504.0f)); }

// The least and the largest number of a row. least is never -0.
struct Range {
  float least, most;
};
INLINE Range rangeOf(const float* x, int count) {
  VecF top = withinHalf(load(x)), bottom = -top;
  for (int c = kLanes; c < count; c += kLanes) {
    const VecF v = withinHalf(load(x + c));
    top = larger(v, top);
    bottom = larger(-v, bottom);
  }
  return {0.0f - largestLane(bottom), largestLane(top)};
}

// (x - low) / scale as whole numbers from 0 to `most`, halves to even; 0 where the scale is 0.
INLINE VecI stepsOf(VecF x, VecF scale, VecF low, float most) {
  const VecF steps = -larger(-larger((x - low) / scale, splat(0.0f)), splat(-most));
  return rounded(steps) & (scale > splat(0.0f));
}

// Codes of 8, 4, 2 or 1 bits in rows of 64: 64 bytes hold one row or more, the first in the low bits. table: the level
// of each code, for 4 bits or fewer; a code of 8 bits is its level plus 128.
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

// The low bits of codes, one a byte, packed. out may be codes.
INLINE void packCodes(int codeBits, const uint8_t* codes, int elements, uint8_t* out) {
  const int fields = 8 / codeBits;
  const Bytes mask = splatByte((1 << codeBits) - 1);
  for (int chunk = 0; chunk < elements / (64 * fields); chunk++) {
    for (int part = 0; part < 64; part += kVectorBytes) {
      Bytes v{};
      for (int field = fields; field-- > 0;) v = v << codeBits | (loadBytes(codes + (chunk * fields + field) * 64 + part) & mask);
      storeBytes(out + chunk * 64 + part, v);
    }
  }
}
