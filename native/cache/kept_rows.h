// Some rows of a page side as they were at one time, in 8 bits: what the form that the side has by now does to them can
// be measured on these rows alone (trial.h). They belong to the page and count against the budget.
//
// One part: for each row its place, head * 128 + token (uint16), in ascending order; then the scale of each (f16); then
// its codes [d] (int8). A row is scale times its codes.
#pragma once
#include "page.h"

namespace palimpsest {

struct KeptRows {
  PartRef part;
  uint16_t count = 0;

  static size_t bytesOf(int count, int headDim) { return alignedPart(count * (4 + static_cast<size_t>(headDim))); }
  bool isThere() const { return count > 0; }
  // Drafts rows whose places are set and whose codes are not; false when memory ran out.
  bool draft(Account& account, const uint16_t* places, int rows, int headDim);
  const uint16_t* places() const { return reinterpret_cast<const uint16_t*>(part.bytes()); }
  // The rows of one head: from `first` on so many.
  int ofHead(int head, int* first) const;
  // x: the row at `index`, [d].
  void write(const Kernels* kernels, int index, const float* x, int headDim);
  void read(const Kernels* kernels, int index, float* x, int headDim) const;

 private:
  uint16_t* scales() const { return reinterpret_cast<uint16_t*>(part.bytes()) + count; }
  int8_t* codes(int index, int headDim) const { return reinterpret_cast<int8_t*>(scales() + count) + static_cast<size_t>(index) * headDim; }
};

}  // namespace palimpsest
