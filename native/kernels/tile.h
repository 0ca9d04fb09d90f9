// Where an element of a page side lies in the i8 tile (kernels.h). Only for code compiled once, for every CPU.
#pragma once
#include "kernels.h"

namespace palimpsest {

// One 64-byte row of the tile is 16 outputs x 4 contraction steps.
constexpr int kTileRow = 64;

inline size_t tileOffset(size_t contraction, size_t output, size_t outputs) {
  return (contraction / 4) * outputs * 4 + output * 4 + contraction % 4;
}

// Offset of (token, channel) on the key or the value side.
inline size_t tileOffset(bool isKey, int d, int token, int channel) {
  return isKey ? tileOffset(channel, token, kPageTokens) : tileOffset(token, channel, d);
}

}  // namespace palimpsest
