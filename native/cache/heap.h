// The memory of a pool: 64-byte aligned blocks, whose sizes are multiples of 64 bytes, cut from a few large chunks. A
// chunk consists of 2 MB units, which are huge pages where the system provides them: every step reads a cache from end
// to end, and with small pages address translation would cost as much as the reading. Free neighbours are joined, and a
// chunk that is entirely free goes back to the system.
//
// The memory held beyond the blocks in use is bounded. A unit that contains no block can be returned to the system by
// itself (trim). Where free pieces are scattered, the few blocks of a unit can be moved to such pieces (evacuate), and
// the blocks between pieces can be moved together (pack), if their owner can find them again. Where the system cannot
// take back part of a mapping (Windows, WebAssembly), only whole chunks are returned.
//
// Every block is preceded by a 64-byte header, Block, which its owner may extend (see Part). The lists of free blocks
// live in these headers, so freeing a block never allocates. Only one thread may use a heap at a time. In address
// sanitizer builds every block is its own allocation, so that the sanitizer detects any access beyond its end.
#pragma once
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

namespace palimpsest {

constexpr size_t kHeapUnit = 64;

struct Block {
  size_t capacity;     // bytes after the header
  Block* before;       // neighbour at the lower address, null for the first of its chunk
  bool free;
  bool last;           // marks the end of its chunk: has no capacity and is never free
  bool returned;       // while free: its whole units have been returned to the system
  uint32_t found;      // for the owner, to count the references that it finds; forget() sets it to 0
  Block* listBefore;   // while free
  Block* listAfter;
};

struct Evacuated {
  size_t bytes;  // that were copied
  bool gains;    // less is idle after it
  bool goesOn;   // what is left of the unit can be moved by the next call
};

class Heap {
 public:
  Heap() = default;
  Heap(const Heap&) = delete;
  Heap& operator=(const Heap&) = delete;
  ~Heap();

  // size: a positive multiple of kHeapUnit. Null when the system has no memory. The bytes are not cleared.
  Block* take(size_t size);
  void give(Block* block);

  // Bytes held from the system: blocks in use, headers, and free memory that has not been returned.
  size_t reservedBytes() const { return reserved_; }
  size_t reservedPeakBytes() const { return reservedPeak_; }
  // Free bytes that have not been returned, and whether they exceed the limit.
  size_t idleBytes() const { return reserved_ - used_; }
  bool isWasteful() const;
  // Whether they exceed it by a quarter: then it is worth looking for what else can be moved.
  bool isMostWasteful() const;
  // Returns empty units to the system while too much is idle.
  void trim();
  // Empties one unit of which little is in use, by moving its blocks to free places elsewhere, and returns it to the
  // system. It looks at few blocks, and copies less than a unit, or no block beyond the first of `most` bytes.
  // isMovable: whether a block may move, bytes and header; moved: told of each that has, at its new place.
  Evacuated evacuate(bool (*isMovable)(const Block*), void (*moved)(Block*), size_t most);
  // Sets `found` of every block in use to 0.
  void forget();
  // While too much is idle, moves blocks together where that returns units for the least copying. isMovable: whether a
  // block may move, bytes and header. Returns the old and the new place of each moved block, sorted by the old address.
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
  // Free lists by size: one per exact size for small blocks, 16 for every power of two above.
  static constexpr int kLists = 16 * 40;
  static int listOf(size_t size);
  static Range unitsIn(const Block* block);
  void link(Block* block);
  void unlink(Block* block);
  Block* find(size_t size);
  Block* openChunk(size_t size);
  void closeChunk(Block* first);
  void split(Block* block, size_t size);
  void use(Block* block, size_t size);
  struct Crowd;
  bool crowdOf(const Block* hole, uintptr_t unit, bool (*isMovable)(const Block*), Crowd* crowd) const;
  Block* findOutside(size_t size, const Crowd& crowd);
  struct Stretch;
  std::vector<Stretch> sparseStretches(bool (*isMovable)(const Block*)) const;
  void packStretch(const Stretch& stretch, std::vector<std::pair<const Block*, Block*>>& moves);
  void release(Block* block);
  void hold(size_t bytes);
  void giveBack(Range range);
  size_t mostIdle() const;

  Block* lists_[kLists] = {};  // in address sanitizer builds the first one lists all blocks in use
  uint64_t filled_[kLists / 64] = {};
  std::vector<Chunk> chunks_;        // sorted by address
  size_t reserved_ = 0;
  size_t reservedPeak_ = 0;
  size_t used_ = 0;                  // bytes of blocks in use and their headers
  size_t nextChunk_ = 0;
  int passed_ = 0;                   // free blocks that evacuate() has looked at in vain
};

}  // namespace palimpsest
