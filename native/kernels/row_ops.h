// Small row operations. They are unfused and sum in 16 interleaved parts, so every instruction set gives the same bits.
#pragma once

static void axpy(float a, const float* x, float* y, int count) {
  int i = 0;
  for (; i + kLanes <= count; i += kLanes) store(y + i, load(y + i) + load(x + i) * a);
  for (; i < count; i++) y[i] = y[i] + a * x[i];
}

static void scaleRow(float a, float* y, int count) {
  int i = 0;
  for (; i + kLanes <= count; i += kLanes) store(y + i, load(y + i) * a);
  for (; i < count; i++) y[i] = y[i] * a;
}

static float dot(const float* a, const float* b, int count) {
  Parts sum{};
  int i = 0;
  for (; i + 16 <= count; i += 16) {
    for (int part = 0; part < kParts; part++) {
      const int at = i + part * kLanes;
      sum.part[part] = sum.part[part] + load(a + at) * load(b + at);
    }
  }
  float total = sumParts(sum);
  for (; i < count; i++) total = total + a[i] * b[i];
  return total;
}

constexpr float kIntegerMax = 32512.0f, kByteMax = 127.0f;
// Rows whose maximum is below this count as zero; the inverse of a much smaller one would overflow float32.
constexpr float kLeastMaximum = 0x1p-100f;
// No format holds a scale above this.
constexpr float kLargestMaximum = 0x1p100f;
constexpr float kFloatMax = 3.402823466e38f;

// The largest magnitude of a row; infinity where an element is no finite number. As integers the bits of magnitudes
// have the order of their sizes, with NaN above all others, which a comparison of floats would pass over.
INLINE float largestMagnitude(const float* x, int count) {
  constexpr int32_t kInfinite = 0x7f800000;
  VecI top{};
  int i = 0;
  for (; i + kLanes <= count; i += kLanes) {
    const VecI size = bits(magnitude(load(x + i)));
    top = size > top ? size : top;
  }
  float max = largestLane(fromBits(top < kInfinite ? top : splatI(kInfinite)));
  for (; i < count; i++) {
    const float size = __builtin_fabsf(x[i]);
    if (!(size <= max)) max = size <= kFloatMax ? size : __builtin_inff();
  }
  return max;
}

// Quantizes to integers of at most `largest`; all else as quantizeI16 says (kernels.h).
static float quantizeWithin(const float* x, int count, float largest, int16_t* out) {
  const float max = largestMagnitude(x, count);
  if (!(max >= kLeastMaximum && max <= kFloatMax)) {
    for (int j = 0; j < count; j++) out[j] = 0;
    return max < kLeastMaximum ? 0.0f : __builtin_nanf("");
  }
  const float inverse = largest / max;
  typedef int16_t Shorts __attribute__((vector_size(kLanes * 2)));
  int i = 0;
  for (; i + kLanes <= count; i += kLanes) {
    const Shorts narrow = __builtin_convertvector(rounded(load(x + i) * inverse), Shorts);
    __builtin_memcpy(out + i, &narrow, sizeof narrow);
  }
  for (; i < count; i++) {
    out[i] = static_cast<int16_t>(rounded(splat(x[i] * inverse))[0]);
  }
  return max / largest;
}

static float quantizeI16(const float* x, int count, int16_t* out) { return quantizeWithin(x, count, kIntegerMax, out); }

static void blendRow(float a, const float* x, float b, const float* z, float c, const uint16_t* h, float* y, int count) {
  int i = 0;
  for (; i + kLanes <= count; i += kLanes) store(y + i, (load(x + i) * a + load(z + i) * b) + loadHalf(h + i) * c);
  for (; i < count; i++) y[i] = (x[i] * a + z[i] * b) + halfToFloat(h[i]) * c;
}
