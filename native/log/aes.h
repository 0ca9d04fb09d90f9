// AES-256-GCM (NIST SP 800-38D) by the OpenSSL that the process has: the executable of Node exports it. There is none
// where the executable exports none, or BoringSSL, or in WebAssembly; then sealing and opening is left to node:crypto.
// What is found is used after it has sealed a known text to the known bytes.
#pragma once
#include <cstddef>
#include <cstdint>
#include <string_view>

struct evp_cipher_ctx_st;

namespace palimpsest {

constexpr size_t kAesKeyBytes = 32, kAesNonceBytes = 12, kAesTagBytes = 16;

// One cipher with the key that it was last used with. A thread has its own.
class Aes {
 public:
  // Whether there is one.
  static bool exists();

  Aes() = default;
  // Wipes the key.
  ~Aes();
  Aes(const Aes&) = delete;
  Aes& operator=(const Aes&) = delete;

  // Seals `count` bytes into `out`, which may be the same place, and writes the tag behind them. False: OpenSSL
  // refused.
  bool seal(const uint8_t* key, const uint8_t* nonce, std::string_view bound, const uint8_t* bytes, size_t count, uint8_t* out);
  // Opens what `seal` made: `count` bytes with the tag behind them. False: refused, or other bytes, key or name; `out`
  // then says nothing.
  bool open(const uint8_t* key, const uint8_t* nonce, std::string_view bound, const uint8_t* bytes, size_t count, uint8_t* out);

 private:
  bool begin(bool isSealing, const uint8_t* key, const uint8_t* nonce, std::string_view bound);

  evp_cipher_ctx_st* context_ = nullptr;
  uint8_t key_[kAesKeyBytes];
  bool isSealing_ = false;
};

// Overwrites what nobody may read any more.
void wipe(void* bytes, size_t count);

}  // namespace palimpsest
