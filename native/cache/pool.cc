#include "pool.h"

#include <algorithm>

namespace palimpsest {

void PartRef::drop() {
  Part* part = part_;
  part_ = nullptr;
  if (part && --part->owners == 0) part->pool->release(part);
}

bool PagePool::setBudget(uint64_t bytes) {
  if (bytes < used_) return false;
  budget_ = bytes;
  return true;
}

PartRef PagePool::draft(size_t size) {
  Part* part = size ? static_cast<Part*>(heap_.take(size)) : nullptr;
  if (!part) return PartRef();
  part->size = size;
  part->owners = 1;
  part->counted = false;
  part->pool = this;
  return PartRef(part);
}

void PagePool::count(const PartRef& ref) {
  Part* part = ref.part_;
  if (!part || part->counted) return;
  part->counted = true;
  used_ += part->size;
  peak_ = std::max(peak_, used_);
}

void PagePool::release(Part* part) {
  if (part->counted) used_ -= part->size;
  heap_.give(part);
}

size_t PagePool::auditBytes() const {
  std::vector<const Part*> parts;
  for (const PartOwner* owner : owners_) owner->collectParts(parts);
  std::sort(parts.begin(), parts.end());
  parts.erase(std::unique(parts.begin(), parts.end()), parts.end());
  size_t sum = 0;
  for (const Part* part : parts) sum += part->size;
  return sum;
}

void PagePool::leave(const PartOwner* owner) { owners_.erase(std::remove(owners_.begin(), owners_.end(), owner), owners_.end()); }

}  // namespace palimpsest
