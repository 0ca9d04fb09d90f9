// One side (K or V) of one page, in any format: which parts it has, and where the fields of one head lie in them.
//
// A part is one allocation. It holds its first field for all heads, then its next field for all heads (layout.gen.h
// lists the fields of every format). Each format defines how they are written and read (native/formats/).
#pragma once
#include "../formats/format.h"
#include "../kernels/kernels.h"
#include "pool.h"

namespace palimpsest {

constexpr float kHalfMax = 65504.0f;

// Where the fields of one format lie in the parts of a page side.
struct SidePlaces {
  struct Place {
    int part;
    size_t start;
    size_t headBytes;
  };
  int fields = 0;
  Place field[kFieldsMax] = {};
};
SidePlaces sidePlaces(int format, int kvHeads, int headDim, int room = kPageTokens);

struct SideShape {
  bool isKey;
  int kvHeads;
  int headDim;
  const SidePlaces* places;  // [kFormatSlots]
};

struct PageSide {
  int format = kF16;
  PartRef part[kPartsMax];

  // Drafts every missing part; false when memory ran out. The caller counts them when the page is complete.
  bool draft(Account& account, int newFormat, const SideShape& shape, int room = kPageTokens);
  void count(Account& account) const;
  // Its parts belong to this account from now on.
  void moveTo(Account& account) const;
  size_t bytes() const;
  bool isThere() const { return bytes() > 0; }
  // Bytes of the parts that `other` does not share, of those that have no more owners than so many.
  size_t bytesBeside(const PageSide& other, uint32_t ownersMax = UINT32_MAX) const;
  SideView view(const SideShape& shape, int head) const;
  SideTarget target(const SideShape& shape, int head) const;
  // Views of the heads [first, first + count). A decode step needs those of every head at every page.
  void views(const SideShape& shape, int first, int count, SideView* out) const;
};

inline void PageSide::views(const SideShape& shape, int first, int count, SideView* out) const {
  // Read once for all heads: the compiler must assume that the writes to `out` could change these values.
  const SidePlaces& places = shape.places[format];
  const int of = format;
  for (int h = 0; h < count; h++) out[h].format = of;
  for (int i = 0; i < places.fields; i++) {
    const SidePlaces::Place place = places.field[i];
    const uint8_t* at = part[place.part].bytes() + place.start + first * place.headBytes;
    for (int h = 0; h < count; h++) out[h].field[i] = at + h * place.headBytes;
  }
}

// Decodes one head of a side to rows `stride` apart, with exact sinks. sinks: those of this head, [4][d] half; read
// when firstRow is not 0. space: of decodeSpace(headDim).
void materializeHead(const Kernels* kernels, const SideView& view, bool isKey, int headDim, int firstRow, const uint16_t* sinks, float* rows, size_t stride,
                     Workspace space);

// Copies the rows of a field of one head to where they are in an open page with other room. What belongs to a token
// lies together, but keys are stored channel by channel (f16) or four channels at a time (codes): each of these stripes
// has room for the same tokens.
void copyField(const FieldLayout& field, bool isKey, int d, const uint8_t* from, int room, uint8_t* to, int toRoom);

// Rows in 8 bits can lie half a step of their scale beyond what may be appended. Who decodes rows of a window format
// appends them again (a cache that is saved, taken back or probed), so that they end where append does, which gives the
// same codes. Other rows stay as they are.
void endAtHalf(const SideView& view, int headDim, int count, float* rows, size_t stride);

}  // namespace palimpsest
