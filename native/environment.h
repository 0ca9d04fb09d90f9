// The kernels chosen in one JavaScript environment, and the functions that the files of the addon share.
#pragma once
#include <napi.h>

#include <memory>

#include "cache/threads.h"
#include "layout.gen.h"
#include "kernels/kernels.h"

namespace palimpsest {

struct Environment {
  const Kernels* kernels = bestKernels();
  // Compute attention and the dense half and check logs, in turns; started when they are first wanted.
  std::shared_ptr<Threads> crew = std::make_shared<Threads>(1);
};

inline const Kernels* kernelsOf(Napi::Env env) { return env.GetInstanceData<Environment>()->kernels; }

inline const std::shared_ptr<Threads>& crewOf(Napi::Env env) { return env.GetInstanceData<Environment>()->crew; }

// Adds the functions of addon_floats.cc.
void exportFloats(Napi::Env env, Napi::Object exports);
// Adds the functions of addon_latent.cc.
void exportLatents(Napi::Env env, Napi::Object exports);
// Adds the class of addon_dense.cc.
void exportDense(Napi::Env env, Napi::Object exports);
// Adds the function of addon_file.cc.
void exportFiles(Napi::Env env, Napi::Object exports);
// Adds the class of addon_predicted.cc.
void exportPredictors(Napi::Env env, Napi::Object exports);
// Adds the functions of addon_log.cc.
void exportLog(Napi::Env env, Napi::Object exports);
// Adds the function of test_allocations.cc, in the test module only.
void exportAllocations(Napi::Env env, Napi::Object exports);
// Adds the class of addon_batch.cc.
void exportBatches(Napi::Env env, Napi::Object exports);
// What a cache of the binding is, and what V8 has been told of it: nothing where the value is none, no cache where it
// was closed.
class Cache;
class Told;
struct OpenCache {
  std::shared_ptr<Cache> cache;
  std::shared_ptr<Told> told;
};
OpenCache openCacheOf(const Napi::Value& value);
// Cache.latent(operation, ...): the operations of a cache on latents.
Status latentCall(Cache& cache, const Napi::CallbackInfo& info);
// Moves of pages, trials and the page table, in addon_moves.cc.
Status transcodeCall(Cache& cache, const Napi::CallbackInfo& info);
Status startMoveCall(Cache& cache, const Napi::CallbackInfo& info);
Status finishMovesCall(Cache& cache, const Napi::CallbackInfo& info);
Status tableCall(Cache& cache, const Napi::CallbackInfo& info);
Status originalCall(Cache& cache, const Napi::CallbackInfo& info);
Status keptRowsCall(Cache& cache, const Napi::CallbackInfo& info);
Status sideDigestsCall(Cache& cache, const Napi::CallbackInfo& info);
Status formatCall(Cache& cache, const Napi::CallbackInfo& info);
Status trialCall(Cache& cache, const Napi::CallbackInfo& info);
Status startTrialCall(Cache& cache, const Napi::CallbackInfo& info);
Status finishTrialsCall(Cache& cache, const Napi::CallbackInfo& info);
// Stored bytes of a page and of a side, also in addon_moves.cc.
Status exportPageCall(Cache& cache, const Napi::CallbackInfo& info);
Status importPageCall(Cache& cache, const Napi::CallbackInfo& info);
Status exportSideCall(Cache& cache, const Napi::CallbackInfo& info);
Status exchangeSideCall(Cache& cache, const Napi::CallbackInfo& info);
Status freePageCall(Cache& cache, const Napi::CallbackInfo& info);
Status evictPageCall(Cache& cache, const Napi::CallbackInfo& info);
// Pages that the caller codes, in addon_foreign.cc.
Status holdForeignCall(Cache& cache, const Napi::CallbackInfo& info);
Status foreignBytesCall(Cache& cache, const Napi::CallbackInfo& info);
Status restoreForeignCall(Cache& cache, const Napi::CallbackInfo& info);
Status trialForeignCall(Cache& cache, const Napi::CallbackInfo& info);
// All pages at once, in addon_predicted.cc.
Status importPagesCall(Cache& cache, const Napi::CallbackInfo& info);

}  // namespace palimpsest
