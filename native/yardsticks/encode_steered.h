// Codes of keys that are steered by queries, with the arithmetic of native/reference/steering.ts: what a channel is
// coded as takes back what the channels before it got wrong. A lane is a token.
#pragma once
#include "../formats/rot/levels.h"

// The sum of feedback[i] * values[i][lane] over the channels before c, each product taken from or added to x in their
// order.
template <bool kAdds>
INLINE VecF withShares(VecF x, const float* feedback, const float* values, int c, size_t stride) {
  for (int i = 0; i < c; i++) {
    const VecF share = load(values + i * stride) * feedback[i];
    x = kAdds ? x + share : x - share;
  }
  return x;
}

// A head of keys in a format with the bytes of the rot family, whose origins and reference are written: writes codes
// and exponents.
static COLD void steerRot(const SideTarget& to, uint8_t* hi, uint8_t* lo, int8_t* exponents, const float* mean, const uint8_t* fromZero, int reference, int d,
                                               int firstRow, const float* x, size_t stride, Workspace space) {
  const int width = widthOf(to.format), codeBits = 4 - width;
  const size_t elements = static_cast<size_t>(kPageTokens) * d;
  float* turned = space.take<float>(elements);
  float* y = space.take<float>(elements);
  const float unit = powerOfTwo(-reference);
  for (int t = 0; t < kPageTokens; t++) {
    for (int c = 0; c < d; c += kLanes) {
      const VecF origin = isFromZero(fromZero, t) ? splat(0.0f) : load(mean + c);
      store(turned + t * d + c, t < firstRow ? splat(0.0f) : load(x + t * stride + c) * unit - origin);
    }
  }
  rotate(turned, kPageTokens, d, d, false);
  for (int t = 0; t < kPageTokens; t++) {
    for (int c = 0; c < d; c++) y[c * kPageTokens + t] = turned[t * d + c];
  }
  float bound[16], level[16];
  const int bounds = (1 << codeBits) - 1;
  for (int i = 0; i < bounds; i++) bound[i] = kRotBounds[((i + 1) << width) - 1];
  for (int i = 0; i < 16; i++) level[i] = static_cast<float>(levelsOf(to.format)[i]) / static_cast<float>(divisorOf(to.format));
  const Sixteen levels = loadSixteen(level);
  uint8_t* tile = space.take<uint8_t>(elements);
  alignas(64) uint8_t code[kLanes];
  for (int first = 0; first < kPageTokens; first += kLanes) {
    // The turned rows are no longer needed.
    alignas(64) VecF tree[kHeadDimMax];
    int half = 1;
    while (half < d) half *= 2;
    for (int c = 0; c < half; c++) {
      const VecF v = c < d ? load(y + c * kPageTokens + first) : splat(0.0f);
      tree[c] = v * v;
    }
    for (half /= 2; half >= 1; half /= 2) {
      for (int c = 0; c < half; c++) tree[c] = tree[c] + tree[c + half];
    }
    float root[kLanes];
    store(root, tree[0] / static_cast<float>(d));
    for (int i = 0; i < kLanes; i++) root[i] = __builtin_sqrtf(root[i]);
    const VecF rms = load(root);
    float* errors = turned;  // [d][kLanes]
    VecF along = splat(0.0f), square = splat(0.0f);
    for (int c = 0; c < d; c++) {
      const float* feedback = to.steering->feedback + c * d;
      const VecF own = load(y + c * kPageTokens + first);
      const VecF target = withShares<false>(own, feedback, errors, c, kLanes);
      VecI index{};
      for (int i = 0; i < bounds; i++) index -= target > rms * bound[i];
      const VecF decoded = rms * lookUpFloat(levels, index);
      store(errors + c * kLanes, decoded - own);
      const VecF whole = withShares<true>(own, feedback, y + first, c, kPageTokens);
      const VecF ours = whole + (decoded - target);
      along = along + (whole * ours) * to.steering->weights[c];
      square = square + (whole * whole) * to.steering->weights[c];
      storeLowBytes(code, index << width);
      for (int i = 0; i < kLanes; i++) tile[c / 4 * kPageTokens * 4 + (first + i) * 4 + c % 4] = code[i];
    }
    const VecI some = (along > splat(0.0f)) & (square > splat(0.0f));
    storeLowBytes(exponents + first, some ? scaleExponents(rms * (square / along)) : splatI(kZeroRow));
  }
  packPairs<2>(tile, elements, hi);
  if (width == 0) packPairs<0>(tile, elements, lo);
  if (width == 1) packBits<1>(tile, elements, lo);
}
