// The entries of a log in formats 2 and 3, as witness/entry.ts describes them: u32 length, u32 CRC-32C over length and
// payload, payload, 32 bytes of chain hash; a leaf is SHA-256(0x00 ‖ payload), a link SHA-256(0x03 ‖ link before ‖
// leaf), a node SHA-256(0x01 ‖ left ‖ right).
#pragma once
#include <cstddef>
#include <cstdint>

#include "../cache/threads.h"
#include "../layout.gen.h"
#include "digest.h"
#include "forms.h"

namespace palimpsest {

constexpr size_t kEntryHeadBytes = 8;
constexpr size_t kEntryExtraBytes = kEntryHeadBytes + kHashBytes;

// SHA-256(prefix ‖ bytes).
void hashBytes(const Digests& digests, uint8_t prefix, const uint8_t* bytes, size_t count, uint8_t* hash);

// Where a series stands after an entry. As bytes: the hash of its chain, the number of leaves (u64, little endian) and
// the roots of the full subtrees over them, largest first. Without the tree it is the hash alone.
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

// Fills in CRC and hash of all entries in `bytes`, whose lengths and payloads stand there. False, with nothing written
// behind the entry before, at the first one whose length is not possible.
bool sealEntries(const Digests& digests, uint8_t* bytes, size_t count, ChainState* state);

// Where what is known of entries goes, and how many there is room for.
struct FollowedEntries {
  size_t room;
  // Where each ends.
  uint32_t* ends;
  // Index of its kind + 1 where its form is certain, else 0.
  uint8_t* kinds;
  // Leaf and link of each; null: not wanted.
  uint8_t* hashes;
};

// Follows the entries at the beginning of `bytes` for as long as they are whole and continue the chain, and moves the
// state behind them. How many. Without `forms` no kind is certain. Checksums, leaves and forms are computed by
// `threads` threads.
size_t followEntries(const Digests& digests, const Forms* forms, Threads& pool, int threads, const uint8_t* bytes, size_t count, uint64_t firstSeq, ChainState* state,
                     const FollowedEntries& out);

}  // namespace palimpsest
