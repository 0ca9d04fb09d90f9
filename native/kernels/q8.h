// q8, both ways: symmetric int8 codes in the i8 tile, one f16 scale per row. The arithmetic of native/reference/q8.ts.
#pragma once

template <int D>
static void encodeQ8Of(bool isKey, const float* x, size_t stride, int8_t* tile, uint16_t* scales) {
  alignas(64) uint8_t codes[(kPageTokens - 1) * D + wholeWords(D)];
  for (int t = 0; t < kPageTokens; t++) {
    const float* row = x + t * stride;
    scales[t] = floatToHalf(largestLane(largestOf(row, D)) / 127.0f);
    const float scale = halfToFloat(scales[t]);
    for (int c = 0; c < D; c += kLanes) {
      storeLowBytes(codes + t * D + c, scale > 0.0f ? divideToCodes(load(row + c), scale) : VecI{});
    }
  }
  placeInTile<D>(isKey, codes, reinterpret_cast<uint8_t*>(tile));
}

static void encodeQ8(bool isKey, const float* x, size_t stride, int d, int8_t* tile, uint16_t* scales) {
  switch (d) {
    case 64: encodeQ8Of<64>(isKey, x, stride, tile, scales); break;
    case 80: encodeQ8Of<80>(isKey, x, stride, tile, scales); break;
    case 96: encodeQ8Of<96>(isKey, x, stride, tile, scales); break;
    case 128: encodeQ8Of<128>(isKey, x, stride, tile, scales); break;
    case 256: encodeQ8Of<256>(isKey, x, stride, tile, scales); break;
    default: __builtin_trap();
  }
  clearUpperHalves();
}

static void decodeQ8(bool isKey, int d, const int8_t* tile, const uint16_t* scales, float* x, size_t stride) {
  if (isKey) {
    for (int first = 0; first < kPageTokens; first += kLanes) {
      alignas(64) int8_t rows[kLanes][kHeadDimMax];
      rowsOfTile(tile, d, first, rows[0], kHeadDimMax);
      for (int i = 0; i < kLanes; i++) {
        const float scale = halfToFloat(scales[first + i]);
        for (int c = 0; c < d; c += kLanes) store(x + (first + i) * stride + c, loadSigned(rows[i] + c) * scale);
      }
    }
  } else {
    for (int t = 0; t < kPageTokens; t += 4) {
      for (int step = 0; step < 4; step++) {
        const float scale = halfToFloat(scales[t + step]);
        for (int c = 0; c < d; c += kLanes) {
          const VecI code = (loadWords(tile + t * d + c * 4) << (24 - 8 * step)) >> 24;
          store(x + (t + step) * stride + c, __builtin_convertvector(code, VecF) * scale);
        }
      }
    }
  }
  clearUpperHalves();
}
