#include "page.h"

#include <algorithm>
#include <cstring>

namespace palimpsest {

SidePlaces sidePlaces(int format, int kvHeads, int headDim, int room) {
  SidePlaces places;
  places.fields = kFormats[format].fields;
  size_t end[kPartsMax] = {};
  for (int i = 0; i < places.fields; i++) {
    const FieldLayout& field = kFormats[format].field[i];
    const size_t bytes = fieldBytes(field, headDim, room);
    places.field[i] = {field.part, end[field.part], bytes};
    end[field.part] += kvHeads * bytes;
  }
  return places;
}

bool PageSide::draft(Account& account, int newFormat, const SideShape& shape, int room) {
  format = newFormat;
  for (int i = 0; i < kPartsMax; i++) {
    const size_t size = partBytes(format, i, shape.kvHeads, shape.headDim, room);
    if (size == 0 || part[i]) continue;
    part[i] = account.draft(size);
    if (!part[i]) return false;
    // Zero the padding, so that equal pages have equal bytes and exported bytes disclose nothing else.
    std::memset(part[i].bytes() + size - kPagePartAlign, 0, kPagePartAlign);
  }
  return true;
}

void PageSide::moveTo(Account& account) const {
  for (const PartRef& one : part) account.takeOver(one);
}

void PageSide::count(Account& account) const {
  for (const PartRef& one : part) account.count(one);
}

size_t PageSide::bytes() const {
  size_t total = 0;
  for (const PartRef& one : part) total += one.size();
  return total;
}

void materializeHead(const Kernels* kernels, const SideView& view, bool isKey, int headDim, int firstRow, const uint16_t* sinks, float* rows, size_t stride,
                     Workspace space) {
  kernels->cold->decode(view, isKey, headDim, firstRow, rows, stride, space);
  for (int t = 0; isCoded(view.format) && t < firstRow; t++) kernels->fromHalf(sinks + t * headDim, rows + t * stride, headDim);
}

void copyField(const FieldLayout& field, bool isKey, int d, const uint8_t* from, int room, uint8_t* to, int toRoom) {
  const int stripes = !isKey || field.elementBits == 0 ? 1 : field.elementBits == 16 ? d : d / 4;
  const size_t bytes = fieldBytes(field, d, room) / stripes, toBytes = fieldBytes(field, d, toRoom) / stripes;
  for (int i = 0; i < stripes; i++) std::memcpy(to + i * toBytes, from + i * bytes, std::min(bytes, toBytes));
}

void endAtHalf(const SideView& view, int headDim, int count, float* rows, size_t stride) {
  // The least scale, half, of which 127 are more: 516.
  constexpr uint16_t kBeyond = 0x6008;
  if (view.format != kQ8) return;
  const uint16_t* scales = view.at<uint16_t>(kQ8RowScales);
  for (int t = 0; t < count; t++) {
    float* x = rows + t * stride;
    for (int c = 0; scales[t] >= kBeyond && c < headDim; c++) x[c] = std::min(kHalfMax, std::max(-kHalfMax, x[c]));
  }
}

size_t PageSide::bytesBeside(const PageSide& other, uint32_t ownersMax) const {
  size_t total = 0;
  for (const PartRef& one : part) {
    bool isShared = one && one.part()->owners > ownersMax;
    for (const PartRef& its : other.part) isShared = isShared || (one && its.part() == one.part());
    if (!isShared) total += one.size();
  }
  return total;
}

SideView PageSide::view(const SideShape& shape, int head) const {
  SideView view;
  views(shape, head, 1, &view);
  return view;
}

SideTarget PageSide::target(const SideShape& shape, int head) const {
  SideTarget target;
  target.format = format;
  const SidePlaces& places = shape.places[format];
  for (int i = 0; i < places.fields; i++) {
    const SidePlaces::Place& place = places.field[i];
    if (part[place.part]) target.field[i] = part[place.part].bytes() + place.start + head * place.headBytes;
  }
  return target;
}

}  // namespace palimpsest
