// The scale of a row in one byte: an exponent k stands for 2^(k/16), -128 for a row of zeros. The arithmetic is that of
// native/reference/row-scale.ts.
#pragma once

constexpr int8_t kZeroRow = -128;

// 2^(exponent/16), 0 for a zero row.
INLINE float scaleOf(int8_t exponent) { return exponent == kZeroRow ? 0.0f : kScaleValues[exponent + 127]; }
// 2^e for -126 <= e <= 127; no encoder writes an e outside this range.
INLINE float powerOfTwo(int e) {
  const int32_t field = (e + 127) * (1 << 23);
  float power;
  __builtin_memcpy(&power, &field, sizeof power);
  return power;
}

// unit * 2^((exponent - shift) / 16) of every token, 0 for a zero row. 2^(j/16) = 2^(j >> 4) * 2^((j & 15) / 16), and
// rounding does not depend on the power of two, so with unit = 1 the results have the bits of kScaleValues.
INLINE void rowScales(const int8_t* exponents, int shift, float unit, float* out) {
  alignas(64) float mantissa[16];
  for (int i = 0; i < 16; i += kLanes) store(mantissa + i, load(kScaleValues + 127 + i) * unit);
#if defined(__AVX512F__)
  // Adding j << 19 also adds j & 15 below the exponent, so the table has that subtracted.
  const __m512i below = _mm512_slli_epi32(_mm512_set_epi32(15, 14, 13, 12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0), 19);
  const __m512i table = _mm512_sub_epi32(_mm512_load_si512(mantissa), below);
  for (int t = 0; t < kPageTokens; t += 16) {
    const __m512i at = _mm512_cvtepi8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(exponents + t)));
    const __mmask16 row = _mm512_cmpneq_epi32_mask(at, _mm512_set1_epi32(-128));
    const __m512i j = _mm512_sub_epi32(at, _mm512_set1_epi32(shift));
    _mm512_storeu_si512(out + t, _mm512_maskz_add_epi32(row, _mm512_permutexvar_epi32(j, table), _mm512_slli_epi32(j, 19)));
  }
#elif defined(__AVX2__)
  const __m256 low = _mm256_load_ps(mantissa), high = _mm256_load_ps(mantissa + 8);
  for (int t = 0; t < kPageTokens; t += 8) {
    const __m256i at = _mm256_cvtepi8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(exponents + t)));
    const __m256i j = _mm256_sub_epi32(at, _mm256_set1_epi32(shift));
    const __m256 part = _mm256_blendv_ps(_mm256_permutevar8x32_ps(low, j), _mm256_permutevar8x32_ps(high, j), _mm256_castsi256_ps(_mm256_slli_epi32(j, 28)));
    const __m256i value = _mm256_add_epi32(_mm256_castps_si256(part), _mm256_slli_epi32(_mm256_srai_epi32(j, 4), 23));
    const __m256i none = _mm256_cmpeq_epi32(at, _mm256_set1_epi32(-128));
    _mm256_storeu_ps(out + t, _mm256_castsi256_ps(_mm256_andnot_si256(none, value)));
  }
#else
  for (int t = 0; t < kPageTokens; t++) {
    const int j = exponents[t] - shift;
    int32_t value;
    __builtin_memcpy(&value, &mantissa[j & 15], sizeof value);
    value = exponents[t] == kZeroRow ? 0 : value + (j >> 4) * (1 << 23);
    __builtin_memcpy(out + t, &value, sizeof value);
  }
#endif
}

// Exponents: -127 + number of scale bounds below t, for t >= 0. The bounds of every octave are those of [1, 2) times a
// power of two (test/unit/native/rot.test.ts checks the table), so mantissa and exponent are looked up separately.
INLINE VecI scaleExponents(VecF t) {
  const VecI mantissa = (bits(t) & 0x007fffff) | 0x3f800000;
  const VecI octave = (bits(t) >> 23) - 127;
  const float* first = kScaleBounds + 127;  // the lowest bound above 1
  VecI exponents = octave * 16 + countBelow(loadSixteen(first), fromBits(mantissa)) - (fromBits(mantissa) > splat(first[15]));
  exponents = exponents > 127 ? splatI(127) : exponents;
  return t > splat(kScaleBounds[0]) ? exponents : splatI(-127);  // also for NaN and for exponents that are too low
}

// The largest exponent of a page.
INLINE int largestExponent(const int8_t* exponents) {
#if defined(__AVX2__)
  __m256i top = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(exponents));
  for (int t = 32; t < kPageTokens; t += 32) top = _mm256_max_epi8(top, _mm256_loadu_si256(reinterpret_cast<const __m256i*>(exponents + t)));
  const __m128i most = _mm_max_epi8(_mm256_castsi256_si128(top), _mm256_extracti128_si256(top, 1));
  // 127 - exponent is unsigned, so that one instruction finds the smallest 16-bit number.
  const __m128i least = _mm_xor_si128(most, _mm_set1_epi8(127));
  return 127 - _mm_extract_epi16(_mm_minpos_epu16(_mm_min_epu8(least, _mm_srli_epi16(least, 8))), 0);
#else
  int most = kZeroRow;
  for (int t = 0; t < kPageTokens; t++) most = exponents[t] > most ? exponents[t] : most;
  return most;
#endif
}
