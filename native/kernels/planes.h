// Unpacks bit planes of codes of 1 to 4 bits into an i8 tile of the levels that they stand for. It uses integers only,
// so the result is the same on every ISA.
//
// The codes of one (page, side, head) are laid out in i8 tile order (kernels.h) as rows of 64 codes; a row unpacks to
// 64 bytes.
//   hi          the two high bits of a code. 64 plane bytes hold rows 4j..4j+3: bits 2f..2f+1 of byte i = lane i of row
//   4j+f.
//   lo, 4 bits  the two low bits, in the same layout.
//   lo, 3 bits  the third bit alone. 64 plane bytes hold rows 8j..8j+7: bit f of byte i = lane i of row 8j+f.
//   lo, 2 bits  nothing.
//   lo, 1 bit   the code, in the layout of the third bit; there is no hi.
// A demotion to 3 or 2 bits keeps hi as it is and narrows or drops lo. The number of elements is a multiple of 512 (128
// tokens, d a multiple of 4).
#pragma once

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

// Calls f with the LevelRows of codes of so many bits, which are `Least` or more.
template <int Least = 1, class F>
INLINE void withLevels(int bits, const LevelTables& levels, const uint8_t* hi, const uint8_t* lo, int bias, const F& f) {
  switch (bits) {
    case 4: f(LevelRows<4>(levels, hi, lo, bias)); break;
    case 3: f(LevelRows<3>(levels, hi, lo, bias)); break;
    case 2: f(LevelRows<2>(levels, hi, lo, bias)); break;
    case 1:
      if constexpr (Least == 1) {
        f(LevelRows<1>(levels, hi, lo, bias));
        break;
      }
      [[fallthrough]];
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
