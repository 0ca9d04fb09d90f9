// q8, both ways: symmetric int8 codes in the i8 tile, one f16 scale per row. The arithmetic of native/reference/q8.ts.
#pragma once

template <int D>
static void encodeQ8Of(bool isKey, const float* x, size_t stride, int8_t* tile, uint16_t* scales) {
  alignas(64) uint8_t codes[kPageTokens * D];
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
    for (int t = 0; t < kPageTokens; t++) {
      // Four times four channels lie 128 tokens apart; put together in registers, they can be read again at once.
      alignas(64) int8_t row[kMaxHeadDim];
      for (int c = 0; c < d; c += 16) {
        int32_t part[4];
        for (int i = 0; i < 4; i++) __builtin_memcpy(&part[i], tile + (c + 4 * i) * kPageTokens + t * 4, 4);
        const FourI four = {part[0], part[1], part[2], part[3]};
        __builtin_memcpy(row + c, &four, 16);
      }
      const float scale = halfToFloat(scales[t]);
      for (int c = 0; c < d; c += kLanes) store(x + t * stride + c, loadSigned(row + c) * scale);
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
