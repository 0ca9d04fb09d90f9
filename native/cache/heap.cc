#include "heap.h"

#include <algorithm>
#include <cstdlib>
#if defined(__linux__)
#include <sys/mman.h>
#endif

namespace palimpsest {

namespace {

constexpr size_t kHugePage = size_t{2} << 20;
constexpr size_t kFirstChunk = size_t{256} << 10;
constexpr size_t kLargestChunk = size_t{64} << 20;
constexpr size_t kHeader = kHeapUnit;
static_assert(sizeof(Block) <= kHeader);

Block* at(void* address) { return static_cast<Block*>(address); }
Block* after(Block* block) { return at(reinterpret_cast<uint8_t*>(block) + kHeader + block->capacity); }

size_t roundUp(size_t size, size_t unit) { return (size + unit - 1) / unit * unit; }

// Whole chunks from the system; those of huge pages start on one.
void* allocateChunk(size_t size) {
#ifdef _WIN32
  return _aligned_malloc(size, kHeader);
#else
  void* memory = nullptr;
  const bool huge = size % kHugePage == 0;
  if (posix_memalign(&memory, huge ? kHugePage : kHeader, size) != 0) return nullptr;
#if defined(__linux__)
  if (huge) madvise(memory, size, MADV_HUGEPAGE);  // a wish: nothing depends on it
#endif
  return memory;
#endif
}

void freeChunk(void* memory) {
#ifdef _WIN32
  _aligned_free(memory);
#else
  std::free(memory);
#endif
}

}  // namespace

// Chunks are closed when their last block comes back; a heap outlives its blocks.
Heap::~Heap() = default;

int Heap::listOf(size_t size) {
  const size_t units = size / kHeapUnit;
  if (units < 16) return static_cast<int>(units);
  const int power = 63 - __builtin_clzll(units);  // at least 4
  const int within = static_cast<int>(units >> (power - 4)) & 15;
  return std::min((power - 3) * 16 + within, kLists - 1);
}

void Heap::link(Block* block) {
  const int list = listOf(block->capacity);
  block->free = true;
  block->listBefore = nullptr;
  block->listAfter = lists_[list];
  if (lists_[list]) lists_[list]->listBefore = block;
  lists_[list] = block;
  used_[list / 64] |= uint64_t{1} << (list % 64);
}

void Heap::unlink(Block* block) {
  const int list = listOf(block->capacity);
  block->free = false;
  if (block->listAfter) block->listAfter->listBefore = block->listBefore;
  if (block->listBefore) {
    block->listBefore->listAfter = block->listAfter;
  } else {
    lists_[list] = block->listAfter;
    if (!lists_[list]) used_[list / 64] &= ~(uint64_t{1} << (list % 64));
  }
}

// The first block that is large enough in its own list, else any of the next list that has one.
Block* Heap::find(size_t size) {
  const int own = listOf(size);
  for (Block* block = lists_[own]; block; block = block->listAfter) {
    if (block->capacity >= size) return block;
  }
  for (int word = (own + 1) / 64; word < kLists / 64; word++) {
    uint64_t bits = used_[word];
    if (word == (own + 1) / 64) bits &= ~uint64_t{0} << ((own + 1) % 64);
    if (bits) return lists_[word * 64 + __builtin_ctzll(bits)];
  }
  return nullptr;
}

// Chunks double, so that a small pool stays small and a large one has few.
Block* Heap::openChunk(size_t size) {
  const size_t least = size + 2 * kHeader;
  if (least < size) return nullptr;
  size_t chunk = std::max(nextChunk_ == 0 ? kFirstChunk : nextChunk_, roundUp(least, kHugePage));
  if (nextChunk_ == 0 && least <= kFirstChunk) chunk = kFirstChunk;
  void* memory = allocateChunk(chunk);
  if (!memory && chunk > roundUp(least, kHeader)) {
    chunk = roundUp(least, kHeader);
    memory = allocateChunk(chunk);
  }
  if (!memory) return nullptr;
  nextChunk_ = std::min(kLargestChunk, std::max(kHugePage, 2 * chunk));
  reserved_ += chunk;
  Block* first = at(memory);
  first->capacity = chunk - 2 * kHeader;
  first->before = nullptr;
  first->last = false;
  Block* end = after(first);
  end->capacity = 0;
  end->before = first;
  end->free = false;
  end->last = true;
  link(first);
  return first;
}

void Heap::closeChunk(Block* first) {
  unlink(first);
  reserved_ -= first->capacity + 2 * kHeader;
  if (reserved_ == 0) nextChunk_ = 0;
  freeChunk(first);
}

#if defined(__SANITIZE_ADDRESS__)

Block* Heap::take(size_t size) {
  Block* block = at(allocateChunk(size + kHeader));
  if (block) block->capacity = size;
  if (block) reserved_ += size + kHeader;
  return block;
}

void Heap::give(Block* block) {
  reserved_ -= block->capacity + kHeader;
  freeChunk(block);
}

#else

Block* Heap::take(size_t size) {
  Block* block = find(size);
  if (!block) block = openChunk(size);
  if (!block) return nullptr;
  unlink(block);
  if (block->capacity >= size + kHeader + kHeapUnit) {
    Block* end = after(block);
    const size_t left = block->capacity - size - kHeader;
    block->capacity = size;
    Block* rest = after(block);
    rest->capacity = left;
    rest->before = block;
    rest->last = false;
    end->before = rest;
    link(rest);
  }
  return block;
}

void Heap::give(Block* block) {
  Block* next = after(block);
  if (next->free) {
    unlink(next);
    block->capacity += kHeader + next->capacity;
    after(block)->before = block;
  }
  if (block->before && block->before->free) {
    Block* before = block->before;
    unlink(before);
    before->capacity += kHeader + block->capacity;
    block = before;
    after(block)->before = block;
  }
  link(block);
  // The only block of its chunk.
  if (!block->before && after(block)->last) closeChunk(block);
}

#endif

}  // namespace palimpsest
