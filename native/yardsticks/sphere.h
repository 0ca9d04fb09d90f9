// Codebooks of TurboQuant (turbo.ts), and sides with such codes in planes (kernels/planes.h).
#pragma once

// The codebook of one coordinate of a random unit vector, times sqrt(d), for codes of 1 to 4 bits.
struct Codebook {
  const LevelTables* levels;
  const float* bounds;  // 16, of which the last are infinite
  float divisor;
};
constexpr int kSphereDims[5] = {64, 80, 96, 128, 256};
INLINE int placeOf(int d) {
  int at = 0;
  while (kSphereDims[at] != d) at++;
  return at;
}
INLINE Codebook sphereOf(int bits, int d) {
#define PALIMPSEST_BY_D(bits)                                                                                                         \
  {LevelTables(bits, kSphereLevels[bits - 1][0]), LevelTables(bits, kSphereLevels[bits - 1][1]), LevelTables(bits, kSphereLevels[bits - 1][2]), \
   LevelTables(bits, kSphereLevels[bits - 1][3]), LevelTables(bits, kSphereLevels[bits - 1][4])}
  static constexpr LevelTables kTables[4][5] = {PALIMPSEST_BY_D(1), PALIMPSEST_BY_D(2), PALIMPSEST_BY_D(3), PALIMPSEST_BY_D(4)};
#undef PALIMPSEST_BY_D
  const int at = placeOf(d);
  return {&kTables[bits - 1][at], kSphereBounds[bits - 1][at], static_cast<float>(kSphereDivisors[bits - 1][at])};
}

// What such sides are unpacked by in registers (kernels/coded.h).
struct SphereRows {
  static constexpr int kUnpackedRows = 1 << 30;  // as many as an instruction set can

  template <int Least, class Done>
  static MEMBER void withRows(const SideView& side, int d, int bias, const Done& f) {
    const int bits = kFormats[side.format].codeBits;
    withLevels<Least>(bits, *sphereOf(bits, d).levels, side.at(kTurboHigh), side.at(kTurboLow), bias, f);
  }
};
