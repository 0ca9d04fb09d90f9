// Calls f(0), ..., f(N - 1) with compile-time numbers: accumulators of a loop that the compiler unrolls too late stay
// in memory.
#pragma once

template <int I>
struct Number {
  static constexpr int value = I;
};
template <int N, int I = 0, class F>
INLINE void repeat(const F& f) {
  if constexpr (I < N) {
    f(Number<I>{});
    repeat<N, I + 1>(f);
  }
}

// Calls f(Number<D>) for a head size that has a rotation and fits the integer tiles.
template <class F>
INLINE void withHeadDim(int d, const F& f) {
  switch (d) {
    case 64: return f(Number<64>{});
    case 80: return f(Number<80>{});
    case 96: return f(Number<96>{});
    case 128: return f(Number<128>{});
    case 256: return f(Number<256>{});
    default: __builtin_trap();
  }
}
