// The levels of the rot family: what codes of 4 to 1 bits stand for. Latents and the bands of another family have them
// as well.
#pragma once

// The widths of the family, from 4 bits down to 1.
constexpr int kWidths = 4;
constexpr int widthOf(int format) { return 4 - kFormats[format].codeBits; }
constexpr int kWidthFormats[kWidths] = {kRot4, kRot3, kRot2, kRot1};
constexpr const int8_t* kLevels[kWidths] = {kRot4Levels, kRot3Levels, kRot2Levels, kRot1Levels};
constexpr int kDivisors[kWidths] = {kRot4Divisor, kRot3Divisor, kRot2Divisor, kRot1Divisor};
constexpr const int8_t* levelsOf(int format) { return kLevels[widthOf(format)]; }
INLINE int divisorOf(int format) { return kDivisors[widthOf(format)]; }
INLINE int bitsOf(int format) { return 4 - widthOf(format); }

// Decode levels of a width, by 4-bit code.
INLINE Sixteen levelsByCode(int format) {
  float level[16];
  for (int code = 0; code < 16; code++) level[code] = static_cast<float>(levelsOf(format)[code >> (4 - bitsOf(format))]);
  return loadSixteen(level);
}

constexpr LevelTables kRotTables[kWidths] = {{4, kRot4Levels}, {3, kRot3Levels}, {2, kRot2Levels}, {1, kRot1Levels}};

static void unpackRot(int format, const uint8_t* hi, const uint8_t* lo, size_t elements, int8_t* tile) {
  unpackPlanes(bitsOf(format), kRotTables[widthOf(format)], hi, lo, elements, tile);
}

// What sides of the rot family are unpacked by in registers (kernels/coded.h).
struct PlaneRows {
  static constexpr int kUnpackedRows = 1 << 30;  // as many as an instruction set can

  template <int Least, class Done>
  static MEMBER void withRows(const SideView& side, int, int bias, const Done& f) {
    withLevels<Least>(kFormats[side.format].codeBits, kRotTables[widthOf(side.format)], side.at(kRotHigh), side.at(kRotLow), bias, f);
  }
};
