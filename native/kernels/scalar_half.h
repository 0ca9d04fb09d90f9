// Converts one float or half at a time, with one instruction on CPUs with F16C; the result is the same either way.
// hot.cc and cold.cc include this file inside the unnamed namespace of one instruction set, so every set has its own
// copy.
#pragma once

static inline float halfToFloat(uint16_t h) {
#if defined(__F16C__)
  return _cvtsh_ss(h);
#else
  uint32_t shifted = uint32_t(h & 0x7fff) << 13;
  uint32_t value;
  if (shifted >= 0x0f800000) {
    value = shifted | 0x7f800000;
  } else {
    float finite;
    __builtin_memcpy(&finite, &shifted, 4);
    finite *= 0x1p112f;
    __builtin_memcpy(&value, &finite, 4);
  }
  value |= uint32_t(h & 0x8000) << 16;
  float out;
  __builtin_memcpy(&out, &value, 4);
  return out;
#endif
}

static inline uint16_t floatToHalf(float x) {
#if defined(__F16C__)
  return static_cast<uint16_t>(_cvtss_sh(x, 0));
#else
  uint32_t v;
  __builtin_memcpy(&v, &x, 4);
  uint16_t sign = static_cast<uint16_t>((v >> 16) & 0x8000);
  v &= 0x7fffffff;
  if (v > 0x7f800000) return static_cast<uint16_t>(sign | 0x7e00 | ((v >> 13) & 0x3ff));
  if (v >= 0x47800000) return sign | 0x7c00;
  if (v < 0x38800000) {
    // Below 2^-14 the grid is 2^-24; adding 1/2 makes the float addition round to that grid.
    float small;
    __builtin_memcpy(&small, &v, 4);
    small += 0.5f;
    __builtin_memcpy(&v, &small, 4);
    return static_cast<uint16_t>(sign | (v - 0x3f000000));
  }
  v += 0xfff + ((v >> 13) & 1);
  return static_cast<uint16_t>(sign | ((v - 0x38000000) >> 13));
#endif
}
