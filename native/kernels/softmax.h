// Online softmax over one page of scores, and the exponential it needs.
// Unfused, fixed order of sums: equal bits on every instruction set.
#pragma once

// exp(x) for x <= 0; 0 below -87 (the true value is under 1.7e-38). Relative error below 3e-7.
// x = n ln2 + r with |r| <= ln2 / 2; the polynomial (degree 5) is a minimax fit of exp on that range, 1.05e-7; 2^n is added to the exponent.
INLINE VecF expNonPositive(VecF given) {
  // Clamped first, so that the exponent below stays in range; what was clamped answers 0.
  const VecF x = larger(given, splat(-87.0f));
  const VecF biased = x * 1.44269504f + kRoundMagic;
  const VecF n = biased - kRoundMagic;
  // ln2 = 355/512 - 2.12194440e-4; the first product is exact
  const VecF r = (x - n * 0.693359375f) + n * 2.12194440e-4f;
  VecF p = r * 0.00831250512f + 0.0418903423f;
  p = p * r + 0.166671154f;
  p = p * r + 0.499992302f;
  p = (p * (r * r) + r) + 1.0f;
  const VecF value = fromBits(bits(p) + (bits(biased) << 23));
  return given < -87.0f ? splat(0.0f) : value;
}

template <bool Masked>
INLINE void softmaxRow(float* s, int first, int last, float* max, float* sum, float* rescale, float* rowMass) {
  constexpr int kVectors = kPageTokens / kLanes;
  const VecF lowest = splat(-__builtin_inff());
  const VecI lane = iota();
  VecF top = lowest;
  for (int i = 0; i < kVectors; i++) {
    VecF v = load(s + i * kLanes);
    if (Masked) {
      const VecI t = lane + i * kLanes;
      v = ((t >= first) & (t < last)) ? v : lowest;
      store(s + i * kLanes, v);
    }
    top = larger(v, top);
  }
  const float rowMax = largestLane(top);
  const float newMax = rowMax > *max ? rowMax : *max;
  if (!(newMax > -__builtin_inff())) {  // nothing seen yet and all masked
    for (int i = 0; i < kVectors; i++) store(s + i * kLanes, splat(0.0f));
    *rescale = 1.0f;
    *rowMass = 0.0f;
    return;
  }
  Parts total{};
  for (int i = 0; i < kVectors; i += kParts) {
    for (int part = 0; part < kParts; part++) {
      const VecF p = expNonPositive(load(s + (i + part) * kLanes) - newMax);
      store(s + (i + part) * kLanes, p);
      total.part[part] = total.part[part] + p;
    }
  }
  const float scale = expNonPositive(splat(*max - newMax))[0];
  const float mass = sumParts(total);
  *rescale = scale;
  *rowMass = mass;
  *sum = *sum * scale + mass;
  *max = newMax;
}

static void softmaxPage(float* scores, int n, size_t stride, const int* first, const int* last, float* max, float* sum, float* rescale,
                        float* rowMass) {
  for (int i = 0; i < n; i++) {
    float* s = scores + i * stride;
    if (first[i] <= 0 && last[i] >= kPageTokens) softmaxRow<false>(s, 0, kPageTokens, max + i, sum + i, rescale + i, rowMass + i);
    else softmaxRow<true>(s, first[i], last[i], max + i, sum + i, rescale + i, rowMass + i);
  }
}
