// Query rows meet one page: keys to scores, one step of the online softmax, values mixed. One function for every format of either side.
// Equal bits on every instruction set, but for f16 sides (dot_f16.h).
#pragma once

static void integerRow(const float* x, int d, IntegerRow* out) {
#if defined(PALIMPSEST_FUSED)
  alignas(64) int16_t integers[kContractionMax];
  out->step = quantizeI16(x, d, integers);
  splitRow(integers, d, *out);
#else
  out->step = quantizeI16(x, d, reinterpret_cast<int16_t*>(out->bytes));
#endif
}

// unit * 2^((k - shift) / 16) of every token, 0 of a zero row. 2^(j/16) = 2^(j >> 4) * 2^((j & 15) / 16), and rounding does not depend on the
// power of two: with unit = 1 these are the bits of kScaleValues.
INLINE void rotScales(const int8_t* k, int shift, float unit, float* out) {
  alignas(64) float mantissa[16];
  for (int i = 0; i < 16; i += kLanes) store(mantissa + i, load(kScaleValues + 127 + i) * unit);
#if defined(__AVX512F__)
  // What j << 19 leaves of j & 15 below the exponent is taken out of the table.
  const __m512i below = _mm512_slli_epi32(_mm512_set_epi32(15, 14, 13, 12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0), 19);
  const __m512i table = _mm512_sub_epi32(_mm512_load_si512(mantissa), below);
  for (int t = 0; t < kPageTokens; t += 16) {
    const __m512i at = _mm512_cvtepi8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(k + t)));
    const __mmask16 row = _mm512_cmpneq_epi32_mask(at, _mm512_set1_epi32(-128));
    const __m512i j = _mm512_sub_epi32(at, _mm512_set1_epi32(shift));
    _mm512_storeu_si512(out + t, _mm512_maskz_add_epi32(row, _mm512_permutexvar_epi32(j, table), _mm512_slli_epi32(j, 19)));
  }
#elif defined(__AVX2__)
  const __m256 low = _mm256_load_ps(mantissa), high = _mm256_load_ps(mantissa + 8);
  for (int t = 0; t < kPageTokens; t += 8) {
    const __m256i at = _mm256_cvtepi8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(k + t)));
    const __m256i j = _mm256_sub_epi32(at, _mm256_set1_epi32(shift));
    const __m256 part = _mm256_blendv_ps(_mm256_permutevar8x32_ps(low, j), _mm256_permutevar8x32_ps(high, j), _mm256_castsi256_ps(_mm256_slli_epi32(j, 28)));
    const __m256i value = _mm256_add_epi32(_mm256_castps_si256(part), _mm256_slli_epi32(_mm256_srai_epi32(j, 4), 23));
    const __m256i none = _mm256_cmpeq_epi32(at, _mm256_set1_epi32(-128));
    _mm256_storeu_ps(out + t, _mm256_castsi256_ps(_mm256_andnot_si256(none, value)));
  }
#else
  for (int t = 0; t < kPageTokens; t++) {
    const int j = k[t] - shift;
    int32_t value;
    __builtin_memcpy(&value, &mantissa[j & 15], sizeof value);
    value = k[t] == kZeroRow ? 0 : value + (j >> 4) * (1 << 23);
    __builtin_memcpy(out + t, &value, sizeof value);
  }
#endif
}

INLINE int largestExponent(const int8_t* k) {
#if defined(__AVX2__)
  __m256i top = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(k));
  for (int t = 32; t < kPageTokens; t += 32) top = _mm256_max_epi8(top, _mm256_loadu_si256(reinterpret_cast<const __m256i*>(k + t)));
  const __m128i most = _mm_max_epi8(_mm256_castsi256_si128(top), _mm256_extracti128_si256(top, 1));
  // 127 - k is unsigned, and the least 16-bit number is found by one instruction.
  const __m128i least = _mm_xor_si128(most, _mm_set1_epi8(127));
  return 127 - _mm_extract_epi16(_mm_minpos_epu16(_mm_min_epu8(least, _mm_srli_epi16(least, 8))), 0);
#else
  int most = kZeroRow;
  for (int t = 0; t < kPageTokens; t++) most = k[t] > most ? k[t] : most;
  return most;
#endif
}

INLINE void meanRow(const SideView& side, int d, float* out) {
  const float scale = halfToFloat(*side.meanScale) * powerOfTwo(*side.reference);
  for (int c = 0; c < d; c += kLanes) store(out + c, bytesToFloats(side.mean + c) * scale);
}

INLINE float levelUnit(int format) { return format == kQ8 ? 1.0f : 1.0f / static_cast<float>(divisorOf(format)); }

// The int8 levels of a coded side: its own tile, or the planes unpacked.
INLINE const int8_t* tileOf(const SideView& side, int d, int8_t* tile) {
  if (side.format == kQ8) return side.tile;
  unpackRot(side.format, side.hi, side.lo, static_cast<size_t>(kPageTokens) * d, tile);
  return tile;
}

// Rows whose integer dots are taken at once where nothing is fused.
constexpr int kDotRows = 8;

// Scales of the keys of one head, and per row what a level is worth and what the mean of the page adds.
INLINE void prepareKeys(const SideView& k, const PageRows& rows, int head) {
  const int d = rows.d;
  const int first = head * rows.perHead, end = first + rows.perHead;
  float* scale = rows.keyScales + head * kPageTokens;
  if (k.format == kQ8) {
    fromHalf(k.rowScales, scale, kPageTokens);
    for (int r = first; r < end; r++) rows.factor[r] = rows.plain[r].step;
    for (int r = first; r < end; r++) rows.offset[r] = 0.0f;
    return;
  }
  rotScales(k.k, 0, 1.0f, scale);
  const float unit = levelUnit(k.format) * powerOfTwo(*k.reference);
  alignas(64) float mean[kContractionMax];
  meanRow(k, d, mean);
  for (int r = first; r < end; r++) rows.factor[r] = rows.turned[r].step * unit;
  for (int r = first; r < end; r++) rows.offset[r] = dot(rows.q + static_cast<size_t>(r) * d, mean, d);
}

INLINE void scoreKeys(const SideView& k, const PageRows& rows, int head, int visible, const SideView* next) {
  const int n = rows.perHead, d = rows.d;
  const size_t first = static_cast<size_t>(head) * n;
  float* scores = rows.scores + first * kPageTokens;
  if (k.format == kF16) {
    const int outputs = (visible + 7) / 8 * 8;
    const Ahead ahead = aheadOf(next, k, kPageTokens);
    dotHalf(k.half, d, outputs, rows.halfStride, rows.q + first * d, n, d, scores, kPageTokens, next != nullptr ? &ahead : nullptr);
    return;
  }
  const IntegerRow* x = (k.format == kQ8 ? rows.plain : rows.turned) + first;
  const float* scale = rows.keyScales + head * kPageTokens;
  const float* factor = rows.factor + first;
  const float* offset = rows.offset + first;
#if defined(PALIMPSEST_FUSED)
  scoreCoded(k, scale, d, x, n, factor, offset, scores, next);
#else
  const int8_t* tile = tileOf(k, d, rows.tile);
  constexpr size_t kStride = sizeof(IntegerRow) / 2;
  for (int r = 0; r < n; r += kDotRows) {
    const int count = n - r < kDotRows ? n - r : kDotRows;
    dotI8(tile, d, kPageTokens, reinterpret_cast<const int16_t*>(x[r].bytes), count, kStride, rows.dots, kPageTokens);
    for (int i = 0; i < count; i++) {
      scaleDots(rows.dots + i * kPageTokens, scale, factor[r + i], offset[r + i], scores + static_cast<size_t>(r + i) * kPageTokens, kPageTokens);
    }
  }
  (void)next;
#endif
}

// Scales of the values of one head as multiples of a step that makes 32512 of the largest.
INLINE void prepareValues(const SideView& v, const PageRows& rows, int head) {
  float* scale = rows.valueScales + head * kPageTokens;
  if (v.format != kQ8) {
    const int most = largestExponent(v.k);
    rotScales(v.k, most, kIntegerMax, scale);
    rows.valueSteps[head] = scaleOf(static_cast<int8_t>(most)) / kIntegerMax * levelUnit(v.format) * powerOfTwo(*v.reference);
    return;
  }
  fromHalf(v.rowScales, scale, kPageTokens);
  VecF top = splat(0.0f);
  for (int t = 0; t < kPageTokens; t += kLanes) top = larger(load(scale + t), top);
  const float max = largestLane(top);
  const bool vanish = !(max >= kLeastMaximum && max <= kLargestMaximum);
  const float inverse = vanish ? 0.0f : kIntegerMax / max;
  // A negative scale, which no encoder writes, counts as 0.
  for (int t = 0; t < kPageTokens; t += kLanes) store(scale + t, larger(load(scale + t) * inverse, splat(0.0f)));
  rows.valueSteps[head] = vanish ? 0.0f : max / kIntegerMax;
}

// Adds what the mean of the page adds.
INLINE void mixMean(const SideView& v, const PageRows& rows, int head) {
  const int d = rows.d;
  const int first = head * rows.perHead, end = first + rows.perHead;
  if (v.format == kQ8) return;
  alignas(64) float mean[kContractionMax];
  meanRow(v, d, mean);
  for (int r = first; r < end; r++) axpy(rows.rowMass[r], mean, rows.mixed + static_cast<size_t>(r) * d, d);
}

// Rows [first, first + n) of one head.
INLINE void mixValues(const SideView& v, const PageRows& rows, int head, size_t first, int n, int visible, const SideView* next) {
  const int d = rows.d;
  const float* p = rows.scores + first * kPageTokens;
  if (v.format == kF16) {
    const Ahead ahead = aheadOf(next, v, d);
    dotHalf(v.half, visible, d, d, p, n, kPageTokens, rows.spare, d, next != nullptr ? &ahead : nullptr);
    for (int i = 0; i < n; i++) axpy(rows.share[first + i], rows.spare + static_cast<size_t>(i) * d, rows.mixed + (first + i) * d, d);
    return;
  }
  float* target = (v.format == kQ8 ? rows.mixed : rows.mixedTurned) + first * d;
#if defined(PALIMPSEST_FUSED)
  if (mixesCoded(d)) {
    mixCoded(v, d, rows.weights + first % kWeightRows, n, target, next);
    return;
  }
#endif
  const float* scale = rows.valueScales + head * kPageTokens;
  const int8_t* tile = tileOf(v, d, rows.tile);
  alignas(64) int16_t weights[kDotRows * kPageTokens];
  for (int r = 0; r < n; r += kDotRows) {
    const int count = n - r < kDotRows ? n - r : kDotRows;
    for (int i = 0; i < count; i++) weighI16(p + static_cast<size_t>(r + i) * kPageTokens, scale, kPageTokens, weights + i * kPageTokens);
    dotI8(tile, kPageTokens, d, weights, count, kPageTokens, rows.dots, d);
    for (int i = 0; i < count; i++) {
      addDots(rows.share[first + r + i] * rows.valueSteps[head], rows.dots + static_cast<size_t>(i) * d, target + static_cast<size_t>(r + i) * d, d);
    }
  }
}

// Whether the values of a head need not be read, and if so, counts them as left out. rowMass and sum are those after this page.
//
// What is left out. A rot page decodes to mean + x_t, so its part of the output is mass * mean + sum_t p_t x_t. The first term is always
// added (prepareValues); skipping drops the second, whose norm is at most mass * V with V the largest |x_t| of the pages skipped. A row that
// skips pages P therefore ends up to  V * sum_P mass_P / sum  away from its full output. Both the masses left out and `sum` are rescaled
// together when the maximum grows, and `sum` only ever gains: if  skippedMass + rowMass <= share * sum  holds whenever a page is skipped,
// the last such moment bounds the end:  |o' - o| <= share * V.  Ranges of a history that are merged each keep their ratio, so does their sum.
INLINE bool skipValues(const SideView& v, const PageRows& rows, int head) {
  if (rows.skipShare <= 0 || v.format == kF16 || v.format == kQ8) return false;
  rows.skipped[0]++;
  const int first = head * rows.perHead, end = first + rows.perHead;
  for (int r = first; r < end; r++) {
    if (!(rows.skippedMass[r] + rows.rowMass[r] <= rows.skipShare * rows.sum[r])) return false;
  }
  for (int r = first; r < end; r++) rows.skippedMass[r] += rows.rowMass[r];
  rows.skipped[1]++;
  return true;
}

#if defined(PALIMPSEST_FUSED)
// Probabilities times scales as integers, rows [from, to) of any heads: rows.weights[r - from].
INLINE void weighRows(const PageRows& rows, int from, int to) {
  for (int r = from, head = from / rows.perHead; r < to; r++) {
    if (r == (head + 1) * rows.perHead) head++;
    weighRow(rows.scores + static_cast<size_t>(r) * kPageTokens, rows.valueScales + head * kPageTokens, rows.weights[r - from]);
    rows.weights[r - from].step = rows.share[r] * rows.valueSteps[head];
  }
}
#endif

// Values of all heads. Where integers are made of the probabilities beforehand, that is done for as many rows at once as there is room.
INLINE void mixHeads(const SideView* v, int ahead, const PageRows& rows, int visible) {
  const bool coded = v->format != kF16;
  // Rows of heads that are skipped keep their place, so that `first` still finds its weights.
  uint8_t skip[kHeadsMax];
  int left = rows.heads;
  for (int h = 0; h < rows.heads; h++) {
    skip[h] = skipValues(v[h], rows, h);
    left -= skip[h];
  }
  for (int h = 0; coded && h < rows.heads; h++) mixMean(v[h], rows, h);
  if (left == 0) return;
#if defined(PALIMPSEST_FUSED)
  if (coded && mixesCoded(rows.d)) {
    for (int at = 0; at < rows.count; at += kWeightRows) {
      const int end = at + kWeightRows < rows.count ? at + kWeightRows : rows.count;
      weighRows(rows, at, end);
      for (int r = at; r < end;) {
        const int h = r / rows.perHead;
        const int stop = (h + 1) * rows.perHead < end ? (h + 1) * rows.perHead : end;
        if (!skip[h]) mixValues(v[h], rows, h, r, stop - r, visible, ahead > 0 && r == h * rows.perHead ? v + h + ahead : nullptr);
        r = stop;
      }
    }
    return;
  }
#endif
  for (int h = 0; h < rows.heads; h++) {
    if (!skip[h]) mixValues(v[h], rows, h, static_cast<size_t>(h) * rows.perHead, rows.perHead, visible, ahead > 0 ? v + h + ahead : nullptr);
  }
}

static void mixPage(const SideView* values, const PageRows& rows, int visible) {
  for (int h = 0; values->format != kF16 && h < rows.heads; h++) prepareValues(values[h], rows, h);
  mixHeads(values, 0, rows, visible);
  clearUpperHalves();
}

// One page. Step after step for all heads, not head after head: the end of every step waits for its last results, and so is met less often.
INLINE void meetPage(const SideView* sides, int ahead, const PageRows& rows, int start, int visible) {
  const int n = rows.count, d = rows.d;
  // Values that may be skipped are not asked for: keys ask for keys, some pages further on.
  const bool mayTurnUp = rows.skipShare <= 0;
  const int keysAhead = mayTurnUp || ahead == 0 ? ahead : (ahead + 2 * rows.heads - 1) / (2 * rows.heads) * 2 * rows.heads;
  const SideView* values = sides + rows.heads;
  for (int h = 0; h < rows.heads && sides->format != kF16; h++) prepareKeys(sides[h], rows, h);
  for (int h = 0; h < rows.heads && values->format != kF16; h++) prepareValues(values[h], rows, h);
  for (int h = 0; h < rows.heads; h++) {
    // Those of all heads of the next page: it begins with them.
    for (int side = 0; ahead > 0 && side < 2; side++) fetchScales(sides[h + (2 + side) * rows.heads], d);
    scoreKeys(sides[h], rows, h, visible, keysAhead > 0 ? sides + h + keysAhead : nullptr);
  }
  for (int r = 0; rows.slope != nullptr && r < n; r++) {
    float* score = rows.scores + static_cast<size_t>(r) * kPageTokens;
    for (int t = 0; t < visible; t++) score[t] = score[t] - rows.slope[r] * static_cast<float>(rows.position[r] - start - t);
  }
  softmaxPage(rows.scores, n, kPageTokens, rows.first, rows.last, rows.max, rows.sum, rows.rescale, rows.share, rows.rowMass);
  for (int r = 0; r < n; r++) {
    if (rows.rescale[r] == 1.0f) continue;
    rows.skippedMass[r] *= rows.rescale[r];
    scaleRow(rows.rescale[r], rows.mixed + static_cast<size_t>(r) * d, d);
    scaleRow(rows.rescale[r], rows.mixedTurned + static_cast<size_t>(r) * d, d);
  }
  mixHeads(values, mayTurnUp ? ahead : 0, rows, visible);
}

static void attendPage(const SideView* sides, const PageRows& rows, int start, int visible) {
  meetPage(sides, 0, rows, start, visible);
  clearUpperHalves();
}

static void attendRun(const SideView* sides, int pages, int known, int start, const PageRows& rows, const PageNotes& notes) {
  for (int p = 0; p < pages; p++) {
    const SideView* at = sides + static_cast<size_t>(p) * 2 * rows.heads;
    const int ahead = sidesAhead(at, rows);
    meetPage(at, (known - p - 1) * 2 * rows.heads >= ahead ? ahead : 0, rows, start + p * kPageTokens, kPageTokens);
    for (int r = 0; notes.mass != nullptr && r < rows.count; r++) {
      if (rows.rowMass[r] == 0.0f) continue;
      notes.mass[r * notes.stride + p] = rows.rowMass[r];
      notes.max[r * notes.stride + p] = rows.max[r];
    }
  }
  clearUpperHalves();
}
