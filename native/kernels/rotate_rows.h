// Rotates rows and decodes rotated ones, with the arithmetic of native/reference/rotation.ts and rotated.ts, in the
// same order. A row stays in registers all the way.
#pragma once

// y = H*D*(row - mean), in the order of operations of rotate.h.
template <int D>
INLINE void rotateRow(const float* row, const float* mean, VecF (&y)[D / kLanes]) {
  if constexpr (D == 80 || D == 96) {
    float v[D];
    for (int c = 0; c < D; c += kLanes) store(v + c, load(row + c) - load(mean + c));
    if constexpr (D == 80) rotateProduct<20, 4>(v, kHadamard20, kNorm80, false);
    else rotateProduct<12, 8>(v, kHadamard12, kNorm96, false);
    for (int i = 0; i < D / kLanes; i++) y[i] = load(v + i * kLanes);
  } else {
#pragma GCC unroll 16
    for (int i = 0; i < D / kLanes; i++) {
      y[i] = (load(row + i * kLanes) - load(mean + i * kLanes)) * load(kRotationSigns + i * kLanes);
    }
    hadamard<D>(y);
#pragma GCC unroll 16
    for (int i = 0; i < D / kLanes; i++) y[i] = y[i] * (D == 64 ? kNorm64 : D == 128 ? kNorm128 : kNorm256);
  }
}

// Rotates a row back, for x^ = mean + t * (HD)^T u. y holds t * u on entry.
template <int D>
INLINE void turnBack(VecF (&y)[D / kLanes]) {
  if constexpr (D == 80 || D == 96) {
    float v[D];
    for (int i = 0; i < D / kLanes; i++) store(v + i * kLanes, y[i]);
    if constexpr (D == 80) rotateProduct<20, 4>(v, kHadamard20, kNorm80, true);
    else rotateProduct<12, 8>(v, kHadamard12, kNorm96, true);
    for (int i = 0; i < D / kLanes; i++) y[i] = load(v + i * kLanes);
  } else {
    hadamard<D>(y);
#pragma GCC unroll 16
    for (int i = 0; i < D / kLanes; i++) y[i] = (y[i] * (D == 64 ? kNorm64 : D == 128 ? kNorm128 : kNorm256)) * load(kRotationSigns + i * kLanes);
  }
}

// One row: x = mean + factor * (HD)^T levels, without the mean where fromZero has the bit of the row. row: its levels
// (keys); tile: those of the page (values).
template <int D>
INLINE void decodeTurnedRow(bool isKey, int t, const int8_t* row, const int8_t* tile, float factor, const float* mean, const uint8_t* fromZero, float* x) {
  constexpr int kVectors = D / kLanes;
  VecF y[kVectors];
  if (isKey) {
#pragma GCC unroll 16
    for (int i = 0; i < kVectors; i++) y[i] = loadSigned(row + i * kLanes) * factor;
  } else {
    const int8_t* group = tile + t / 4 * 4 * D;
    const int shift = 24 - t % 4 * 8;
#pragma GCC unroll 16
    for (int i = 0; i < kVectors; i++) {
      const VecI level = (loadWords(group + i * kLanes * 4) << shift) >> 24;
      y[i] = __builtin_convertvector(level, VecF) * factor;
    }
  }
  turnBack<D>(y);
  const bool isPlain = fromZero != nullptr && isFromZero(fromZero, t);
#pragma GCC unroll 16
  for (int i = 0; i < kVectors; i++) store(x + i * kLanes, isPlain ? y[i] : load(mean + i * kLanes) + y[i]);
}

// The rows from firstRow on. tile: the levels; factors: of all rows; mean: [D]; fromZero: null for none.
template <int D>
static void decodeTurned(bool isKey, int firstRow, const int8_t* tile, const float* factors, const float* mean, const uint8_t* fromZero, float* x,
                         size_t stride) {
  alignas(64) int8_t rows[kLanes][wholeWords(D)];
  for (int t = 0; t < kPageTokens; t++) {
    if (isKey && t % kLanes == 0) rowsOfTile(tile, D, t, rows[0], wholeWords(D));
    if (t < firstRow) continue;
    decodeTurnedRow<D>(isKey, t, rows[t % kLanes], tile, factors[t], mean, fromZero, x + t * stride);
  }
}

// `count` rows, those of `tokens`. factors: [count].
template <int D>
static void decodeTurnedRows(bool isKey, const uint8_t* tokens, int count, const int8_t* tile, const float* factors, const float* mean,
                             const uint8_t* fromZero, float* x, size_t stride) {
  alignas(64) int8_t rows[kLanes][wholeWords(D)];
  for (int i = 0; i < count; i++) {
    const int t = tokens[i];
    if (isKey) rowsOfTile(tile, D, t / kLanes * kLanes, rows[0], wholeWords(D));
    decodeTurnedRow<D>(isKey, t, rows[t % kLanes], tile, factors[i], mean, fromZero, x + i * stride);
  }
}
