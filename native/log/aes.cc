#include "aes.h"

#include <cstring>
#include <limits>

#if defined(__linux__)
#include <dlfcn.h>
#endif

namespace palimpsest {

namespace {

using Context = evp_cipher_ctx_st;

// The functions of OpenSSL, as its manual pages EVP_EncryptInit(3), OPENSSL_cleanse and OpenSSL_version(3) describe
// them.
struct OpenSsl {
  unsigned long (*version)();
  Context* (*make)();
  void (*free)(Context*);
  const void* (*cipher)();
  int (*beginSealing)(Context*, const void* cipher, void* engine, const uint8_t* key, const uint8_t* nonce);
  int (*seal)(Context*, uint8_t* out, int* written, const uint8_t* bytes, int count);
  int (*endSealing)(Context*, uint8_t* out, int* written);
  int (*beginOpening)(Context*, const void* cipher, void* engine, const uint8_t* key, const uint8_t* nonce);
  int (*open)(Context*, uint8_t* out, int* written, const uint8_t* bytes, int count);
  int (*endOpening)(Context*, uint8_t* out, int* written);
  int (*control)(Context*, int what, int number, void* bytes);
};

constexpr int kGetTag = 0x10, kSetTag = 0x11;
constexpr unsigned long kMajorShift = 28, kMajorLeast = 3;

#if defined(__linux__)

template <typename Function>
bool find(const char* name, Function* function) {
  void* const address = dlsym(RTLD_DEFAULT, name);
  static_assert(sizeof address == sizeof *function);
  std::memcpy(function, &address, sizeof address);
  return address != nullptr;
}

// Null where a function is missing.
const OpenSsl* findOpenSsl() {
  static OpenSsl found;
  const bool hasAll = find("OpenSSL_version_num", &found.version) && find("EVP_CIPHER_CTX_new", &found.make) && find("EVP_CIPHER_CTX_free", &found.free) &&
                      find("EVP_aes_256_gcm", &found.cipher) && find("EVP_EncryptInit_ex", &found.beginSealing) && find("EVP_EncryptUpdate", &found.seal) &&
                      find("EVP_EncryptFinal_ex", &found.endSealing) && find("EVP_DecryptInit_ex", &found.beginOpening) && find("EVP_DecryptUpdate", &found.open) &&
                      find("EVP_DecryptFinal_ex", &found.endOpening) && find("EVP_CIPHER_CTX_ctrl", &found.control);
  // BoringSSL has the same names, and calls itself version 1.
  return hasAll && found.version() >> kMajorShift >= kMajorLeast ? &found : nullptr;
}

#else

const OpenSsl* findOpenSsl() { return nullptr; }

#endif

const OpenSsl* openSsl() {
  static const OpenSsl* const found = findOpenSsl();
  return found;
}

// Test case 16 of "The Galois/Counter Mode of Operation" (McGrew, Viega): 60 bytes, 20 more that are bound to them.
bool sealsAsItMust() {
  constexpr uint8_t key[] = {0xfe, 0xff, 0xe9, 0x92, 0x86, 0x65, 0x73, 0x1c, 0x6d, 0x6a, 0x8f, 0x94, 0x67, 0x30, 0x83, 0x08,
                             0xfe, 0xff, 0xe9, 0x92, 0x86, 0x65, 0x73, 0x1c, 0x6d, 0x6a, 0x8f, 0x94, 0x67, 0x30, 0x83, 0x08};
  constexpr uint8_t nonce[] = {0xca, 0xfe, 0xba, 0xbe, 0xfa, 0xce, 0xdb, 0xad, 0xde, 0xca, 0xf8, 0x88};
  constexpr char bound[] = "\xfe\xed\xfa\xce\xde\xad\xbe\xef\xfe\xed\xfa\xce\xde\xad\xbe\xef\xab\xad\xda\xd2";
  constexpr uint8_t plain[] = {0xd9, 0x31, 0x32, 0x25, 0xf8, 0x84, 0x06, 0xe5, 0xa5, 0x59, 0x09, 0xc5, 0xaf, 0xf5, 0x26, 0x9a, 0x86, 0xa7, 0xa9, 0x53,
                               0x15, 0x34, 0xf7, 0xda, 0x2e, 0x4c, 0x30, 0x3d, 0x8a, 0x31, 0x8a, 0x72, 0x1c, 0x3c, 0x0c, 0x95, 0x95, 0x68, 0x09, 0x53,
                               0x2f, 0xcf, 0x0e, 0x24, 0x49, 0xa6, 0xb5, 0x25, 0xb1, 0x6a, 0xed, 0xf5, 0xaa, 0x0d, 0xe6, 0x57, 0xba, 0x63, 0x7b, 0x39};
  constexpr uint8_t sealed[] = {0x52, 0x2d, 0xc1, 0xf0, 0x99, 0x56, 0x7d, 0x07, 0xf4, 0x7f, 0x37, 0xa3, 0x2a, 0x84, 0x42, 0x7d, 0x64, 0x3a, 0x8c,
                                0xdc, 0xbf, 0xe5, 0xc0, 0xc9, 0x75, 0x98, 0xa2, 0xbd, 0x25, 0x55, 0xd1, 0xaa, 0x8c, 0xb0, 0x8e, 0x48, 0x59, 0x0d,
                                0xbb, 0x3d, 0xa7, 0xb0, 0x8b, 0x10, 0x56, 0x82, 0x88, 0x38, 0xc5, 0xf6, 0x1e, 0x63, 0x93, 0xba, 0x7a, 0x0a, 0xbc,
                                0xc9, 0xf6, 0x62, 0x76, 0xfc, 0x6e, 0xce, 0x0f, 0x4e, 0x17, 0x68, 0xcd, 0xdf, 0x88, 0x53, 0xbb, 0x2d, 0x55, 0x1b};
  static_assert(sizeof sealed == sizeof plain + kAesTagBytes);
  uint8_t bytes[sizeof sealed];
  Aes aes;
  const std::string_view name(bound, sizeof bound - 1);
  if (!aes.seal(key, nonce, name, plain, sizeof plain, bytes) || std::memcmp(bytes, sealed, sizeof sealed) != 0) return false;
  if (!aes.open(key, nonce, name, bytes, sizeof plain, bytes) || std::memcmp(bytes, plain, sizeof plain) != 0) return false;
  std::memcpy(bytes, sealed, sizeof sealed);
  bytes[sizeof sealed - 1] ^= 1;
  return !aes.open(key, nonce, name, bytes, sizeof plain, bytes);
}

}  // namespace

bool Aes::exists() {
  static const bool is = openSsl() != nullptr && sealsAsItMust();
  return is;
}

Aes::~Aes() {
  if (context_ == nullptr) return;
  openSsl()->free(context_);
  wipe(key_, sizeof key_);
}

bool Aes::begin(bool isSealing, const uint8_t* key, const uint8_t* nonce, std::string_view bound) {
  const OpenSsl* const ssl = openSsl();
  if (ssl == nullptr || bound.size() > static_cast<size_t>(std::numeric_limits<int>::max())) return false;
  const auto init = isSealing ? ssl->beginSealing : ssl->beginOpening;
  const bool isNew = context_ == nullptr;
  if (isNew) context_ = ssl->make();
  if (context_ == nullptr) return false;
  // With the same key in the same direction the context has all but the nonce.
  if (isNew || isSealing_ != isSealing || std::memcmp(key_, key, sizeof key_) != 0) {
    if (init(context_, isNew ? ssl->cipher() : nullptr, nullptr, key, nonce) != 1) {
      // What it is in now is not known.
      ssl->free(context_);
      context_ = nullptr;
      return false;
    }
    std::memcpy(key_, key, sizeof key_);
    isSealing_ = isSealing;
  } else if (init(context_, nullptr, nullptr, nullptr, nonce) != 1) {
    return false;
  }
  int written = 0;
  const auto update = isSealing ? ssl->seal : ssl->open;
  return update(context_, nullptr, &written, reinterpret_cast<const uint8_t*>(bound.data()), static_cast<int>(bound.size())) == 1;
}

bool Aes::seal(const uint8_t* key, const uint8_t* nonce, std::string_view bound, const uint8_t* bytes, size_t count, uint8_t* out) {
  if (count > 1u << 30 || !begin(true, key, nonce, bound)) return false;
  const OpenSsl* const ssl = openSsl();
  int written = 0, more = 0;
  if (ssl->seal(context_, out, &written, bytes, static_cast<int>(count)) != 1 || written != static_cast<int>(count)) return false;
  return ssl->endSealing(context_, out + count, &more) == 1 && ssl->control(context_, kGetTag, kAesTagBytes, out + count) == 1;
}

bool Aes::open(const uint8_t* key, const uint8_t* nonce, std::string_view bound, const uint8_t* bytes, size_t count, uint8_t* out) {
  uint8_t tag[kAesTagBytes];
  std::memcpy(tag, bytes + count, sizeof tag);
  if (count > 1u << 30 || !begin(false, key, nonce, bound)) return false;
  const OpenSsl* const ssl = openSsl();
  int written = 0, more = 0;
  if (ssl->open(context_, out, &written, bytes, static_cast<int>(count)) != 1 || written != static_cast<int>(count)) return false;
  // OpenSSL compares the tags, in the same time whatever they are.
  return ssl->control(context_, kSetTag, sizeof tag, tag) == 1 && ssl->endOpening(context_, out + count, &more) == 1;
}

void wipe(void* bytes, size_t count) {
  // Calls through a volatile pointer are not left out as stores to memory that nobody reads are.
  static void* (*const volatile fill)(void*, int, size_t) = std::memset;
  fill(bytes, 0, count);
}

}  // namespace palimpsest
