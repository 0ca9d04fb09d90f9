// Memory of a pool: blocks of any multiple of 64 bytes, 64-byte aligned, cut from a few large chunks. A chunk is made of units of 2 MB,
// huge pages where the system gives them: a cache is read from end to end at every step, and address translation would cost as much as the
// reading. Neighbours that are free are joined, and a chunk that is free as a whole goes back to the system.
//
// What is held beside the blocks in use is bounded. A unit that holds no block can go back to the system alone (trim), and where free
// pieces lie scattered the blocks between them can be moved together (pack), if their owner knows how to find them again. Where the system
// cannot take back a part of a mapping (Windows, WebAssembly) only whole chunks go.
//
// Every block has 64 bytes in front of it, Block, which its owner may extend (see Part). The lists of free blocks live in these headers,
// so giving back never allocates. One thread at a time.
// Built with the address sanitizer every block is an allocation of its own, so that it sees each step beyond one.
#pragma once
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

namespace palimpsest {

constexpr size_t kHeapUnit = 64;

struct Block {
  size_t capacity;     // bytes behind the header
  Block* before;       // neighbour at the lower address, null for the first of its chunk
  bool free;
  bool last;           // the end of its chunk: no capacity, never free
  bool returned;       // while free: the system has the units that lie within
  uint32_t found;      // for the owner, who counts who knows of it; 0 when pack() asks
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

  // What the system has given and not got back: blocks in use, headers, and what is free but held.
  size_t reservedBytes() const { return reserved_; }
  size_t reservedPeakBytes() const { return reservedPeak_; }
  // What is free but held, and whether that is more than may be.
  size_t idleBytes() const { return reserved_ - used_; }
  bool isWasteful() const;
  // Gives back units in which nothing is, as far as there is too much.
  void trim();
  // Sets `found` of every block in use to 0.
  void forget();
  // Moves blocks together where that gives units back for the least copying, as far as too much is idle. isMovable: whether a block may move,
  // bytes and header. → where each came from and is now, by the old address
  std::vector<std::pair<const Block*, Block*>> pack(bool (*isMovable)(const Block*));

 private:
  struct Chunk {
    Block* first;
    void* memory;
    size_t size;
  };
  struct Range {
    uintptr_t from;
    uintptr_t to;
    size_t size() const { return to - from; }
  };
  // Lists by size: exact for small blocks, 16 to every power of two above.
  static constexpr int kLists = 16 * 40;
  static int listOf(size_t size);
  static Range unitsIn(const Block* block);
  void link(Block* block);
  void unlink(Block* block);
  Block* find(size_t size);
  Block* openChunk(size_t size);
  void closeChunk(Block* first);
  void split(Block* block, size_t size);
  struct Stretch;
  std::vector<Stretch> sparseStretches(bool (*isMovable)(const Block*)) const;
  void packStretch(const Stretch& stretch, std::vector<std::pair<const Block*, Block*>>& moves);
  void release(Block* block);
  void hold(size_t bytes);
  void giveBack(Range range);
  size_t mostIdle() const;

  Block* lists_[kLists] = {};  // with the address sanitizer the first is that of all blocks in use
  uint64_t filled_[kLists / 64] = {};
  std::vector<Chunk> chunks_;        // by address
  size_t reserved_ = 0;
  size_t reservedPeak_ = 0;
  size_t used_ = 0;                  // blocks in use with their headers
  size_t nextChunk_ = 0;
};

}  // namespace palimpsest
