// One side (K or V) of one sealed page, in any format: which parts it has, how they are written, how one head is read.
//
//   f16   tiles    n x [contraction][outputs] half                      (keys [d][128], values [128][d])
//   q8    tiles    n x i8 tile, then scales n x [128] half
//   rot   high     n x 2-bit plane, low n x (2-bit | 1-bit | no) plane, then meta: n x [128] int8 k, n x [d] int8 mean, n x half mean scale, n x int8 reference
//
// Rows before `firstRow` (the sinks of page 0) stay out of every code and mean; their exact values live in the sink buffer.
#pragma once
#include "../formats/format.h"
#include "../kernels/kernels.h"
#include "pool.h"

namespace palimpsest {

struct SideShape {
  bool isKey;
  int kvHeads;
  int headDim;
};

// The same head while it is being written.
struct SideTarget {
  uint16_t* half = nullptr;
  int8_t* tile = nullptr;
  uint16_t* rowScales = nullptr;
  uint8_t* hi = nullptr;
  uint8_t* lo = nullptr;
  int8_t* k = nullptr;
  int8_t* mean = nullptr;
  uint16_t* meanScale = nullptr;
  int8_t* reference = nullptr;

  SideView view(int format) const {
    SideView view;
    view.format = format;
    view.half = half;
    view.tile = tile;
    view.rowScales = rowScales;
    view.hi = hi;
    view.lo = lo;
    view.k = k;
    view.mean = mean;
    view.meanScale = meanScale;
    view.reference = reference;
    return view;
  }
};

inline bool isRot(int format) { return format >= kRot4 && format <= kRot2; }
inline bool isCoded(int format) { return format != kF16; }

// codes: tiles or high plane; low: low plane of rot4 and rot3; meta: scales, exponents, means.
struct PartSizes {
  size_t codes;
  size_t low;
  size_t meta;
  size_t total() const { return codes + low + meta; }
};
PartSizes partSizes(int format, int kvHeads, int headDim);

struct PageSide {
  int format = kF16;
  PartRef codes;
  PartRef low;
  PartRef meta;

  // Drafts every part; false when memory ran out. The caller counts them when the page is complete.
  bool draft(Account& account, int newFormat, const SideShape& shape);
  void count(Account& account) const;
  size_t bytes() const { return codes.size() + low.size() + meta.size(); }
  SideView view(const SideShape& shape, int head) const;
  SideTarget target(const SideShape& shape, int head) const;
  // Of heads [first, first + count): only the fields of the format are written. A decode step asks for them at every page, of every head.
  void views(const SideShape& shape, int first, int count, SideView* out) const;

 private:
  // Where the parts lie. Taken once for all heads: what is written into views might be anything to the compiler.
  struct Places {
    int format;
    SideShape shape;
    uint8_t* codes;
    uint8_t* low;
    uint8_t* meta;

    // The fields of the format, of a view or a target.
    template <class Side>
    void set(int head, Side& side) const;
  };
  Places places(const SideShape& shape) const { return {format, shape, codes.bytes(), low.bytes(), meta.bytes()}; }
};

template <class Side>
inline void PageSide::Places::set(int head, Side& side) const {
  const size_t elements = static_cast<size_t>(shape.headDim) * kPageTokens;
  const size_t heads = static_cast<size_t>(shape.kvHeads);
  if (format == kF16) {
    side.half = reinterpret_cast<uint16_t*>(codes) + head * elements;
  } else if (format == kQ8) {
    side.tile = reinterpret_cast<int8_t*>(codes) + head * elements;
    side.rowScales = reinterpret_cast<uint16_t*>(meta) + static_cast<size_t>(head) * kPageTokens;
  } else {
    side.hi = codes + head * hiPlaneBytes(shape.headDim);
    side.lo = low ? low + head * loPlaneBytes(format, shape.headDim) : nullptr;
    int8_t* k = reinterpret_cast<int8_t*>(meta);
    int8_t* means = k + heads * kPageTokens;
    side.k = k + static_cast<size_t>(head) * kPageTokens;
    side.mean = means + static_cast<size_t>(head) * shape.headDim;
    uint16_t* meanScales = reinterpret_cast<uint16_t*>(means + heads * shape.headDim);
    side.meanScale = meanScales + head;
    side.reference = reinterpret_cast<int8_t*>(meanScales + heads) + head;
  }
}

inline SideView PageSide::view(const SideShape& shape, int head) const {
  SideView view;
  view.format = format;
  places(shape).set(head, view);
  return view;
}

inline SideTarget PageSide::target(const SideShape& shape, int head) const {
  SideTarget target;
  places(shape).set(head, target);
  return target;
}

inline void PageSide::views(const SideShape& shape, int first, int count, SideView* out) const {
  const Places at = places(shape);
  for (int h = 0; h < count; h++) {
    out[h].format = at.format;
    at.set(first + h, out[h]);
  }
}

// rows: [128][d]. Rows before firstRow are cleared here first, for every format but f16.
void encodeHead(const Kernels* kernels, int format, bool isKey, int headDim, int firstRow, float* rows, const SideTarget& target);
// `from` and `to` both of the rot family, `to` lower: on codes alone. The high plane and the mean are not touched.
void demoteHead(const Kernels* kernels, int to, bool isKey, int headDim, const SideView& from, const SideTarget& target);
// Rows `stride` apart; scratch: [128*d]. Rows before firstRow come out as zeros unless the format is f16.
void decodeHead(const Kernels* kernels, bool isKey, int headDim, int firstRow, const SideView& view, float* rows, size_t stride, float* scratch);

// Index of (contraction step c, output o) in an i8 tile.
inline size_t tileIndex(int c, int o, int outputs) {
  return ((static_cast<size_t>(c / 4) * (outputs / 16) + o / 16) * 64) + static_cast<size_t>(o % 16) * 4 + c % 4;
}

}  // namespace palimpsest
