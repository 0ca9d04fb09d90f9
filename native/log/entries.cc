#include "entries.h"

#include <algorithm>
#include <cstring>
#include <vector>

namespace palimpsest {

namespace {

constexpr uint8_t kLeafByte = 0x00, kNodeByte = 0x01, kLinkByte = 0x03;
constexpr size_t kBlock = 64;

uint32_t readU32(const uint8_t* bytes) {
  return static_cast<uint32_t>(bytes[0]) | static_cast<uint32_t>(bytes[1]) << 8 | static_cast<uint32_t>(bytes[2]) << 16 | static_cast<uint32_t>(bytes[3]) << 24;
}

void writeU32(uint8_t* bytes, uint32_t value) {
  for (int i = 0; i < 4; i++) bytes[i] = static_cast<uint8_t>(value >> 8 * i);
}

void begin(uint32_t* state) {
  // The first 32 bits of the fractions of the square roots of the first eight primes.
  constexpr uint32_t kBegin[8] = {0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a, 0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19};
  std::memcpy(state, kBegin, sizeof kBegin);
}

void finish(const uint32_t* state, uint8_t* hash) {
  for (int i = 0; i < 8; i++)
    for (int byte = 0; byte < 4; byte++) hash[4 * i + byte] = static_cast<uint8_t>(state[i] >> (24 - 8 * byte));
}

// A message of one byte and `count` others, in three pieces of whole blocks: the first block, those that lie in the
// others as they are, and the end.
struct Message {
  uint8_t first[kBlock];
  const uint8_t* middle = nullptr;
  size_t middleBlocks = 0;
  uint8_t last[2 * kBlock];
  size_t lastBlocks = 0;
  bool hasFirst = false;

  Message(uint8_t prefix, const uint8_t* bytes, size_t count) {
    const uint64_t bits = 8 * (static_cast<uint64_t>(count) + 1);
    size_t done = 0, held = 1;
    uint8_t* end = last;
    hasFirst = count + 1 >= kBlock;
    if (hasFirst) {
      first[0] = prefix;
      std::memcpy(first + 1, bytes, kBlock - 1);
      middle = bytes + kBlock - 1;
      middleBlocks = (count - (kBlock - 1)) / kBlock;
      done = kBlock - 1 + middleBlocks * kBlock;
      held = 0;
    } else {
      last[0] = prefix;
    }
    std::memcpy(end + held, bytes + done, count - done);
    held += count - done;
    end[held++] = 0x80;
    lastBlocks = held + 8 <= kBlock ? 1 : 2;
    std::memset(end + held, 0, lastBlocks * kBlock - held);
    for (int i = 0; i < 8; i++) end[lastBlocks * kBlock - 1 - i] = static_cast<uint8_t>(bits >> 8 * i);
  }
};

void hashRest(const Digests& digests, const Message& message, size_t middleDone, uint32_t* state, uint8_t* hash) {
  if (message.middleBlocks > middleDone) digests.compress(state, message.middle + middleDone * kBlock, message.middleBlocks - middleDone);
  digests.compress(state, message.last, message.lastBlocks);
  finish(state, hash);
}

void hashLeaf(const Digests& digests, const uint8_t* payload, size_t count, uint8_t* hash) { hashBytes(digests, kLeafByte, payload, count, hash); }

void hashTwoLeaves(const Digests& digests, const uint8_t* payload, size_t count, uint8_t* hash, const uint8_t* otherPayload, size_t otherCount, uint8_t* otherHash) {
  const Message message(kLeafByte, payload, count), other(kLeafByte, otherPayload, otherCount);
  if (!message.hasFirst || !other.hasFirst) {
    hashLeaf(digests, payload, count, hash);
    hashLeaf(digests, otherPayload, otherCount, otherHash);
    return;
  }
  uint32_t state[8], otherState[8];
  begin(state);
  begin(otherState);
  digests.compressTwo(state, message.first, otherState, other.first, 1);
  const size_t both = std::min(message.middleBlocks, other.middleBlocks);
  if (both > 0) digests.compressTwo(state, message.middle, otherState, other.middle, both);
  if (message.middleBlocks == other.middleBlocks && message.lastBlocks == other.lastBlocks) {
    digests.compressTwo(state, message.last, otherState, other.last, message.lastBlocks);
    finish(state, hash);
    finish(otherState, otherHash);
    return;
  }
  hashRest(digests, message, both, state, hash);
  hashRest(digests, other, both, otherState, otherHash);
}

void hashPair(const Digests& digests, uint8_t prefix, const uint8_t* left, const uint8_t* right, uint8_t* hash) {
  uint8_t pair[2 * kHashBytes];
  std::memcpy(pair, left, kHashBytes);
  std::memcpy(pair + kHashBytes, right, kHashBytes);
  const Message message(prefix, pair, sizeof pair);
  uint32_t state[8];
  begin(state);
  digests.compress(state, message.first, 1);
  hashRest(digests, message, 0, state, hash);
}

void addLeaf(const Digests& digests, ChainState* state, const uint8_t* leaf) {
  uint8_t hash[kHashBytes];
  std::memcpy(hash, leaf, kHashBytes);
  // A carry runs over the ones at the end, as in a binary number.
  for (uint64_t rest = state->leaves; (rest & 1) != 0; rest >>= 1) hashPair(digests, kNodeByte, state->peak[--state->peaks], hash, hash);
  std::memcpy(state->peak[state->peaks++], hash, kHashBytes);
  state->leaves++;
}

void add(const Digests& digests, ChainState* state, const uint8_t* leaf) {
  hashPair(digests, kLinkByte, state->head, leaf, state->head);
  if (state->hasTree) addLeaf(digests, state, leaf);
}

bool isPossible(uint64_t payloadBytes, size_t room) {
  return payloadBytes >= 1 && payloadBytes <= static_cast<uint64_t>(kEntryPayloadMax) && payloadBytes + kEntryExtraBytes <= room;
}

}  // namespace

void hashBytes(const Digests& digests, uint8_t prefix, const uint8_t* bytes, size_t count, uint8_t* hash) {
  const Message message(prefix, bytes, count);
  uint32_t state[8];
  begin(state);
  if (message.hasFirst) digests.compress(state, message.first, 1);
  hashRest(digests, message, 0, state, hash);
}

bool ChainState::read(const uint8_t* bytes, size_t count) {
  if (count != kHashBytes && count != kChainStateBytes) return false;
  std::memcpy(head, bytes, kHashBytes);
  hasTree = count == kChainStateBytes;
  if (!hasTree) return true;
  leaves = 0;
  for (int i = 0; i < 8; i++) leaves |= static_cast<uint64_t>(bytes[kHashBytes + i]) << 8 * i;
  // Far more than a series may have, and few enough that no count overflows.
  if (leaves >= 1ull << (kChainPeaksMax - 1)) return false;
  peaks = __builtin_popcountll(leaves);
  std::memcpy(peak, bytes + kHashBytes + 8, static_cast<size_t>(peaks) * kHashBytes);
  return true;
}

void ChainState::write(uint8_t* bytes) const {
  std::memcpy(bytes, head, kHashBytes);
  if (!hasTree) return;
  for (int i = 0; i < 8; i++) bytes[kHashBytes + i] = static_cast<uint8_t>(leaves >> 8 * i);
  std::memcpy(bytes + kHashBytes + 8, peak, static_cast<size_t>(peaks) * kHashBytes);
}

bool sealEntries(const Digests& digests, uint8_t* bytes, size_t count, ChainState* state) {
  struct Laid {
    uint8_t* at;
    size_t payloadBytes;
  };
  const auto lay = [&](size_t from, Laid* entry) {
    if (count - from < kEntryHeadBytes) return false;
    const uint32_t length = readU32(bytes + from);
    *entry = {bytes + from, length};
    return isPossible(length, count - from);
  };
  const auto close = [&](const Laid& entry, const uint8_t* leaf) {
    const uint32_t crc = digests.crc(digests.crc(~0u, entry.at, 4), entry.at + kEntryHeadBytes, entry.payloadBytes);
    writeU32(entry.at + 4, ~crc);
    add(digests, state, leaf);
    std::memcpy(entry.at + kEntryHeadBytes + entry.payloadBytes, state->head, kHashBytes);
  };
  for (size_t from = 0; from < count;) {
    Laid one, two;
    uint8_t leaf[kHashBytes], next[kHashBytes];
    if (!lay(from, &one)) return false;
    from += one.payloadBytes + kEntryExtraBytes;
    if (from < count && lay(from, &two)) {
      from += two.payloadBytes + kEntryExtraBytes;
      hashTwoLeaves(digests, one.at + kEntryHeadBytes, one.payloadBytes, leaf, two.at + kEntryHeadBytes, two.payloadBytes, next);
      close(one, leaf);
      close(two, next);
    } else {
      hashLeaf(digests, one.at + kEntryHeadBytes, one.payloadBytes, leaf);
      close(one, leaf);
    }
  }
  return true;
}

namespace {

// Entries that one thread takes at once: some tens of microseconds.
constexpr size_t kEntriesAtOnce = 64;

// Checksum, leaf and form of entries that are laid out one behind the other; each is looked at by itself.
struct Examination {
  const Digests& digests;
  const Forms* forms;
  const uint8_t* bytes;
  uint64_t firstSeq;
  size_t entries;
  const uint32_t* ends;
  uint8_t* kinds;
  std::vector<uint8_t>& leaves;
  // Whether the checksum is right.
  std::vector<uint8_t>& whole;

  const uint8_t* start(size_t index) const { return bytes + (index == 0 ? 0 : ends[index - 1]); }
  const uint8_t* payload(size_t index) const { return start(index) + kEntryHeadBytes; }
  size_t payloadBytes(size_t index) const { return static_cast<size_t>(bytes + ends[index] - start(index)) - kEntryExtraBytes; }
  uint8_t* leaf(size_t index) const { return leaves.data() + index * kHashBytes; }

  void operator()(int item, int) const {
    const size_t from = static_cast<size_t>(item) * kEntriesAtOnce, to = std::min(entries, from + kEntriesAtOnce);
    for (size_t i = from; i < to; i++) {
      const uint8_t* const at = start(i);
      whole[i] = ~digests.crc(digests.crc(~0u, at, 4), payload(i), payloadBytes(i)) == readU32(at + 4);
    }
    size_t i = from;
    for (; i + 1 < to; i += 2) hashTwoLeaves(digests, payload(i), payloadBytes(i), leaf(i), payload(i + 1), payloadBytes(i + 1), leaf(i + 1));
    if (i < to) hashLeaf(digests, payload(i), payloadBytes(i), leaf(i));
    for (i = from; i < to; i++) kinds[i] = forms == nullptr || !whole[i] ? 0 : static_cast<uint8_t>(forms->kindOf(payload(i), payloadBytes(i), firstSeq + i) + 1);
  }
};

}  // namespace

size_t followEntries(const Digests& digests, const Forms* forms, Threads& pool, int threads, const uint8_t* bytes, size_t count, uint64_t firstSeq, ChainState* state,
                     const FollowedEntries& out) {
  // Kept here, because what the caller gave room in may overlap.
  std::vector<uint32_t> ends;
  for (size_t at = 0; ends.size() < out.room && count - at >= kEntryHeadBytes;) {
    const uint32_t length = readU32(bytes + at);
    if (!isPossible(length, count - at)) break;
    at += length + kEntryExtraBytes;
    ends.push_back(static_cast<uint32_t>(at));
  }
  const size_t entries = ends.size();
  std::vector<uint8_t> leaves(entries * kHashBytes), whole(entries);
  Examination examination{digests, forms, bytes, firstSeq, entries, ends.data(), out.kinds, leaves, whole};
  pool.each(static_cast<int>((entries + kEntriesAtOnce - 1) / kEntriesAtOnce), examination, threads);
  for (size_t i = 0; i < entries; i++) {
    if (!whole[i]) return i;
    uint8_t link[kHashBytes];
    hashPair(digests, kLinkByte, state->head, examination.leaf(i), link);
    if (std::memcmp(link, bytes + ends[i] - kHashBytes, kHashBytes) != 0) return i;
    std::memcpy(state->head, link, kHashBytes);
    if (state->hasTree) addLeaf(digests, state, examination.leaf(i));
    out.ends[i] = ends[i];
    if (out.hashes == nullptr) continue;
    std::memcpy(out.hashes + 2 * kHashBytes * i, examination.leaf(i), kHashBytes);
    std::memcpy(out.hashes + 2 * kHashBytes * i + kHashBytes, link, kHashBytes);
  }
  return entries;
}

}  // namespace palimpsest
