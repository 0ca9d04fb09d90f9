// Trellis codes (trellis.ts): levels of rows of codes in bit planes, and the search for the codes that err least.
// Integers only, so the result is the same on every instruction set.
#pragma once

// The sequences of codes (trellis.ts): the order of kTrellisLevels. The windows of the second and the third have one
// table, the others two.
enum TrellisSequence : int { kHighCodes, kLowPairs, kLowBits, kSingleBits };
constexpr int kSequenceBits[4] = {2, 2, 1, 1}, kWindowBits[4] = {6, 4, 4, 6};

INLINE Bytes addBytes(Bytes a, Bytes b) {
  typedef uint8_t Each __attribute__((vector_size(kVectorBytes)));
  return reinterpret_cast<Bytes>(reinterpret_cast<Each>(a) + reinterpret_cast<Each>(b));
}

// The two tables of a sequence, looked up by the bytes of a vector.
struct TrellisTables {
  Bytes a, b;
  MEMBER TrellisTables(TrellisSequence sequence, int bias)
      : a(loadTable(kTrellisLevels[sequence][0]) ^ splatByte(bias)), b(loadTable(kTrellisLevels[sequence][1])) {}
  MEMBER Bytes level(Bytes i, Bytes j) const { return addBytes(lookUp(a, i), lookUp(b, j)); }
};

alignas(64) static constexpr uint8_t kNoCodes[64] = {};

// 64 bytes of a plane and those before them; before the first are zeros.
struct PlaneBytes {
  Bytes now, before;
  MEMBER PlaneBytes(const uint8_t* plane, size_t at, int part)
      : now(loadBytes(plane + at * 64 + static_cast<size_t>(part) * kVectorBytes)),
        before(loadBytes((at == 0 ? kNoCodes : plane + at * 64 - 64) + static_cast<size_t>(part) * kVectorBytes)) {}

  // Codes of two bits: those of row F - 1 and, above it, of row F. F: -1..3.
  template <int F>
  MEMBER Bytes pair() const {
    if constexpr (F == 0) return nibbleOf(now << 2, before >> 6, 12);
    else if constexpr (F > 0) return (F == 1 ? now : now >> (2 * F - 2)) & splatByte(15);
    else return before >> 4 & splatByte(15);
  }
  // Codes of one bit: four bits of the eight rows, of which the highest is that of row F. F: -2..7.
  template <int F>
  MEMBER Bytes four() const {
    if constexpr (F >= 3) return (F == 3 ? now : now >> (F - 3)) & splatByte(15);
    else if constexpr (F >= 0) return nibbleOf(now << (3 - F), before >> (F + 5), 15 << (3 - F) & 15);
    else return before >> (F + 5) & splatByte(15);
  }
};

// Rows of 64 levels: as LevelRows (planes.h).
template <int Bits>
struct TrellisRows {
  static constexpr bool kPaired = Bits % 2 == 1;
  // Chosen by measurement: with fewer, the compiler keeps sums in memory.
  static constexpr int kTaken = Bits > 2 ? 18 : 6;
  const uint8_t* hi;
  const uint8_t* lo;
  TrellisTables first;
  Bytes second;

  MEMBER TrellisRows(const uint8_t* high, const uint8_t* low, int bias)
      : hi(high), lo(low), first(Bits == 1 ? kSingleBits : kHighCodes, bias), second(loadTable(kTrellisLevels[Bits == 3 ? kLowBits : kLowPairs][0])) {}

  template <int First, int B, int Parity>
  MEMBER void at(size_t j, int part, Bytes* out) const {
    if constexpr (kPaired && Parity == 2) {
      if (j % 2 == 0) at<First, B, 0>(j, part, out);
      else at<First, B, 1>(j, part, out);
    } else {
      repeat<B>([&](auto b) MEMBER { out[b.value] = row<First + b.value * (4 / B), Parity>(j, part); });
    }
  }

 private:
  template <int F, int Parity>
  MEMBER Bytes row(size_t j, int part) const {
    if constexpr (Bits == 1) {
      const PlaneBytes low(lo, j / 2, part);
      return first.level(low.template four<F + 4 * Parity>(), low.template four<F + 4 * Parity - 2>());
    } else {
      const PlaneBytes high(hi, j, part);
      const Bytes level = first.level(high.template pair<F>(), high.template pair<F - 1>());
      if constexpr (Bits == 4) return addBytes(level, lookUp(second, PlaneBytes(lo, j, part).template pair<F>()));
      else if constexpr (Bits == 3) return addBytes(level, lookUp(second, PlaneBytes(lo, j / 2, part).template four<F + 4 * Parity>()));
      else return level;
    }
  }
};

// Calls f with the TrellisRows of codes of so many bits, which are `Least` or more.
template <int Least = 1, class F>
INLINE void withTrellis(int bits, const uint8_t* hi, const uint8_t* lo, int bias, const F& f) {
  switch (bits) {
    case 4: f(TrellisRows<4>(hi, lo, bias)); break;
    case 3: f(TrellisRows<3>(hi, lo, bias)); break;
    case 2: f(TrellisRows<2>(hi, lo, bias)); break;
    case 1:
      if constexpr (Least == 1) {
        f(TrellisRows<1>(hi, lo, bias));
        break;
      }
      [[fallthrough]];
    default: __builtin_trap();
  }
}

// ---- The search: costs are unsigned integers of 16 bits, one sequence in each lane.

constexpr int kCostLanes = 2 * kLanes;
constexpr int kTargetOne = 4096, kTargetMost = 16384;

INLINE Bytes splatShort(int v) {
  const uint16_t low = static_cast<uint16_t>(v);
  return Bytes{} + low;
}

// The square of each lane over 2^15, halves up. |lane| < 2^15.
INLINE Bytes squareOf(Bytes v) {
#if defined(__AVX512BW__)
  return reinterpret_cast<Bytes>(_mm512_mulhrs_epi16(reinterpret_cast<__m512i>(v), reinterpret_cast<__m512i>(v)));
#elif defined(__AVX2__)
  return reinterpret_cast<Bytes>(_mm256_mulhrs_epi16(reinterpret_cast<__m256i>(v), reinterpret_cast<__m256i>(v)));
#elif defined(__SSE2__)
  const __m128i x = reinterpret_cast<__m128i>(v);
  const Bytes low = reinterpret_cast<Bytes>(_mm_mullo_epi16(x, x)), high = reinterpret_cast<Bytes>(_mm_mulhi_epi16(x, x));
  return (high << 1) + (low >> 15) + (low >> 14 & 1);
#elif defined(__aarch64__)
  return reinterpret_cast<Bytes>(vqrdmulhq_s16(reinterpret_cast<int16x8_t>(v), reinterpret_cast<int16x8_t>(v)));
#elif defined(__wasm_simd128__)
  return reinterpret_cast<Bytes>(wasm_i16x8_q15mulr_sat(reinterpret_cast<v128_t>(v), reinterpret_cast<v128_t>(v)));
#else
  for (int i = 0; i < kCostLanes; i++) v[i] = static_cast<uint16_t>((static_cast<int16_t>(v[i]) * static_cast<int16_t>(v[i]) + 0x4000) >> 15);
  return v;
#endif
}

INLINE Bytes addCosts(Bytes a, Bytes b) {
#if defined(__AVX512BW__)
  return reinterpret_cast<Bytes>(_mm512_adds_epu16(reinterpret_cast<__m512i>(a), reinterpret_cast<__m512i>(b)));
#elif defined(__AVX2__)
  return reinterpret_cast<Bytes>(_mm256_adds_epu16(reinterpret_cast<__m256i>(a), reinterpret_cast<__m256i>(b)));
#elif defined(__SSE2__)
  return reinterpret_cast<Bytes>(_mm_adds_epu16(reinterpret_cast<__m128i>(a), reinterpret_cast<__m128i>(b)));
#elif defined(__aarch64__)
  return reinterpret_cast<Bytes>(vqaddq_u16(reinterpret_cast<uint16x8_t>(a), reinterpret_cast<uint16x8_t>(b)));
#elif defined(__wasm_simd128__)
  return reinterpret_cast<Bytes>(wasm_u16x8_add_sat(reinterpret_cast<v128_t>(a), reinterpret_cast<v128_t>(b)));
#else
  for (int i = 0; i < kCostLanes; i++) a[i] = static_cast<uint16_t>(a[i] + b[i] > 0xffff ? 0xffff : a[i] + b[i]);
  return a;
#endif
}

INLINE Bytes lessCost(Bytes a, Bytes b) {
#if defined(__AVX512BW__)
  return reinterpret_cast<Bytes>(_mm512_min_epu16(reinterpret_cast<__m512i>(a), reinterpret_cast<__m512i>(b)));
#elif defined(__AVX2__)
  return reinterpret_cast<Bytes>(_mm256_min_epu16(reinterpret_cast<__m256i>(a), reinterpret_cast<__m256i>(b)));
#elif defined(__SSE2__)
  return a - reinterpret_cast<Bytes>(_mm_subs_epu16(reinterpret_cast<__m128i>(a), reinterpret_cast<__m128i>(b)));
#elif defined(__aarch64__)
  return reinterpret_cast<Bytes>(vminq_u16(reinterpret_cast<uint16x8_t>(a), reinterpret_cast<uint16x8_t>(b)));
#elif defined(__wasm_simd128__)
  return reinterpret_cast<Bytes>(wasm_u16x8_min(reinterpret_cast<v128_t>(a), reinterpret_cast<v128_t>(b)));
#else
  for (int i = 0; i < kCostLanes; i++) a[i] = b[i] < a[i] ? b[i] : a[i];
  return a;
#endif
}

// least = min(least, total); where total is less, chosen becomes `choice`.
INLINE void keepLess(Bytes& least, Bytes& chosen, Bytes total, int choice) {
#if defined(__AVX512BW__)
  const __mmask32 isLess = _mm512_cmplt_epu16_mask(reinterpret_cast<__m512i>(total), reinterpret_cast<__m512i>(least));
  chosen = reinterpret_cast<Bytes>(_mm512_mask_mov_epi16(reinterpret_cast<__m512i>(chosen), isLess, _mm512_set1_epi16(static_cast<short>(choice))));
  least = lessCost(least, total);
#else
  const Bytes less = lessCost(least, total);
  const Bytes isSame = reinterpret_cast<Bytes>(less == least);
  chosen = choose(chosen, splatShort(choice), isSame);
  least = less;
#endif
}

constexpr int kTrellisSequences = 64;
// What one of a level is in targets.
constexpr int kTrellisLevelOne = kTargetOne / kTrellisDivisor;

// By the place of a choice in the upper or the lower half of a word: what moves it to the top, as a byte of 16 bits.
template <int Bits>
struct TopPowers {
  int8_t entries[16];
  constexpr TopPowers() : entries() {
    for (int place = 8 / Bits; place < 16 / Bits; place++) entries[place] = static_cast<int8_t>(1 << (16 - Bits - Bits * place));
  }
};
template <int Bits>
constexpr TopPowers<Bits> kTopPowers{};

// The codes of targets in tile order, rows of 64: [steps][64] each.
template <TrellisSequence Sequence>
static __attribute__((noinline)) void searchTrellis(const int16_t* targets, int steps, uint8_t* codes, Workspace space) {
  constexpr int kBits = kSequenceBits[Sequence], kWindows = 1 << kWindowBits[Sequence], kKept = kWindows >> kBits, kEach = 1 << kBits;
  // Choices of a word of 16 bits, where there is a second one.
  constexpr int kPlaces = 16 / kBits, kInWord = kKept < kPlaces ? kKept : kPlaces, kWords = kKept / kInWord;
  static_assert(kWords <= 2);
  constexpr int kLevelled = 8;
  Bytes level[kWindows];
  for (int w = 0; w < kWindows; w++) {
    const int sum = kWindows == 16 ? kTrellisLevels[Sequence][0][w] : kTrellisLevels[Sequence][0][w >> 2] + kTrellisLevels[Sequence][1][w & 15];
    level[w] = splatShort(sum * kTrellisLevelOne);
  }
  // By step, what was dropped from the window of each kept part, kInWord choices in a lane.
  Bytes* dropped = space.take<Bytes>(static_cast<size_t>(steps) * kWords);
  for (int first = 0; first < kTrellisSequences; first += kCostLanes) {
    Bytes costs[2][kKept];
    for (int at = 1; at < kKept; at++) costs[0][at] = ~Bytes{};
    costs[0][0] = Bytes{};
    for (int step = 0; step < steps; step++) {
      const Bytes target = loadBytes(targets + step * kTrellisSequences + first);
      const Bytes* cost = costs[step % 2];
      Bytes* next = costs[1 - step % 2];
      for (int word = 0; word < kWords; word++) {
        Bytes choices{};
#pragma GCC unroll 16
        for (int i = 0; i < kInWord; i++) {
          const int at = word * kInWord + i;
          const int from = at * kEach & (kKept - 1);
          Bytes least = addCosts(cost[from], squareOf(target - level[at * kEach])), chosen{};
#pragma GCC unroll 16
          for (int choice = 1; choice < kEach; choice++) {
            keepLess(least, chosen, addCosts(cost[from + choice], squareOf(target - level[at * kEach + choice])), choice);
          }
          next[at] = least;
          choices |= chosen << (i * kBits);
        }
        dropped[step * kWords + word] = choices;
      }
      if (step % kLevelled != kLevelled - 1) continue;
      Bytes least = next[0];
      for (int at = 1; at < kKept; at++) least = lessCost(least, next[at]);
      for (int at = 0; at < kKept; at++) next[at] -= least;
    }
    // Back from the part with the least cost, the first of equals. A choice is found in its word by a multiplication
    // that moves it to the top.
    const Bytes* cost = costs[steps % 2];
    Bytes least = cost[0], at{};
    for (int part = 1; part < kKept; part++) keepLess(least, at, cost[part], part);
    const Bytes powers = loadTable(kTopPowers<kBits>.entries);
    for (int step = steps - 1; step >= 0; step--) {
      const Bytes place = at & static_cast<uint16_t>(kPlaces - 1);
      Bytes word = dropped[step * kWords];
      if constexpr (kWords == 2) word = choose(dropped[step * kWords + 1], word, reinterpret_cast<Bytes>(at >= splatShort(kPlaces)));
      const Bytes power = lookUp(powers, place | (place ^ static_cast<uint16_t>(kPlaces / 2)) << 8);
      const Bytes window = at << kBits | word * power >> (16 - kBits);
      typedef uint8_t Codes __attribute__((vector_size(kCostLanes)));
      const Codes found = __builtin_convertvector(window >> (kWindowBits[Sequence] - kBits), Codes);
      __builtin_memcpy(codes + step * kTrellisSequences + first, &found, sizeof found);
      at = window & static_cast<uint16_t>(kKept - 1);
    }
  }
}

static void searchOf(TrellisSequence sequence, const int16_t* targets, int steps, uint8_t* codes, Workspace space) {
  switch (sequence) {
    case kHighCodes: return searchTrellis<kHighCodes>(targets, steps, codes, space);
    case kLowPairs: return searchTrellis<kLowPairs>(targets, steps, codes, space);
    case kLowBits: return searchTrellis<kLowBits>(targets, steps, codes, space);
    default: return searchTrellis<kSingleBits>(targets, steps, codes, space);
  }
}
