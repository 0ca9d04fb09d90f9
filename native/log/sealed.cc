#include "sealed.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <cstring>
#include <memory>

#include "entries.h"

namespace palimpsest {

namespace {

constexpr char kDigits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
constexpr uint8_t kNoDigit = 64;
constexpr size_t kNonceStartBytes = 4;
// No body is shorter than "{}".
constexpr size_t kBodyBytesLeast = 2;
constexpr size_t kSaltKeyBytes = 32;
constexpr uint8_t kCommitmentByte = 0x04;
// What salts are made of, before the nonce; behind it the number of the block (RFC 5869, section 2.3).
constexpr std::string_view kSaltName = "palimpsest salt";
constexpr uint8_t kSaltBlock = 1;
constexpr size_t kEntriesAtOnce = 64;

constexpr std::array<uint8_t, 256> digitValues() {
  std::array<uint8_t, 256> values{};
  for (uint8_t& value : values) value = kNoDigit;
  for (uint8_t i = 0; i < 64; i++) values[static_cast<uint8_t>(kDigits[i])] = i;
  return values;
}

constexpr std::array<uint8_t, 256> kValues = digitValues();

void toBase64(const uint8_t* bytes, size_t count, char* text) {
  for (; count >= 3; count -= 3, bytes += 3, text += 4) {
    const uint32_t three = static_cast<uint32_t>(bytes[0]) << 16 | static_cast<uint32_t>(bytes[1]) << 8 | bytes[2];
    for (int i = 0; i < 4; i++) text[i] = kDigits[three >> (18 - 6 * i) & 63];
  }
  if (count == 0) return;
  const uint32_t rest = static_cast<uint32_t>(bytes[0]) << 16 | (count == 2 ? static_cast<uint32_t>(bytes[1]) << 8 : 0u);
  text[0] = kDigits[rest >> 18];
  text[1] = kDigits[rest >> 12 & 63];
  text[2] = count == 2 ? kDigits[rest >> 6 & 63] : '=';
  text[3] = '=';
}

// How many bytes; 0 for what toBase64 would not have written.
size_t fromBase64(std::string_view text, uint8_t* bytes) {
  if (text.empty() || text.size() % 4 != 0) return 0;
  const size_t padding = text[text.size() - 1] != '=' ? 0 : text[text.size() - 2] != '=' ? 1 : 2;
  const uint8_t* at = reinterpret_cast<const uint8_t*>(text.data());
  uint8_t* to = bytes;
  uint8_t seen = 0;
  for (size_t whole = text.size() / 4 - (padding > 0 ? 1 : 0); whole > 0; whole--, at += 4, to += 3) {
    const uint8_t a = kValues[at[0]], b = kValues[at[1]], c = kValues[at[2]], d = kValues[at[3]];
    seen |= a | b | c | d;
    const uint32_t three = static_cast<uint32_t>(a) << 18 | static_cast<uint32_t>(b) << 12 | static_cast<uint32_t>(c) << 6 | d;
    to[0] = static_cast<uint8_t>(three >> 16);
    to[1] = static_cast<uint8_t>(three >> 8);
    to[2] = static_cast<uint8_t>(three);
  }
  if (padding > 0) {
    const uint8_t a = kValues[at[0]], b = kValues[at[1]], c = padding == 1 ? kValues[at[2]] : 0;
    seen |= a | b | c;
    // Bits that belong to no byte are zero.
    if ((padding == 1 ? c & 3 : b & 15) != 0) return 0;
    *to++ = static_cast<uint8_t>(a << 2 | b >> 4);
    if (padding == 1) *to++ = static_cast<uint8_t>(b << 4 | c >> 2);
  }
  return (seen & kNoDigit) != 0 ? 0 : static_cast<size_t>(to - bytes);
}

// "seq kind session": what a body is bound to. The room is that of an envelope, which has all of them.
std::string_view boundTo(const Envelope& envelope, char* room) {
  char* at = room;
  const auto put = [&](std::string_view text) { at = std::copy(text.begin(), text.end(), at); };
  put(envelope.seqText);
  *at++ = ' ';
  put(envelope.kind);
  *at++ = ' ';
  put(envelope.session);
  return {room, static_cast<size_t>(at - room)};
}

// No kind has a longer name, and readEnvelope knows no longer number and no longer name of a session.
constexpr size_t kKindBytesMost = 32, kBoundBytes = 20 + 1 + kKindBytesMost + 1 + 200;

// Whether entries of this session and kind have encrypted bodies; see mustEncrypt in witness/encryption.ts.
bool mustSeal(const Envelope& envelope) {
  const std::string_view kind = envelope.kind;
  return !envelope.session.empty() && kind != "erase" && kind != "hold" && kind != "release";
}

// The salt of an entry: one block of HKDF-Expand, HMAC-SHA-256 (RFC 2104) of name, nonce and number of the block.
void saltOf(const Digests& digests, const uint8_t* saltKey, const uint8_t* nonce, uint8_t* salt) {
  constexpr size_t kBlock = 64;
  uint8_t inner[kBlock + kSaltName.size() + kAesNonceBytes + 1] = {}, outer[kBlock + kHashBytes] = {};
  std::memcpy(inner, saltKey, kSaltKeyBytes);
  std::memcpy(outer, saltKey, kSaltKeyBytes);
  for (size_t i = 0; i < kBlock; i++) inner[i] ^= 0x36, outer[i] ^= 0x5c;
  uint8_t* const name = inner + kBlock;
  std::memcpy(name, kSaltName.data(), kSaltName.size());
  std::memcpy(name + kSaltName.size(), nonce, kAesNonceBytes);
  name[kSaltName.size() + kAesNonceBytes] = kSaltBlock;
  hashBytes(digests, inner[0], inner + 1, sizeof inner - 1, outer + kBlock);
  hashBytes(digests, outer[0], outer + 1, sizeof outer - 1, salt);
  wipe(inner, sizeof inner);
  wipe(outer, sizeof outer);
}

// What a committed text says before its ciphertext: the nonce, and the commitment SHA-256(0x04 ‖ salt ‖ body). Behind
// the nonce there must be room for a salt, and then the body, which stays; the salt does not.
void commit(const Digests& digests, const uint8_t* saltKey, uint8_t* room, size_t bodyBytes) {
  uint8_t* const salt = room + kAesNonceBytes;
  saltOf(digests, saltKey, room, salt);
  hashBytes(digests, kCommitmentByte, salt, kHashBytes + bodyBytes, salt);
}

// What a thread needs to open bodies.
struct Opener {
  const Digests* digests;
  Aes aes;
  std::vector<uint8_t> room;
};

// An encrypted text, and what stands in it before the ciphertext. Without a text it is none.
struct SealedText {
  std::string_view text;
  size_t bodyAt = 0;
};

SealedText sealedText(const uint8_t* payload, size_t count, double seq, Envelope* envelope) {
  const char* const text = reinterpret_cast<const char*>(payload);
  const char* const end = text + count;
  if (!readEnvelope(text, end, envelope) || envelope->seq != seq || envelope->kind.size() > kKindBytesMost || !mustSeal(*envelope)) return {};
  const std::string_view body(envelope->body, static_cast<size_t>(end - envelope->body));
  const bool isCommitted = body.starts_with(kCommittedHead);
  const std::string_view head = isCommitted ? kCommittedHead : kSealedHead;
  if (body.size() < head.size() + kSealedTail.size() || !body.starts_with(head) || !body.ends_with(kSealedTail)) return {};
  return {body.substr(head.size(), body.size() - head.size() - kSealedTail.size()), kAesNonceBytes + (isCommitted ? kHashBytes : 0)};
}

// What `kinds` says of an entry; `bodyBytes` of the opener's room then are its body.
uint8_t opened(Opener* opener, const Forms& forms, const KeyRing::Key& key, const Envelope& envelope, const SealedText& sealed, size_t* bodyBytes) {
  uint8_t* const room = opener->room.data();
  const size_t bytes = fromBase64(sealed.text, room);
  if (bytes < sealed.bodyAt + kBodyBytesLeast + kAesTagBytes) return 0;
  if (key.bytes == nullptr) return kUnopened;
  char bound[kBoundBytes];
  uint8_t* const body = room + sealed.bodyAt;
  const size_t count = bytes - sealed.bodyAt - kAesTagBytes;
  if (!opener->aes.open(key.bytes, room, boundTo(envelope, bound), body, count, body)) return 0;
  if (sealed.bodyAt > kAesNonceBytes) {
    uint8_t said[kHashBytes];
    std::memcpy(said, room + kAesNonceBytes, kHashBytes);
    commit(*opener->digests, key.bytes + kAesKeyBytes, room, count);
    if (std::memcmp(said, room + kAesNonceBytes, kHashBytes) != 0) return 0;
  }
  *bodyBytes = count;
  return static_cast<uint8_t>(forms.kindOf(envelope.kind, {reinterpret_cast<const char*>(body), count}) + 1);
}

}  // namespace

bool KeyRing::read(const uint8_t* bytes, size_t count) {
  constexpr size_t kHeadBytes = 2;
  for (size_t at = 0; at < count;) {
    if (count - at < kHeadBytes || bytes[at] > 1) return false;
    const size_t nameBytes = bytes[at + 1], keyBytes = bytes[at] == 1 ? kAesKeyBytes + kSaltKeyBytes : 0;
    if (count - at - kHeadBytes < nameBytes + keyBytes) return false;
    const uint8_t* const name = bytes + at + kHeadBytes;
    keys_.push_back({{reinterpret_cast<const char*>(name), nameBytes}, keyBytes == 0 ? nullptr : name + nameBytes});
    at += kHeadBytes + nameBytes + keyBytes;
  }
  return true;
}

const KeyRing::Key* KeyRing::find(std::string_view session) const {
  for (const Key& key : keys_)
    if (key.session == session) return &key;
  return nullptr;
}

size_t sealedChars(size_t bytes) { return (kAesNonceBytes + kHashBytes + bytes + kAesTagBytes + 2) / 3 * 4; }

bool sealBody(const Digests& digests, Aes* aes, const KeyRing& keys, const uint8_t* nonceStart, uint8_t* bytes, const PlainBody& body) {
  Envelope envelope;
  const char* const text = reinterpret_cast<const char*>(bytes) + body.payload;
  const char* const head = reinterpret_cast<const char*>(bytes) + body.at;
  if (!readEnvelope(text, head, &envelope) || envelope.kind.size() > kKindBytesMost) return false;
  if (std::string_view(envelope.body, static_cast<size_t>(head - envelope.body)) != kCommittedHead) return false;
  const KeyRing::Key* const key = keys.find(envelope.session);
  if (key == nullptr || key->bytes == nullptr) return false;
  constexpr size_t kBodyAt = kAesNonceBytes + kHashBytes;
  std::vector<uint8_t> room(kBodyAt + body.bytes + kAesTagBytes);
  std::memcpy(room.data(), nonceStart, kNonceStartBytes);
  const uint64_t seq = static_cast<uint64_t>(envelope.seq);
  for (int i = 0; i < 8; i++) room[kNonceStartBytes + i] = static_cast<uint8_t>(seq >> (56 - 8 * i));
  uint8_t* const sealed = room.data() + kBodyAt;
  if (body.bytes > 0) std::memcpy(sealed, bytes + body.at, body.bytes);
  commit(digests, key->bytes + kAesKeyBytes, room.data(), body.bytes);
  char bound[kBoundBytes];
  if (!aes->seal(key->bytes, room.data(), boundTo(envelope, bound), sealed, body.bytes, sealed)) {
    wipe(room.data(), room.size());
    return false;
  }
  toBase64(room.data(), room.size(), reinterpret_cast<char*>(bytes) + body.at);
  return true;
}

size_t openEntries(const Digests& digests, const KeyRing& keys, const Forms& forms, Threads& pool, int threads, size_t from, const OpenedEntries& entries) {
  if (!Aes::exists()) return entries.ends.size();
  const int count = std::max(1, std::min(threads, pool.count()));
  const size_t all = entries.ends.size();
  const auto start = [&](size_t i) { return i == 0 ? 0u : entries.ends[i - 1]; };
  size_t most = 0;
  for (size_t i = from; i < all; i++) most = std::max<size_t>(most, entries.ends[i] - start(i));
  const std::unique_ptr<Opener[]> openers(new Opener[static_cast<size_t>(count)]);
  for (int i = 0; i < count; i++) {
    openers[static_cast<size_t>(i)].digests = &digests;
    openers[static_cast<size_t>(i)].room.resize(most);
  }
  std::atomic<size_t> missing{all};
  auto examine = [&](int item, int thread) {
    const size_t first = from + static_cast<size_t>(item) * kEntriesAtOnce, last = std::min(all, first + kEntriesAtOnce);
    for (size_t i = first; i < last; i++) {
      if (entries.kinds[i] != 0) continue;
      Envelope envelope;
      const uint8_t* const payload = entries.bytes + start(i) + kEntryHeadBytes;
      const SealedText sealed = sealedText(payload, entries.ends[i] - start(i) - kEntryExtraBytes, static_cast<double>(entries.firstSeq + i), &envelope);
      if (sealed.text.empty()) continue;
      const KeyRing::Key* const key = keys.find(envelope.session);
      if (key != nullptr) {
        Opener* const opener = &openers[static_cast<size_t>(thread)];
        size_t bodyBytes = 0;
        const uint8_t kind = opened(opener, forms, *key, envelope, sealed, &bodyBytes);
        entries.kinds[i] = kind;
        if (entries.room == nullptr || kind == 0 || kind == kUnopened) continue;
        // Sealed it takes more room than open.
        const size_t at = static_cast<size_t>(reinterpret_cast<const uint8_t*>(sealed.text.data()) - entries.bytes);
        std::memcpy(entries.room + at, opener->room.data() + sealed.bodyAt, bodyBytes);
        entries.texts[2 * i] = static_cast<uint32_t>(at);
        entries.texts[2 * i + 1] = static_cast<uint32_t>(bodyBytes);
        continue;
      }
      for (size_t known = missing.load(); i < known && !missing.compare_exchange_weak(known, i);) continue;
    }
  };
  pool.each(static_cast<int>((all - from + kEntriesAtOnce - 1) / kEntriesAtOnce), examine, count);
  for (int i = 0; i < count; i++) wipe(openers[static_cast<size_t>(i)].room.data(), most);
  return missing.load();
}

}  // namespace palimpsest
