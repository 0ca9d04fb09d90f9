#include "page.h"

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

void PageSide::count(Account& account) const {
  for (const PartRef& one : part) account.count(one);
}

size_t PageSide::bytes() const {
  size_t total = 0;
  for (const PartRef& one : part) total += one.size();
  return total;
}

void materializeHead(const Kernels* kernels, const SideView& view, bool isKey, int headDim, int firstRow, const uint16_t* sinks, float* rows, size_t stride) {
  kernels->decode(view, isKey, headDim, firstRow, rows, stride);
  for (int t = 0; isCoded(view.format) && t < firstRow; t++) kernels->fromHalf(sinks + t * headDim, rows + t * stride, headDim);
}

size_t PageSide::bytesBeside(const PageSide& other) const {
  size_t total = 0;
  for (const PartRef& one : part) {
    bool isShared = false;
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
