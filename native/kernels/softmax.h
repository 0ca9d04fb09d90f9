// Online softmax over one page of scores, and the exponential it needs. Scores are in units of log2(e): whoever scales the queries has
// multiplied by it, so that 2^x is all that is left to compute.
// Unfused, fixed order of sums: equal bits on every instruction set.
#pragma once

// 2^x for x <= 0; 0 below -100 (the true value is under 7.9e-31, and its products with scales stay far from denormals). Relative error below 3e-7.
// x = n + r with |r| <= 1/2; the polynomial (degree 5, exactly 1 at 0) is a minimax fit of 2^r on that range, 9.2e-8; 2^n is added to the exponent.
// N vectors step by step, because one alone is a chain of sixteen operations that each wait for the one before.
template <int N>
INLINE void powersOfTwo(VecF (&x)[N]) {
  VecF n[N], p[N];
  VecI power[N], tiny[N];
#define PALIMPSEST_EACH for (int i = 0; i < N; i++)
  PALIMPSEST_EACH tiny[i] = x[i] < -100.0f;
  // Clamped first, so that the exponent below stays in range; what was clamped answers 0.
  PALIMPSEST_EACH x[i] = larger(x[i], splat(-100.0f));
  PALIMPSEST_EACH n[i] = x[i] + kRoundMagic;
  PALIMPSEST_EACH power[i] = bits(n[i]) << 23;
  PALIMPSEST_EACH n[i] = n[i] - kRoundMagic;
  PALIMPSEST_EACH x[i] = x[i] - n[i];
  PALIMPSEST_EACH p[i] = x[i] * 0.001326472731307149f;
  PALIMPSEST_EACH p[i] = p[i] + 0.009671512991189957f;
  PALIMPSEST_EACH p[i] = p[i] * x[i];
  PALIMPSEST_EACH p[i] = p[i] + 0.05550733581185341f;
  PALIMPSEST_EACH p[i] = p[i] * x[i];
  PALIMPSEST_EACH p[i] = p[i] + 0.24022242426872253f;
  PALIMPSEST_EACH p[i] = p[i] * x[i];
  PALIMPSEST_EACH p[i] = p[i] + 0.6931470036506653f;
  PALIMPSEST_EACH p[i] = p[i] * x[i];
  PALIMPSEST_EACH p[i] = p[i] + 1.0f;
  PALIMPSEST_EACH x[i] = fromBits((bits(p[i]) + power[i]) & ~tiny[i]);
#undef PALIMPSEST_EACH
}

// Vectors of one such step: as many as the registers hold.
constexpr int kPowerVectors = kLanes == 16 ? 8 : 4;

INLINE float powerOfTwo(float x) {
  VecF v[1] = {splat(x)};
  powersOfTwo(v);
  return v[0][0];
}

// The largest score of a row; with a mask, what lies outside [first, last) becomes -inf.
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

// Scores -> probabilities relative to max; answers their sum.
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
                        float* rowMass) {
  // All maxima first: a power that waits for its maximum would hold up the rows behind it.
  constexpr int kBlock = 24;
  for (int at = 0; at < n; at += kBlock) {
    const int end = at + kBlock < n ? at + kBlock : n;
    float newMax[kBlock];
    for (int i = at; i < end; i++) {
      float* s = scores + i * stride;
      const bool whole = first[i] <= 0 && last[i] >= kPageTokens;
      const float top = whole ? largestScore<false>(s, 0, kPageTokens) : largestScore<true>(s, first[i], last[i]);
      newMax[i - at] = top > max[i] ? top : max[i];
    }
    for (int i = at; i < end; i++) {
      float* s = scores + i * stride;
      const float now = newMax[i - at];
      rescale[i] = 1.0f;
      if (!(now > -__builtin_inff())) {  // nothing seen yet and all masked
        for (int t = 0; t < kPageTokens; t++) s[t] = 0.0f;
        rowMass[i] = 0.0f;
        continue;
      }
      if (max[i] != now) {
        rescale[i] = powerOfTwo(max[i] - now);
        max[i] = now;
      }
      rowMass[i] = probabilities(s, now);
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

// line[p] += mass[p] * inverse * 2^(then[p] - max) for count (a multiple of 16) pages: what each page received under the final maximum and sum.
static void addShares(const float* mass, const float* then, float max, float inverse, float* line, int count) {
  for (int i = 0; i < count; i += kLanes) {
    VecF shift[1] = {load(then + i) - max};
    powersOfTwo(shift);
    store(line + i, load(line + i) + (load(mass + i) * inverse) * shift[0]);
  }
}
