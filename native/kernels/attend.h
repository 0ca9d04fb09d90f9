// Query rows meet one page: keys to scores, one step of the online softmax, values mixed. One function for every format of either side.
// Equal bits on every instruction set, but for f16 sides (dot_f16.h).
#pragma once

static void integerRow(const float* x, int d, IntegerRow* out) {
#if defined(__AVX512VNNI__)
  alignas(64) int16_t integers[kMaxContraction];
  out->step = quantizeI16(x, d, integers);
  splitRow(integers, d, *out);
#else
  out->step = quantizeI16(x, d, reinterpret_cast<int16_t*>(out->bytes));
#endif
}

// What the levels of token t are multiplied by: its f16 scale, or 2^(k/16) of a rot row (0 for a zero row).
INLINE void tokenScales(const SideView& side, float* out) {
  if (side.format == kQ8) {
    fromHalf(side.rowScales, out, kPageTokens);
    return;
  }
#if defined(__AVX512F__)
  // 2^(k/16) = 2^(k >> 4) * 2^((k & 15) / 16): rounding does not depend on the power of two, so these are the bits of the table.
  const __m512 mantissa = _mm512_loadu_ps(kScaleValues + 127);
  for (int t = 0; t < kPageTokens; t += 16) {
    const __m512i k = _mm512_cvtepi8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(side.k + t)));
    const __m512i value = _mm512_add_epi32(_mm512_castps_si512(_mm512_permutexvar_ps(k, mantissa)), _mm512_slli_epi32(_mm512_srai_epi32(k, 4), 23));
    const __mmask16 row = _mm512_cmpneq_epi32_mask(k, _mm512_set1_epi32(-128));
    _mm512_storeu_ps(out + t, _mm512_castsi512_ps(_mm512_maskz_mov_epi32(row, value)));
  }
#else
  for (int t = 0; t < kPageTokens; t++) out[t] = side.k[t] == -128 ? 0.0f : kScaleValues[side.k[t] + 127];
#endif
}

INLINE void meanRow(const SideView& side, int d, float* out) {
  const float scale = halfToFloat(side.meanScale);
  typedef int8_t Bytes __attribute__((vector_size(kLanes)));
  for (int c = 0; c < d; c += kLanes) {
    Bytes bytes;
    __builtin_memcpy(&bytes, side.mean + c, sizeof bytes);
    store(out + c, __builtin_convertvector(bytes, VecF) * scale);
  }
}

INLINE float levelUnit(int format) {
  return format == kRot4 ? 1.0f / kRot4Divisor : format == kRot3 ? 1.0f / kRot3Divisor : format == kRot2 ? 1.0f / kRot2Divisor : 1.0f;
}

// The int8 levels of a coded side: its own tile, or the planes unpacked.
INLINE const int8_t* levelsOf(const SideView& side, int d, int8_t* tile) {
  if (side.format == kQ8) return side.tile;
  unpackRot(side.format, side.hi, side.lo, static_cast<size_t>(kPageTokens) * d, tile);
  return tile;
}

// Rows whose integer dots are taken at once where nothing is fused.
constexpr int kDotRows = 8;

static void scoreKeys(const SideView& k, const PageRows& rows, int visible, const SideView* next) {
  const int n = rows.count, d = rows.d;
  if (k.format == kF16) {
    const int outputs = (visible + 7) / 8 * 8;
    dotHalf(k.half, d, outputs, kPageTokens, rows.q, n, d, rows.scores, kPageTokens, aheadOf(next, d, d));
    return;
  }
  alignas(64) float scale[kPageTokens];
  tokenScales(k, scale);
  const IntegerRow* x = rows.plain;
  for (int r = 0; r < n; r++) rows.offset[r] = 0.0f;
  if (k.format != kQ8) {
    x = rows.turned;
    alignas(64) float mean[kMaxContraction];
    meanRow(k, d, mean);
    for (int r = 0; r < n; r++) rows.offset[r] = dot(rows.q + static_cast<size_t>(r) * d, mean, d);
  }
  const float unit = levelUnit(k.format);
  for (int r = 0; r < n; r++) rows.factor[r] = x[r].step * unit;
#if defined(__AVX512VNNI__)
  scoreCoded(k, scale, d, x, n, rows.factor, rows.offset, rows.scores, next);
#else
  const int8_t* tile = levelsOf(k, d, rows.tile);
  constexpr size_t kStride = sizeof(IntegerRow) / 2;
  for (int r = 0; r < n; r += kDotRows) {
    const int count = n - r < kDotRows ? n - r : kDotRows;
    dotI8(tile, d, kPageTokens, reinterpret_cast<const int16_t*>(x[r].bytes), count, kStride, rows.dots, kPageTokens);
    for (int i = 0; i < count; i++) {
      scaleDots(rows.dots + i * kPageTokens, scale, rows.factor[r + i], rows.offset[r + i], rows.scores + static_cast<size_t>(r + i) * kPageTokens,
                kPageTokens);
    }
  }
#endif
}

static void mixValues(const SideView& v, const PageRows& rows, int visible, const SideView* next) {
  const int n = rows.count, d = rows.d;
  if (v.format == kF16) {
    dotHalf(v.half, visible, d, d, rows.scores, n, kPageTokens, rows.spare, d, aheadOf(next, d, kPageTokens));
    axpy(1.0f, rows.spare, rows.mixed, n * d);
    return;
  }
  alignas(64) float scale[kPageTokens];
  tokenScales(v, scale);
  float* target = rows.mixed;
  if (v.format != kQ8) {
    target = rows.mixedTurned;
    alignas(64) float mean[kMaxContraction];
    meanRow(v, d, mean);
    for (int r = 0; r < n; r++) axpy(rows.rowMass[r], mean, rows.mixed + static_cast<size_t>(r) * d, d);
  }
  const float unit = levelUnit(v.format);
#if defined(__AVX512VNNI__)
  if (mixesCoded(d)) {
    mixCoded(v, scale, d, rows.scores, n, unit, target, next);
    return;
  }
#endif
  const int8_t* tile = levelsOf(v, d, rows.tile);
  alignas(64) int16_t weights[kDotRows * kPageTokens];
  float step[kDotRows];
  for (int r = 0; r < n; r += kDotRows) {
    const int count = n - r < kDotRows ? n - r : kDotRows;
    for (int i = 0; i < count; i++) {
      step[i] = weighI16(rows.scores + static_cast<size_t>(r + i) * kPageTokens, scale, kPageTokens, weights + i * kPageTokens) * unit;
    }
    dotI8(tile, kPageTokens, d, weights, count, kPageTokens, rows.dots, d);
    for (int i = 0; i < count; i++) addDots(step[i], rows.dots + static_cast<size_t>(i) * d, target + static_cast<size_t>(r + i) * d, d);
  }
}

static void attendPage(const SideView& k, const SideView& v, const PageRows& rows, int start, int visible, const SideView* nextK,
                       const SideView* nextV) {
  const int n = rows.count, d = rows.d;
  fetchScales(nextK, d);
  fetchScales(nextV, d);
  scoreKeys(k, rows, visible, nextK);
  for (int r = 0; rows.slope != nullptr && r < n; r++) {
    float* score = rows.scores + static_cast<size_t>(r) * kPageTokens;
    for (int t = 0; t < visible; t++) score[t] = score[t] - rows.slope[r] * static_cast<float>(rows.position[r] - start - t);
  }
  softmaxPage(rows.scores, n, kPageTokens, rows.first, rows.last, rows.max, rows.sum, rows.rescale, rows.rowMass);
  for (int r = 0; r < n; r++) {
    if (rows.rescale[r] == 1.0f) continue;
    scaleRow(rows.rescale[r], rows.mixed + static_cast<size_t>(r) * d, d);
    scaleRow(rows.rescale[r], rows.mixedTurned + static_cast<size_t>(r) * d, d);
  }
  mixValues(v, rows, visible, nextV);
  clearUpperHalves();
}

static void mixPage(const SideView& v, const PageRows& rows, int visible) {
  mixValues(v, rows, visible, nullptr);
  clearUpperHalves();
}
