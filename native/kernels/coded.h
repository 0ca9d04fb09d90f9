// Products with one coded side of one page: codes -> levels -> integer dots -> floats.
//   scoreCoded   y[i][t] = (x[i] . levels[t]) * (scale[t] * factor[i]) + offset[i]                          keys
//   mixCoded     y[i][c] += step[i] * (w[i] . levels[c]), w and step from weighRow                              values
// Levels are unpacked in registers and never stored; from kUnpackedRows rows on they are unpacked once, into a tile in
// L1. x, y are rows without gaps. `next` (or null) is a side that will be read soon: it is prefetched while this one is
// read. The integers are exact and the floats follow one formula, so every instruction set gives the same bits.
#pragma once

// Calls done(row, first output, sums) for kLanes outputs at a time, in one of the `groups` groups of four rows of a
// quad. Parity: planes.h.
template <Factors X, int R, int Parity, int First = 0, class Rows, class Done>
INLINE void sumGroup(const Rows& rows, int quads, int groups, int group, const IntegerRow* x, const Ahead& ahead, const Done& done) {
  constexpr int B = vectorsFor<R, Rows::kTaken>(), kPasses = 4 / B * kRowVectors;
  for (int part = 0; part < kRowVectors; part++) {
    Sums<R, B, X> sums(x);
    for (int q = 0; q < quads; q++) {
      if (q % kPasses == 0) fetch(ahead, (static_cast<size_t>(group * kPasses + First * kRowVectors + part) * quads + q) / kPasses);
      Bytes levels[B];
      rows.template at<First, B, Parity>(static_cast<size_t>(q) * groups + group, part, levels);
      sums.add(levels, x, q);
    }
    repeat<R>([&](auto r) MEMBER {
      repeat<B>([&](auto b) MEMBER {
        done(r.value, group * 64 + (First + b.value * (4 / B)) * 16 + part * kLanes, sumsOf(sums.of[r.value][b.value]));
      });
    });
  }
  if constexpr (First + 1 < 4 / B) sumGroup<X, R, Parity, First + 1>(rows, quads, groups, group, x, ahead, done);
}

template <Factors X, int R, class Rows, class Done>
INLINE void sumGroups(const Rows& rows, int quads, int groups, const IntegerRow* x, const Ahead& ahead, const Done& done) {
  for (int group = 0; group < groups; group++) {
    if (!Rows::kPaired || (groups > 1 && group % 2 == 0)) sumGroup<X, R, 0>(rows, quads, groups, group, x, ahead, done);
    else if (groups > 1) sumGroup<X, R, Rows::kPaired ? 1 : 0>(rows, quads, groups, group, x, ahead, done);
    else sumGroup<X, R, Rows::kPaired ? 2 : 0>(rows, quads, 1, 0, x, ahead, done);
  }
}

// How levels are had: from a tile alone, or unpacked in registers for fewer rows than kUnpacked. All formats that have
// them in the same way share the code below.
struct FromTile {
  static constexpr bool kInRegisters = false;
  static constexpr int kUnpacked = 0;
};
template <class R>
struct InRegisters {
  using Rows = R;
  static constexpr bool kInRegisters = true;
  static constexpr int kUnpacked = R::kUnpackedRows < kUnpackedRows ? R::kUnpackedRows : kUnpackedRows;
};
template <class F>
struct LevelsOf {
  using Type = FromTile;
};
template <HasUnpacker F>
struct LevelsOf<F> {
  using Type = InRegisters<typename F::Unpacker>;
};

// Codes of keys that are unpacked in registers have two bits or more: no policy has keys of one bit, and code for them
// would be a third of that for keys.
template <Factors X>
constexpr int kLeastBits = X == kQueries ? 2 : 1;

// tile: the levels, with kBias added if the format can also unpack in registers; null to unpack in registers.
// quads x outputs: keys d/4 x 128, values 32 x d.
template <Factors X, class L, int R, class Done>
INLINE void sumSide(const SideView& side, const int8_t* tile, int d, int quads, int outputs, const IntegerRow* x, const Ahead& ahead, const Done& done) {
  if (tile != nullptr) return sumTile<X, R>(tile, L::kInRegisters ? kBias : 0, quads, outputs, x, ahead, done);
  if constexpr (L::kInRegisters && R < L::kUnpacked) {
    L::Rows::template withRows<kLeastBits<X>>(side, d, kBiasFor<X != kQueries>, [&](const auto& rows) MEMBER { sumGroups<X, R>(rows, quads, outputs / 64, x, ahead, done); });
  }
}

// Whole: a page has room for 128 tokens, and the compiler knows it; otherwise for `room`.
template <class L, int R, bool Whole>
static __attribute__((noinline)) void scoreBlock(const SideView& k, const int8_t* tile, int room, const float* scale, int d, const IntegerRow* x,
                                                 const float* factor, const float* offset, float* y, const Ahead& ahead) {
  sumSide<kQueries, L, R>(k, tile, d, d / 4, Whole ? kPageTokens : room, x, ahead, [&](int r, int o, VecI sum) MEMBER {
    store(y + r * kPageTokens + o, __builtin_convertvector(sum, VecF) * (load(scale + o) * factor[r]) + offset[r]);
  });
}

template <class L, int R, bool Whole>
static __attribute__((noinline)) void mixBlock(const SideView& v, const int8_t* tile, int room, int d, const IntegerRow* weights, float* y,
                                               const Ahead& ahead) {
  sumSide<kWeights, L, R>(v, tile, d, (Whole ? kPageTokens : room) / 4, d, weights, ahead, [&](int r, int o, VecI sum) MEMBER {
    float* to = y + r * d + o;
    store(to, load(to) + __builtin_convertvector(sum, VecF) * weights[r].step);
  });
}

template <class F>
static __attribute__((noinline)) void unpackSide(const SideView& side, int d, int8_t* tile) {
  F::Unpacker::template withRows<1>(side, d, kBias, [&](const auto& rows) MEMBER { unpackRows(rows, static_cast<size_t>(kPageTokens) * d, tile); });
}

// The tile that sumSide takes, or null. room: [128 * d], for unpacked levels.
template <class F>
INLINE const int8_t* tileFor(const SideView& side, int d, bool unpacked, int8_t* room) {
  if constexpr (!HasUnpacker<F>) return F::levels(side, d, room);
  else if (!unpacked) return nullptr;
  else unpackSide<F>(side, d, room);
  return room;
}

// Calls f with whether the side has room for 128 tokens. Only formats that a page may be open in may have room for
// fewer.
template <class F, class Call>
INLINE void withRoom(int room, const Call& f) {
  if constexpr (WritesRows<F>) {
    if (room != kPageTokens) return f(Number<0>{});
  }
  f(Number<1>{});
}

template <class F>
static void scoreCoded(const SideView& k, int8_t* levels, int room, const float* scale, int d, const IntegerRow* x, int n, const float* factor,
                       const float* offset, float* y, const SideView* next) {
  const int8_t* tile = tileFor<F>(k, d, n >= LevelsOf<F>::Type::kUnpacked || kFormats[k.format].codeBits < kLeastBits<kQueries>, levels);
  const Ahead ahead = aheadOf(next, k, kElementsAStep), none = aheadOf(nullptr, k, 0);
  withRoom<F>(room, [&](auto whole) MEMBER {
    eachBlock<true>(n, [&](auto r, int i) MEMBER {
      scoreBlock<typename LevelsOf<F>::Type, r.value, decltype(whole)::value != 0>(k, tile, room, scale, d, x + i, factor + i, offset + i,
                                                                                   y + i * kPageTokens, i == 0 ? ahead : none);
    });
  });
}

template <class F>
static void mixCoded(const SideView& v, int8_t* levels, int room, int d, const IntegerRow* weights, int n, float* y, const SideView* next) {
  const int8_t* tile = tileFor<F>(v, d, d % 64 != 0 || n >= LevelsOf<F>::Type::kUnpacked, levels);
  const Ahead ahead = aheadOf(next, v, kElementsAStep), none = aheadOf(nullptr, v, 0);
  withRoom<F>(room, [&](auto whole) MEMBER {
    eachBlock<true>(n, [&](auto r, int i) MEMBER {
      mixBlock<typename LevelsOf<F>::Type, r.value, decltype(whole)::value != 0>(v, tile, room, d, weights + i, y + static_cast<size_t>(i) * d,
                                                                                 i == 0 ? ahead : none);
    });
  });
}

// One row of weights, probabilities times scales: out = rint(p * scale), p in [0, 1], scale in [0, 32512].
INLINE void weighRow(const float* p, const float* scale, IntegerRow& out) {
  VecI sum{};
  const auto weight = [&](int t) MEMBER { return rounded(load(p + t) * load(scale + t)); };
  for (int t = 0; t < kPageTokens; t += 2 * kLanes) {
    const VecI first = weight(t), second = weight(t + kLanes);
    sum += first + second;
    storeBytes(out.bytes + t * 2, quadsOf<true>(narrowed(first, second)));
  }
  out.correction = 0;
  // Sums below 2^24 are exact as floats.
  if constexpr (kBiasFor<true> != 0) out.correction = -kBias * static_cast<int32_t>(sumParts({__builtin_convertvector(sum, VecF)}));
}
