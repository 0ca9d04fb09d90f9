// Memory of a pool: blocks of any multiple of 64 bytes, 64-byte aligned, cut from a few large chunks. Chunks are made of 2 MB pages where
// the system gives them (a cache is read from end to end at every step, and address translation would cost as much as the reading).
// Neighbours that are free are joined; a chunk that is free as a whole goes back to the system.
//
// Every block has 64 bytes in front of it, Block, which its owner may extend (see Part). The lists of free blocks live in these headers,
// so giving back never allocates. One thread at a time.
// Built with the address sanitizer every block is an allocation of its own, so that it sees each step beyond one.
#pragma once
#include <cstddef>
#include <cstdint>

namespace palimpsest {

constexpr size_t kHeapUnit = 64;

struct Block {
  size_t capacity;     // bytes behind the header
  Block* before;       // neighbour at the lower address, null for the first of its chunk
  bool free;
  bool last;           // the end of its chunk: no capacity, never free
  Block* listBefore;   // while free
  Block* listAfter;
};

class Heap {
 public:
  Heap() = default;
  Heap(const Heap&) = delete;
  Heap& operator=(const Heap&) = delete;
  ~Heap();

  // size: a multiple of kHeapUnit, at least one. Null when the system has no memory. The bytes are not cleared.
  Block* take(size_t size);
  void give(Block* block);
  // What the system has given: blocks in use, free blocks and headers.
  size_t reservedBytes() const { return reserved_; }

 private:
  // Lists by size: exact for small blocks, 16 to every power of two above.
  static constexpr int kLists = 16 * 40;
  static int listOf(size_t size);
  void link(Block* block);
  void unlink(Block* block);
  Block* find(size_t size);
  Block* openChunk(size_t size);
  void closeChunk(Block* first);

  Block* lists_[kLists] = {};
  uint64_t used_[kLists / 64] = {};
  size_t reserved_ = 0;
  size_t nextChunk_ = 0;
};

}  // namespace palimpsest
