// Where a trial writes the formats that it tries.
#pragma once
#include "buffer.h"
#include "page.h"

namespace palimpsest {

// Where one head of a side is written in each format, 64-byte aligned inside scratch.codes, which has room for two.
// Fields that all formats of a family keep are there only once.
class Carving {
 public:
  explicit Carving(int headDim) {
    for (int format = 0; format < kFormatSlots; format++) {
      int first = 0;
      while (kFormats[first].name == nullptr || kFormats[first].family != kFormats[format].family) first++;
      for (int i = 0; i < kFormats[format].fields; i++) {
        const FieldLayout& field = kFormats[format].field[i];
        if (field.isKept && first < format) {
          at_[format][i] = at_[first][i];
          continue;
        }
        at_[format][i] = bytes_;
        bytes_ += alignedPart(fieldBytes(field, headDim));
      }
    }
  }

  size_t bytes() const { return bytes_; }

  SideTarget target(Buffer<uint8_t>& buffer, int format, bool second) const {
    SideTarget target;
    target.format = format;
    for (int i = 0; i < kFormats[format].fields; i++) target.field[i] = buffer.data() + (second ? bytes_ : 0) + at_[format][i];
    return target;
  }

 private:
  size_t at_[kFormatSlots][kFieldsMax] = {};
  size_t bytes_ = 0;
};

}  // namespace palimpsest
