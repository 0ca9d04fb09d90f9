// Whether numbers that somebody gave are numbers.
#pragma once
#include <algorithm>
#include <cmath>
#include <cstddef>

namespace palimpsest {

inline bool allFinite(const float* x, size_t count) {
  return std::all_of(x, x + count, [](float value) { return std::isfinite(value); });
}

}  // namespace palimpsest
