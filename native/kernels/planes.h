// Unpacks the bit planes of the rot family into an i8 tile of decode levels. It uses integers only, so the result is the same on every ISA.
//
// The codes of one (page, side, head) are laid out in i8 tile order (kernels.h) as rows of 64 codes; a row unpacks to 64 bytes.
//   hi       the two high bits of the 4-bit code. 64 plane bytes hold rows 4j..4j+3: bits 2f..2f+1 of byte i = lane i of row 4j+f.
//   lo rot4  the two low bits, in the same layout.
//   lo rot3  the third bit alone. 64 plane bytes hold rows 8j..8j+7: bit f of byte i = lane i of row 8j+f.
//   lo rot2  nothing.
//   lo rot1  the code, its sign bit, in the layout of rot3's; there is no hi.
// A demotion to rot3 or rot2 keeps hi as it is and narrows or drops lo. The number of elements is a multiple of 512 (128 tokens, d a multiple of 4).
#pragma once

constexpr int8_t kZeroRow = -128;

// The widths of the family, from 4 bits down to 1.
constexpr int kWidths = 4;
constexpr int widthOf(int format) { return format == kRot4 ? 0 : format == kRot3 ? 1 : format == kRot2 ? 2 : 3; }
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

// Moves nibble i of every byte to its low bits. AVX-512 shifts by a vector of equal counts, because gcc 12 spills accumulators around a
// shift by a single count that is not a constant.
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

struct LevelTables {
  int8_t entries[2][16];
  explicit constexpr LevelTables(int format) : entries() {
    for (int i = 0; i < 16; i++) {
      entries[0][i] = levelsOf(format)[format == kRot4 ? i : format == kRot3 ? (i & 3) << 1 | (i >> 2 & 1) : i & 3];
      entries[1][i] = levelsOf(format)[format == kRot4 ? i : i >> (format == kRot3 ? 1 : 2)];
    }
  }
};

// Tables of rot1: one lookup finds the level of row f in a nibble that holds bits of four rows.
struct SignTables {
  int8_t entries[4][16];
  constexpr SignTables() : entries() {
    for (int f = 0; f < 4; f++) {
      for (int i = 0; i < 16; i++) entries[f][i] = kRot1Levels[i >> f & 1];
    }
  }
};

// Rows of 64 levels, with `bias` added. Rows 4j + P and 4j + P + 2 (P = 0 or 1) are unpacked together, because their fields lie in the two
// nibbles of a byte. The bits of a code may be in any order within its nibble: the tables are ordered to match.
template <int Format>
struct LevelRows {
  static constexpr bool kPaired = Format == kRot3;
  const uint8_t* hi;
  const uint8_t* lo;
  Bytes tables[2];

  MEMBER LevelRows(const uint8_t* high, const uint8_t* low, int bias) : hi(high), lo(low) {
    static constexpr LevelTables kTables(Format);
    for (int p = 0; p < 2; p++) tables[p] = loadTable(kTables.entries[p]) ^ splatByte(bias);
  }

  // Vector `part` of both rows. Parity (used by rot3): j % 2 if it is known at compile time, else 2.
  template <int P, int Parity>
  MEMBER void pair(size_t j, int part, Bytes& first, Bytes& second) const {
    const size_t within = static_cast<size_t>(part) * kVectorBytes;
    const Bytes h = loadBytes(hi + j * 64 + within);
    if constexpr (Format == kRot3) {
      // Four rows take up half the bits of each byte of the 1-bit plane.
      const Bytes eight = loadBytes(lo + j / 2 * 64 + within);
      const Bytes l = Parity == 2 ? halfOf(eight, j % 2) : eight >> Parity * 4;
      first = nibbleOf(h, P == 0 ? l << 2 : l, P == 0 ? 3 : 12);
      second = nibbleOf(h >> 4, P == 0 ? l : l >> 2, P == 0 ? 3 : 12);
    } else {
      first = h;
      if constexpr (Format == kRot4) {
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
struct LevelRows<kRot1> {
  static constexpr bool kPaired = true;
  const uint8_t* lo;
  Bytes tables[4];

  MEMBER LevelRows(const uint8_t*, const uint8_t* low, int bias) : lo(low) {
    static constexpr SignTables kTables;
    for (int f = 0; f < 4; f++) tables[f] = loadTable(kTables.entries[f]) ^ splatByte(bias);
  }

  template <int First, int B, int Parity>
  MEMBER void at(size_t j, int part, Bytes* out) const {
    const Bytes eight = loadBytes(lo + j / 2 * 64 + static_cast<size_t>(part) * kVectorBytes);
    const Bytes four = (Parity == 2 ? halfOf(eight, j % 2) : eight >> Parity * 4) & splatByte(15);
    repeat<B>([&](auto b) MEMBER { out[b.value] = lookUp(tables[First + b.value * (4 / B)], four); });
  }
};

// Calls f with the LevelRows of a side.
template <class F>
INLINE void withLevels(int format, const uint8_t* hi, const uint8_t* lo, int bias, const F& f) {
  switch (format) {
    case kRot4: f(LevelRows<kRot4>(hi, lo, bias)); break;
    case kRot3: f(LevelRows<kRot3>(hi, lo, bias)); break;
    case kRot2: f(LevelRows<kRot2>(hi, lo, bias)); break;
    case kRot1: f(LevelRows<kRot1>(hi, lo, bias)); break;
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

static void unpackRot(int format, const uint8_t* hi, const uint8_t* lo, size_t elements, int8_t* tile) {
  withLevels(format, hi, lo, 0, [&](const auto& rows) MEMBER { unpackRows(rows, elements, tile); });
}
