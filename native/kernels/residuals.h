// What predicted pages are read with (cache/predictor.h): entropy-coded residuals, and rows in the 8 bits that the layer above is predicted from.
#pragma once

constexpr uint32_t kCodedLeast = 1u << 15;

// One symbol of one state. `at` moves on by the word that was read, if one was; two bytes must be left.
INLINE int8_t decodeSymbol(const uint8_t* symbols, const uint32_t* shares, uint32_t table, uint32_t& state, const uint8_t*& at) {
  const uint32_t place = state & (kCodedSlots - 1);
  const uint32_t symbol = symbols[table * kCodedSlots + place];
  const uint32_t share = shares[table * kCodedSymbols + symbol];
  const uint32_t left = (share >> 16) * (state / kCodedSlots) + place - (share & 0xffff);
  uint16_t word;
  __builtin_memcpy(&word, at, sizeof word);
  // Without a branch: whether a word is read cannot be predicted.
  const uint32_t reads = left < kCodedLeast;
  state = left << (16 * reads) | (word & (0u - reads));
  at += 2 * reads;
  return static_cast<int8_t>(static_cast<int>(symbol) - kCodedLevelMax);
}

// The same where fewer bytes may be left; false where they do not suffice.
static __attribute__((noinline)) bool decodeLast(const uint8_t* symbols, const uint32_t* shares, const CodedResiduals& side, int column, uint32_t* states,
                                                 const uint8_t** at, const uint8_t* end, int8_t* codes) {
  for (int i = 0; i < kCodedStates; i++) {
    uint8_t word[2] = {0, 0};
    const uint8_t* from = word;
    const bool isLeft = end - *at >= 2;
    if (isLeft) __builtin_memcpy(word, *at, 2);
    codes[i] = decodeSymbol(symbols, shares, side.tables[column + i], states[i], from);
    if (from != word && !isLeft) return false;
    *at += from - word;
  }
  return true;
}

// Two sides take turns, so that eight states are under way and none waits for the one before it.
static bool decodeResiduals(const uint8_t* symbols, const uint32_t* shares, const CodedResiduals* sides, int rows, int width) {
  uint32_t k[kCodedStates], v[kCodedStates];
  constexpr size_t kHead = sizeof k;
  if (sides[0].size < kHead || sides[1].size < kHead) return false;
  __builtin_memcpy(k, sides[0].bytes, kHead);
  __builtin_memcpy(v, sides[1].bytes, kHead);
  for (int i = 0; i < kCodedStates; i++) {
    if (k[i] - kCodedLeast >= (1u << 31) - kCodedLeast || v[i] - kCodedLeast >= (1u << 31) - kCodedLeast) return false;
  }
  const uint8_t *atK = sides[0].bytes + kHead, *atV = sides[1].bytes + kHead;
  const uint8_t *endK = sides[0].bytes + sides[0].size, *endV = sides[1].bytes + sides[1].size;
  const uint8_t *tablesK = sides[0].tables, *tablesV = sides[1].tables;
  int8_t *toK = sides[0].codes, *toV = sides[1].codes;
  for (int row = 0; row < rows; row++) {
    for (int c = 0; c < width; c += kCodedStates, toK += kCodedStates, toV += kCodedStates) {
      if (endK - atK >= 2 * kCodedStates && endV - atV >= 2 * kCodedStates) {
        int8_t lineK[kCodedStates], lineV[kCodedStates];
#pragma GCC unroll 4
        for (int i = 0; i < kCodedStates; i++) {
          lineK[i] = decodeSymbol(symbols, shares, tablesK[c + i], k[i], atK);
          lineV[i] = decodeSymbol(symbols, shares, tablesV[c + i], v[i], atV);
        }
        __builtin_memcpy(toK, lineK, kCodedStates);
        __builtin_memcpy(toV, lineV, kCodedStates);
        continue;
      }
      if (!decodeLast(symbols, shares, sides[0], c, k, &atK, endK, toK) || !decodeLast(symbols, shares, sides[1], c, v, &atV, endV, toV)) return false;
    }
  }
  for (int i = 0; i < kCodedStates; i++) {
    if (k[i] != kCodedLeast || v[i] != kCodedLeast) return false;
  }
  return atK == endK && atV == endV;
}

// In float64, as JavaScript computes it.
static void roundToLevels(const float* x, const float* centres, const float* gains, int count, int8_t* levels) {
  for (int i = 0; i < count; i++) {
    double value = (static_cast<double>(x[i]) - static_cast<double>(centres[i])) * static_cast<double>(gains[i]) + 0.5;
    value = value < 127.5 ? value : 127.5;
    value = value > -127.0 ? value : -127.0;
    const int whole = static_cast<int>(value);
    levels[i] = static_cast<int8_t>(whole - (value < static_cast<double>(whole) ? 1 : 0));
  }
}
