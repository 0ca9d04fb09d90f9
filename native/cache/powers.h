// Our own 2^x and log2(x). C libraries differ in the last bits of theirs, but merged ranges of a history and kept
// log-sum-exps must be the same on every machine: plain double arithmetic in a fixed order, unfused
// (-ffp-contract=off), rounded to float once.
#pragma once
#include <cstdint>
#include <cstring>
#include <limits>

namespace palimpsest {

// The Taylor series of e^r for |r| <= ln(2)/2, up to r^12/12!, which is below 1e-14 there.
inline float powerOfTwo(float x) {
  if (!(x >= -200.0f)) return 0.0f;  // the smallest positive float is 2^-149
  if (x > 200.0f) return std::numeric_limits<float>::infinity();
  const int whole = static_cast<int>(x < 0 ? x - 0.5f : x + 0.5f);
  const double r = (static_cast<double>(x) - whole) * 0.69314718055994530942;
  double sum = 1.0;
  for (int i = 12; i >= 1; i--) sum = 1.0 + r * sum / i;
  const uint64_t bits = static_cast<uint64_t>(whole + 1023) << 52;
  double scale;
  std::memcpy(&scale, &bits, sizeof scale);
  return static_cast<float>(sum * scale);
}

// x = 2^e * m with m in [0.70, 1.42); log(m) = 2 atanh(s), s = (m - 1) / (m + 1), |s| < 0.172: the term s^21/21 is
// below 1e-17.
inline float logOfTwo(float x) {
  if (!(x > 0)) return -std::numeric_limits<float>::infinity();
  if (x > std::numeric_limits<float>::max()) return x;
  const double value = x;  // every positive float is a normal double
  uint64_t bits;
  std::memcpy(&bits, &value, sizeof bits);
  int exponent = static_cast<int>(bits >> 52) - 1023;
  bits = (bits & 0xfffffffffffffull) | 0x3ff0000000000000ull;
  double m;
  std::memcpy(&m, &bits, sizeof m);
  if (m > 1.41421356237309504880) {
    m *= 0.5;
    exponent++;
  }
  const double s = (m - 1.0) / (m + 1.0), square = s * s;
  double sum = 0;
  for (int i = 21; i >= 1; i -= 2) sum = 1.0 / i + square * sum;
  return static_cast<float>(exponent + 2.88539008177792681472 * s * sum);  // 2 / ln(2)
}

}  // namespace palimpsest
