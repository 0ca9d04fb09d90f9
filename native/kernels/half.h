// IEEE 754 binary16. Subnormals, infinities and NaN are kept; float -> half rounds half to even, and from 65520 on to
// infinity.
#pragma once

typedef uint16_t VecH __attribute__((vector_size(kLanes * 2)));
typedef uint16_t UnalignedH __attribute__((vector_size(kLanes * 2), aligned(2), may_alias));
typedef uint32_t VecU __attribute__((vector_size(kLanes * 4)));

// kLanes halves to floats.
INLINE VecF loadHalf(const uint16_t* p) {
#if defined(__AVX512F__)
  return _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
#elif defined(__AVX2__)
  return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
#elif defined(__aarch64__)
  return vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16(p)));
#else
  // Exponent and mantissa are moved into place, then a product with 2^112 corrects the bias. Subnormals come out exact.
  VecU h = __builtin_convertvector(*reinterpret_cast<const UnalignedH*>(p), VecU);
  VecU shifted = (h & 0x7fff) << 13;
  VecU finite = reinterpret_cast<VecU>(reinterpret_cast<VecF>(shifted) * 0x1p112f);
  VecU value = reinterpret_cast<VecI>(shifted) >= 0x0f800000 ? (shifted | 0x7f800000) : finite;  // signed: SSE2 has no unsigned comparison
  return reinterpret_cast<VecF>(value | ((h & 0x8000) << 16));
#endif
}

#include "scalar_half.h"

static void fromHalf(const uint16_t* x, float* out, size_t count) {
  size_t i = 0;
  for (; i + kLanes <= count; i += kLanes) store(out + i, loadHalf(x + i));
  for (; i < count; i++) out[i] = halfToFloat(x[i]);
}

static void toHalf(const float* x, uint16_t* out, size_t count) {
  size_t i = 0;
#if defined(__AVX512F__)
  for (; i + kLanes <= count; i += kLanes) {
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(out + i), _mm512_cvtps_ph(load(x + i), 0));
  }
#elif defined(__AVX2__)
  for (; i + kLanes <= count; i += kLanes) {
    _mm_storeu_si128(reinterpret_cast<__m128i*>(out + i), _mm256_cvtps_ph(load(x + i), 0));
  }
#elif defined(__aarch64__)
  for (; i + kLanes <= count; i += kLanes) vst1_u16(out + i, vreinterpret_u16_f16(vcvt_f16_f32(load(x + i))));
#endif
  for (; i < count; i++) out[i] = floatToHalf(x[i]);
}
