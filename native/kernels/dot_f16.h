// y[i][o] = sum_c x[i][c] * m[c][o] over an f16 tile [contraction][outputs].
// A block of R rows x B column vectors of accumulators stays in registers; each loaded vector of halves serves R rows.
// Each output has one accumulator, summed in ascending order of c, with fused multiply-add where the hardware has it.
#pragma once

template <int R, int B>
INLINE void blockF16(const uint16_t* m, int contraction, int rowStride, const float* x, size_t xStride, float* y, size_t yStride,
                     const Ahead* ahead = nullptr) {
  VecF sum[R][B] = {};
  for (int c = 0; c < contraction; c++) {
    if (ahead != nullptr) fetch(*ahead, c);
    const uint16_t* row = m + static_cast<size_t>(c) * rowStride;
    // With 8 lanes, the fewer of factors and values stay in registers and the others are loaded one at a time;
    // otherwise the factors stay.
    if constexpr (R <= B || kLanes != 8) {
      VecF factor[R];
      for (int r = 0; r < R; r++) factor[r] = splat(x[r * xStride + c]);
      for (int b = 0; b < B; b++) {
        const VecF value = loadHalf(row + b * kLanes);
        for (int r = 0; r < R; r++) sum[r][b] = mulAdd(factor[r], value, sum[r][b]);
      }
    } else {
      VecF value[B];
      for (int b = 0; b < B; b++) value[b] = loadHalf(row + b * kLanes);
      for (int r = 0; r < R; r++) {
        const VecF factor = splat(x[r * xStride + c]);
        for (int b = 0; b < B; b++) sum[r][b] = mulAdd(factor, value[b], sum[r][b]);
      }
    }
  }
  for (int r = 0; r < R; r++) {
    for (int b = 0; b < B; b++) store(y + r * yStride + b * kLanes, sum[r][b]);
  }
}

#if defined(__AVX512F__)
// The last eight outputs when the number of outputs is not a multiple of 16.
template <int R>
INLINE void eightF16(const uint16_t* m, int contraction, int rowStride, const float* x, size_t xStride, float* y, size_t yStride) {
  __m256 sum[R];
  for (int r = 0; r < R; r++) sum[r] = _mm256_setzero_ps();
  for (int c = 0; c < contraction; c++) {
    __m256 value = _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(m + static_cast<size_t>(c) * rowStride)));
    for (int r = 0; r < R; r++) sum[r] = _mm256_fmadd_ps(_mm256_set1_ps(x[r * xStride + c]), value, sum[r]);
  }
  for (int r = 0; r < R; r++) _mm256_storeu_ps(y + r * yStride, sum[r]);
}
#endif

// R rows over all outputs, in column blocks of B, 4, 2 and 1 vectors. The prefetches are spread evenly over the blocks
// of B.
template <int R, int B>
static __attribute__((noinline)) void rowsF16(const uint16_t* m, int contraction, int outputs, int rowStride, const float* x, size_t xStride,
                                              float* y, size_t yStride, const Ahead* ahead) {
  int o = 0;
  const int blocks = outputs / (B * kLanes);
  for (int i = 0; i < blocks; i++, o += B * kLanes) {
    if (ahead == nullptr) {
      blockF16<R, B>(m + o, contraction, rowStride, x, xStride, y + o, yStride);
      continue;
    }
    const Ahead part = partOf(*ahead, contraction, i, blocks);
    blockF16<R, B>(m + o, contraction, rowStride, x, xStride, y + o, yStride, &part);
  }
  if constexpr (B > 4) {
    for (; o + 4 * kLanes <= outputs; o += 4 * kLanes) blockF16<R, 4>(m + o, contraction, rowStride, x, xStride, y + o, yStride, o == 0 ? ahead : nullptr);
  }
  for (; o + 2 * kLanes <= outputs; o += 2 * kLanes) blockF16<R, 2>(m + o, contraction, rowStride, x, xStride, y + o, yStride);
  for (; o + kLanes <= outputs; o += kLanes) blockF16<R, 1>(m + o, contraction, rowStride, x, xStride, y + o, yStride);
#if defined(__AVX512F__)
  if (o < outputs) eightF16<R>(m + o, contraction, rowStride, x, xStride, y + o, yStride);
#endif
}

static void dotHalf(const uint16_t* m, int contraction, int outputs, int rowStride, const float* x, int n, size_t xStride, float* y,
                    size_t yStride, const Ahead* whole) {
#if defined(__AVX512F__)
  // 32 registers hold up to 24 of these accumulators.
  int i = 0;
  if (outputs <= 2 * kLanes) {
    for (; n - i >= 8; i += 8) rowsF16<8, 2>(m, contraction, outputs, rowStride, x + i * xStride, xStride, y + i * yStride, yStride, i == 0 ? whole : nullptr);
  }
  for (; n - i >= 8; i += 4) rowsF16<4, 4>(m, contraction, outputs, rowStride, x + i * xStride, xStride, y + i * yStride, yStride, i == 0 ? whole : nullptr);
  for (; i < n;) {
    const float* xi = x + i * xStride;
    float* yi = y + i * yStride;
    switch (n - i) {
      case 1: rowsF16<1, 8>(m, contraction, outputs, rowStride, xi, xStride, yi, yStride, i == 0 ? whole : nullptr); i += 1; break;
      case 2: rowsF16<2, 8>(m, contraction, outputs, rowStride, xi, xStride, yi, yStride, i == 0 ? whole : nullptr); i += 2; break;
      case 3: rowsF16<3, 8>(m, contraction, outputs, rowStride, xi, xStride, yi, yStride, i == 0 ? whole : nullptr); i += 3; break;
      case 6: rowsF16<6, 4>(m, contraction, outputs, rowStride, xi, xStride, yi, yStride, i == 0 ? whole : nullptr); i += 6; break;
      case 5: rowsF16<5, 4>(m, contraction, outputs, rowStride, xi, xStride, yi, yStride, i == 0 ? whole : nullptr); i += 5; break;
      default: rowsF16<4, 4>(m, contraction, outputs, rowStride, xi, xStride, yi, yStride, i == 0 ? whole : nullptr); i += 4; break;
    }
  }
#else
  // 16 registers hold 8 to 12 accumulators, enough to hide the latency of two additions per step.
  int i = 0;
  for (; n - i >= 4; i += 4) rowsF16<4, 3>(m, contraction, outputs, rowStride, x + i * xStride, xStride, y + i * yStride, yStride, i == 0 ? whole : nullptr);
  const float* xi = x + i * xStride;
  float* yi = y + i * yStride;
  switch (n - i) {
    case 1: rowsF16<1, 8>(m, contraction, outputs, rowStride, xi, xStride, yi, yStride, i == 0 ? whole : nullptr); break;
    case 2: rowsF16<2, 4>(m, contraction, outputs, rowStride, xi, xStride, yi, yStride, i == 0 ? whole : nullptr); break;
    case 3: rowsF16<3, 4>(m, contraction, outputs, rowStride, xi, xStride, yi, yStride, i == 0 ? whole : nullptr); break;
    default: break;
  }
#endif
}

static void dotF16(const uint16_t* m, int contraction, int outputs, int rowStride, const float* x, int n, size_t xStride, float* y,
                   size_t yStride) {
  dotHalf(m, contraction, outputs, rowStride, x, n, xStride, y, yStride, nullptr);
}
