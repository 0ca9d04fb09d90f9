// f(0), ..., f(N - 1) with the number known to the compiler: a loop that is unrolled too late leaves accumulators in memory.
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
