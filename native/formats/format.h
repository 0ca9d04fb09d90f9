// What follows from the layout of a format (native/layout.gen.h, written from the TypeScript descriptions beside this
// file).
#pragma once
#include "../layout.gen.h"

namespace palimpsest {

constexpr bool isFormat(int id) { return id >= 0 && id < kFormatSlots && kFormats[id].name != nullptr; }

// Whether a format stores codes. f16, the format of the open page, does not: it holds the rows themselves, sinks
// included.
constexpr bool isCoded(int format) { return format != kF16; }

// Bytes of one field of one head. room: tokens that there is room for, fewer than 128 in an open page that still grows.
constexpr size_t fieldBytes(const FieldLayout& field, int headDim, int room = kPageTokens) {
  return static_cast<size_t>(room) * headDim * field.elementBits / 8 + static_cast<size_t>(room) * field.tokenBytes +
         static_cast<size_t>(headDim) * field.channelBytes + field.headBytes;
}

constexpr size_t alignedPart(size_t bytes) { return (bytes + kPagePartAlign - 1) / kPagePartAlign * kPagePartAlign; }

// Bytes of one part of a page side, 0 when the format has no such part.
constexpr size_t partBytes(int format, int part, int kvHeads, int headDim, int room = kPageTokens) {
  size_t bytes = 0;
  for (int i = 0; i < kFormats[format].fields; i++) {
    if (kFormats[format].field[i].part == part) bytes += kvHeads * fieldBytes(kFormats[format].field[i], headDim, room);
  }
  return alignedPart(bytes);
}
constexpr size_t sideBytes(int format, int kvHeads, int headDim, int room = kPageTokens) {
  size_t bytes = 0;
  for (int part = 0; part < kPartsMax; part++) bytes += partBytes(format, part, kvHeads, headDim, room);
  return bytes;
}

// Whether a page side may go from one format to another; servesHeadDim checks the head size.
constexpr bool isMove(int from, int to) { return from == to || (kFormats[to].from >> from & 1) != 0; }
// Whether a move is a demotion, which works on codes alone.
constexpr bool isDemotion(int from, int to) {
  return kFormats[from].isNested && kFormats[to].isNested && kFormats[from].family == kFormats[to].family && from != to;
}
// Whether a demotion leaves a part in place, which it does if the part's first field is the same in both formats.
constexpr bool isPartKept(int from, int to, int part) {
  for (int i = 0; i < kFormats[to].fields; i++) {
    const FieldLayout& field = kFormats[to].field[i];
    if (field.part == part) return field.isKept && field.elementBits == kFormats[from].field[i].elementBits;
  }
  return false;
}

constexpr bool servesHeadDim(int format, int headDim) {
  if (kFormats[format].headDims[0] == 0) return true;
  for (const int served : kFormats[format].headDims) {
    if (served != 0 && served == headDim) return true;
  }
  return false;
}

}  // namespace palimpsest
