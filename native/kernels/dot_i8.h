// y[i][o] = sum_c x[i][c] * tile[c][o], exact: x int16, tile int8, sums in int32 (wrapping steps, the end result fits).
// A 64-byte row of the tile is 16 outputs x 4 contraction steps. A quad is the four x of one such row.
//   AVX-512 VNNI  vpdpbusd wants unsigned times signed bytes: levels become level + 128; x splits into two planes,
//                 hi = (x + 128) >> 8 and lo = int8(x), x = 256 hi + lo; 128 * sum(x) is taken away again.
//   AVX2/AVX-512  vpmaddwd on int16: bytes 0, 2 and bytes 1, 3 of each output are widened apart by shifts.
//   SSE2, Wasm    the same on 16 bytes.
//   NEON          dot_i8_neon.h
// No x is read beyond contraction; rows of x need not be aligned.
#pragma once

#if defined(__AVX512VNNI__)

// bytes: the two planes of one row of x, four bytes a quad, hi then lo; correction: -128 * sum(x).
INLINE void splitRow(const int16_t* x, int contraction, IntegerRow& out) {
  __m512i sum = _mm512_setzero_si512();
  const __m512i ones = _mm512_set1_epi16(1);
  for (int c = 0; c < contraction; c += 32) {
    const int left = contraction - c;
    const __mmask32 mask = left >= 32 ? 0xffffffffu : (1u << left) - 1;
    __m512i v = _mm512_maskz_loadu_epi16(mask, x + c);
    sum = _mm512_add_epi32(sum, _mm512_madd_epi16(v, ones));
    __m512i hi = _mm512_srai_epi16(_mm512_add_epi16(v, _mm512_set1_epi16(128)), 8);
    _mm256_store_si256(reinterpret_cast<__m256i*>(out.bytes + c), _mm512_cvtepi16_epi8(hi));
    _mm256_store_si256(reinterpret_cast<__m256i*>(out.bytes + kContractionMax + c), _mm512_cvtepi16_epi8(v));
  }
  out.correction = -128 * _mm512_reduce_add_epi32(sum);
}

// Four bytes of a plane in every lane.
INLINE __m512i quadOf(const int8_t* plane, int quad) {
  int32_t four;
  __builtin_memcpy(&four, plane + quad * 4, 4);
  return _mm512_set1_epi32(four);
}

// sum += levels (unsigned bytes) . x (signed bytes). As assembly because gcc 12 copies and spills accumulators around the intrinsic.
INLINE void addDots(__m512i& sum, __m512i levels, __m512i x) { asm("vpdpbusd %2, %1, %0" : "+v"(sum) : "v"(levels), "v"(x)); }

template <int R, int B>
INLINE void blockI8(const int8_t* tile, int quads, size_t rowBytes, const IntegerRow* x, int32_t* y, size_t yStride) {
  __m512i high[R][B], low[R][B];
  for (int r = 0; r < R; r++) {
    for (int b = 0; b < B; b++) {
      high[r][b] = _mm512_setzero_si512();
      low[r][b] = _mm512_set1_epi32(x[r].correction);
    }
  }
  const __m512i flip = _mm512_set1_epi8(static_cast<char>(0x80));
  for (int q = 0; q < quads; q++) {
    __m512i level[B];
    for (int b = 0; b < B; b++) level[b] = _mm512_xor_si512(_mm512_loadu_si512(tile + q * rowBytes + b * 64), flip);
    for (int r = 0; r < R; r++) {
      const __m512i hi = quadOf(x[r].bytes, q);
      const __m512i lo = quadOf(x[r].bytes + kContractionMax, q);
      for (int b = 0; b < B; b++) addDots(high[r][b], level[b], hi);
      for (int b = 0; b < B; b++) addDots(low[r][b], level[b], lo);
    }
  }
  for (int r = 0; r < R; r++) {
    for (int b = 0; b < B; b++) {
      _mm512_storeu_si512(y + r * yStride + b * 16, _mm512_add_epi32(_mm512_slli_epi32(high[r][b], 8), low[r][b]));
    }
  }
}

template <int R, int B>
static __attribute__((noinline)) void rowsI8(const int8_t* tile, int contraction, int outputs, const int16_t* x, size_t xStride, int32_t* y,
                                             size_t yStride) {
  IntegerRow split[R];
  for (int r = 0; r < R; r++) splitRow(x + r * xStride, contraction, split[r]);
  const int quads = contraction / 4;
  const size_t rowBytes = static_cast<size_t>(outputs) * 4;
  int o = 0;
  for (; o + B * 16 <= outputs; o += B * 16) blockI8<R, B>(tile + o * 4, quads, rowBytes, split, y + o, yStride);
  for (; o + 16 <= outputs; o += 16) blockI8<R, 1>(tile + o * 4, quads, rowBytes, split, y + o, yStride);
}

static void dotI8(const int8_t* tile, int contraction, int outputs, const int16_t* x, int n, size_t xStride, int32_t* y, size_t yStride) {
  int i = 0;
  for (; n - i >= 4; i += 4) rowsI8<4, 2>(tile, contraction, outputs, x + i * xStride, xStride, y + i * yStride, yStride);
  const int16_t* xi = x + i * xStride;
  int32_t* yi = y + i * yStride;
  switch (n - i) {
    case 1: rowsI8<1, 4>(tile, contraction, outputs, xi, xStride, yi, yStride); break;
    case 2: rowsI8<2, 4>(tile, contraction, outputs, xi, xStride, yi, yStride); break;
    case 3: rowsI8<3, 4>(tile, contraction, outputs, xi, xStride, yi, yStride); break;
    default: break;
  }
}

#elif defined(__aarch64__)

#include "dot_i8_neon.h"

#else

// One row of x as 32-bit pairs: even = (x0, x2), odd = (x1, x3) of each quad.
struct PairedRow {
  int32_t even[kContractionMax / 4];
  int32_t odd[kContractionMax / 4];
};

INLINE void pairRow(const int16_t* x, int contraction, PairedRow& out) {
  for (int q = 0; q < contraction / 4; q++) {
    const int16_t* p = x + q * 4;
    out.even[q] = static_cast<int32_t>(static_cast<uint32_t>(static_cast<uint16_t>(p[0])) | static_cast<uint32_t>(static_cast<uint16_t>(p[2])) << 16);
    out.odd[q] = static_cast<int32_t>(static_cast<uint32_t>(static_cast<uint16_t>(p[1])) | static_cast<uint32_t>(static_cast<uint16_t>(p[3])) << 16);
  }
}

#if defined(__AVX512BW__)
typedef __m512i Bytes;
constexpr int kByteLanes = 64;
INLINE Bytes loadBytes(const int8_t* p) { return _mm512_loadu_si512(p); }
INLINE Bytes evenBytes(Bytes v) { return _mm512_srai_epi16(_mm512_slli_epi16(v, 8), 8); }
INLINE Bytes oddBytes(Bytes v) { return _mm512_srai_epi16(v, 8); }
INLINE Bytes pairs(int32_t v) { return _mm512_set1_epi32(v); }
INLINE Bytes addPairs(Bytes sum, Bytes a, Bytes b) { return _mm512_add_epi32(sum, _mm512_madd_epi16(a, b)); }
INLINE Bytes noBytes() { return _mm512_setzero_si512(); }
INLINE void storeSums(int32_t* y, Bytes sum) { _mm512_storeu_si512(y, sum); }
#elif defined(__AVX2__)
typedef __m256i Bytes;
constexpr int kByteLanes = 32;
INLINE Bytes loadBytes(const int8_t* p) { return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)); }
INLINE Bytes evenBytes(Bytes v) { return _mm256_srai_epi16(_mm256_slli_epi16(v, 8), 8); }
INLINE Bytes oddBytes(Bytes v) { return _mm256_srai_epi16(v, 8); }
INLINE Bytes pairs(int32_t v) { return _mm256_set1_epi32(v); }
INLINE Bytes addPairs(Bytes sum, Bytes a, Bytes b) { return _mm256_add_epi32(sum, _mm256_madd_epi16(a, b)); }
INLINE Bytes noBytes() { return _mm256_setzero_si256(); }
INLINE void storeSums(int32_t* y, Bytes sum) { _mm256_storeu_si256(reinterpret_cast<__m256i*>(y), sum); }
#elif defined(__SSE2__)
typedef __m128i Bytes;
constexpr int kByteLanes = 16;
INLINE Bytes loadBytes(const int8_t* p) { return _mm_loadu_si128(reinterpret_cast<const __m128i*>(p)); }
INLINE Bytes evenBytes(Bytes v) { return _mm_srai_epi16(_mm_slli_epi16(v, 8), 8); }
INLINE Bytes oddBytes(Bytes v) { return _mm_srai_epi16(v, 8); }
INLINE Bytes pairs(int32_t v) { return _mm_set1_epi32(v); }
INLINE Bytes addPairs(Bytes sum, Bytes a, Bytes b) { return _mm_add_epi32(sum, _mm_madd_epi16(a, b)); }
INLINE Bytes noBytes() { return _mm_setzero_si128(); }
INLINE void storeSums(int32_t* y, Bytes sum) { _mm_storeu_si128(reinterpret_cast<__m128i*>(y), sum); }
#elif defined(__wasm_simd128__)
typedef v128_t Bytes;
constexpr int kByteLanes = 16;
INLINE Bytes loadBytes(const int8_t* p) { return wasm_v128_load(p); }
INLINE Bytes evenBytes(Bytes v) { return wasm_i16x8_shr(wasm_i16x8_shl(v, 8), 8); }
INLINE Bytes oddBytes(Bytes v) { return wasm_i16x8_shr(v, 8); }
INLINE Bytes pairs(int32_t v) { return wasm_i32x4_splat(v); }
INLINE Bytes addPairs(Bytes sum, Bytes a, Bytes b) { return wasm_i32x4_add(sum, wasm_i32x4_dot_i16x8(a, b)); }
INLINE Bytes noBytes() { return wasm_i32x4_splat(0); }
INLINE void storeSums(int32_t* y, Bytes sum) { wasm_v128_store(y, sum); }
#endif

#if defined(__SSE2__) || defined(__wasm_simd128__)

template <int R, int B>
INLINE void blockI8(const int8_t* tile, int quads, size_t rowBytes, const PairedRow* x, int32_t* y, size_t yStride) {
  Bytes sum[R][B];
  for (int r = 0; r < R; r++) {
    for (int b = 0; b < B; b++) sum[r][b] = noBytes();
  }
  for (int q = 0; q < quads; q++) {
    for (int b = 0; b < B; b++) {
      const Bytes level = loadBytes(tile + q * rowBytes + b * kByteLanes);
      const Bytes even = evenBytes(level), odd = oddBytes(level);
      for (int r = 0; r < R; r++) {
        sum[r][b] = addPairs(sum[r][b], even, pairs(x[r].even[q]));
        sum[r][b] = addPairs(sum[r][b], odd, pairs(x[r].odd[q]));
      }
    }
  }
  for (int r = 0; r < R; r++) {
    for (int b = 0; b < B; b++) storeSums(y + r * yStride + b * (kByteLanes / 4), sum[r][b]);
  }
}

template <int R, int B>
static __attribute__((noinline)) void rowsI8(const int8_t* tile, int contraction, int outputs, const int16_t* x, size_t xStride, int32_t* y,
                                             size_t yStride) {
  PairedRow paired[R];
  for (int r = 0; r < R; r++) pairRow(x + r * xStride, contraction, paired[r]);
  const int quads = contraction / 4;
  const size_t rowBytes = static_cast<size_t>(outputs) * 4;
  constexpr int kStep = kByteLanes / 4;
  int o = 0;
  for (; o + B * kStep <= outputs; o += B * kStep) blockI8<R, B>(tile + o * 4, quads, rowBytes, paired, y + o, yStride);
  for (; o + kStep <= outputs; o += kStep) blockI8<R, 1>(tile + o * 4, quads, rowBytes, paired, y + o, yStride);
}

static void dotI8(const int8_t* tile, int contraction, int outputs, const int16_t* x, int n, size_t xStride, int32_t* y, size_t yStride) {
  int i = 0;
  for (; n - i >= 4; i += 4) rowsI8<4, 2>(tile, contraction, outputs, x + i * xStride, xStride, y + i * yStride, yStride);
  const int16_t* xi = x + i * xStride;
  int32_t* yi = y + i * yStride;
  switch (n - i) {
    case 1: rowsI8<1, 4>(tile, contraction, outputs, xi, xStride, yi, yStride); break;
    case 2: rowsI8<2, 4>(tile, contraction, outputs, xi, xStride, yi, yStride); break;
    case 3: rowsI8<3, 2>(tile, contraction, outputs, xi, xStride, yi, yStride); break;
    default: break;
  }
}

#else

static void dotI8(const int8_t* tile, int contraction, int outputs, const int16_t* x, int n, size_t xStride, int32_t* y, size_t yStride) {
  const int quads = contraction / 4;
  const size_t rowBytes = static_cast<size_t>(outputs) * 4;
  for (int o = 0; o < outputs; o++) {
    for (int i = 0; i < n; i++) {
      const int16_t* xi = x + i * xStride;
      int32_t sum = 0;
      for (int q = 0; q < quads; q++) {
        const int8_t* level = tile + q * rowBytes + o * 4;
        for (int s = 0; s < 4; s++) sum += xi[q * 4 + s] * level[s];
      }
      y[i * yStride + o] = sum;
    }
  }
}

#endif
#endif
