#include "pool.h"

#include <algorithm>
#include <cstdlib>
#include <new>

namespace palimpsest {

namespace {

uint8_t* allocateAligned(size_t size) {
#ifdef _WIN32
  return static_cast<uint8_t*>(_aligned_malloc(size, kPartAlign));
#else
  void* bytes = nullptr;
  return posix_memalign(&bytes, kPartAlign, size) == 0 ? static_cast<uint8_t*>(bytes) : nullptr;
#endif
}

void freeAligned(uint8_t* bytes) {
#ifdef _WIN32
  _aligned_free(bytes);
#else
  std::free(bytes);
#endif
}

}  // namespace

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
  uint8_t* bytes = size ? allocateAligned(size) : nullptr;
  if (!bytes) return PartRef();
  Part* part = new (std::nothrow) Part{bytes, size, 1, false, this};
  if (!part) freeAligned(bytes);
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
  freeAligned(part->bytes);
  delete part;
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
