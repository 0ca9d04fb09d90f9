// One coded side of one page, unpacked in registers: codes -> levels -> integer dots -> floats, nothing stored in between (AVX-512 with VNNI).
//   scoreCoded   y[i][t] = (x[i] . levels[t]) * (scale[t] * factor[i]) + offset[i]                          keys
//   mixCoded     y[i][c] += step[i] * (w[i] . levels[c]), w and step from weighRows (attend.h)            values
// vpdpbusd multiplies unsigned bytes with signed ones. Queries have signs, so levels of keys get 128 added, taken away again by a correction;
// weights have none, so levels of values keep theirs.
// x, y are rows without gaps. `next` (or null) is a side that will be met soon: its lines are asked for while this one is read.
// The integers are those of unpackRot and dotI8, the floats those of scaleDots, weighI16 and addDots, in the same order: equal bits everywhere.
#pragma once

#if defined(__AVX512VNNI__)
#define PALIMPSEST_FUSED

// Levels, + 128 for keys; `order` says which code stands at which place of the table.
template <bool Keys, class Order>
INLINE __m512i levelTable(int format, const Order& order) {
  const int8_t* levels = levelsOf(format);
  alignas(16) int8_t table[16];
  for (int i = 0; i < 16; i++) table[i] = levels[order(i)];
  return Keys ? _mm512_xor_si512(loadTable(table), _mm512_set1_epi8(static_cast<char>(0x80))) : loadTable(table);
}

// The level at the low four bits of every byte.
INLINE __m512i levelsAt(__m512i table, __m512i index) { return _mm512_shuffle_epi8(table, _mm512_and_si512(index, _mm512_set1_epi8(15))); }

// mask ? a : b, bit by bit
INLINE __m512i choose(__m512i a, __m512i b, __m512i mask) { return _mm512_ternarylogic_epi32(a, b, mask, 0xE4); }

#define PALIMPSEST_TIMES32(v) v, v, v, v, v, v, v, v, v, v, v, v, v, v, v, v, v, v, v, v, v, v, v, v, v, v, v, v, v, v, v, v
alignas(64) constexpr uint16_t kHalfShift[2][32] = {{PALIMPSEST_TIMES32(0)}, {PALIMPSEST_TIMES32(4)}};
#undef PALIMPSEST_TIMES32

// Rows of 64 levels of one side of one head; row numbers as in rot.h. Rows 4j..4j+3 come out of one vector of each plane, in pairs: P and
// P + 2. The fields of two rows lie in the two nibbles of a byte, so that one operation joins the planes for both; what a nibble holds in
// which order is settled by the order of the table.
template <int Format, bool Keys>
struct LevelRows;

template <bool Keys>
struct LevelRows<kRot4, Keys> {
  static constexpr bool kKeys = Keys;
  const uint8_t* hi;
  const uint8_t* lo;
  __m512i table;

  explicit MEMBER LevelRows(const SideView& side)
      : hi(side.at(kRotHigh)), lo(side.at(kRotLow)), table(levelTable<Keys>(kRot4, [](int i) MEMBER { return (i & 3) << 2 | i >> 2; })) {}

  template <int P>
  MEMBER void pair(size_t j, __m512i& first, __m512i& second) const {
    const __m512i h = _mm512_loadu_si512(hi + j * 64), l = _mm512_loadu_si512(lo + j * 64);
    const __m512i mask = _mm512_set1_epi8(0x33);
    const __m512i codes = P == 0 ? choose(h, _mm512_slli_epi16(l, 2), mask) : choose(_mm512_srli_epi16(h, 2), l, mask);
    first = levelsAt(table, codes);
    second = levelsAt(table, _mm512_srli_epi16(codes, 4));
  }
};

// The bit of a row stands above (even rows) or below (odd rows) its two high bits; the fourth bit of an index is whatever it is.
template <bool Keys>
struct LevelRows<kRot3, Keys> {
  static constexpr bool kKeys = Keys;
  const uint8_t* hi;
  const uint8_t* lo;
  __m512i even, odd;

  explicit MEMBER LevelRows(const SideView& side)
      : hi(side.at(kRotHigh)), lo(side.at(kRotLow)), even(levelTable<Keys>(kRot3, [](int i) MEMBER { return (i & 3) << 1 | (i >> 2 & 1); })),
        odd(levelTable<Keys>(kRot3, [](int i) MEMBER { return i >> 1; })) {}

  template <int P>
  MEMBER void pair(size_t j, __m512i& first, __m512i& second) const {
    const __m512i h = _mm512_loadu_si512(hi + j * 64);
    // The 1-bit plane has two such groups of rows in a vector.
    const __m512i l = _mm512_srlv_epi16(_mm512_loadu_si512(lo + j / 2 * 64), _mm512_load_si512(kHalfShift[j % 2]));
    const __m512i up = _mm512_srli_epi16(h, 4);
    if constexpr (P == 0) {
      first = levelsAt(even, choose(h, _mm512_slli_epi16(l, 2), _mm512_set1_epi8(0x03)));
      second = levelsAt(even, choose(up, l, _mm512_set1_epi8(0x03)));
    } else {
      first = levelsAt(odd, choose(h, l, _mm512_set1_epi8(0x0c)));
      second = levelsAt(odd, choose(up, _mm512_srli_epi16(l, 2), _mm512_set1_epi8(0x0c)));
    }
  }
};

template <bool Keys>
struct LevelRows<kRot2, Keys> {
  static constexpr bool kKeys = Keys;
  const uint8_t* hi;
  __m512i even, odd;

  explicit MEMBER LevelRows(const SideView& side)
      : hi(side.at(kRotHigh)), even(levelTable<Keys>(kRot2, [](int i) MEMBER { return i & 3; })), odd(levelTable<Keys>(kRot2, [](int i) MEMBER { return i >> 2; })) {}

  template <int P>
  MEMBER void pair(size_t j, __m512i& first, __m512i& second) const {
    const __m512i h = _mm512_loadu_si512(hi + j * 64);
    const __m512i table = P == 0 ? even : odd;
    first = levelsAt(table, h);
    second = levelsAt(table, _mm512_srli_epi16(h, 4));
  }
};

// The same rows of a tile that holds int8 levels already.
template <bool Keys>
struct TileRows {
  static constexpr bool kKeys = Keys;
  const int8_t* tile;
  template <int P>
  MEMBER void pair(size_t j, __m512i& first, __m512i& second) const {
    const __m512i flip = _mm512_set1_epi8(Keys ? static_cast<char>(0x80) : 0);
    first = _mm512_xor_si512(_mm512_loadu_si512(tile + (j * 4 + P) * 64), flip);
    second = _mm512_xor_si512(_mm512_loadu_si512(tile + (j * 4 + P + 2) * 64), flip);
  }
};

// Of `Pairs` pairs from P on: the block of 16 outputs that vector i belongs to.
constexpr int blockOf(int P, int i) { return P + i / 2 + i % 2 * 2; }

template <bool Keys>
INLINE void addProducts(__m512i& sum, __m512i levels, __m512i x) {
  if constexpr (Keys) addDots(sum, levels, x);
  else addDots(sum, x, levels);
}

// Sums of R rows over the blocks of the pairs [P, P + Pairs) of one group of 64 outputs; `groups` such groups a quad.
template <int R, int P, int Pairs, class Rows, class Done>
INLINE void sumBlocks(const Rows& rows, int quads, int groups, int group, const IntegerRow* x, const Ahead& ahead, const Done& done) {
  constexpr int kBlocks = 2 * Pairs;
  __m512i high[R * kBlocks], low[R * kBlocks];
  repeat<R * kBlocks>([&](auto i) MEMBER {
    high[i.value] = _mm512_setzero_si512();
    low[i.value] = Rows::kKeys ? _mm512_set1_epi32(x[i.value / kBlocks].correction) : _mm512_setzero_si512();
  });
  // Lines are asked for in the order of their addresses: at every quad, or at every other one where two loops share a side.
  const size_t first = static_cast<size_t>(Pairs == 2 ? group : group * 2 + P) * quads;
  for (int q = 0; q < quads; q++) {
    const size_t j = static_cast<size_t>(q) * groups + group;
    if (Pairs == 2 || q % 2 == 0) fetch(ahead, (first + q) * Pairs / 2);
    __m512i level[kBlocks];
    rows.template pair<P>(j, level[0], level[1]);
    if constexpr (Pairs == 2) rows.template pair<P + 1>(j, level[2], level[3]);
    repeat<R>([&](auto r) MEMBER {
      const __m512i hi = quadOf(x[r.value].bytes, q);
      repeat<kBlocks>([&](auto b) MEMBER { addProducts<Rows::kKeys>(high[r.value * kBlocks + b.value], level[b.value], hi); });
      const __m512i lo = quadOf(x[r.value].bytes + kContractionMax, q);
      repeat<kBlocks>([&](auto b) MEMBER { addProducts<Rows::kKeys>(low[r.value * kBlocks + b.value], level[b.value], lo); });
    });
  }
  repeat<R>([&](auto r) MEMBER {
    repeat<kBlocks>([&](auto b) MEMBER {
      constexpr int i = r.value * kBlocks + b.value;
      done(r.value, group * 64 + blockOf(P, b.value) * 16, _mm512_add_epi32(_mm512_slli_epi32(high[i], 8), low[i]));
    });
  });
}

// Calls done(row, first output, sums) for every block of 16 outputs. Accumulators: 3 rows x 4 vectors x 2 planes, or 6 x 2 x 2.
template <int R, class Rows, class Done>
INLINE void sumSide(const Rows& rows, int quads, int groups, const IntegerRow* x, const Ahead& ahead, const Done& done) {
  for (int group = 0; group < groups; group++) {
    if constexpr (R <= 3) {
      sumBlocks<R, 0, 2>(rows, quads, groups, group, x, ahead, done);
    } else {
      sumBlocks<R, 0, 1>(rows, quads, groups, group, x, ahead, done);
      sumBlocks<R, 1, 1>(rows, quads, groups, group, x, ahead, done);
    }
  }
}

template <int Format, bool Keys>
using SideRows = LevelRows<Format, Keys>;

// Calls f with the rows of levels of a side: in registers where the format can, else of its tile.
template <class F, bool Keys, class Done>
INLINE void withLevels(const SideView& side, const int8_t* tile, const Done& f) {
  if constexpr (HasLevelRows<F>) F::template withLevelRows<Keys>(side, f);
  else f(TileRows<Keys>{tile});
}

// The tile of a side whose levels are not made in registers.
template <class F>
INLINE const int8_t* tileFor(const SideView& side, int d, int8_t* tile) {
  if constexpr (HasLevelRows<F>) return nullptr;
  else return F::levels(side, d, tile);
}

template <class F, int R>
static __attribute__((noinline)) void scoreBlock(const SideView& k, const int8_t* tile, const float* scale, int d, const IntegerRow* x, const float* factor,
                                                 const float* offset, float* y, const Ahead& ahead) {
  withLevels<F, true>(k, tile, [&](const auto& rows) MEMBER {
    sumSide<R>(rows, d / 4, 2, x, ahead, [&](int r, int o, __m512i sum) MEMBER {
      const VecF dots = reinterpret_cast<VecF>(_mm512_cvtepi32_ps(sum));
      store(y + r * kPageTokens + o, dots * (load(scale + o) * factor[r]) + offset[r]);
    });
  });
}

// One row of weights (probabilities times scales) as integers: the high bytes, kContractionMax bytes later the low ones.
INLINE void weighRow(const float* p, const float* scale, IntegerRow& out) {
  // Packing takes 4 x 4 quads and answers them transposed.
  const __m512i order = _mm512_set_epi32(15, 11, 7, 3, 14, 10, 6, 2, 13, 9, 5, 1, 12, 8, 4, 0);
  // Rounds half to even, as adding 1.5 * 2^23 does.
  const auto rounded = [&](int t) MEMBER { return _mm512_cvtps_epi32(load(p + t) * load(scale + t)); };
  for (int t = 0; t < kPageTokens; t += 64) {
    const __m512i first = _mm512_packs_epi32(rounded(t), rounded(t + 16)), second = _mm512_packs_epi32(rounded(t + 32), rounded(t + 48));
    const __m512i low = _mm512_set1_epi16(255);
    const __m512i hi = _mm512_packus_epi16(_mm512_srli_epi16(first, 8), _mm512_srli_epi16(second, 8));
    const __m512i lo = _mm512_packus_epi16(_mm512_and_si512(first, low), _mm512_and_si512(second, low));
    _mm512_store_si512(out.bytes + t, _mm512_permutexvar_epi32(order, hi));
    _mm512_store_si512(out.bytes + kContractionMax + t, _mm512_permutexvar_epi32(order, lo));
  }
}

template <class F, int R>
static __attribute__((noinline)) void mixBlock(const SideView& v, const int8_t* tile, int d, const IntegerRow* weights, float* y, const Ahead& ahead) {
  const auto add = [&](int r, int o, __m512i sum) MEMBER {
    float* to = y + r * d + o;
    store(to, load(to) + reinterpret_cast<VecF>(_mm512_cvtepi32_ps(sum)) * weights[r].step);
  };
  withLevels<F, false>(v, tile, [&](const auto& rows) MEMBER { sumSide<R>(rows, kPageTokens / 4, d / 64, weights, ahead, add); });
}

// Calls f(Number<R>, first row) for blocks of up to six rows.
template <class F>
INLINE void eachBlock(int n, const F& f) {
  for (int i = 0; i < n;) {
    const int left = n - i;
    switch (left <= 6 ? left : left <= 8 ? 4 : 6) {
      case 1: f(Number<1>{}, i); i += 1; break;
      case 2: f(Number<2>{}, i); i += 2; break;
      case 3: f(Number<3>{}, i); i += 3; break;
      case 4: f(Number<4>{}, i); i += 4; break;
      case 5: f(Number<5>{}, i); i += 5; break;
      default: f(Number<6>{}, i); i += 6; break;
    }
  }
}

// room: for a tile, [128 * d].
template <class F>
static void scoreCoded(const SideView& k, int8_t* room, const float* scale, int d, const IntegerRow* x, int n, const float* factor, const float* offset,
                       float* y, const SideView* next) {
  const Ahead ahead = aheadOf(next, k, kElementsAStep), none = aheadOf(nullptr, k, 0);
  const int8_t* tile = tileFor<F>(k, d, room);
  eachBlock(n, [&](auto r, int i) MEMBER {
    scoreBlock<F, r.value>(k, tile, scale, d, x + i, factor + i, offset + i, y + i * kPageTokens, i == 0 ? ahead : none);
  });
}

template <class F>
static void mixCoded(const SideView& v, int8_t* room, int d, const IntegerRow* weights, int n, float* y, const SideView* next) {
  const Ahead ahead = aheadOf(next, v, kElementsAStep), none = aheadOf(nullptr, v, 0);
  const int8_t* tile = tileFor<F>(v, d, room);
  eachBlock(n, [&](auto r, int i) MEMBER {
    mixBlock<F, r.value>(v, tile, d, weights + i, y + static_cast<size_t>(i) * d, i == 0 ? ahead : none);
  });
}

// Whether mixCoded has this head size: whole groups of four blocks of 16 channels.
INLINE bool mixesCoded(int d) { return d % 64 == 0; }

#endif
