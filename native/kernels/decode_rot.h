// Decodes rows that were rotated, with the arithmetic of native/formats/rot/rot.ts, in the same order. A row stays in
// registers from levels to values.
#pragma once

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

// x[t] = mean + factors[t] * (HD)^T level[t] for the rows from firstRow on, without the mean where fromZero has the bit
// of the row. tile: the levels; mean: [D]; fromZero: null for none.
template <int D>
static void decodeTurned(bool isKey, int firstRow, const int8_t* tile, const float* factors, const float* mean, const uint8_t* fromZero, float* x,
                         size_t stride) {
  constexpr int kVectors = D / kLanes;
  alignas(64) int8_t rows[kLanes][wholeWords(D)];
  for (int t = 0; t < kPageTokens; t++) {
    if (isKey && t % kLanes == 0) rowsOfTile(tile, D, t, rows[0], wholeWords(D));
    if (t < firstRow) continue;
    const float factor = factors[t];
    VecF y[kVectors];
    if (isKey) {
#pragma GCC unroll 16
      for (int i = 0; i < kVectors; i++) y[i] = loadSigned(rows[t % kLanes] + i * kLanes) * factor;
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
    for (int i = 0; i < kVectors; i++) store(x + t * stride + i * kLanes, isPlain ? y[i] : load(mean + i * kLanes) + y[i]);
  }
}

// Rows of the rot family, or of one that has its fields, from the levels in `tile`, integers over `divisor`.
static void decodeRotRows(bool isKey, int d, int firstRow, const SideView& side, const int8_t* tile, int divisor, float* x, size_t stride) {
  alignas(64) float mean[kHeadDimMax];
  const float reference = powerOfTwo(*side.at<int8_t>(kRotReference));
  const float scale = halfToFloat(*side.at<uint16_t>(kRotMeanScale)) * reference;
  for (int c = 0; c < d; c += kLanes) store(mean + c, loadSigned(side.at<int8_t>(kRotMean) + c) * scale);
  float factors[kPageTokens];
  for (int t = 0; t < kPageTokens; t++) factors[t] = scaleOf(side.at<int8_t>(kRotExponents)[t]) * reference / static_cast<float>(divisor);
  for (int t = 0; t < firstRow; t++) __builtin_memset(x + t * stride, 0, sizeof(float) * d);
  withHeadDim(d, [&](auto dim) MEMBER { decodeTurned<dim.value>(isKey, firstRow, tile, factors, mean, side.at(kRotFromZero), x, stride); });
}
