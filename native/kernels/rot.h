// Bit planes of the rot family -> i8 tile of decode levels. Integers only: equal on every instruction set.
//
// The codes of one (page, side, head) are laid out in i8 tile order (kernels.h) as rows of 64 codes; row = 64 bytes once unpacked.
//   hi       the two high bits of the 4-bit code. 64 plane bytes hold rows 4j..4j+3: bits 2f..2f+1 of byte i = lane i of row 4j+f.
//   lo rot4  the two low bits, in the same way.
//   lo rot3  the third bit alone. 64 plane bytes hold rows 8j..8j+7: bit f of byte i = lane i of row 8j+f.
//   lo rot2  nothing.
// A demotion keeps hi as it is and narrows or drops lo. Elements are a multiple of 512 (128 tokens, d a multiple of 4).
#pragma once

constexpr int8_t kZeroRow = -128;

INLINE const int8_t* levelsOf(int format) { return format == kRot4 ? kRot4Levels : format == kRot3 ? kRot3Levels : kRot2Levels; }
INLINE int divisorOf(int format) { return format == kRot4 ? kRot4Divisor : format == kRot3 ? kRot3Divisor : kRot2Divisor; }
INLINE int bitsOf(int format) { return format == kRot4 ? 4 : format == kRot3 ? 3 : 2; }
// 2^(k/16), 0 for a zero row.
INLINE float scaleOf(int8_t k) { return k == kZeroRow ? 0.0f : kScaleValues[k + 127]; }
// 2^e for -126 <= e <= 127, which no encoder leaves.
INLINE float powerOfTwo(int e) {
  const int32_t field = (e + 127) * (1 << 23);
  float power;
  __builtin_memcpy(&power, &field, sizeof power);
  return power;
}

#if defined(__AVX512BW__)
typedef __m512i Codes;
constexpr int kCodeLanes = 64;
INLINE Codes loadCodes(const uint8_t* p) { return _mm512_loadu_si512(p); }
INLINE void storeLevels(int8_t* p, Codes v) { _mm512_storeu_si512(p, v); }
INLINE Codes splatByte(int v) { return _mm512_set1_epi8(static_cast<char>(v)); }
INLINE Codes andCodes(Codes a, Codes b) { return _mm512_and_si512(a, b); }
INLINE Codes orCodes(Codes a, Codes b) { return _mm512_or_si512(a, b); }
template <int N> INLINE Codes shiftDown(Codes v) { return _mm512_srli_epi16(v, N); }
template <int N> INLINE Codes shiftUp(Codes v) { return _mm512_slli_epi16(v, N); }
INLINE Codes loadTable(const int8_t* t) { return _mm512_broadcast_i32x4(_mm_loadu_si128(reinterpret_cast<const __m128i*>(t))); }
INLINE Codes lookUp(Codes table, Codes index) { return _mm512_shuffle_epi8(table, index); }
#elif defined(__AVX2__)
typedef __m256i Codes;
constexpr int kCodeLanes = 32;
INLINE Codes loadCodes(const uint8_t* p) { return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)); }
INLINE void storeLevels(int8_t* p, Codes v) { _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), v); }
INLINE Codes splatByte(int v) { return _mm256_set1_epi8(static_cast<char>(v)); }
INLINE Codes andCodes(Codes a, Codes b) { return _mm256_and_si256(a, b); }
INLINE Codes orCodes(Codes a, Codes b) { return _mm256_or_si256(a, b); }
template <int N> INLINE Codes shiftDown(Codes v) { return _mm256_srli_epi16(v, N); }
template <int N> INLINE Codes shiftUp(Codes v) { return _mm256_slli_epi16(v, N); }
INLINE Codes loadTable(const int8_t* t) { return _mm256_broadcastsi128_si256(_mm_loadu_si128(reinterpret_cast<const __m128i*>(t))); }
INLINE Codes lookUp(Codes table, Codes index) { return _mm256_shuffle_epi8(table, index); }
#elif defined(__aarch64__)
typedef uint8x16_t Codes;
constexpr int kCodeLanes = 16;
INLINE Codes loadCodes(const uint8_t* p) { return vld1q_u8(p); }
INLINE void storeLevels(int8_t* p, Codes v) { vst1q_s8(p, vreinterpretq_s8_u8(v)); }
INLINE Codes splatByte(int v) { return vdupq_n_u8(static_cast<uint8_t>(v)); }
INLINE Codes andCodes(Codes a, Codes b) { return vandq_u8(a, b); }
INLINE Codes orCodes(Codes a, Codes b) { return vorrq_u8(a, b); }
template <int N> INLINE Codes shiftDown(Codes v) {
  if constexpr (N == 0) return v; else return vshrq_n_u8(v, N);
}
template <int N> INLINE Codes shiftUp(Codes v) { return vshlq_n_u8(v, N); }
INLINE Codes loadTable(const int8_t* t) { return vreinterpretq_u8_s8(vld1q_s8(t)); }
INLINE Codes lookUp(Codes table, Codes index) { return vqtbl1q_u8(table, index); }
#elif defined(__wasm_simd128__)
typedef v128_t Codes;
constexpr int kCodeLanes = 16;
INLINE Codes loadCodes(const uint8_t* p) { return wasm_v128_load(p); }
INLINE void storeLevels(int8_t* p, Codes v) { wasm_v128_store(p, v); }
INLINE Codes splatByte(int v) { return wasm_i8x16_splat(static_cast<int8_t>(v)); }
INLINE Codes andCodes(Codes a, Codes b) { return wasm_v128_and(a, b); }
INLINE Codes orCodes(Codes a, Codes b) { return wasm_v128_or(a, b); }
template <int N> INLINE Codes shiftDown(Codes v) { return wasm_u8x16_shr(v, N); }
template <int N> INLINE Codes shiftUp(Codes v) { return wasm_i8x16_shl(v, N); }
INLINE Codes loadTable(const int8_t* t) { return wasm_v128_load(t); }
INLINE Codes lookUp(Codes table, Codes index) { return wasm_i8x16_swizzle(table, index); }
#else
// Eight codes in one 64-bit word; the look-up is eight loads.
typedef uint64_t Codes;
constexpr int kCodeLanes = 8;
INLINE Codes loadCodes(const uint8_t* p) {
  Codes v;
  __builtin_memcpy(&v, p, 8);
  return v;
}
INLINE Codes splatByte(int v) { return static_cast<Codes>(v) * 0x0101010101010101u; }
INLINE Codes andCodes(Codes a, Codes b) { return a & b; }
INLINE Codes orCodes(Codes a, Codes b) { return a | b; }
template <int N> INLINE Codes shiftDown(Codes v) { return v >> N; }
template <int N> INLINE Codes shiftUp(Codes v) { return v << N; }
struct Levels {
  int8_t level[8];
};
INLINE const int8_t* loadTable(const int8_t* t) { return t; }
INLINE Levels lookUp(const int8_t* table, Codes index) {
  Levels out;
  for (int i = 0; i < 8; i++) out.level[i] = table[(index >> (8 * i)) & 15];
  return out;
}
INLINE void storeLevels(int8_t* p, Levels v) { __builtin_memcpy(p, v.level, 8); }
#endif

// Field f of a 2-bit plane as bits `At`..`At`+1 of each byte. Shifts run on wider lanes; the mask takes away what came over.
template <int F, int At>
INLINE Codes field(Codes plane) {
  const Codes mask = splatByte(3 << At);
  if constexpr (2 * F >= At) return andCodes(shiftDown<2 * F - At>(plane), mask);
  else return andCodes(shiftUp<At - 2 * F>(plane), mask);
}

template <int F, class Table>
INLINE void row4(Codes hi, Codes lo, Table table, int8_t* out) {
  storeLevels(out + F * 64, lookUp(table, orCodes(field<F, 2>(hi), field<F, 0>(lo))));
}
// Row f of the half `H` (0: rows 0-3 of the 1-bit plane, 1: rows 4-7).
template <int F, int H, class Table>
INLINE void row3(Codes hi, Codes lo, Table table, int8_t* out) {
  const Codes bit = andCodes(shiftDown<H * 4 + F>(lo), splatByte(1));
  storeLevels(out + F * 64, lookUp(table, orCodes(field<F, 1>(hi), bit)));
}
template <int F, class Table>
INLINE void row2(Codes hi, Table table, int8_t* out) {
  storeLevels(out + F * 64, lookUp(table, field<F, 0>(hi)));
}

static void unpackRot(int format, const uint8_t* hi, const uint8_t* lo, size_t elements, int8_t* tile) {
  if (format == kRot4) {
    const auto table = loadTable(kRot4Levels);
    for (size_t j = 0; j < elements / 4; j += 64) {
      for (int i = 0; i < 64; i += kCodeLanes) {
        const Codes h = loadCodes(hi + j + i), l = loadCodes(lo + j + i);
        int8_t* out = tile + j * 4 + i;
        row4<0>(h, l, table, out);
        row4<1>(h, l, table, out);
        row4<2>(h, l, table, out);
        row4<3>(h, l, table, out);
      }
    }
  } else if (format == kRot3) {
    const auto table = loadTable(kRot3Levels);
    for (size_t j = 0; j < elements / 8; j += 64) {
      for (int i = 0; i < 64; i += kCodeLanes) {
        const Codes h0 = loadCodes(hi + j * 2 + i), h1 = loadCodes(hi + j * 2 + 64 + i), l = loadCodes(lo + j + i);
        int8_t* out = tile + j * 8 + i;
        row3<0, 0>(h0, l, table, out);
        row3<1, 0>(h0, l, table, out);
        row3<2, 0>(h0, l, table, out);
        row3<3, 0>(h0, l, table, out);
        row3<0, 1>(h1, l, table, out + 256);
        row3<1, 1>(h1, l, table, out + 256);
        row3<2, 1>(h1, l, table, out + 256);
        row3<3, 1>(h1, l, table, out + 256);
      }
    }
  } else {
    const auto table = loadTable(kRot2Levels);
    for (size_t j = 0; j < elements / 4; j += 64) {
      for (int i = 0; i < 64; i += kCodeLanes) {
        const Codes h = loadCodes(hi + j + i);
        int8_t* out = tile + j * 4 + i;
        row2<0>(h, table, out);
        row2<1>(h, table, out);
        row2<2>(h, table, out);
        row2<3>(h, table, out);
      }
    }
  }
}
