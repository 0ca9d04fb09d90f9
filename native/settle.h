// How a call ends that may have taken or freed memory: idle memory of a pool is returned to the system, and V8 is told
// how much there is outside its heap. Otherwise what holds gigabytes looks to V8 like an object of a hundred bytes,
// which it need not hurry to collect.
#pragma once
#include <napi.h>

#include <cstdlib>
#include <memory>
#include <optional>

#include "cache/pool.h"

namespace palimpsest {

// V8 is told about changes of at least this size only, because what it does with the number is not cheap.
constexpr int64_t kTellBytes = int64_t{1} << 20;

// What V8 has been told that one object holds. It is taken back with the object.
class Told {
 public:
  Told() = default;
  Told(const Told&) = delete;
  Told& operator=(const Told&) = delete;
  ~Told() {
    if (env_) tell(*env_, 0);
  }

  void tell(Napi::Env env, size_t bytes) {
    const int64_t change = static_cast<int64_t>(bytes) - bytes_;
    if (change == 0 || (bytes > 0 && std::abs(change) < kTellBytes)) return;
    int64_t all;
    napi_adjust_external_memory(env, change, &all);
    bytes_ += change;
    env_.emplace(env);
  }

 private:
  std::optional<Napi::Env> env_;
  int64_t bytes_ = 0;
};

// Every pool of the binding: it is told of as long as a handle or a cache holds it.
struct ToldPool final : PagePool {
  using PagePool::PagePool;
  Told told;
};

// What a call of a step may move of the parts of a pool: some 50 µs of copying.
constexpr size_t kSettledBytes = size_t{256} << 10;

// Ends a call that may have taken or freed memory of a pool.
inline void settle(Napi::Env env, PagePool& pool, size_t most = kSettledBytes) {
  pool.settle(most);
  static_cast<ToldPool&>(pool).told.tell(env, pool.reservedBytes());
}

// Gives up a handle's share of a pool. Nobody may call for long after it, so all is moved that is to be.
inline void letGo(Napi::Env env, std::shared_ptr<PagePool> pool) {
  if (pool) settle(env, *pool, SIZE_MAX);
}

}  // namespace palimpsest
