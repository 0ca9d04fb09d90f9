// A small vector vocabulary: float and int32 vectors of the native width, written on the compiler's vector extension,
// so that one source serves every instruction set. kLanes is 16 (AVX-512), 8 (AVX2) or 4 (SSE2, NEON,
// WebAssembly).
// Plain operators do not fuse (the build sets -ffp-contract=off); mulAdd fuses where the hardware can and is
// allowed only where results need not be equal on every instruction set.
// Included by hot.cc and cold.cc inside the namespace of one instruction set; nothing here has external linkage.
#pragma once

#if defined(__AVX512F__)
constexpr int kLanes = 16;
#elif defined(__AVX2__)
constexpr int kLanes = 8;
#else
constexpr int kLanes = 4;
#endif

typedef float VecF __attribute__((vector_size(kLanes * 4)));
typedef int32_t VecI __attribute__((vector_size(kLanes * 4)));
typedef float UnalignedF __attribute__((vector_size(kLanes * 4), aligned(4), may_alias));

#define INLINE static inline __attribute__((always_inline))
#define MEMBER __attribute__((always_inline))
// For what runs once a page in formats to compare with: as few bytes as possible.
#define COLD __attribute__((noinline, cold))

INLINE VecF load(const float* p) { return *reinterpret_cast<const UnalignedF*>(p); }
INLINE void store(float* p, VecF v) { *reinterpret_cast<UnalignedF*>(p) = v; }
// Subtracting zero changes nothing, not even the sign of a zero, so the compiler only broadcasts.
INLINE VecF splat(float v) { return v - VecF{}; }
INLINE VecI splatI(int32_t v) { return VecI{} + v; }
INLINE VecI bits(VecF v) { return reinterpret_cast<VecI>(v); }
INLINE VecF fromBits(VecI v) { return reinterpret_cast<VecF>(v); }
// a > b ? a : b, which is also what the instruction computes
INLINE VecF larger(VecF a, VecF b) {
#if defined(__AVX512F__)
  return _mm512_max_ps(a, b);
#elif defined(__AVX2__)
  return _mm256_max_ps(a, b);
#else
  return a > b ? a : b;
#endif
}
INLINE VecF magnitude(VecF v) { return fromBits(bits(v) & 0x7fffffff); }

// Lane i of the result is lane index[i] of a, or of a followed by b. index is a constant once inlined, so this takes
// one or two instructions.
#if defined(__clang__)
template <class V, class I>
INLINE V shuffled(V a, I index) {
  V out = a;
  for (unsigned i = 0; i < sizeof(I) / 4; i++) out[i] = a[index[i]];
  return out;
}
template <class V, class I>
INLINE V shuffled(V a, V b, I index) {
  constexpr int kCount = sizeof(I) / 4;
  V out = a;
  for (int i = 0; i < kCount; i++) out[i] = index[i] < kCount ? a[index[i] & (kCount - 1)] : b[index[i] & (kCount - 1)];
  return out;
}
#else
template <class V, class I>
INLINE V shuffled(V a, I index) { return __builtin_shuffle(a, index); }
template <class V, class I>
INLINE V shuffled(V a, V b, I index) { return __builtin_shuffle(a, b, index); }
#endif

// p[index[i]] in lane i.
INLINE VecF gathered(const float* p, const int32_t* index) {
#if defined(__AVX512F__)
  return _mm512_i32gather_ps(_mm512_loadu_si512(index), p, 4);
#elif defined(__AVX2__)
  return _mm256_i32gather_ps(p, _mm256_loadu_si256(reinterpret_cast<const __m256i*>(index)), 4);
#else
  VecF v;
  for (int i = 0; i < kLanes; i++) v[i] = p[index[i]];
  return v;
#endif
}

// The same of integers.
INLINE VecI gathered(const uint32_t* p, VecI index) {
#if defined(__AVX512F__)
  return reinterpret_cast<VecI>(_mm512_i32gather_epi32(reinterpret_cast<__m512i>(index), p, 4));
#elif defined(__AVX2__)
  return reinterpret_cast<VecI>(_mm256_i32gather_epi32(reinterpret_cast<const int*>(p), reinterpret_cast<__m256i>(index), 4));
#else
  VecI v;
  for (int i = 0; i < kLanes; i++) v[i] = static_cast<int32_t>(p[index[i]]);
  return v;
#endif
}

#if defined(__AVX512F__)
// How many lanes a mask has. It is moved to a register of numbers first: where GCC 12 keeps it, as a number, in a
// register of masks and that in memory, it writes two bytes and reads four (seen where every access is recorded).
INLINE int countOf(__mmask16 lanes) {
  uint32_t word;
  asm("kmovw %1, %0" : "=r"(word) : "k"(lanes));
  return __builtin_popcount(word);
}
#endif

// a * b + c
INLINE VecF mulAdd(VecF a, VecF b, VecF c) {
#if defined(__AVX512F__)
  return _mm512_fmadd_ps(a, b, c);
#elif defined(__AVX2__)
  return _mm256_fmadd_ps(a, b, c);
#elif defined(__aarch64__)
  return vfmaq_f32(c, a, b);
#else
  return a * b + c;
#endif
}

// Adding 1.5 * 2^23 rounds |v| < 2^22 to the nearest integer, halves to even; the low bits of the sum hold that
// integer.
constexpr float kRoundMagic = 12582912.0f;
constexpr int32_t kRoundMagicBits = 0x4B400000;
INLINE VecI rounded(VecF v) {
#if defined(__AVX512F__)
  return reinterpret_cast<VecI>(_mm512_cvtps_epi32(v));
#elif defined(__AVX2__)
  return reinterpret_cast<VecI>(_mm256_cvtps_epi32(v));
#else
  return bits(v + kRoundMagic) - kRoundMagicBits;
#endif
}

// kLanes signed bytes as floats.
INLINE VecF loadSigned(const int8_t* p) {
#if defined(__AVX512F__)
  return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))));
#elif defined(__AVX2__)
  return _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p))));
#else
  typedef int8_t Bytes __attribute__((vector_size(kLanes)));
  Bytes bytes;
  __builtin_memcpy(&bytes, p, kLanes);
  return __builtin_convertvector(bytes, VecF);
#endif
}

// The first kLanes integers, for comparing positions. A constant: of a loop that fills a vector, gcc 12 makes a loop
// over memory in large functions, sixteen times a row where rows are rotated.
INLINE VecI iota() {
#if defined(__AVX512F__)
  return VecI{0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
#elif defined(__AVX2__)
  return VecI{0, 1, 2, 3, 4, 5, 6, 7};
#else
  return VecI{0, 1, 2, 3};
#endif
}

// Sums of 16 interleaved parts are combined in halves (8, 4, 2, 1) at every vector width, so the bits are the same
// everywhere.
constexpr int kParts = 16 / kLanes;
struct Parts {
  VecF part[kParts];
};
#if defined(__AVX512F__)
INLINE float sumParts(const Parts& sum) {
  const __m512 v = sum.part[0];
  const __m256 eight = _mm256_add_ps(_mm512_castps512_ps256(v), _mm512_extractf32x8_ps(v, 1));
  const __m128 four = _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
  const __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
  return _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)));
}
INLINE float largestLane(VecF v) {
  const __m256 eight = _mm256_max_ps(_mm512_castps512_ps256(v), _mm512_extractf32x8_ps(v, 1));
  const __m128 four = _mm_max_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
  const __m128 two = _mm_max_ps(four, _mm_movehl_ps(four, four));
  return _mm_cvtss_f32(_mm_max_ss(two, _mm_movehdup_ps(two)));
}
#elif defined(__AVX2__)
INLINE float sumParts(const Parts& sum) {
  const __m256 eight = _mm256_add_ps(sum.part[0], sum.part[1]);
  const __m128 four = _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
  const __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
  return _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)));
}
INLINE float largestLane(VecF v) {
  const __m128 four = _mm_max_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
  const __m128 two = _mm_max_ps(four, _mm_movehl_ps(four, four));
  return _mm_cvtss_f32(_mm_max_ss(two, _mm_movehdup_ps(two)));
}
#else
INLINE float sumParts(const Parts& sum) {
  float v[16];
  for (int i = 0; i < kParts; i++) store(v + i * kLanes, sum.part[i]);
  for (int half = 8; half >= 1; half /= 2) {
    for (int i = 0; i < half; i++) v[i] = v[i] + v[i + half];
  }
  return v[0];
}
INLINE float largestLane(VecF m) {
  float v[kLanes];
  store(v, m);
  float best = v[0];
  for (int i = 1; i < kLanes; i++) best = v[i] > best ? v[i] : best;
  return best;
}
#endif

// Called last by kernels whose caller continues with SSE. The compiler clears the upper halves only where it used them
// as vectors; on some CPUs xmm16-31 count as well, and then every SSE instruction of the caller is slow (three times
// slower, measured at d = 80).
INLINE void clearUpperHalves() {
#if defined(__AVX__)
  _mm256_zeroupper();
#endif
}
