// The JavaScript binding of what Node does not offer for files.
#include <algorithm>
#include <cmath>

#include "arguments.h"
#include "environment.h"
#include "log/aes.h"

#if defined(__linux__)
#include <fcntl.h>
#endif

namespace palimpsest {

namespace {

// (descriptor, offset, bytes) The system need not keep these bytes in its cache. Answers kUnsupported where it takes no
// such advice.
Napi::Value forgetFileBytes(const Info& info) {
  return guarded(info, [&]() -> Status {
    int descriptor;
    if (!readInt(info[0], 0, 1 << 30, &descriptor) || !info[1].IsNumber() || !info[2].IsNumber()) return kBadArgument;
    const double offset = info[1].As<Napi::Number>().DoubleValue(), bytes = info[2].As<Napi::Number>().DoubleValue();
    if (!(offset >= 0 && bytes >= 0 && offset + bytes <= 0x1p53)) return kBadArgument;
#if defined(__linux__)
    const int failed = posix_fadvise(descriptor, static_cast<off_t>(offset), static_cast<off_t>(bytes), POSIX_FADV_DONTNEED);
    return failed ? kBadArgument : kOk;
#else
    return kUnsupported;
#endif
  });
}

// (key, bytes, chunkBytes, tags <-) The GMAC of each chunk, of which the last may be shorter, under a nonce of zeros.
// Answers kUnsupported where there is no AES.
Napi::Value tagChunks(const Info& info) {
  return guarded(info, [&]() -> Status {
    Span<uint8_t> key, bytes, tags;
    int chunkBytes;
    if (!readArray(info[0], napi_uint8_array, &key) || !readArray(info[1], napi_uint8_array, &bytes)) return kBadArgument;
    if (!readInt(info[2], 1, 1 << 30, &chunkBytes) || !readArray(info[3], napi_uint8_array, &tags)) return kBadArgument;
    const size_t size = chunkBytes, count = bytes.length / size + (bytes.length % size > 0);
    if (key.length != kAesKeyBytes || tags.length != count * kAesTagBytes) return kBadShape;
    if (!Aes::exists()) return kUnsupported;
    constexpr uint8_t kNonce[kAesNonceBytes] = {};
    Aes aes;
    for (size_t chunk = 0; chunk < count; chunk++) {
      const uint8_t* from = bytes.data + chunk * size;
      const std::string_view bound(reinterpret_cast<const char*>(from), std::min(size, bytes.length - chunk * size));
      if (!aes.seal(key.data, kNonce, bound, from, 0, tags.data + chunk * kAesTagBytes)) return kNoMemory;
    }
    return kOk;
  });
}

}  // namespace

void exportFiles(Napi::Env env, Napi::Object exports) {
  exports.Set("forgetFileBytes", Napi::Function::New(env, forgetFileBytes, "forgetFileBytes"));
  exports.Set("tagChunks", Napi::Function::New(env, tagChunks, "tagChunks"));
}

}  // namespace palimpsest
