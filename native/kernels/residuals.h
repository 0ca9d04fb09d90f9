// What predicted pages are read with (cache/predictor.h): entropy-coded residuals, and rows in the 8 bits that the
// layer above is predicted from.
#pragma once

constexpr int kCodedLeast = 1 << 15;
// No column takes more words than it has rows.
constexpr size_t kColumnBytes = 2 * kPageTokens;

#if defined(__AVX2__)

constexpr int kCodedVectors = kCodedStates / kLanes;

#if !defined(__AVX512F__)
// For each set of eight lanes, which of the following words each lane of the set takes.
struct WordOrders {
  uint8_t order[256][8];
  constexpr WordOrders() : order() {
    for (int set = 0; set < 256; set++) {
      for (int lane = 0, next = 0; lane < 8; lane++) {
        if (set >> lane & 1) order[set][lane] = static_cast<uint8_t>(next++);
      }
    }
  }
};
constexpr WordOrders kWordOrders;
#endif

// Shifts a word, u16, into each state that is below the least. `at` moves on by those that were read; kLanes of them
// must be readable.
INLINE VecI refilled(VecI state, const uint8_t*& at) {
#if defined(__AVX512F__)
  const __m512i wide = reinterpret_cast<__m512i>(state);
  const __mmask16 low = _mm512_cmplt_epi32_mask(wide, _mm512_set1_epi32(kCodedLeast));
  const __m512i words = _mm512_maskz_expand_epi32(low, _mm512_cvtepu16_epi32(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(at))));
  at += 2 * countOf(low);
  return reinterpret_cast<VecI>(_mm512_mask_or_epi32(wide, low, _mm512_slli_epi32(wide, 16), words));
#else
  const VecI low = state < splatI(kCodedLeast);
  const int set = _mm256_movemask_ps(reinterpret_cast<__m256>(low));
  const __m256i order = _mm256_cvtepu8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(kWordOrders.order[set])));
  const __m256i words = _mm256_cvtepu16_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(at)));
  at += 2 * __builtin_popcount(set);
  const VecI taken = reinterpret_cast<VecI>(_mm256_permutevar8x32_epi32(words, order)) & low;
  return low ? state << 16 | taken : state;
#endif
}

// One column of residuals times its factor, as byte `place` of words [128], by rows.
INLINE void decodeColumn(const uint32_t* slots, int factor, int place, int32_t* states, const uint8_t*& at, int32_t* words) {
  VecI state[kCodedVectors];
  for (int i = 0; i < kCodedVectors; i++) state[i] = loadWords(states + i * kLanes);
  const uint8_t* from = at;
  for (int row = 0; row < kPageTokens; row += kCodedStates) {
#pragma GCC unroll 4
    for (int i = 0; i < kCodedVectors; i++) {
      const VecI slot = gathered(slots, state[i] & (kCodedSlots - 1));
      const VecI left = ((slot >> 6 & (kCodedSlots - 1)) + 1) * (state[i] >> 12) + (slot >> 18);
      state[i] = refilled(left, from);
      int32_t* to = words + row + i * kLanes;
      const VecI byte = (((slot & 63) - kCodedLevelMax) * factor & 255) << (8 * place);
      storeWords(to, place == 0 ? byte : loadWords(to) | byte);
    }
  }
  for (int i = 0; i < kCodedVectors; i++) storeWords(states + i * kLanes, state[i]);
  at = from;
}

#else

// The same, one state after the other.
INLINE void decodeColumn(const uint32_t* slots, int factor, int place, int32_t* states, const uint8_t*& at, int32_t* words) {
  const uint8_t* from = at;
  for (int row = 0; row < kPageTokens; row += kCodedStates) {
    for (int i = 0; i < kCodedStates; i++) {
      const uint32_t state = static_cast<uint32_t>(states[i]), slot = slots[state & (kCodedSlots - 1)];
      const uint32_t left = ((slot >> 6 & (kCodedSlots - 1)) + 1) * (state >> 12) + (slot >> 18);
      uint16_t word;
      __builtin_memcpy(&word, from, sizeof word);
      // Without a branch: whether a word is read cannot be predicted.
      const uint32_t reads = left < static_cast<uint32_t>(kCodedLeast);
      states[i] = static_cast<int32_t>(left << (16 * reads) | (word & (0u - reads)));
      from += 2 * reads;
      const uint32_t byte = static_cast<uint32_t>((static_cast<int>(slot & 63) - kCodedLevelMax) * factor & 255) << (8 * place);
      words[row + i] = static_cast<int32_t>(place == 0 ? byte : static_cast<uint32_t>(words[row + i]) | byte);
    }
  }
  at = from;
}

#endif

static bool decodeResiduals(const uint32_t* slots, const uint8_t* bytes, size_t size, const CodedColumns* sides) {
  alignas(64) int32_t states[kCodedStates];
  if (size < sizeof states) return false;
  __builtin_memcpy(states, bytes, sizeof states);
  for (int i = 0; i < kCodedStates; i++) {
    if (states[i] < kCodedLeast) return false;
  }
  const uint8_t *at = bytes + sizeof states, *end = bytes + size;
  // The last words are read from here, with zeros behind them.
  uint8_t tail[2 * kColumnBytes + 64];
  bool isTail = false;
  for (const CodedColumns* side = sides; side < sides + 2; side++) {
    for (int c = 0; c < side->count; c += 4) {
      alignas(64) int32_t words[kPageTokens];
      for (int i = 0; i < 4 && c + i < side->count; i++) {
        if (!isTail && static_cast<size_t>(end - at) < kColumnBytes + 64) {
          const size_t left = static_cast<size_t>(end - at);
          __builtin_memset(tail, 0, sizeof tail);
          __builtin_memcpy(tail, at, left);
          at = tail;
          end = tail + left;
          isTail = true;
        }
        const uint8_t* from = at;
        decodeColumn(slots + side->tables[c + i] * kCodedSlots, side->factors[c + i], i, states, from, words);
        if (from > end) return false;
        at = from;
      }
      int8_t* to = side->to + c * kGemmBlock;
      for (int row = 0; row < kPageTokens; row += kGemmBlock, to += side->blockStride) __builtin_memcpy(to, words + row, 4 * kGemmBlock);
    }
  }
  for (int i = 0; i < kCodedStates; i++) {
    if (states[i] != kCodedLeast) return false;
  }
  return at == end;
}

// The level of each lane, in its low byte.
INLINE VecI roundedLevels(const float* x, const float* centres, const float* gains) {
  const VecF most = splat(127.0f);
  VecF value = (load(x) - load(centres)) * load(gains);
  value = value > most ? most : value;
  value = value < -most ? -most : value;
  return bits(value + kRoundMagic);
}

static void roundToLevels(const float* x, const float* centres, const float* gains, int width, int8_t* to, size_t blockStride) {
  constexpr int kColumns = 64;
  for (int row = 0; row < kPageTokens; row += kGemmBlock, to += blockStride) {
    for (int first = 0; first < width; first += kColumns) {
      const int count = width - first < kColumns ? width - first : kColumns;
      alignas(64) uint8_t lines[kGemmBlock][kColumns];
      for (int r = 0; r < kGemmBlock; r++) {
        const float* from = x + static_cast<size_t>(row + r) * width + first;
        int c = 0;
        for (; c + kLanes <= count; c += kLanes) storeLowBytes(lines[r] + c, roundedLevels(from + c, centres + first + c, gains + first + c));
        if (c == count) continue;
        float part[3][kLanes] = {};
        for (int i = 0; c + i < count; i++) {
          part[0][i] = from[c + i];
          part[1][i] = centres[first + c + i];
          part[2][i] = gains[first + c + i];
        }
        storeLowBytes(lines[r] + c, roundedLevels(part[0], part[1], part[2]));
      }
      int8_t* place = to + first * kGemmBlock;
      for (int c = 0; c < count; c += 4) {
        for (int r = 0; r < kGemmBlock; r++, place += 4) __builtin_memcpy(place, lines[r] + c, 4);
      }
    }
  }
}
