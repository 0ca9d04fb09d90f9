#include "pool.h"

#include <new>

namespace palimpsest {

#if defined(PALIMPSEST_TEST_ALLOCATIONS)
bool allocationFails();  // test_allocations.cc
#else
constexpr bool allocationFails() { return false; }
#endif

namespace {

constexpr size_t kRetryBytes = size_t{1} << 20;
constexpr int kRounds = 16;

}  // namespace

void PartRef::drop() {
  Part* part = part_;
  part_ = nullptr;
  if (!part) return;
  if (part->home == this) part->home = nullptr;
  part->owners = part->owners - 1;
  if (part->owners == 0) part->account->release(part);
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
  Part* part = size && size <= UINT32_MAX && !allocationFails() ? static_cast<Part*>(pool_->heap_.take(size)) : nullptr;
  if (!part) return PartRef();
  part->size = static_cast<uint32_t>(size);
  part->owners = 1;
  part->counted = false;
  part->account = this;
  return PartRef(part);
}

void Account::count(const PartRef& ref) {
  Part* part = ref.part_;
  if (!part || part->counted) return;
  part->account = this;
  part->counted = true;
  add(part->size);
  pool_->add(part->size);
}

void Account::takeOver(const PartRef& ref) {
  Part* part = ref.part_;
  if (!part || part->account == this) return;
  if (part->counted) {
    part->account->subtract(part->size);
    add(part->size);
  }
  part->account = this;
}

void Account::release(Part* part) {
  if (part->counted) {
    subtract(part->size);
    pool_->subtract(part->size);
  }
  pool_->heap_.give(part);
}

std::shared_ptr<Account> PagePool::commonOf(const std::shared_ptr<PagePool>& pool) {
  std::shared_ptr<Account> common = pool->common_.lock();
  if (!common) pool->common_ = common = std::make_shared<Account>(pool);
  return common;
}

void PagePool::visitParts(const std::function<void(PartRef&)>& visit) const {
  walk_++;
  for (PartOwner* owner : owners_) {
    owner->visitParts(walk_, [&](PartRef& ref) {
      if (ref) visit(ref);
    });
  }
}

size_t PagePool::auditBytes(const Account* account) const {
  std::vector<const Part*> parts;
  visitParts([&](PartRef& ref) { parts.push_back(ref.part_); });
  std::sort(parts.begin(), parts.end());
  parts.erase(std::unique(parts.begin(), parts.end()), parts.end());
  size_t sum = 0;
  for (const Part* part : parts) {
    if (!account || part->account == account) sum += part->size;
  }
  return sum;
}

void PagePool::settle([[maybe_unused]] size_t most) {
#if defined(__SANITIZE_ADDRESS__)
  // No memory is ever idle in this build, so move everything now and then for the sanitizer to check.
  if (++settled_ % 64 != 0) return;
  if (settled_ % 128 == 0) compact();
  else evacuate(SIZE_MAX);
#else
  if (!heap_.isWasteful()) {
    idleBefore_ = 0;
    return;
  }
  heap_.trim();
  // If the remaining parts could not be moved, it is useless to look at every part again after every call.
  if (!heap_.isWasteful() || (heap_.idleBytes() < idleBefore_ + kRetryBytes && ++settled_ % 64 != 0)) return;
  while (heap_.isWasteful()) {
    const Evacuated done = evacuate(most);
    most -= std::min(most, done.bytes);
    if (done.goesOn || (done.gains && most == 0)) {
      idleBefore_ = 0;
      return;
    }
    if (!done.gains) break;
  }
  // Whose parts are found without a search is enough, as a rule.
  for (int round = 0; round < kRounds && heap_.isMostWasteful() && compact(); round++) {
  }
  idleBefore_ = heap_.idleBytes();
#endif
}

// Moves parts of one place that have one owner each, who is known without a search. Background tasks that read a part
// are owners as well, and what they write is not counted yet.
Evacuated PagePool::evacuate(size_t most) {
  const auto isMovable = [](const Block* block) {
    const Part* part = static_cast<const Part*>(block);
    return part->counted && part->owners == 1 && part->home != nullptr;
  };
  const auto moved = [](Block* block) {
    Part* part = static_cast<Part*>(block);
    part->home->part_ = part;
  };
  try {
    return heap_.evacuate(isMovable, moved, most);
  } catch (const std::bad_alloc&) {
    return {};
  }
}

// Moves some parts together, and returns whether it moved any. Parts that a background task or an incomplete change
// owns as well are not moved. It looks for the owners of all parts, which takes long where there are many.
bool PagePool::compact() {
  heap_.forget();
  visitParts([](PartRef& ref) {
    ref.part_->found++;
    ref.part_->home = &ref;
  });
  std::vector<std::pair<const Block*, Block*>> moves;
  try {
    moves = heap_.pack([](const Block* block) { return block->found > 0 && block->found == static_cast<const Part*>(block)->owners; });
  } catch (const std::bad_alloc&) {
    return false;
  }
  if (moves.empty()) return false;
  visitParts([&](PartRef& ref) {
    const Block* old = ref.part_;
    const auto move = std::lower_bound(moves.begin(), moves.end(), old, [](const auto& one, const Block* block) { return one.first < block; });
    if (move != moves.end() && move->first == old) ref.part_ = static_cast<Part*>(move->second);
  });
  return true;
}

void PagePool::leave(PartOwner* owner) { owners_.erase(std::remove(owners_.begin(), owners_.end(), owner), owners_.end()); }

}  // namespace palimpsest
