// What the layout of a format says (native/layout.gen.h, written from the TypeScript descriptions beside this file).
#pragma once
#include "../layout.gen.h"

namespace palimpsest {

constexpr bool isFormat(int id) { return id >= 0 && id < kFormatSlots && kFormats[id].name != nullptr; }

// Bytes of one field of one head.
constexpr size_t fieldBytes(const FieldLayout& field, int headDim) {
  return static_cast<size_t>(kPageTokens) * headDim * field.elementBits / 8 + static_cast<size_t>(kPageTokens) * field.tokenBytes +
         static_cast<size_t>(headDim) * field.channelBytes + field.headBytes;
}

// Whether a page side may go from one format to another, sizes apart.
constexpr bool isMove(int from, int to) { return from == to || (kFormats[to].from >> from & 1) != 0; }
// Whether a move works on codes alone.
constexpr bool isDemotion(int from, int to) { return kFormats[from].isNested && kFormats[from].family == kFormats[to].family && from != to; }

constexpr bool servesHeadDim(int format, int headDim) {
  if (kFormats[format].headDims[0] == 0) return true;
  for (const int served : kFormats[format].headDims) {
    if (served != 0 && served == headDim) return true;
  }
  return false;
}

}  // namespace palimpsest
