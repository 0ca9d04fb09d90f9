// What encoding and demotion share: narrowing codes to bytes, tile order, sums, and lookups and counts in a table of
// sixteen. Every sum and every comparison is that of the reference, so every instruction set gives the same bits.
#pragma once

typedef int32_t UnalignedI __attribute__((vector_size(kLanes * 4), aligned(1), may_alias));
INLINE VecI loadWords(const void* p) { return *static_cast<const UnalignedI*>(p); }
INLINE void storeWords(void* p, VecI v) { *static_cast<UnalignedI*>(p) = v; }

// The low byte of every lane.
INLINE void storeLowBytes(void* p, VecI v) {
#if defined(__AVX512F__)
  _mm_storeu_si128(static_cast<__m128i*>(p), _mm512_cvtepi32_epi8(reinterpret_cast<__m512i>(v)));
#elif defined(__AVX2__)
  const __m256i low = _mm256_setr_epi8(0, 4, 8, 12, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1,  //
                                       0, 4, 8, 12, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1);
  const __m256i quads = _mm256_shuffle_epi8(reinterpret_cast<__m256i>(v), low);
  _mm_storel_epi64(static_cast<__m128i*>(p), _mm_unpacklo_epi32(_mm256_castsi256_si128(quads), _mm256_extracti128_si256(quads, 1)));
#else
  typedef uint8_t Bytes __attribute__((vector_size(kLanes)));
  const Bytes bytes = __builtin_convertvector(v, Bytes);
  __builtin_memcpy(p, &bytes, kLanes);
#endif
}

// kLanes bytes, zero-extended.
INLINE VecI loadUnsigned(const uint8_t* p) {
#if defined(__AVX512F__)
  return reinterpret_cast<VecI>(_mm512_cvtepu8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))));
#elif defined(__AVX2__)
  return reinterpret_cast<VecI>(_mm256_cvtepu8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p))));
#else
  typedef uint8_t Bytes __attribute__((vector_size(kLanes)));
  Bytes bytes;
  __builtin_memcpy(&bytes, p, kLanes);
  return __builtin_convertvector(bytes, VecI);
#endif
}

// A table of sixteen floats, looked up by the low four bits of a lane.
struct Sixteen {
  VecF part[kParts];
};
INLINE Sixteen loadSixteen(const float* p) {
  Sixteen table;
  for (int i = 0; i < kParts; i++) table.part[i] = load(p + i * kLanes);
  return table;
}
INLINE VecF lookUpFloat(const Sixteen& table, VecI index) {
#if defined(__AVX512F__)
  return _mm512_permutexvar_ps(reinterpret_cast<__m512i>(index), table.part[0]);
#elif defined(__AVX2__)
  const __m256i at = reinterpret_cast<__m256i>(index);
  return _mm256_blendv_ps(_mm256_permutevar8x32_ps(table.part[0], at), _mm256_permutevar8x32_ps(table.part[1], at),
                          _mm256_castsi256_ps(_mm256_slli_epi32(at, 28)));
#else
  const float* entry = reinterpret_cast<const float*>(&table);
  VecF v;
  for (int i = 0; i < kLanes; i++) v[i] = entry[index[i] & 15];
  return v;
#endif
}

// How many of the first fifteen entries, which ascend, are below v. It is a binary search where a lookup takes only one
// or three instructions. The middle entry may be NaN (an infinite row times the bound 0): both ways of counting find no
// value above it.
INLINE VecI countBelow(const Sixteen& bounds, VecF v) {
#if defined(__AVX512F__)
  __m512i count = _mm512_maskz_mov_epi32(_mm512_cmp_ps_mask(v, _mm512_permutexvar_ps(_mm512_set1_epi32(7), bounds.part[0]), _CMP_GT_OQ),
                                         _mm512_set1_epi32(8));
#pragma GCC unroll 3
  for (int step = 4; step >= 1; step /= 2) {
    // count is a multiple of 2 * step, so count and step - 1 share no bits
    const __m512i at = _mm512_add_epi32(count, _mm512_set1_epi32(step - 1));
    const __mmask16 above = _mm512_cmp_ps_mask(v, _mm512_permutexvar_ps(at, bounds.part[0]), _CMP_GT_OQ);
    count = _mm512_mask_add_epi32(count, above, count, _mm512_set1_epi32(step));
  }
  return reinterpret_cast<VecI>(count);
#elif defined(__AVX2__)
  // The first comparison chooses the half of the table for the rest of the search.
  const __m256 upper = _mm256_cmp_ps(v, _mm256_permutevar8x32_ps(bounds.part[0], _mm256_set1_epi32(7)), _CMP_GT_OQ);
  __m256i count = _mm256_setzero_si256();
#pragma GCC unroll 3
  for (int step = 4; step >= 1; step /= 2) {
    const __m256i at = _mm256_add_epi32(count, _mm256_set1_epi32(step - 1));
    const __m256 bound = _mm256_blendv_ps(_mm256_permutevar8x32_ps(bounds.part[0], at), _mm256_permutevar8x32_ps(bounds.part[1], at), upper);
    const __m256i above = _mm256_castps_si256(_mm256_cmp_ps(v, bound, _CMP_GT_OQ));
    count = _mm256_add_epi32(count, _mm256_and_si256(above, _mm256_set1_epi32(step)));
  }
  return reinterpret_cast<VecI>(_mm256_add_epi32(count, _mm256_and_si256(_mm256_castps_si256(upper), _mm256_set1_epi32(8))));
#else
  const float* bound = reinterpret_cast<const float*>(&bounds);
  VecI count{};
  for (int j = 0; j < 15; j++) count -= v > splat(bound[j]);  // a true lane is -1
  return count;
#endif
}

// a and b hold kLanes / L rows of L lanes each. The result holds the rows of both with half the lanes: lane i + lane i
// + L/2.
template <int L>
INLINE VecF addHalves(VecF a, VecF b) {
  VecI low{};
  for (int i = 0; i < kLanes; i++) low[i] = i / (L / 2) * L + i % (L / 2);
  return shuffled(a, b, low) + shuffled(a, b, low + L / 2);
}
template <int L>
INLINE void addHalvesOf(VecF* v) {
#pragma GCC unroll 8
  for (int i = 0; i < L / 2; i++) v[i] = addHalves<L>(v[2 * i], v[2 * i + 1]);
  if constexpr (L > 2) addHalvesOf<L / 2>(v);
}
// Lane i of the result is the sum of the lanes of v[i], added in halves: lane j + lane j + half for half = kLanes/2 ..
// 1. Overwrites v.
INLINE VecF sumsOfLanes(VecF (&v)[kLanes]) {
  addHalvesOf<kLanes>(v);
  return v[0];
}

// The first steps of the sum of D floats padded with zeros to a power of two: v[i] += v[i + half] for half = size/2 ..
// kLanes. The lanes of the result still have to be added for the rest of the tree. Overwrites v.
template <int D>
INLINE VecF treeSum(VecF (&v)[D / kLanes]) {
  constexpr int kCount = D / kLanes;
  constexpr int kHalf = (D <= 64 ? 32 : D <= 128 ? 64 : 128) / kLanes;
  // A missing partner counts as +0 and need not be added: x + 0 differs from x only in the sign of a zero, which no use
  // of a sum depends on.
#pragma GCC unroll 6
  for (int half = kHalf; half >= 1; half /= 2) {
#pragma GCC unroll 32
    for (int i = 0; i < half; i++) {
      if (i + half < kCount) v[i] = v[i] + v[i + half];
    }
  }
  return v[0];
}

// The sum of v[0..n), padded with zeros to a power of two, as a halving tree. v has room for that and is overwritten.
[[maybe_unused]] static float treeTotal(float* v, int n) {
  int half = 1;
  while (half < n) half *= 2;
  for (int i = n; i < half; i++) v[i] = 0.0f;
  for (half /= 2; half >= 1; half /= 2) {
    for (int i = 0; i < half; i++) v[i] = v[i] + v[i + half];
  }
  return v[0];
}

// Transposes kLanes rows of kLanes words.
template <int Step = 1>
INLINE void transpose(VecI (&v)[kLanes]) {
  if constexpr (Step < kLanes) {
    VecI low{};
    for (int i = 0; i < kLanes; i++) low[i] = i / 2 + i % 2 * kLanes;
    VecI zipped[kLanes];
#pragma GCC unroll 16
    for (int i = 0; i < kLanes / 2; i++) {
      zipped[2 * i] = shuffled(v[i], v[i + kLanes / 2], low);
      zipped[2 * i + 1] = shuffled(v[i], v[i + kLanes / 2], low + kLanes / 2);
    }
#pragma GCC unroll 16
    for (int i = 0; i < kLanes; i++) v[i] = zipped[i];
    transpose<Step * 2>(v);
  }
}

// Bytes of a row of codes, rounded up to whole vectors of words.
constexpr int wholeWords(int d) { return (d + 4 * kLanes - 1) / (4 * kLanes) * 4 * kLanes; }

// Copies tokens [first, first + kLanes) of a tile of keys to rows of `stride` bytes, of which wholeWords(d) are
// written.
INLINE void rowsOfTile(const int8_t* tile, int d, int first, int8_t* rows, int stride) {
  for (int c = 0; c < d; c += 4 * kLanes) {
    VecI v[kLanes];
#pragma GCC unroll 16
    for (int i = 0; i < kLanes; i++) v[i] = c + 4 * i < d ? loadWords(tile + (c + 4 * i) * kPageTokens + first * 4) : VecI{};
    transpose(v);
#pragma GCC unroll 16
    for (int i = 0; i < kLanes; i++) storeWords(rows + i * stride + c, v[i]);
  }
}

// Codes [128][D] as bytes -> tile order (kernels.h). Bytes up to wholeWords(D) of the last row are read.
template <int D>
static void placeInTile(bool isKey, const uint8_t* codes, uint8_t* tile) {
  if (isKey) {
    for (int t = 0; t < kPageTokens; t += kLanes) {
      for (int c = 0; c < D; c += 4 * kLanes) {
        VecI v[kLanes];
#pragma GCC unroll 16
        for (int i = 0; i < kLanes; i++) v[i] = loadWords(codes + (t + i) * D + c);
        transpose(v);
#pragma GCC unroll 16
        for (int i = 0; i < kLanes; i++) {
          if (c + 4 * i < D) storeWords(tile + (c + 4 * i) * kPageTokens + t * 4, v[i]);
        }
      }
    }
    return;
  }
  for (int t = 0; t < kPageTokens; t += 4) {
    const uint8_t* row = codes + t * D;
    for (int c = 0; c < D; c += kLanes) {
      const VecI low = loadUnsigned(row + c) | loadUnsigned(row + D + c) << 8;
      const VecI high = loadUnsigned(row + 2 * D + c) << 16 | loadUnsigned(row + 3 * D + c) << 24;
      storeWords(tile + t * D + c * 4, low | high);
    }
  }
}
