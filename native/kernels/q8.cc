// q8: symmetric int8 codes in the i8 tile, one f16 scale per row. The arithmetic of native/reference/q8.ts.
#include "four.h"
#include "kernels.h"
#include "tile.h"

#include "scalar_half.h"

namespace palimpsest {

namespace {
constexpr int kMaxHeadDim = 256;
}

void encodeQ8(bool isKey, const float* x, size_t stride, int d, int8_t* tile, uint16_t* scales) {
  for (int t = 0; t < kPageTokens; t++) {
    const float* row = x + t * stride;
    const float max = largestMagnitude(row, d);
    scales[t] = floatToHalf(max / 127.0f);
    const float scale = halfToFloat(scales[t]);
    int8_t codes[kMaxHeadDim] = {};
    if (scale > 0.0f) divideToCodes(row, scale, d, codes);
    if (isKey) {
      for (int c = 0; c < d; c += 4) __builtin_memcpy(tile + tileOffset(true, d, t, c), codes + c, 4);
    } else {
      for (int c = 0; c < d; c++) tile[tileOffset(false, d, t, c)] = codes[c];
    }
  }
}

void decodeQ8(bool isKey, int d, const int8_t* tile, const uint16_t* scales, float* x, size_t stride) {
  for (int t = 0; t < kPageTokens; t++) {
    const float scale = halfToFloat(scales[t]);
    for (int c = 0; c < d; c++) x[t * stride + c] = static_cast<float>(tile[tileOffset(isKey, d, t, c)]) * scale;
  }
}

}  // namespace palimpsest
