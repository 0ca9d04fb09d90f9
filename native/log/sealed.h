// Encrypted bodies, as witness/encryption.ts describes them: {"committed":"<base64 of nonce, commitment, ciphertext and
// tag>"}, bound to seq, kind and session of their entry. Before format 3 of the log there was no commitment, and
// "sealed" in the place of "committed".
#pragma once
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "../cache/threads.h"
#include "aes.h"
#include "digest.h"
#include "forms.h"

namespace palimpsest {

// Sessions with their keys, as the caller knows them.
class KeyRing {
 public:
  struct Key {
    std::string_view session;
    // Null: nobody has it. Behind it lies the key that salts are made with.
    const uint8_t* bytes;
  };

  // Reads of each whether there is a key, how many bytes its name has, the name, and where there is one 32 bytes of
  // key and 32 of the key for salts. False for what is none; `bytes` must stay where it is for as long as this is used.
  bool read(const uint8_t* bytes, size_t count);
  // Null for a session that is not here.
  const Key* find(std::string_view session) const;
  bool empty() const { return keys_.empty(); }

 private:
  std::vector<Key> keys_;
};

// Where a body lies in the room of its sealed text: where its payload begins, where itself, and how many bytes.
struct PlainBody {
  uint32_t payload, at, bytes;
};

// Characters of the sealed text of so many bytes.
size_t sealedChars(size_t bytes);

// Seals the body where it lies, with the nonce that begins with `nonceStart` (4 bytes) and ends with the seq. False,
// and nothing is changed, where the key is not in the ring, the envelope is not one that `readEnvelope` knows, or
// OpenSSL refuses. The room must have been checked.
bool sealBody(const Digests& digests, Aes* aes, const KeyRing& keys, const uint8_t* nonceStart, uint8_t* bytes, const PlainBody& body);

// What became of the entries whose form was not certain: opened ones that certainly are sound get their kind.
struct OpenedEntries {
  const uint8_t* bytes;
  uint64_t firstSeq;
  // Where each ends in `bytes`.
  const std::vector<uint32_t>& ends;
  // The kinds as followEntries left them. What is sealed, sound and nobody has the key of gets kUnopened.
  uint8_t* kinds;
  // Null, or as many bytes as there are entries' bytes: what was opened is written where it lay sealed. `texts` then
  // says where that is and how many bytes it has.
  uint8_t* room;
  uint32_t* texts;
};
constexpr uint8_t kUnopened = 255;

// Opens the sealed ones from entry `from` on by `threads` threads. Index of the first whose session is not in the ring,
// or how many there are.
size_t openEntries(const Digests& digests, const KeyRing& keys, const Forms& forms, Threads& pool, int threads, size_t from, const OpenedEntries& entries);

}  // namespace palimpsest
