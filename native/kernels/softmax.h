// Online softmax over one page of scores, and the exponential it needs. Scores are in units of log2(e): the scaling of
// the queries includes that factor, so only 2^x is left to compute. Operations are unfused and sums have a fixed order,
// so every instruction set gives the same bits.
#pragma once

// 2^x for x <= 0; 0 below -100 (the true value is under 7.9e-31, and its products with scales stay far from denormals)
// and for NaN. x * 2^23 as an integer has floor(x) in the exponent's place and the fraction below it. With the exponent
// of 1 the fraction becomes m in [1, 2). The polynomial (degree 4) is a minimax fit of 2^(m - 1) there: relative error
// below 3.1e-6, rising, exactly 1 at m = 1, never 2. Rounding a difference of scores of up to 100 causes as large an
// error; one more degree would cost 2% of the time of attention over codes. N vectors go through each step together,
// because in a single one each operation waits for the one before.
constexpr float kExponentUnit = 0x1p23f;
constexpr float kLeastPower = -100.0f;
template <int N>
INLINE void powersOfTwo(VecF (&x)[N]) {
  VecF m[N], p[N];
  VecI whole[N];
#define PALIMPSEST_EACH for (int i = 0; i < N; i++)
#if defined(__AVX512F__)
  // Lanes out of the conversion's range are masked to zero at the end.
  __mmask16 counts[N];
  PALIMPSEST_EACH counts[i] = _mm512_cmp_ps_mask(x[i], splat(kLeastPower), _CMP_GE_OQ);
  PALIMPSEST_EACH whole[i] = reinterpret_cast<VecI>(_mm512_cvttps_epi32(x[i] * kExponentUnit));
#else
  VecI counts[N];
  PALIMPSEST_EACH counts[i] = x[i] >= kLeastPower;
  PALIMPSEST_EACH x[i] = larger(x[i], splat(kLeastPower));
  PALIMPSEST_EACH whole[i] = __builtin_convertvector(x[i] * kExponentUnit, VecI);
#endif
  PALIMPSEST_EACH m[i] = fromBits((whole[i] & 0x7fffff) | 0x3f800000);
  PALIMPSEST_EACH whole[i] = whole[i] & ~0x7fffff;
  PALIMPSEST_EACH p[i] = m[i] * 0.013426700606942177f;
  PALIMPSEST_EACH p[i] = p[i] + -0.0014643559698015451f;
  PALIMPSEST_EACH p[i] = p[i] * m[i];
  PALIMPSEST_EACH p[i] = p[i] + 0.16511307656764984f;
  PALIMPSEST_EACH p[i] = p[i] * m[i];
  PALIMPSEST_EACH p[i] = p[i] + 0.3135049045085907f;
  PALIMPSEST_EACH p[i] = p[i] * m[i];
  PALIMPSEST_EACH p[i] = p[i] + 0.5094196796417236f;
#if defined(__AVX512F__)
  PALIMPSEST_EACH x[i] = reinterpret_cast<VecF>(_mm512_maskz_add_epi32(counts[i], reinterpret_cast<__m512i>(p[i]), reinterpret_cast<__m512i>(whole[i])));
#else
  PALIMPSEST_EACH x[i] = fromBits((bits(p[i]) + whole[i]) & counts[i]);
#endif
#undef PALIMPSEST_EACH
}

// How many vectors go through powersOfTwo together: as many as the registers hold.
constexpr int kPowerVectors = kLanes == 16 ? 8 : 4;

// The largest score of a row. With a mask, scores outside [first, last) become -inf.
template <bool Masked>
INLINE float largestScore(float* s, int first, int last) {
  const VecF lowest = splat(-__builtin_inff());
  const VecI lane = iota();
  VecF top = lowest;
  for (int i = 0; i < kPageTokens / kLanes; i++) {
    VecF v = load(s + i * kLanes);
    if (Masked) {
      const VecI t = lane + i * kLanes;
      v = ((t >= first) & (t < last)) ? v : lowest;
      store(s + i * kLanes, v);
    }
    top = larger(v, top);
  }
  return largestLane(top);
}

// Replaces scores by 2^(score - max) and returns their sum.
INLINE float probabilities(float* s, float max) {
  Parts total{};
  for (int i = 0; i < kPageTokens / kLanes; i += kPowerVectors) {
    VecF p[kPowerVectors];
    for (int j = 0; j < kPowerVectors; j++) p[j] = load(s + (i + j) * kLanes) - max;
    powersOfTwo(p);
    for (int j = 0; j < kPowerVectors; j++) store(s + (i + j) * kLanes, p[j]);
    for (int j = 0; j < kPowerVectors; j++) total.part[j % kParts] = total.part[j % kParts] + p[j];
  }
  return sumParts(total);
}

static void softmaxPage(float* scores, int n, size_t stride, const int* first, const int* last, float* max, float* sum, float* rescale,
                        float* share, float* rowMass) {
  // All maxima come first: a power that waits for its maximum would delay the rows after it.
  constexpr int kBlock = 24;
  for (int at = 0; at < n; at += kBlock) {
    const int end = at + kBlock < n ? at + kBlock : n;
    float tops[kBlock], powers[(kBlock + kLanes - 1) / kLanes * kLanes] = {};
    for (int i = at; i < end; i++) {
      float* s = scores + i * stride;
      const bool whole = first[i] <= 0 && last[i] >= kPageTokens;
      const float top = whole ? largestScore<false>(s, 0, kPageTokens) : largestScore<true>(s, first[i], last[i]);
      tops[i - at] = top;
      powers[i - at] = top > max[i] ? max[i] - top : top - max[i];
    }
    for (int i = 0; i < end - at; i += kLanes) {
      VecF power[1] = {load(powers + i)};
      powersOfTwo(power);
      store(powers + i, power[0]);
    }
    for (int i = at; i < end; i++) {
      float* s = scores + i * stride;
      const float top = tops[i - at];
      const bool rises = top > max[i];
      rescale[i] = rises ? powers[i - at] : 1.0f;
      share[i] = rises ? 1.0f : powers[i - at];
      if (!(top > -__builtin_inff())) {  // all masked
        for (int t = 0; t < kPageTokens; t++) s[t] = 0.0f;
        share[i] = rowMass[i] = 0.0f;
        continue;
      }
      if (rises) max[i] = top;
      rowMass[i] = probabilities(s, top) * share[i];
      sum[i] = sum[i] * rescale[i] + rowMass[i];
    }
  }
}

static void powers(float* x, int count) {
  for (int i = 0; i < count; i += kLanes) {
    VecF v[1] = {load(x + i)};
    powersOfTwo(v);
    store(x + i, v[0]);
  }
}

// line[p] += mass[p] * inverse * 2^(then[p] - max) for count (a multiple of 16) pages: the share of each page under the
// final maximum and sum.
static void addShares(const float* mass, const float* then, float max, float inverse, float* line, int count) {
  for (int i = 0; i < count; i += kLanes) {
    VecF shift[1] = {load(then + i) - max};
    powersOfTwo(shift);
    store(line + i, load(line + i) + (load(mass + i) * inverse) * shift[0]);
  }
}
