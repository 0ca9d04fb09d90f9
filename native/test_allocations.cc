// Allocations that fail when a test asks for it. The cache (addon.cc, cache/*.cc) is built again with its own operator
// new, linked so that the calls of this module reach it, and asks here before it drafts a part (cache/pool.cc).
#include <napi.h>

#include <cstdlib>
#include <new>

#include "environment.h"

namespace palimpsest {

namespace {

// Only for the calling thread: background threads allocate nothing.
thread_local int countdown = -1;  // how many allocations still succeed; negative if none is to fail
thread_local bool failsOnce = false;
thread_local int failures = 0;

}  // namespace

bool allocationFails() {
  if (countdown < 0) return false;
  if (countdown > 0) {
    countdown--;
    return false;
  }
  if (failsOnce) countdown = -1;
  failures++;
  return true;
}

// (how many succeed first, negative to let all succeed; whether one fails or all from there on) -> how many have failed
// since the last call
void exportAllocations(Napi::Env env, Napi::Object exports) {
  const auto failAllocations = [](const Napi::CallbackInfo& info) -> Napi::Value {
    const int failed = failures;
    failures = 0;
    failsOnce = info[1].ToBoolean();
    countdown = info[0].ToNumber().Int32Value();
    return Napi::Number::New(info.Env(), failed);
  };
  exports.Set("failAllocations", Napi::Function::New(env, failAllocations, "failAllocations"));
}

}  // namespace palimpsest

void* operator new(std::size_t size) {
  void* memory = palimpsest::allocationFails() ? nullptr : std::malloc(size > 0 ? size : 1);
  if (!memory) throw std::bad_alloc();
  return memory;
}

void* operator new(std::size_t size, std::align_val_t align) {
  void* memory = nullptr;
  if (palimpsest::allocationFails() || posix_memalign(&memory, static_cast<std::size_t>(align), size > 0 ? size : 1) != 0) throw std::bad_alloc();
  return memory;
}

void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, std::size_t) noexcept { std::free(memory); }
void operator delete(void* memory, std::align_val_t) noexcept { std::free(memory); }
void operator delete(void* memory, std::size_t, std::align_val_t) noexcept { std::free(memory); }
