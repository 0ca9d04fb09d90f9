// Deliberate faults, in sanitizer builds only: each must be reported, which shows that the sanitizers work.
#if defined(PALIMPSEST_DEBUG)
#include <cstdlib>
#include <thread>

#include "test_call.h"

namespace palimpsest {

namespace {

// (isa, count): a kernel reads `count` floats from a block that holds one fewer.
Napi::Value overrunKernel(const Napi::CallbackInfo& info) {
  Call call(info);
  const Kernels* kernels = call.kernels();
  const int count = call.integer(2, 4096);
  float* block = static_cast<float*>(std::calloc(count - 1, sizeof(float)));
  const float sum = kernels->dot(block, block, count);
  std::free(block);
  return Napi::Number::New(info.Env(), sum);
}

// (x): x + 1 as int32, which must not wrap around.
Napi::Value overflow(const Napi::CallbackInfo& info) {
  Call call(info);
  const int x = call.integer(INT_MIN, INT_MAX);
  return Napi::Number::New(info.Env(), x + 1);
}

// Two threads increment one number without a lock.
Napi::Value race(const Napi::CallbackInfo& info) {
  int shared = 0;
  const auto work = [&shared] {
    for (int i = 0; i < 1000; i++) shared = shared + 1;
  };
  std::thread first(work), second(work);
  first.join();
  second.join();
  return Napi::Number::New(info.Env(), shared);
}

}  // namespace

void exportCanaries(Napi::Env env, Napi::Object exports) {
  exports.Set("overrunKernel", Napi::Function::New(env, overrunKernel, "overrunKernel"));
  exports.Set("overflow", Napi::Function::New(env, overflow, "overflow"));
  exports.Set("race", Napi::Function::New(env, race, "race"));
}

}  // namespace palimpsest
#endif
