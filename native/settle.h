// How a call on a pool or a cache ends: idle memory is returned to the system, and V8 is told how much there is.
#pragma once
#include <napi.h>

#include <cstdlib>
#include <memory>

#include "cache/pool.h"

namespace palimpsest {

// V8 is told about changes of at least this size only, because what it does with the number is not cheap.
constexpr int64_t kTellBytes = int64_t{1} << 20;

inline void tell(Napi::Env env, PagePool& pool, int64_t bytes) {
  int64_t all;
  napi_adjust_external_memory(env, bytes - pool.toldBytes, &all);
  pool.toldBytes = bytes;
}

// Ends a call that may have taken or freed memory: idle memory is returned to the system, and V8 is told how much is outside its heap.
inline void settle(Napi::Env env, PagePool& pool) {
  pool.settle();
  const int64_t bytes = static_cast<int64_t>(pool.reservedBytes());
  if (std::abs(bytes - pool.toldBytes) >= kTellBytes) tell(env, pool, bytes);
}

// Gives up a handle's share of a pool.
inline void letGo(Napi::Env env, std::shared_ptr<PagePool> pool) {
  if (!pool) return;
  settle(env, *pool);
  if (pool.use_count() == 1) tell(env, *pool, 0);
}

}  // namespace palimpsest
