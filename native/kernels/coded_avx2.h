// One coded side of one page: the functions of coded.h (scoreCoded, weighRow, mixCoded) for the other x86 sets. Codes are unpacked in
// registers where few rows meet them, and from kUnpackedRows rows on once, into a tile in L1.
//   AVX2 with AVX-VNNI   vpdpbusd takes levels + 128 as they come out of the table and the two planes of a row; 16 registers
//   AVX2, AVX-512        vpmaddwd on int16: bytes 0, 2 and bytes 1, 3 of the four steps of an output apart, one mask and one shift
// Eight (16) outputs a vector. A vector of the high plane holds codes of four of them, 16 outputs apart.
// Integers and the order of float operations are those of coded.h: equal bits everywhere.
#pragma once

#if defined(__AVX2__) && !defined(__AVX512VNNI__)
#define PALIMPSEST_FUSED

// Vectors of one 64-byte row of a tile.
constexpr int kRowVectors = 64 / kCodeLanes;

// A row of integers is read four at a time, in two parts.
//   VNNI       bytes: the high plane; kContractionMax bytes later the low one
//   otherwise  int16, the four of a quad as x0, x2, x1, x3
// correction: -128 * sum(x), because levels are unsigned.
#if defined(__AVXVNNI__)

INLINE void splitRow(const int16_t* x, int count, IntegerRow& out) {
  int32_t sum = 0;
  for (int c = 0; c < count; c++) {
    out.bytes[c] = static_cast<int8_t>((x[c] + 128) >> 8);
    out.bytes[kContractionMax + c] = static_cast<int8_t>(x[c]);
    sum += x[c];
  }
  out.correction = -128 * sum;
}

INLINE const int8_t* quadOf(const IntegerRow& x, int q, int part) { return x.bytes + part * kContractionMax + q * 4; }

// As assembly, like vpdpbusd in dot_i8.h: gcc 12 copies and spills accumulators around the intrinsics.
INLINE Codes splatQuad(const int8_t* p) {
  Codes v;
  asm("vpbroadcastd %1, %0" : "=x"(v) : "m"(*reinterpret_cast<const int8_t(*)[4]>(p)));
  return v;
}
INLINE void addDots(Codes& sum, Codes levels, Codes x) { asm("%{vex%} vpdpbusd %2, %1, %0" : "+x"(sum) : "x"(levels), "x"(x)); }

// Unsigned levels and what the two parts of a row meet of them.
template <int B>
struct Terms {
  Codes level[B];
  MEMBER void split() {}
  template <int I> MEMBER void addFirst(Codes& high, Codes x) const { addDots(high, level[I], x); }
  template <int I> MEMBER void addSecond(Codes&, Codes& low, Codes x) const { addDots(low, level[I], x); }
};
INLINE Codes total(Codes high, Codes low) { return _mm256_add_epi32(_mm256_slli_epi32(high, 8), low); }

#else

INLINE void splitRow(const int16_t* x, int count, IntegerRow& out) {
  int32_t sum = 0;
  for (int c = 0; c < count; c += 4) {
    const int16_t quad[4] = {x[c], x[c + 2], x[c + 1], x[c + 3]};
    __builtin_memcpy(out.bytes + c * 2, quad, sizeof quad);
    sum += x[c] + x[c + 1] + x[c + 2] + x[c + 3];
  }
  out.correction = -128 * sum;
}

INLINE const int8_t* quadOf(const IntegerRow& x, int q, int part) { return x.bytes + q * 8 + part * 4; }

INLINE Codes splatQuad(const int8_t* p) {
  int32_t pair;
  __builtin_memcpy(&pair, p, sizeof pair);
  return pairs(pair);
}

// As assembly for the same reason: gcc 12 adds the products of both parts first, and then keeps sums in memory.
INLINE void addWords(Codes& sum, Codes levels, Codes x) {
  Codes product;
  asm("vpmaddwd %3, %2, %1\n\tvpaddd %1, %0, %0" : "+v"(sum), "=&v"(product) : "v"(levels), "v"(x));
}

// One sum of int16 products serves both parts; `low` only brings the correction.
template <int B>
struct Terms {
  Codes level[B], odd[B];
  MEMBER void split() {
    repeat<B>([&](auto b) MEMBER {
      odd[b.value] = shiftDown<8>(level[b.value]);
      level[b.value] = andCodes(level[b.value], pairs(0x00ff00ff));
    });
  }
  template <int I> MEMBER void addFirst(Codes& high, Codes x) const { addWords(high, level[I], x); }
  template <int I> MEMBER void addSecond(Codes& high, Codes&, Codes x) const { addWords(high, odd[I], x); }
};

#endif

#if defined(__AVX512BW__)
// mask ? a : b, bit by bit
INLINE Codes choose(Codes a, Codes b, Codes mask) { return _mm512_ternarylogic_epi32(a, b, mask, 0xE4); }
INLINE VecF floatsOf(Codes v) { return _mm512_cvtepi32_ps(v); }
INLINE Codes flipTop(Codes v) { return _mm512_xor_si512(v, splatByte(0x80)); }
#else
INLINE Codes choose(Codes a, Codes b, Codes mask) { return orCodes(andCodes(a, mask), _mm256_andnot_si256(mask, b)); }
INLINE VecF floatsOf(Codes v) { return _mm256_cvtepi32_ps(v); }
INLINE Codes flipTop(Codes v) { return _mm256_xor_si256(v, splatByte(0x80)); }
#endif

template <int From, int To>
INLINE Codes moveBits(Codes v) {
  if constexpr (From > To) return shiftDown<From - To>(v);
  else if constexpr (From < To) return shiftUp<To - From>(v);
  else return v;
}

// Levels + 128 of one side of one head; row numbers as in rot.h. Tables are repeated, so bits of an index below the fourth need no mask.
template <int Format>
struct LevelRows {
  const uint8_t* hi;
  const uint8_t* lo;
  Codes table;

  explicit MEMBER LevelRows(const SideView& side)
      : hi(side.at(kRotHigh)), lo(side.at(kRotLow)), table(flipTop(loadTable(Format == kRot4 ? kRot4Levels : Format == kRot3 ? kRot3Levels : kRot2Levels))) {}

  // Rows 4j + First, 4j + First + 4/B, ...: vector `part` of each. Parity = j % 2.
  template <int First, int B, int Parity>
  MEMBER void at(size_t j, int part, Codes* out) const {
    const size_t within = static_cast<size_t>(part) * kCodeLanes;
    const Codes h = loadCodes(hi + j * 64 + within);
    if constexpr (Format == kRot4) {
      const Codes l = loadCodes(lo + j * 64 + within);
      if constexpr (B == 1) {
        out[0] = level(orCodes(andCodes(moveBits<2 * First, 2>(h), splatByte(12)), andCodes(moveBits<2 * First, 0>(l), splatByte(3))));
      } else {
        // Two rows at once: the low half of every byte is row P, the high half row P + 2.
        repeat<B / 2>([&](auto p) MEMBER {
          constexpr int P = First + p.value;
          const Codes both = choose(moveBits<2 * P, 2>(h), moveBits<2 * P, 0>(l), splatByte(0xcc));
          out[p.value] = level(andCodes(both, splatByte(15)));
          out[p.value + B / 2] = level(andCodes(shiftDown<4>(both), splatByte(15)));
        });
      }
    } else {
      Codes l = h;
      // The 1-bit plane has two such groups of rows in a vector.
      if constexpr (Format == kRot3) l = loadCodes(lo + j / 2 * 64 + within);
      repeat<B>([&](auto b) MEMBER {
        constexpr int F = First + b.value * (4 / B);
        if constexpr (Format == kRot3) {
          out[b.value] = level(orCodes(andCodes(moveBits<2 * F, 1>(h), splatByte(6)), andCodes(moveBits<F + 4 * Parity, 0>(l), splatByte(1))));
        } else {
          out[b.value] = level(andCodes(moveBits<2 * F, 0>(h), splatByte(15)));
        }
      });
    }
  }

 private:
  MEMBER Codes level(Codes index) const { return lookUp(table, index); }
};

template <int Format, bool>
using SideRows = LevelRows<Format>;

template <int R, int B>
struct Sums {
  Codes high[R * B], low[R * B];

  explicit MEMBER Sums(const IntegerRow* x) {
    repeat<R * B>([&](auto i) MEMBER {
#if defined(__AVXVNNI__)
      high[i.value] = noBytes();
      low[i.value] = pairs(x[i.value / B].correction);
#else
      high[i.value] = pairs(x[i.value / B].correction);
#endif
    });
  }
  // One quad of contraction.
  MEMBER void add(Terms<B>& terms, const IntegerRow* x, int q) {
    terms.split();
    repeat<R>([&](auto r) MEMBER {
      const Codes first = splatQuad(quadOf(x[r.value], q, 0));
      repeat<B>([&](auto b) MEMBER { terms.template addFirst<b.value>(high[r.value * B + b.value], first); });
      const Codes second = splatQuad(quadOf(x[r.value], q, 1));
      repeat<B>([&](auto b) MEMBER { terms.template addSecond<b.value>(high[r.value * B + b.value], low[r.value * B + b.value], second); });
    });
  }
  MEMBER Codes of(int i) const {
#if defined(__AVXVNNI__)
    return total(high[i], low[i]);
#else
    return high[i];
#endif
  }
};

// Vectors of levels that meet R rows at once: what the registers hold beside the sums.
template <int R>
constexpr int vectorsFor() {
#if defined(__AVX512BW__)
  return R <= 3 ? 4 : 2;
#elif defined(__AVXVNNI__)
  return R == 1 ? 4 : R <= 3 ? 2 : 1;
#else
  return R == 1 ? 4 : R <= 5 ? 2 : 1;
#endif
}

// Calls done(row, first output, sums) for kLanes outputs at a time. Groups: of four rows of a tile, a quad.
template <int R, int Groups, int Group = 0, int First = 0, class Rows, class Done>
INLINE void sumSide(const Rows& rows, int quads, const IntegerRow* x, const Ahead& ahead, const Done& done) {
  constexpr int B = vectorsFor<R>();
  if constexpr (First == 4 / B) {
    sumSide<R, Groups, Group + 1>(rows, quads, x, ahead, done);
  } else if constexpr (Group < Groups) {
    for (int part = 0; part < kRowVectors; part++) {
      Sums<R, B> sums(x);
      // Where the parity of a group is not the same in every quad, two quads a step.
      constexpr int Step = Groups == 1 ? 2 : 1;
      for (int q = 0; q < quads; q += Step) {
        repeat<Step>([&](auto s) MEMBER {
          const size_t j = static_cast<size_t>(q + s.value) * Groups + Group;
          if (First == 0 && part == 0) fetch(ahead, j);
          Terms<B> terms;
          rows.template at<First, B, (Groups == 1 ? s.value : Group % 2)>(j, part, terms.level);
          sums.add(terms, x, q + s.value);
        });
      }
      repeat<R>([&](auto r) MEMBER {
        repeat<B>([&](auto b) MEMBER {
          done(r.value, Group * 64 + (First + b.value * (4 / B)) * 16 + part * kLanes, sums.of(r.value * B + b.value));
        });
      });
    }
    sumSide<R, Groups, Group, First + 1>(rows, quads, x, ahead, done);
  }
}

// The same of a tile of levels: int8 (q8), or with 128 added to them.
template <int R, int B, bool Signed, class Done>
INLINE void sumTileBlock(const uint8_t* tile, int quads, size_t rowBytes, int o, const IntegerRow* x, const Ahead& ahead, const Done& done) {
  Sums<R, B> sums(x);
  for (int q = 0; q < quads; q++) {
    if (o == 0) fetch(ahead, q);
    Terms<B> terms;
    repeat<B>([&](auto b) MEMBER {
      const Codes level = loadCodes(tile + q * rowBytes + o * 4 + b.value * kCodeLanes);
      terms.level[b.value] = Signed ? flipTop(level) : level;
    });
    sums.add(terms, x, q);
  }
  repeat<R>([&](auto r) MEMBER {
    repeat<B>([&](auto b) MEMBER { done(r.value, o + b.value * kLanes, sums.of(r.value * B + b.value)); });
  });
}

template <int R, bool Signed, class Done>
INLINE void sumTile(const uint8_t* tile, int quads, int outputs, const IntegerRow* x, const Ahead& ahead, const Done& done) {
  constexpr int B = vectorsFor<R>();
  const size_t rowBytes = static_cast<size_t>(outputs) * 4;
  int o = 0;
  for (; o + B * kLanes <= outputs; o += B * kLanes) sumTileBlock<R, B, Signed>(tile, quads, rowBytes, o, x, ahead, done);
  if constexpr (B > 1) {
    for (; o < outputs; o += kLanes) sumTileBlock<R, 1, Signed>(tile, quads, rowBytes, o, x, ahead, done);
  }
}

// Rows that meet a side at once, and with how many of them its codes are unpacked once, into a tile: as measured at g = 1 to 8, d = 64.
#if defined(__AVXVNNI__)
constexpr int kBlockRows = 4, kUnpackedRows = 5;
#elif defined(__AVX512BW__)
constexpr int kBlockRows = 8, kUnpackedRows = 2;
#else
constexpr int kBlockRows = 5, kUnpackedRows = 1;
#endif

// tile: levels of the side, + 128 where it was unpacked from rows of levels, or null.
template <class F, int R>
static __attribute__((noinline)) void scoreBlock(const SideView& k, const uint8_t* tile, const float* scale, int d, const IntegerRow* x,
                                                 const float* factor, const float* offset, float* y, const Ahead& ahead) {
  const auto keep = [&](int r, int o, Codes sum) MEMBER {
    store(y + r * kPageTokens + o, floatsOf(sum) * (load(scale + o) * factor[r]) + offset[r]);
  };
  if (tile != nullptr) return sumTile<R, !HasLevelRows<F>>(tile, d / 4, kPageTokens, x, ahead, keep);
  if constexpr (HasLevelRows<F> && R < kUnpackedRows) F::template withLevelRows<true>(k, [&](const auto& rows) MEMBER { sumSide<R, 2>(rows, d / 4, x, ahead, keep); });
}

template <int R, class Rows, class Done>
INLINE void sumValues(const Rows& rows, int d, const IntegerRow* weights, const Ahead& ahead, const Done& done) {
  constexpr int kQuads = kPageTokens / 4;
  switch (d) {
    case 64: sumSide<R, 1>(rows, kQuads, weights, ahead, done); break;
    case 128: sumSide<R, 2>(rows, kQuads, weights, ahead, done); break;
    default: sumSide<R, 4>(rows, kQuads, weights, ahead, done); break;
  }
}

template <class F, int R>
static __attribute__((noinline)) void mixBlock(const SideView& v, const uint8_t* tile, int d, const IntegerRow* weights, float* y,
                                               const Ahead& ahead) {
  const auto add = [&](int r, int o, Codes sum) MEMBER {
    float* to = y + r * d + o;
    store(to, load(to) + floatsOf(sum) * weights[r].step);
  };
  if (tile != nullptr) return sumTile<R, !HasLevelRows<F>>(tile, kPageTokens / 4, d, weights, ahead, add);
  if constexpr (HasLevelRows<F> && R < kUnpackedRows) F::template withLevelRows<false>(v, [&](const auto& rows) MEMBER { sumValues<R>(rows, d, weights, ahead, add); });
}

// Calls f(Number<R>, first row) for blocks of rows.
template <class F>
INLINE void eachBlock(int n, const F& f) {
  for (int i = 0; i < n;) {
    const int left = n - i;
#if defined(__AVXVNNI__)
    const int size = left <= kBlockRows ? left : kBlockRows - 1;  // four are only as good as two pairs
#else
    const int blocks = (left + kBlockRows - 1) / kBlockRows, size = (left + blocks - 1) / blocks;
#endif
    repeat<kBlockRows>([&](auto r) MEMBER {
      if (size == r.value + 1) f(Number<r.value + 1>{}, i);
    });
    i += size;
  }
}

template <class Rows>
INLINE void unpackRows(const Rows& rows, int d, uint8_t* tile) {
  for (size_t j = 0; j < static_cast<size_t>(kPageTokens) * d / 256; j += 2) {
    repeat<2>([&](auto parity) MEMBER {
      for (int part = 0; part < kRowVectors; part++) {
        Codes level[4];
        rows.template at<0, 4, parity.value>(j + parity.value, part, level);
        repeat<4>([&](auto f) MEMBER {
          storeLevels(reinterpret_cast<int8_t*>(tile) + (j + parity.value) * 256 + f.value * 64 + part * kCodeLanes, level[f.value]);
        });
      }
    });
  }
}

// Levels + 128 of a side as a tile.
template <class F>
static __attribute__((noinline)) void unpackSide(const SideView& side, int d, uint8_t* tile) {
  F::template withLevelRows<true>(side, [&](const auto& rows) MEMBER { unpackRows(rows, d, tile); });
}

// The levels of a side as a tile, or null where they are better met in registers. room: [128 * d].
template <class F>
INLINE const uint8_t* tileFor(const SideView& side, int d, bool unpacked, int8_t* room) {
  uint8_t* tile = reinterpret_cast<uint8_t*>(room);
  if constexpr (!HasLevelRows<F>) return reinterpret_cast<const uint8_t*>(F::levels(side, d, room));
  else if (!unpacked) return nullptr;
  else unpackSide<F>(side, d, tile);
  return tile;
}

template <class F>
static void scoreCoded(const SideView& k, int8_t* room, const float* scale, int d, const IntegerRow* x, int n, const float* factor, const float* offset,
                       float* y, const SideView* next) {
  const uint8_t* tile = tileFor<F>(k, d, n >= kUnpackedRows, room);
  const Ahead ahead = aheadOf(next, k, tile == nullptr ? kElementsAStep : 2 * kElementsAStep), none = aheadOf(nullptr, k, 0);
  eachBlock(n, [&](auto r, int i) MEMBER {
    scoreBlock<F, r.value>(k, tile, scale, d, x + i, factor + i, offset + i, y + i * kPageTokens, i == 0 ? ahead : none);
  });
}

template <class F>
static void mixCoded(const SideView& v, int8_t* room, int d, const IntegerRow* weights, int n, float* y, const SideView* next) {
  const uint8_t* tile = tileFor<F>(v, d, d % 64 != 0 || n >= kUnpackedRows, room);
  const Ahead ahead = aheadOf(next, v, tile == nullptr ? kElementsAStep : static_cast<size_t>(4 * d)), none = aheadOf(nullptr, v, 0);
  eachBlock(n, [&](auto r, int i) MEMBER {
    mixBlock<F, r.value>(v, tile, d, weights + i, y + static_cast<size_t>(i) * d, i == 0 ? ahead : none);
  });
}

INLINE bool mixesCoded(int) { return true; }

// Sixteen (32) tokens of a row as int16, in the order in which packing leaves them.
INLINE Codes packTokens(const float* p, const float* scale) {
  const VecF a = load(p) * load(scale), b = load(p + kLanes) * load(scale + kLanes);
  // Rounds half to even, as adding 1.5 * 2^23 does.
#if defined(__AVX512BW__)
  return _mm512_packs_epi32(_mm512_cvtps_epi32(a), _mm512_cvtps_epi32(b));
#else
  return _mm256_packs_epi32(_mm256_cvtps_epi32(a), _mm256_cvtps_epi32(b));
#endif
}

// One row of weights in the layout of splitRow.
INLINE void weighRow(const float* p, const float* scale, IntegerRow& out) {
  Codes sum = noBytes();
  const Codes ones = pairs(0x00010001);
#if defined(__AVXVNNI__)
  // Packing twice answers the quads as 0, 2, 4, 6, 1, 3, 5, 7.
  const __m256i order = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);
  for (int t = 0; t < kPageTokens; t += 32) {
    const __m256i a = packTokens(p + t, scale + t), b = packTokens(p + t + 16, scale + t + 16);
    sum = addPairs(addPairs(sum, a, ones), b, ones);
    const __m256i half = _mm256_set1_epi16(128);
    const __m256i hi = _mm256_packs_epi16(_mm256_srai_epi16(_mm256_add_epi16(a, half), 8), _mm256_srai_epi16(_mm256_add_epi16(b, half), 8));
    const __m256i lo = _mm256_packs_epi16(evenBytes(a), evenBytes(b));
    _mm256_store_si256(reinterpret_cast<__m256i*>(out.bytes + t), _mm256_permutevar8x32_epi32(hi, order));
    _mm256_store_si256(reinterpret_cast<__m256i*>(out.bytes + kContractionMax + t), _mm256_permutevar8x32_epi32(lo, order));
  }
#else
  const __m128i crossed = _mm_setr_epi8(0, 1, 4, 5, 2, 3, 6, 7, 8, 9, 12, 13, 10, 11, 14, 15);
  for (int t = 0; t < kPageTokens; t += 2 * kLanes) {
    const Codes packed = packTokens(p + t, scale + t);
    sum = addPairs(sum, packed, ones);
#if defined(__AVX512BW__)
    const __m512i quads = _mm512_permutexvar_epi64(_mm512_setr_epi64(0, 2, 4, 6, 1, 3, 5, 7), packed);
    _mm512_store_si512(out.bytes + t * 2, _mm512_shuffle_epi8(quads, _mm512_broadcast_i32x4(crossed)));
#else
    const __m256i quads = _mm256_permute4x64_epi64(packed, 0xd8);
    _mm256_store_si256(reinterpret_cast<__m256i*>(out.bytes + t * 2), _mm256_shuffle_epi8(quads, _mm256_broadcastsi128_si256(crossed)));
#endif
  }
#endif
#if defined(__AVX512BW__)
  const __m256i eight = _mm256_add_epi32(_mm512_castsi512_si256(sum), _mm512_extracti64x4_epi64(sum, 1));
#else
  const __m256i eight = sum;
#endif
  const __m128i four = _mm_add_epi32(_mm256_castsi256_si128(eight), _mm256_extracti128_si256(eight, 1));
  const __m128i two = _mm_add_epi32(four, _mm_unpackhi_epi64(four, four));
  out.correction = -128 * (_mm_cvtsi128_si32(two) + _mm_extract_epi32(two, 1));
}

#endif
