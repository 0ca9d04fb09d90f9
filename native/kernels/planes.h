// Unpacks bit planes into an i8 tile of decode levels: those of the rot family, and those of formats with codes of 1 to
// 4 bits of their own. It uses integers only, so the result is the same on every ISA.
//
// The codes of one (page, side, head) are laid out in i8 tile order (kernels.h) as rows of 64 codes; a row unpacks to
// 64 bytes.
//   hi       the two high bits of the 4-bit code. 64 plane bytes hold rows 4j..4j+3: bits 2f..2f+1 of byte i = lane i
//   of row 4j+f.
//   lo rot4  the two low bits, in the same layout.
//   lo rot3  the third bit alone. 64 plane bytes hold rows 8j..8j+7: bit f of byte i = lane i of row 8j+f.
//   lo rot2  nothing.
//   lo rot1  the code, its sign bit, in the layout of rot3's; there is no hi.
// The same holds for other codes of 4, 3, 2 and 1 bits. A demotion to rot3 or rot2 keeps hi as it is and narrows or
// drops lo. The number of elements is a multiple of 512 (128 tokens, d a multiple of 4).
#pragma once

constexpr int8_t kZeroRow = -128;

// The widths of the family, from 4 bits down to 1.
constexpr int kWidths = 4;
constexpr int widthOf(int format) { return 4 - kFormats[format].codeBits; }
constexpr int kWidthFormats[kWidths] = {kRot4, kRot3, kRot2, kRot1};
constexpr const int8_t* kLevels[kWidths] = {kRot4Levels, kRot3Levels, kRot2Levels, kRot1Levels};
constexpr int kDivisors[kWidths] = {kRot4Divisor, kRot3Divisor, kRot2Divisor, kRot1Divisor};
constexpr const int8_t* levelsOf(int format) { return kLevels[widthOf(format)]; }
INLINE int divisorOf(int format) { return kDivisors[widthOf(format)]; }
INLINE int bitsOf(int format) { return 4 - widthOf(format); }
// 2^(exponent/16), 0 for a zero row.
INLINE float scaleOf(int8_t exponent) { return exponent == kZeroRow ? 0.0f : kScaleValues[exponent + 127]; }
// 2^e for -126 <= e <= 127; no encoder writes an e outside this range.
INLINE float powerOfTwo(int e) {
  const int32_t field = (e + 127) * (1 << 23);
  float power;
  __builtin_memcpy(&power, &field, sizeof power);
  return power;
}

// unit * 2^((exponent - shift) / 16) of every token, 0 for a zero row. 2^(j/16) = 2^(j >> 4) * 2^((j & 15) / 16), and
// rounding does not depend on the power of two, so with unit = 1 the results have the bits of kScaleValues.
INLINE void rotScales(const int8_t* exponents, int shift, float unit, float* out) {
  alignas(64) float mantissa[16];
  for (int i = 0; i < 16; i += kLanes) store(mantissa + i, load(kScaleValues + 127 + i) * unit);
#if defined(__AVX512F__)
  // Adding j << 19 also adds j & 15 below the exponent, so the table has that subtracted.
  const __m512i below = _mm512_slli_epi32(_mm512_set_epi32(15, 14, 13, 12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0), 19);
  const __m512i table = _mm512_sub_epi32(_mm512_load_si512(mantissa), below);
  for (int t = 0; t < kPageTokens; t += 16) {
    const __m512i at = _mm512_cvtepi8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(exponents + t)));
    const __mmask16 row = _mm512_cmpneq_epi32_mask(at, _mm512_set1_epi32(-128));
    const __m512i j = _mm512_sub_epi32(at, _mm512_set1_epi32(shift));
    _mm512_storeu_si512(out + t, _mm512_maskz_add_epi32(row, _mm512_permutexvar_epi32(j, table), _mm512_slli_epi32(j, 19)));
  }
#elif defined(__AVX2__)
  const __m256 low = _mm256_load_ps(mantissa), high = _mm256_load_ps(mantissa + 8);
  for (int t = 0; t < kPageTokens; t += 8) {
    const __m256i at = _mm256_cvtepi8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(exponents + t)));
    const __m256i j = _mm256_sub_epi32(at, _mm256_set1_epi32(shift));
    const __m256 part = _mm256_blendv_ps(_mm256_permutevar8x32_ps(low, j), _mm256_permutevar8x32_ps(high, j), _mm256_castsi256_ps(_mm256_slli_epi32(j, 28)));
    const __m256i value = _mm256_add_epi32(_mm256_castps_si256(part), _mm256_slli_epi32(_mm256_srai_epi32(j, 4), 23));
    const __m256i none = _mm256_cmpeq_epi32(at, _mm256_set1_epi32(-128));
    _mm256_storeu_ps(out + t, _mm256_castsi256_ps(_mm256_andnot_si256(none, value)));
  }
#else
  for (int t = 0; t < kPageTokens; t++) {
    const int j = exponents[t] - shift;
    int32_t value;
    __builtin_memcpy(&value, &mantissa[j & 15], sizeof value);
    value = exponents[t] == kZeroRow ? 0 : value + (j >> 4) * (1 << 23);
    __builtin_memcpy(out + t, &value, sizeof value);
  }
#endif
}

// Moves nibble i of every byte to its low bits. AVX-512 shifts by a vector of equal counts, because gcc 12 spills
// accumulators around a shift by a single count that is not a constant.
INLINE Bytes halfOf(Bytes v, size_t i) {
#if defined(__AVX512BW__)
#define PALIMPSEST_TIMES32(v) v, v, v, v, v, v, v, v, v, v, v, v, v, v, v, v, v, v, v, v, v, v, v, v, v, v, v, v, v, v, v, v
  alignas(64) static constexpr uint16_t kShift[2][32] = {{PALIMPSEST_TIMES32(0)}, {PALIMPSEST_TIMES32(4)}};
#undef PALIMPSEST_TIMES32
  return v >> loadBytes(kShift[i]);
#else
  return v >> i * 4;
#endif
}

// The low nibble of every byte: bits of a where the 4-bit mask is set, else bits of b.
INLINE Bytes nibbleOf(Bytes a, Bytes b, int mask) {
#if defined(__AVX512F__)
  return choose(a, b, splatByte(mask)) & splatByte(15);
#else
  return (a & splatByte(mask)) | (b & splatByte(mask ^ 15));
#endif
}

// What a byte look-up finds, for codes of 1 to 4 bits with `levels`.
struct LevelTables {
  int8_t entries[4][16];
  constexpr LevelTables(int bits, const int8_t* levels) : entries() {
    for (int i = 0; i < 16; i++) {
      // One look-up finds the level of row f in a nibble that holds bits of four rows.
      for (int f = 0; f < 4 && bits == 1; f++) entries[f][i] = levels[i >> f & 1];
      if (bits == 1) continue;
      entries[0][i] = levels[bits == 4 ? i : bits == 3 ? (i & 3) << 1 | (i >> 2 & 1) : i & 3];
      entries[1][i] = levels[bits == 4 ? i : i >> (bits == 3 ? 1 : 2)];
    }
  }
};

// Rows of 64 levels, with `bias` added. Rows 4j + P and 4j + P + 2 (P = 0 or 1) are unpacked together, because their
// fields lie in the two nibbles of a byte. The bits of a code may be in any order within its nibble: the tables are
// ordered to match.
template <int Bits>
struct LevelRows {
  static constexpr bool kPaired = Bits == 3;
  static constexpr int kTaken = 2;
  const uint8_t* hi;
  const uint8_t* lo;
  Bytes tables[2];

  MEMBER LevelRows(const LevelTables& levels, const uint8_t* high, const uint8_t* low, int bias) : hi(high), lo(low) {
    for (int p = 0; p < 2; p++) tables[p] = loadTable(levels.entries[p]) ^ splatByte(bias);
  }

  // Vector `part` of both rows. Parity (used by 3 bits): j % 2 if it is known at compile time, else 2.
  template <int P, int Parity>
  MEMBER void pair(size_t j, int part, Bytes& first, Bytes& second) const {
    const size_t within = static_cast<size_t>(part) * kVectorBytes;
    const Bytes h = loadBytes(hi + j * 64 + within);
    if constexpr (Bits == 3) {
      // Four rows take up half the bits of each byte of the 1-bit plane.
      const Bytes eight = loadBytes(lo + j / 2 * 64 + within);
      const Bytes l = Parity == 2 ? halfOf(eight, j % 2) : eight >> Parity * 4;
      first = nibbleOf(h, P == 0 ? l << 2 : l, P == 0 ? 3 : 12);
      second = nibbleOf(h >> 4, P == 0 ? l : l >> 2, P == 0 ? 3 : 12);
    } else {
      first = h;
      if constexpr (Bits == 4) {
        const Bytes l = loadBytes(lo + j * 64 + within);
        first = choose(P == 0 ? h << 2 : h, P == 0 ? l : l >> 2, splatByte(0xcc));
      }
      second = first >> 4 & splatByte(15);
      first = first & splatByte(15);
    }
    first = lookUp(tables[P], first);
    second = lookUp(tables[P], second);
  }

  // Rows 4j + First, 4j + First + 4/B, ...
  template <int First, int B, int Parity>
  MEMBER void at(size_t j, int part, Bytes* out) const {
    if constexpr (B == 4) {
      pair<0, Parity>(j, part, out[0], out[2]);
      pair<1, Parity>(j, part, out[1], out[3]);
    } else if constexpr (B == 2) {
      pair<First, Parity>(j, part, out[0], out[1]);
    } else {
      Bytes rows[2];
      pair<First % 2, Parity>(j, part, rows[0], rows[1]);
      out[0] = rows[First / 2];
    }
  }
};

// One byte of the plane has bits of eight rows, those of four in each nibble.
template <>
struct LevelRows<1> {
  static constexpr bool kPaired = true;
  static constexpr int kTaken = 2;
  const uint8_t* lo;
  Bytes tables[4];

  MEMBER LevelRows(const LevelTables& levels, const uint8_t*, const uint8_t* low, int bias) : lo(low) {
    for (int f = 0; f < 4; f++) tables[f] = loadTable(levels.entries[f]) ^ splatByte(bias);
  }

  template <int First, int B, int Parity>
  MEMBER void at(size_t j, int part, Bytes* out) const {
    const Bytes eight = loadBytes(lo + j / 2 * 64 + static_cast<size_t>(part) * kVectorBytes);
    const Bytes four = (Parity == 2 ? halfOf(eight, j % 2) : eight >> Parity * 4) & splatByte(15);
    repeat<B>([&](auto b) MEMBER { out[b.value] = lookUp(tables[First + b.value * (4 / B)], four); });
  }
};

// Calls f with the LevelRows of codes of so many bits.
template <class F>
INLINE void withLevels(int bits, const LevelTables& levels, const uint8_t* hi, const uint8_t* lo, int bias, const F& f) {
  switch (bits) {
    case 4: f(LevelRows<4>(levels, hi, lo, bias)); break;
    case 3: f(LevelRows<3>(levels, hi, lo, bias)); break;
    case 2: f(LevelRows<2>(levels, hi, lo, bias)); break;
    case 1: f(LevelRows<1>(levels, hi, lo, bias)); break;
    default: __builtin_trap();
  }
}

template <class Rows>
INLINE void unpackRows(const Rows& rows, size_t elements, int8_t* tile) {
  for (size_t j = 0; j < elements / 256; j += 2) {
    repeat<2>([&](auto parity) MEMBER {
      for (int part = 0; part < kRowVectors; part++) {
        Bytes level[4];
        rows.template at<0, 4, parity.value>(j + parity.value, part, level);
        repeat<4>([&](auto f) MEMBER { storeBytes(tile + (j + parity.value) * 256 + f.value * 64 + part * kVectorBytes, level[f.value]); });
      }
    });
  }
}

static void unpackPlanes(int bits, const LevelTables& levels, const uint8_t* hi, const uint8_t* lo, size_t elements, int8_t* tile) {
  withLevels(bits, levels, hi, lo, 0, [&](const auto& rows) MEMBER { unpackRows(rows, elements, tile); });
}

constexpr LevelTables kRotTables[kWidths] = {{4, kRot4Levels}, {3, kRot3Levels}, {2, kRot2Levels}, {1, kRot1Levels}};

static void unpackRot(int format, const uint8_t* hi, const uint8_t* lo, size_t elements, int8_t* tile) {
  unpackPlanes(bitsOf(format), kRotTables[widthOf(format)], hi, lo, elements, tile);
}

// What sides of the rot family are unpacked by in registers (kernels/coded.h).
struct PlaneRows {
  static constexpr int kUnpackedRows = 1 << 30;  // as many as an instruction set can

  template <class Done>
  static MEMBER void withRows(const SideView& side, int, int bias, const Done& f) {
    withLevels(kFormats[side.format].codeBits, kRotTables[widthOf(side.format)], side.at(kRotHigh), side.at(kRotLow), bias, f);
  }
};
