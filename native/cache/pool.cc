#include "pool.h"

namespace palimpsest {

void PartRef::drop() {
  Part* part = part_;
  part_ = nullptr;
  if (part && --part->owners == 0) part->account->release(part);
}

bool Tally::setBudget(uint64_t bytes) {
  if (bytes < used_) return false;
  budget_ = bytes;
  return true;
}

void Tally::add(size_t bytes) {
  used_ += bytes;
  peak_ = std::max(peak_, used_);
}

bool Account::fits(uint64_t bytes, size_t freed) const { return Tally::fits(bytes, freed) && pool_->fits(bytes, freed); }

void Account::claim(size_t bytes) {
  claimed_ += bytes;
  pool_->claimed_ += bytes;
}

void Account::unclaim(size_t bytes) {
  claimed_ -= bytes;
  pool_->claimed_ -= bytes;
}

PartRef Account::draft(size_t size) {
  Part* part = size ? static_cast<Part*>(pool_->heap_.take(size)) : nullptr;
  if (!part) return PartRef();
  part->size = size;
  part->owners = 1;
  part->counted = false;
  part->account = this;
  return PartRef(part);
}

void Account::count(const PartRef& ref) {
  Part* part = ref.part_;
  if (!part || part->counted) return;
  part->counted = true;
  add(part->size);
  pool_->add(part->size);
}

void Account::release(Part* part) {
  if (part->counted) {
    subtract(part->size);
    pool_->subtract(part->size);
  }
  pool_->heap_.give(part);
}

size_t PagePool::auditBytes(const Account* account) const {
  std::vector<const Part*> parts;
  for (const PartOwner* owner : owners_) owner->collectParts(parts);
  std::sort(parts.begin(), parts.end());
  parts.erase(std::unique(parts.begin(), parts.end()), parts.end());
  size_t sum = 0;
  for (const Part* part : parts) {
    if (!account || part->account == account) sum += part->size;
  }
  return sum;
}

void PagePool::leave(const PartOwner* owner) { owners_.erase(std::remove(owners_.begin(), owners_.end(), owner), owners_.end()); }

}  // namespace palimpsest
