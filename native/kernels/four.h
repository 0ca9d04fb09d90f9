// Four floats at a time for the codecs, which are compiled once for every CPU (SSE2, NEON). The compiler may not reorder
// float maxima and sums by itself, so they are written as lanes; the order is that of the reference.
#pragma once
#include <cstdint>

namespace palimpsest {

typedef float Four __attribute__((vector_size(16)));
typedef int32_t FourI __attribute__((vector_size(16)));
typedef float UnalignedFour __attribute__((vector_size(16), aligned(4), may_alias));

inline Four loadFour(const float* p) { return *reinterpret_cast<const UnalignedFour*>(p); }
inline void storeFour(float* p, Four v) { *reinterpret_cast<UnalignedFour*>(p) = v; }
inline Four largerFour(Four a, Four b) { return a > b ? a : b; }

// max |x[i]| for count a multiple of 4.
inline float largestMagnitude(const float* x, int count) {
  Four top{};
  for (int i = 0; i < count; i += 4) {
    const FourI cleared = reinterpret_cast<FourI>(loadFour(x + i)) & 0x7fffffff;
    top = largerFour(reinterpret_cast<Four>(cleared), top);
  }
  const float a = top[0] > top[1] ? top[0] : top[1], b = top[2] > top[3] ? top[2] : top[3];
  return a > b ? a : b;
}

// x / scale rounded to the nearest integer, halves to even, clamped to +-127; scale > 0, count a multiple of 4.
inline void divideToCodes(const float* x, float scale, int count, int8_t* codes) {
  const Four most = Four{} + 127.0f;
  for (int i = 0; i < count; i += 4) {
    Four code = loadFour(x + i) / scale;
    code = code > most ? most : code;
    code = code < -most ? -most : code;
    // 1.5 * 2^23: the sum rounds, and its low byte is the code in two's complement
    const FourI sum = reinterpret_cast<FourI>(code + 12582912.0f);
    typedef int8_t Bytes __attribute__((vector_size(4)));
    const Bytes bytes = __builtin_convertvector(sum, Bytes);
    __builtin_memcpy(codes + i, &bytes, 4);
  }
}

}  // namespace palimpsest
