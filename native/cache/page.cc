#include "page.h"

#include <cstring>

namespace palimpsest {

PartSizes partSizes(int format, int kvHeads, int headDim) {
  const size_t heads = static_cast<size_t>(kvHeads);
  const size_t elements = heads * headDim * kPageTokens;
  if (format == kF16) return {alignedPart(elements * 2), 0, 0};
  if (format == kQ8) return {alignedPart(elements), 0, alignedPart(heads * kPageTokens * 2)};
  return {alignedPart(heads * hiPlaneBytes(headDim)), alignedPart(heads * loPlaneBytes(format, headDim)),
          alignedPart(heads * (kPageTokens + headDim + 3))};
}

bool PageSide::draft(Account& account, int newFormat, const SideShape& shape) {
  const PartSizes sizes = partSizes(newFormat, shape.kvHeads, shape.headDim);
  format = newFormat;
  if (!codes) codes = account.draft(sizes.codes);
  if (sizes.low) low = account.draft(sizes.low);
  if (sizes.meta) meta = account.draft(sizes.meta);
  if (!codes || (sizes.low && !low) || (sizes.meta && !meta)) return false;
  // Padding is zeros, so that equal pages have equal bytes, and bytes that leave the process say nothing else.
  for (const PartRef* part : {&low, &meta}) {
    if (*part) std::memset(part->bytes() + part->size() - kPagePartAlign, 0, kPagePartAlign);
  }
  return true;
}

void PageSide::count(Account& account) const {
  account.count(codes);
  account.count(low);
  account.count(meta);
}

void encodeHead(const Kernels* kernels, int format, bool isKey, int headDim, int firstRow, float* rows, const SideTarget& target) {
  const size_t d = static_cast<size_t>(headDim);
  if (format == kF16) {
    if (!isKey) {
      kernels->toHalf(rows, target.half, d * kPageTokens);
      return;
    }
    uint16_t line[256];
    for (int t = 0; t < kPageTokens; t++) {
      kernels->toHalf(rows + t * d, line, d);
      for (size_t c = 0; c < d; c++) target.half[c * kPageTokens + t] = line[c];
    }
    return;
  }
  if (firstRow > 0) std::memset(rows, 0, sizeof(float) * d * firstRow);
  if (format == kQ8) {
    kernels->encodeQ8(isKey, rows, d, headDim, target.tile, target.rowScales);
  } else {
    encodeRot(kernels, format, isKey, rows, d, headDim, firstRow, target.hi, target.lo, target.k, target.mean, target.meanScale,
              target.reference);
  }
}

void demoteHead(const Kernels* kernels, int to, bool isKey, int headDim, const SideView& from, const SideTarget& target) {
  kernels->demoteRot(from.format, to, isKey, headDim, from.hi, from.lo, from.k, target.lo, target.k);
}

void decodeHead(const Kernels* kernels, bool isKey, int headDim, int firstRow, const SideView& view, float* rows, size_t stride, float* scratch) {
  const size_t d = static_cast<size_t>(headDim);
  if (view.format == kF16) {
    if (!isKey) {
      for (int t = 0; t < kPageTokens; t++) kernels->fromHalf(view.half + t * d, rows + t * stride, d);
      return;
    }
    kernels->fromHalf(view.half, scratch, d * kPageTokens);
    // Row after row: `scratch` stays in the first-level cache, rows far apart would not.
    for (int t = 0; t < kPageTokens; t++) {
      for (size_t c = 0; c < d; c++) rows[t * stride + c] = scratch[c * kPageTokens + t];
    }
    return;
  }
  if (view.format == kQ8) {
    kernels->decodeQ8(isKey, headDim, view.tile, view.rowScales, rows, stride);
  } else {
    kernels->decodeRotRows(isKey, headDim, firstRow, view, rows, stride);
  }
  for (int t = 0; t < firstRow; t++) std::memset(rows + t * stride, 0, sizeof(float) * d);
}

}  // namespace palimpsest
