// The JavaScript binding of what Node does not offer for files.
#include <cmath>

#include "arguments.h"
#include "environment.h"

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

}  // namespace

void exportFiles(Napi::Env env, Napi::Object exports) { exports.Set("forgetFileBytes", Napi::Function::New(env, forgetFileBytes, "forgetFileBytes")); }

}  // namespace palimpsest
