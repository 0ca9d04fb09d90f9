// What encoders and demotions of rotated rows (rotated.h) share: the reference of a page and head, and exponents of
// levels that have changed.
#pragma once

// A number below the octave of every float.
constexpr int kNoOctave = -1000;

// floor(log2 rms) of the largest and the smallest row that is not a zero row.
struct Octaves {
  int largest;
  int smallest;
};

// The reference e of a page and head whose rows have these octaves; formats/rot/rot.ts says why.
INLINE int referenceOf(const Octaves& rows) {
  if (rows.largest > 6) return rows.largest - 6;
  return rows.smallest < -7 && rows.largest < 3 ? rows.largest - 3 : 0;
}

// sums[t] = sum of a[e] * b[e] over the elements e of token t, both in tile order. |a * b| < 2^14, so int32 holds the
// sum of any 256 of them.
static void tokenSums(bool isKey, int d, const int8_t* a, const int8_t* b, int32_t* sums) {
  // Elements 4i..4i+3 of a tile row belong to token i (keys) or to four tokens in turn (values).
  int32_t wide[kPageTokens * 4];
  if (isKey) {
    constexpr int kRow = kPageTokens * 4;
    for (int i = 0; i < kRow; i++) wide[i] = 0;
    for (int step = 0; step < d / 4; step++) {
      for (int i = 0; i < kRow; i++) wide[i] += static_cast<int16_t>(a[step * kRow + i] * b[step * kRow + i]);
    }
    for (int t = 0; t < kPageTokens; t++) sums[t] = (wide[4 * t] + wide[4 * t + 1]) + (wide[4 * t + 2] + wide[4 * t + 3]);
    return;
  }
  for (int t = 0; t < kPageTokens; t += 4) {
    const int8_t* left = a + t * d;
    const int8_t* right = b + t * d;
    for (int i = 0; i < 64; i++) wide[i] = 0;
    for (int e = 0; e < 4 * d; e += 64) {
      for (int i = 0; i < 64; i++) wide[i] += static_cast<int16_t>(left[e + i] * right[e + i]);
    }
    for (int step = 0; step < 4; step++) {
      int32_t sum = 0;
      for (int i = step; i < 64; i += 4) sum += wide[i];
      sums[t + step] = sum;
    }
  }
}

// The exponents of rows whose levels, in tile order and over one divisor, became others over another.
static void demoteExponents(bool isKey, int d, const int8_t* fine, int fineDivisor, const int8_t* coarse, int coarseDivisor, const int8_t* exponents,
                            int8_t* exponentsOut) {
  int32_t squares[kPageTokens], products[kPageTokens];
  tokenSums(isKey, d, fine, fine, squares);
  tokenSums(isKey, d, fine, coarse, products);
  for (int t = 0; t < kPageTokens; t += kLanes) {
    // Sums are below 2^23, and float32(sum * divisor) rounds once, from an exact product below 2^31.
    const VecF square = __builtin_convertvector(loadWords(squares + t) * coarseDivisor, VecF);
    const VecF product = __builtin_convertvector(loadWords(products + t) * fineDivisor, VecF);
    float scale[kLanes];
    for (int i = 0; i < kLanes; i++) scale[i] = scaleOf(exponents[t + i]);
    const VecF now = load(scale);
    const VecI narrow = scaleExponents(now * (square / product));
    storeLowBytes(exponentsOut + t, now > splat(0.0f) && product > splat(0.0f) ? narrow : splatI(kZeroRow));
  }
}
