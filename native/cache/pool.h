// Memory that is counted. A pool has any number of accounts, one for each cache and all its forks. An account has its
// own budget, the pool has one for the sum of them, and a change must fit both. Memory comes in parts (one bit plane,
// one metadata block, one open page), each 64-byte aligned. A part belongs to one account and has one or more owners: a
// fork shares its sealed pages, and the last owner frees them. What caches share that are no forks of each other
// belongs to an account of the pool's own.
//
// A part is first drafted (allocated, not counted) and then counted when the page it belongs to is complete. This makes
// a change all or nothing: dropping a draft changes nothing. Callers ask hasRoom() for the whole change before they
// draft. One thread uses a pool; the thread pool never touches its numbers.
#pragma once
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "../formats/format.h"
#include "heap.h"

namespace palimpsest {

class Account;
class Threads;
struct Workers;

// The header of its own block, so that the address of its bytes follows from that of the part, without another memory
// access.
class PartRef;
struct Part : Block {
  uint32_t size;  // bytes asked for, and counted
  uint32_t owners : 31;
  uint32_t counted : 1;
  Account* account;
  PartRef* home;  // one of its references, null if that was dropped: where there is one owner, it is this one
  uint8_t* bytes() { return reinterpret_cast<uint8_t*>(this) + kHeapUnit; }
};
static_assert(sizeof(Part) <= kHeapUnit);

// Shared ownership of a part. Empty when nothing could be allocated.
class PartRef {
 public:
  PartRef() = default;
  explicit PartRef(Part* part) : part_(part) { part->home = this; }
  PartRef(const PartRef& other) : part_(other.part_) {
    if (part_) part_->owners++;
  }
  PartRef(PartRef&& other) noexcept { take(other); }
  PartRef& operator=(PartRef other) noexcept {
    if (part_ != other.part_) {
      drop();
      take(other);
    } else if (part_ && part_->home == &other) {
      part_->home = this;
    }
    return *this;
  }
  ~PartRef() { drop(); }

  void drop();
  explicit operator bool() const { return part_ != nullptr; }
  const Part* part() const { return part_; }
  uint8_t* bytes() const { return part_ ? part_->bytes() : nullptr; }
  size_t size() const { return part_ ? part_->size : 0; }
  bool shared() const { return part_ && part_->owners > 1; }

 private:
  friend class Account;
  friend class PagePool;
  void take(PartRef& other) {
    part_ = other.part_;
    other.part_ = nullptr;
    if (part_ && part_->home == &other) part_->home = this;
  }
  Part* part_ = nullptr;
};

// Every holder of parts can be visited, to audit it and to update its references when parts have been moved.
class PartOwner {
 public:
  virtual ~PartOwner() = default;
  // Visits each part once per reference held here; what several owners share is visited once per walk.
  virtual void visitParts(uint32_t walk, const std::function<void(PartRef&)>& visit) = 0;
};

// The bytes counted, their peak, and their budget.
class Tally {
 public:
  // A budget may be larger than this machine can address.
  explicit Tally(uint64_t budgetBytes) : budget_(budgetBytes) {}

  uint64_t budgetBytes() const { return budget_; }
  size_t usedBytes() const { return used_; }
  size_t peakBytes() const { return peak_; }
  // Bytes that may still be added beside what is used and claimed.
  uint64_t roomBytes() const { return uint64_t{used_} + claimed_ < budget_ ? budget_ - used_ - claimed_ : 0; }
  // False (and nothing changes) when `bytes` is less than what is in use.
  bool setBudget(uint64_t bytes);

  // Whether `bytes` more fit beside everything that is claimed, given that the same change frees `freed` bytes.
  bool hasRoom(size_t bytes, size_t freed) const { return fits(uint64_t{bytes} + claimed_, freed); }
  // The same for a change whose claim was just withdrawn, so that other claims are not counted.
  bool fits(uint64_t bytes, size_t freed) const { return used_ - freed <= budget_ && bytes <= budget_ - (used_ - freed); }

 protected:
  friend class Account;
  void add(size_t bytes);
  void subtract(size_t bytes) { used_ -= bytes; }

  uint64_t budget_;
  size_t used_ = 0;
  size_t claimed_ = 0;
  size_t peak_ = 0;
};

class PagePool : public Tally {
 public:
  PagePool(uint64_t budgetBytes, std::shared_ptr<Threads> crew) : Tally(budgetBytes), crew_(std::move(crew)) {}
  PagePool(const PagePool&) = delete;
  PagePool& operator=(const PagePool&) = delete;

  // Bytes held from the system, including headers and free memory that has not been returned.
  size_t reservedBytes() const { return heap_.reservedBytes(); }
  size_t reservedPeakBytes() const { return heap_.reservedPeakBytes(); }
  // Returns memory to the system when too much of it is idle; parts may move then. Call it between two calls only, when
  // nobody but background tasks holds a pointer into a part; parts that those own as well are not moved. most: bytes
  // that it may move, beyond one part; what is left is for the next calls.
  void settle(size_t most);
  // The total size of the distinct parts that a living owner can reach, of one account or (null) of all; independent of
  // usedBytes().
  size_t auditBytes(const Account* account = nullptr) const;
  void enter(PartOwner* owner) { owners_.push_back(owner); }
  void leave(PartOwner* owner);

  // Computes for the caches, and for others of the environment in turns with them.
  const std::shared_ptr<Threads>& crew() const { return crew_; }
  std::weak_ptr<Workers> workers;  // of the open caches (layer.h)
  // The account of what caches hold together that are no forks of each other; without a budget of its own, there while
  // there is such a thing.
  static std::shared_ptr<Account> commonOf(const std::shared_ptr<PagePool>& pool);

 private:
  friend class Account;
  void visitParts(const std::function<void(PartRef&)>& visit) const;
  Evacuated evacuate(size_t most);
  bool compact();

  std::shared_ptr<Threads> crew_;
  Heap heap_;
  std::vector<PartOwner*> owners_;
  size_t idleBefore_ = 0;  // idle bytes that the last attempt to move parts left
  uint32_t settled_ = 0;
  mutable uint32_t walk_ = 0;
  std::weak_ptr<Account> common_;
};

constexpr uint64_t kNoBudget = UINT64_MAX;

// Bytes by which counts grow once drafts are made that are not yet: of one account, and of its pool.
struct Pending {
  size_t account = 0;
  size_t pool = 0;
};

// The bytes of one cache and its forks. It outlives its parts.
class Account : public Tally {
 public:
  explicit Account(std::shared_ptr<PagePool> pool, uint64_t budgetBytes = kNoBudget) : Tally(budgetBytes), pool_(std::move(pool)) {}
  Account(const Account&) = delete;
  Account& operator=(const Account&) = delete;

  const std::shared_ptr<PagePool>& pool() const { return pool_; }
  uint64_t roomBytes() const { return std::min(Tally::roomBytes(), pool_->roomBytes()); }
  // before: of drafts that are made first.
  bool hasRoom(size_t bytes, size_t freed = 0, const Pending& before = {}) const {
    return Tally::hasRoom(bytes + before.account, freed) && pool_->hasRoom(bytes + before.pool, freed);
  }
  bool fits(uint64_t bytes, size_t freed) const;
  // Reserves room for drafts that will be counted later.
  void claim(size_t bytes);
  void unclaim(size_t bytes);

  // size must be a multiple of kPagePartAlign. Empty when the system has no memory.
  PartRef draft(size_t size);
  // A draft may come from another account of the pool.
  void count(const PartRef& ref);
  // A part that belonged to another account of the pool, which may be gone from now on, belongs to this one.
  void takeOver(const PartRef& ref);
  // Whether pages of its caches may be held together with others.
  bool mayHoldCommon = false;

 private:
  friend class PartRef;
  void release(Part* part);

  std::shared_ptr<PagePool> pool_;
};

}  // namespace palimpsest
