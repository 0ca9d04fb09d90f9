#include "heap.h"

#include <algorithm>
#include <cassert>
#include <cstdlib>
#include <cstring>
#if defined(__linux__)
#include <sys/mman.h>
#endif

namespace palimpsest {

namespace {

constexpr size_t kUnit = size_t{2} << 20;
constexpr size_t kFirstChunk = size_t{256} << 10;
constexpr size_t kHeader = kHeapUnit;
static_assert(sizeof(Block) <= kHeader);

// The most free memory that is held: this much, plus one part in kIdleShare of what is in use, or a quarter more
// where a unit cannot be emptied at once. With lower limits, more memory is moved.
constexpr size_t kIdle = size_t{4} << 20;
constexpr size_t kIdleShare = 25;

#if defined(__linux__)
constexpr bool kReturnsUnits = true;
// A chunk reserves addresses only; memory is allocated as it is touched. One large chunk can be packed as a whole, many
// small ones cannot.
constexpr size_t kNextChunk = size_t{1} << 30;
constexpr size_t kLargestChunk = size_t{1} << 30;
constexpr size_t kEdge = 4096;  // holds the first block's header, so that its bytes begin on a unit boundary, or that of the end
#else
constexpr bool kReturnsUnits = false;
constexpr size_t kNextChunk = kUnit;
constexpr size_t kLargestChunk = size_t{64} << 20;
constexpr size_t kEdge = kHeader;
#endif

Block* at(void* address) { return static_cast<Block*>(address); }
uintptr_t addressOf(const void* address) { return reinterpret_cast<uintptr_t>(address); }
Block* after(Block* block) { return at(reinterpret_cast<uint8_t*>(block) + kHeader + block->capacity); }

// Debug builds hold callers to the contract of take(): after another size, every block behind it in the chunk would
// begin elsewhere.
void expectUnits([[maybe_unused]] size_t size) {
#if defined(PALIMPSEST_DEBUG)
  assert(size > 0 && size % kHeapUnit == 0);
#endif
}

size_t roundUp(size_t size, size_t unit) { return (size + unit - 1) / unit * unit; }

// Gets memory from the system: an edge, `bytes`, and another edge. If `bytes` is a multiple of the unit, they begin on
// a unit boundary.
void* allocateChunk(size_t bytes) {
  const size_t size = bytes + 2 * kEdge;
#if defined(__linux__)
  const bool huge = bytes % kUnit == 0;
  const size_t room = huge ? size + kUnit : size;
  void* memory = mmap(nullptr, room, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (memory == MAP_FAILED) return nullptr;
  if (!huge) return memory;
  const uintptr_t from = addressOf(memory);
  const uintptr_t mine = roundUp(from + kEdge, kUnit) - kEdge;
  if (mine > from) munmap(memory, mine - from);
  if (from + room > mine + size) munmap(reinterpret_cast<void*>(mine + size), from + room - mine - size);
  madvise(reinterpret_cast<void*>(mine + kEdge), bytes, MADV_HUGEPAGE);  // only a hint, so its result does not matter
  return reinterpret_cast<void*>(mine);
#elif defined(_WIN32)
  return _aligned_malloc(size, kHeader);
#else
  void* memory = nullptr;
  return posix_memalign(&memory, kHeader, size) == 0 ? memory : nullptr;
#endif
}

void freeChunk(void* memory, [[maybe_unused]] size_t bytes) {
#if defined(__linux__)
  munmap(memory, bytes + 2 * kEdge);
#elif defined(_WIN32)
  _aligned_free(memory);
#else
  std::free(memory);
#endif
}

}  // namespace

// Nothing to free: chunks are closed when their last block is freed, and a heap outlives its blocks.
Heap::~Heap() = default;

int Heap::listOf(size_t size) {
  const size_t units = size / kHeapUnit;
  if (units < 16) return static_cast<int>(units);
  const int power = 63 - __builtin_clzll(units);  // at least 4
  const int within = static_cast<int>(units >> (power - 4)) & 15;
  return std::min((power - 3) * 16 + within, kLists - 1);
}

void Heap::hold(size_t bytes) {
  reserved_ += bytes;
  reservedPeak_ = std::max(reservedPeak_, reserved_);
}

size_t Heap::mostIdle() const { return kIdle + used_ / kIdleShare; }

// Where units cannot be returned to the system there is nothing to gain.
bool Heap::isWasteful() const { return kReturnsUnits && idleBytes() > mostIdle(); }

bool Heap::isMostWasteful() const { return kReturnsUnits && idleBytes() > mostIdle() + mostIdle() / 4; }

#if defined(__SANITIZE_ADDRESS__)

Block* Heap::take(size_t size) {
  expectUnits(size);
  void* memory = nullptr;
  if (posix_memalign(&memory, kHeader, size + kHeader) != 0) return nullptr;
  Block* block = at(memory);
  block->capacity = size;
  block->listBefore = nullptr;
  block->listAfter = lists_[0];
  if (lists_[0]) lists_[0]->listBefore = block;
  lists_[0] = block;
  hold(size + kHeader);
  used_ += size + kHeader;
  return block;
}

void Heap::give(Block* block) {
  reserved_ -= block->capacity + kHeader;
  used_ -= block->capacity + kHeader;
  (block->listBefore ? block->listBefore->listAfter : lists_[0]) = block->listAfter;
  if (block->listAfter) block->listAfter->listBefore = block->listBefore;
  std::free(block);
}

void Heap::trim() {}

void Heap::forget() {
  for (Block* block = lists_[0]; block; block = block->listAfter) block->found = 0;
}

// Moves every movable block, so that the sanitizer detects any access to the old place.
std::vector<std::pair<const Block*, Block*>> Heap::pack(bool (*isMovable)(const Block*)) {
  std::vector<std::pair<const Block*, Block*>> moves;
  for (Block* old = lists_[0]; old; old = old->listAfter) {
    if (isMovable(old)) moves.emplace_back(old, nullptr);
  }
  for (auto& [from, to] : moves) {
    Block* old = const_cast<Block*>(from);
    to = take(old->capacity);
    if (!to) std::abort();
    const Block links = *to;
    std::memcpy(static_cast<void*>(to), old, kHeader + old->capacity);
    to->listBefore = links.listBefore;
    to->listAfter = links.listAfter;
    give(old);
  }
  std::sort(moves.begin(), moves.end());
  return moves;
}

Evacuated Heap::evacuate(bool (*isMovable)(const Block*), void (*moved)(Block*), size_t) {
  const std::vector<std::pair<const Block*, Block*>> moves = pack(isMovable);
  for (const auto& [old, block] : moves) moved(block);
  return {0, !moves.empty(), false};
}

#else

void Heap::link(Block* block) {
  const int list = listOf(block->capacity);
  block->free = true;
  block->listBefore = nullptr;
  block->listAfter = lists_[list];
  if (lists_[list]) lists_[list]->listBefore = block;
  lists_[list] = block;
  filled_[list / 64] |= uint64_t{1} << (list % 64);
}

void Heap::unlink(Block* block) {
  const int list = listOf(block->capacity);
  block->free = false;
  if (block->listAfter) block->listAfter->listBefore = block->listBefore;
  if (block->listBefore) {
    block->listBefore->listAfter = block->listAfter;
  } else {
    lists_[list] = block->listAfter;
    if (!lists_[list]) filled_[list / 64] &= ~(uint64_t{1} << (list % 64));
  }
}

// The first large enough block in the list for this size, otherwise a block from the next list that is not empty.
Block* Heap::find(size_t size) {
  const int own = listOf(size);
  for (Block* block = lists_[own]; block; block = block->listAfter) {
    if (block->capacity >= size) return block;
  }
  for (int word = (own + 1) / 64; word < kLists / 64; word++) {
    uint64_t bits = filled_[word];
    if (word == (own + 1) / 64) bits &= ~uint64_t{0} << ((own + 1) % 64);
    if (bits) return lists_[word * 64 + __builtin_ctzll(bits)];
  }
  return nullptr;
}

// The whole units after the header of a block, which can be returned to the system while the block is free.
Heap::Range Heap::unitsIn(const Block* block) {
  if (!kReturnsUnits) return {0, 0};
  const uintptr_t from = roundUp(addressOf(block) + kHeader, kUnit);
  const uintptr_t to = (addressOf(block) + kHeader + block->capacity) / kUnit * kUnit;
  return from < to ? Range{from, to} : Range{0, 0};
}

void Heap::giveBack(Range range) {
  if (range.from >= range.to) return;
#if defined(__linux__)
  madvise(reinterpret_cast<void*>(range.from), range.size(), MADV_DONTNEED);
#endif
  reserved_ -= range.size();
}

// The first chunk is small, for small pools. Where a chunk takes memory as soon as it is opened, sizes double, so that
// a large pool has few chunks.
Block* Heap::openChunk(size_t size) {
  const size_t whole = roundUp(size, kUnit);
  if (whole < size) return nullptr;
  size_t chunk = nextChunk_ == 0 && size <= kFirstChunk ? kFirstChunk : std::max(nextChunk_, whole);
  chunks_.reserve(chunks_.size() + 1);
  void* memory = allocateChunk(chunk);
  while (!memory && chunk / 2 >= whole) memory = allocateChunk(chunk /= 2);
  if (!memory && chunk > size) memory = allocateChunk(chunk = size);
  if (!memory) return nullptr;
  nextChunk_ = std::min(kLargestChunk, std::max(kNextChunk, 2 * chunk));
  Block* first = at(static_cast<uint8_t*>(memory) + kEdge - kHeader);
  first->capacity = chunk;
  first->before = nullptr;
  first->last = false;
  // Memory that nobody has written to is not allocated yet.
  first->returned = true;
  hold(chunk + 2 * kEdge - unitsIn(first).size());
  Block* end = after(first);
  end->capacity = 0;
  end->before = first;
  end->free = false;
  end->last = true;
  link(first);
  const auto place = std::upper_bound(chunks_.begin(), chunks_.end(), first, [](const Block* a, const Chunk& b) { return a < b.first; });
  chunks_.insert(place, {first, memory, chunk});
  return first;
}

void Heap::closeChunk(Block* first) {
  const auto chunk = std::find_if(chunks_.begin(), chunks_.end(), [&](const Chunk& one) { return one.first == first; });
  unlink(first);
  reserved_ -= chunk->size + 2 * kEdge - (first->returned ? unitsIn(first).size() : 0);
  freeChunk(chunk->memory, chunk->size);
  chunks_.erase(chunk);
  if (chunks_.empty()) nextChunk_ = 0;
}

// Shrinks a block that is in no list to `size`. The rest becomes a free block if it is large enough.
void Heap::split(Block* block, size_t size) {
  if (block->capacity < size + kHeader + kHeapUnit) return;
  Block* end = after(block);
  const size_t left = block->capacity - size - kHeader;
  block->capacity = size;
  Block* rest = after(block);
  rest->capacity = left;
  rest->before = block;
  rest->last = false;
  rest->returned = block->returned;
  end->before = rest;
  link(rest);
}

Block* Heap::take(size_t size) {
  expectUnits(size);
  Block* block = find(size);
  if (!block) block = openChunk(size);
  if (block) use(block, size);
  return block;
}

// Takes `size` bytes of a free block.
void Heap::use(Block* block, size_t size) {
  unlink(block);
  const size_t returned = block->returned ? unitsIn(block).size() : 0;
  split(block, size);
  Block* rest = after(block);
  hold(returned - (returned && rest->free ? unitsIn(rest).size() : 0));
  block->returned = false;
  used_ += kHeader + block->capacity;
}

void Heap::give(Block* block) {
  used_ -= kHeader + block->capacity;
  block->returned = false;
  release(block);
}

// Joins a block that is in no list with its free neighbours. If units of one of them have been returned, all units of
// the result are.
void Heap::release(Block* block) {
  Range returned[3];
  int parts = 0;
  const auto join = [&](Block* one) {
    if (one->returned) returned[parts++] = unitsIn(one);
  };
  Block* before = block->before;
  const bool joinsBefore = before && before->free;
  if (joinsBefore) {
    unlink(before);
    join(before);
  }
  join(block);
  Block* next = after(block);
  if (next->free) {
    unlink(next);
    join(next);
    block->capacity += kHeader + next->capacity;
    after(block)->before = block;
  }
  if (joinsBefore) {
    before->capacity += kHeader + block->capacity;
    block = before;
    after(block)->before = block;
  }
  block->returned = parts > 0;
  if (parts > 0) {
    const Range whole = unitsIn(block);
    uintptr_t at = whole.from;
    for (int i = 0; i < parts; i++) {
      if (returned[i].size() == 0) continue;
      giveBack({at, returned[i].from});
      at = returned[i].to;
    }
    giveBack({at, whole.to});
  }
  link(block);
  // It is the only block of its chunk.
  if (!block->before && after(block)->last) closeChunk(block);
}

void Heap::trim() {
  for (int list = listOf(kUnit); list < kLists; list++) {
    for (Block* block = lists_[list]; block; block = block->listAfter) {
      if (idleBytes() <= mostIdle() / 2) return;
      if (block->returned) continue;
      giveBack(unitsIn(block));
      block->returned = true;
    }
  }
}

// The blocks that keep a unit from being returned: all that reach into it.
struct Heap::Crowd {
  uintptr_t from;  // of the first of them, free or in use
  uintptr_t to;
  std::vector<Block*> blocks;  // in use
  size_t bytes = 0;
};

// hole: a block that reaches into the unit. False when the unit is not within a chunk, or a block cannot move.
bool Heap::crowdOf(const Block* hole, uintptr_t unit, bool (*isMovable)(const Block*), Crowd* crowd) const {
  const Block* first = hole;
  // The header of what is free in the end must be before the unit.
  while (addressOf(first) + kHeader > unit && first->before) first = first->before;
  if (addressOf(first) + kHeader > unit) return false;
  crowd->from = addressOf(first);
  Block* block = const_cast<Block*>(first);
  for (; addressOf(block) < unit + kUnit; block = after(block)) {
    if (block->last) return false;
    if (block->free) continue;
    if (!isMovable(block)) return false;
    crowd->blocks.push_back(block);
    crowd->bytes += kHeader + block->capacity;
  }
  crowd->to = addressOf(block);
  return true;
}

// A free block of at least this size that is not among these and of which nothing has been returned, null if there is
// none among those that are looked at first.
Block* Heap::findOutside(size_t size, const Crowd& crowd) {
  constexpr int kLooks = 64;
  int looks = 0;
  for (int list = listOf(size); list < kLists; list++) {
    if (filled_[list / 64] >> (list % 64) == 0) {
      list |= 63;  // none of its word is left
      continue;
    }
    for (Block* block = lists_[list]; block; block = block->listAfter) {
      const bool isAmong = addressOf(block) >= crowd.from && addressOf(block) < crowd.to;
      if (block->capacity >= size && !isAmong && !block->returned) return block;
      if (++looks == kLooks) return nullptr;
    }
  }
  return nullptr;
}

Evacuated Heap::evacuate(bool (*isMovable)(const Block*), void (*moved)(Block*), size_t most) {
  // Units with a large hole have little in use. Where the first ones gave nothing, the next come next time.
  constexpr int kLooks = 8, kPassed = 256;
  Crowd best;
  int looks = 0, met = 0;
  for (int list = kLists - 1; list >= 0 && looks < kLooks; list--) {
    for (Block* hole = lists_[list]; hole && looks < kLooks; hole = hole->listAfter) {
      if (met++ < passed_) continue;
      const uintptr_t begin = addressOf(hole) / kUnit * kUnit, end = (addressOf(after(hole)) - 1) / kUnit * kUnit;
      for (const uintptr_t unit : {begin, end}) {
        Crowd crowd;
        looks++;
        if (!crowdOf(hole, unit, isMovable, &crowd) || crowd.blocks.empty()) continue;
        if (best.blocks.empty() || crowd.bytes < best.bytes) best = std::move(crowd);
      }
    }
  }
  const size_t idle = idleBytes();
  Evacuated done{0, false, false};
  for (Block* old : best.blocks) {
    if (done.bytes >= most) {
      done.goesOn = true;
      return done;
    }
    Block* place = findOutside(old->capacity, best);
    if (!place) break;
    done.bytes += kHeader + old->capacity;
    use(place, old->capacity);
    const Block own = *place;
    std::memcpy(static_cast<void*>(place), old, kHeader + old->capacity);
    place->capacity = own.capacity;
    place->before = own.before;
    place->last = place->free = place->returned = false;
    moved(place);
    give(old);
  }
  trim();
  done.gains = idleBytes() < idle;
  passed_ = done.gains || looks < kLooks || met > kPassed ? 0 : met;
  return done;
}

void Heap::forget() {
  for (const Chunk& chunk : chunks_) {
    for (Block* block = chunk.first; !block->last; block = after(block)) block->found = 0;
  }
}

// Consecutive blocks from a free one up to `end`, all of them free or movable.
struct Heap::Stretch {
  Block* first;
  Block* end;
  size_t moving;  // bytes that would be copied
  size_t blocks;
  size_t gain;    // bytes that would be returned to the system
};

// For every free block, the shortest stretch ending there that returns units, and also the longest stretches: where
// short ones gain nothing, because little lies between units that have already been returned, a long one still may.
// Sorted by copying per byte gained, least first.
std::vector<Heap::Stretch> Heap::sparseStretches(bool (*isMovable)(const Block*)) const {
  struct Start {
    Block* block;
    size_t moving;    // bytes of blocks in use before it
    size_t blocks;
    size_t returned;  // bytes before it that have been returned to the system
  };
  std::vector<Stretch> found;
  for (const Chunk& chunk : chunks_) {
    std::vector<Start> run;
    Start now{chunk.first, 0, 0, 0};
    size_t shortest = 0;
    // Packing leaves the free space at the end.
    const auto stretch = [&](const Start& from, Block* end) {
      const size_t moving = now.moving - from.moving;
      const uintptr_t hole = roundUp(addressOf(from.block) + moving + kHeader, kUnit);
      const size_t units = std::max(hole, addressOf(end) / kUnit * kUnit) - hole;
      const size_t returned = now.returned - from.returned;
      return Stretch{from.block, end, moving, now.blocks - from.blocks, units > returned ? units - returned : 0};
    };
    for (Block* block = chunk.first;; block = after(block)) {
      if (block->last || (!block->free && !isMovable(block))) {
        if (!run.empty()) {
          const Stretch longest = stretch(run[0], block);
          if (longest.gain > 0) found.push_back(longest);
        }
        run.clear();
        shortest = 0;
      }
      if (block->last) break;
      const size_t size = kHeader + block->capacity;
      if (!block->free) {
        now.moving += size;
        now.blocks++;
        continue;
      }
      run.push_back({block, now.moving, now.blocks, now.returned});
      if (block->returned) now.returned += unitsIn(block).size();
      Block* end = after(block);
      if (stretch(run[shortest], end).gain == 0) continue;
      while (shortest + 1 < run.size() && stretch(run[shortest + 1], end).gain > 0) shortest++;
      found.push_back(stretch(run[shortest], end));
    }
  }
  std::sort(found.begin(), found.end(), [](const Stretch& a, const Stretch& b) { return a.moving * b.gain < b.moving * a.gain; });
  return found;
}

void Heap::packStretch(const Stretch& stretch, std::vector<std::pair<const Block*, Block*>>& moves) {
  Block* before = stretch.first->before;
  uint8_t* place = reinterpret_cast<uint8_t*>(stretch.first);
  for (Block* block = stretch.first; block != stretch.end;) {
    Block* next = after(block);
    if (block->free) {
      unlink(block);
      if (block->returned) reserved_ += unitsIn(block).size();  // subtracted again below, as part of the hole
    } else {
      const size_t size = kHeader + block->capacity;
      Block* moved = at(place);
      std::memmove(static_cast<void*>(moved), block, size);
      moves.emplace_back(block, moved);
      moved->before = before;
      before = moved;
      place += size;
    }
    block = next;
  }
  Block* hole = at(place);
  hole->capacity = addressOf(stretch.end) - addressOf(place) - kHeader;
  hole->before = before;
  hole->last = false;
  hole->returned = true;
  stretch.end->before = hole;
  giveBack(unitsIn(hole));
  link(hole);
}

std::vector<std::pair<const Block*, Block*>> Heap::pack(bool (*isMovable)(const Block*)) {
  std::vector<std::pair<const Block*, Block*>> moves;
  std::vector<Stretch> chosen;
  const size_t wanted = mostIdle() - kUnit;
  size_t gain = 0, blocks = 0;
  for (const Stretch& stretch : sparseStretches(isMovable)) {
    if (idleBytes() <= wanted + gain) break;
    const auto meets = [&](const Stretch& other) { return stretch.first < other.end && other.first < stretch.end; };
    if (std::any_of(chosen.begin(), chosen.end(), meets)) continue;
    chosen.push_back(stretch);
    gain += stretch.gain;
    blocks += stretch.blocks;
  }
  moves.reserve(blocks);
  // From here on nothing can fail.
  for (const Stretch& stretch : chosen) packStretch(stretch, moves);
  std::sort(moves.begin(), moves.end());
  return moves;
}

#endif

}  // namespace palimpsest
