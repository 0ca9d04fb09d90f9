// What is compiled once about the rot family: constants for callers of kernels, one width encoded alone, codes in canonical order.
// The arithmetic: encode_rot.h, decode_rot.h. Plane layout: rot.h.
#include "kernels.h"
#include "tables.gen.h"
#include "tile.h"

namespace palimpsest {

namespace {

constexpr int8_t kZeroRow = -128;

// Planes -> codes of the width of `format`, in tile order.
void unpackCodes(int format, const uint8_t* hi, const uint8_t* lo, size_t elements, uint8_t* codes) {
  for (size_t row = 0; row < elements / 64; row++) {
    const uint8_t* high = hi + row / 4 * 64;
    const int shift = static_cast<int>(row % 4) * 2;
    uint8_t* out = codes + row * 64;
    if (format == kRot4) {
      const uint8_t* low = lo + row / 4 * 64;
      for (int i = 0; i < 64; i++) out[i] = static_cast<uint8_t>(((high[i] >> shift) & 3) << 2 | ((low[i] >> shift) & 3));
    } else if (format == kRot3) {
      const uint8_t* low = lo + row / 8 * 64;
      const int bit = static_cast<int>(row % 8);
      for (int i = 0; i < 64; i++) out[i] = static_cast<uint8_t>(((high[i] >> shift) & 3) << 1 | ((low[i] >> bit) & 1));
    } else {
      for (int i = 0; i < 64; i++) out[i] = (high[i] >> shift) & 3;
    }
  }
}

}  // namespace

float rotScale(int8_t k) { return k == kZeroRow ? 0.0f : kScaleValues[k + 127]; }

int rotDivisor(int format) { return format == kRot4 ? kRot4Divisor : format == kRot3 ? kRot3Divisor : kRot2Divisor; }

void encodeRot(const Kernels* kernels, int format, bool isKey, const float* x, size_t stride, int d, int firstRow, uint8_t* hi, uint8_t* lo,
               int8_t* k, int8_t* mean, uint16_t* meanScale, int8_t* reference) {
  RotTargets targets;
  targets.hi = hi;
  targets.mean = mean;
  targets.meanScale = meanScale;
  targets.reference = reference;
  targets.k[format - kRot4] = k;
  targets.lo[format - kRot4] = lo;
  kernels->encodeRotWidths(isKey, x, stride, d, firstRow, targets);
}

void codesRot(int format, bool isKey, int d, const uint8_t* hi, const uint8_t* lo, uint8_t* codes) {
  alignas(64) uint8_t tile[kPageTokens * kHeadDimMax];
  unpackCodes(format, hi, lo, static_cast<size_t>(kPageTokens) * d, tile);
  for (int t = 0; t < kPageTokens; t++) {
    for (int c = 0; c < d; c++) codes[t * d + c] = tile[tileOffset(isKey, d, t, c)];
  }
}

}  // namespace palimpsest
