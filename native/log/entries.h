// The entries of a log in format 2, as witness/entry.ts describes them: u32 length, u32 CRC-32C over length and payload, payload, 32 bytes of
// chain hash; a leaf is SHA-256(0x00 ‖ payload), a link SHA-256(0x03 ‖ link before ‖ leaf), a node SHA-256(0x01 ‖ left ‖ right).
#pragma once
#include <cstddef>
#include <cstdint>

#include "digest.h"
#include "../layout.gen.h"

namespace palimpsest {

constexpr size_t kEntryHeadBytes = 8;
constexpr size_t kEntryExtraBytes = kEntryHeadBytes + kHashBytes;

// Where a series stands after an entry. As bytes: the hash of its chain, the number of leaves (u64, little endian) and the roots of the full
// subtrees over them, largest first. Without the tree it is the hash alone.
struct ChainState {
  uint8_t head[kHashBytes];
  bool hasTree = false;
  uint64_t leaves = 0;
  int peaks = 0;
  uint8_t peak[kChainPeaksMax][kHashBytes];

  // False for bytes that are no state.
  bool read(const uint8_t* bytes, size_t count);
  void write(uint8_t* bytes) const;
};

constexpr size_t kChainStateBytes = kHashBytes + 8 + kChainPeaksMax * kHashBytes;

// Fills in CRC and hash of all entries in `bytes`, whose lengths and payloads stand there. False, with nothing written behind the entry before,
// at the first one whose length is not possible.
bool sealEntries(const Digests& digests, uint8_t* bytes, size_t count, ChainState* state);

// One entry that was followed.
struct Followed {
  const uint8_t* payload;
  size_t payloadBytes;
  const uint8_t* leaf;
};

// Reads entries one after the other for as long as they are whole and continue the chain.
class Follower {
 public:
  Follower(const Digests& digests, const uint8_t* bytes, size_t count, ChainState* state) : digests_(digests), at_(bytes), end_(bytes + count), state_(state) {}

  // False at the first entry that is not whole or not right; the state is that after the one before.
  bool next(Followed* entry);
  // Bytes of the next entry begin here.
  const uint8_t* at() const { return at_; }

 private:
  struct Leaf {
    const uint8_t* payload = nullptr;
    size_t payloadBytes = 0;
    uint8_t hash[kHashBytes];
  };

  bool whole(const uint8_t* at, Leaf* leaf) const;

  const Digests& digests_;
  const uint8_t* at_;
  const uint8_t* end_;
  ChainState* state_;
  // The leaf after the last one, which was hashed with it.
  Leaf ahead_;
  bool hasAhead_ = false;
  Leaf current_;
};

}  // namespace palimpsest
