// Translates between JavaScript and the cache: typed arrays in, a status out. Every argument is checked again here, so
// that no wrong call accesses memory that it should not; native/cache.ts supplies the error messages. Each JavaScript
// environment has its own choice of kernels. Handles may be closed and collected in any order: a pool lives as long as
// the last cache that uses it.
#include <napi.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <memory>
#include <new>
#include <string>

#include "arguments.h"
#include "cache/attend.h"
#include "cache/layer.h"
#include "cache/trial.h"
#include "environment.h"
#include "settle.h"

namespace {

using namespace palimpsest;

constexpr napi_type_tag kPoolTag = {0x6b1f0c52d3a94e71ULL, 0x9a1c2f6be07d4835ULL};
constexpr napi_type_tag kCacheTag = {0x2c7be94f08d145a6ULL, 0xb4f3d1728c5e6090ULL};

// The budget of a cache; undefined means that only the pool limits it.
bool readCacheBudget(const Napi::Value& value, uint64_t* bytes) {
  *bytes = kNoBudget;
  return absent(value) || readBytes(value, bytes);
}

double budgetNumber(uint64_t bytes) { return bytes == kNoBudget ? std::numeric_limits<double>::infinity() : static_cast<double>(bytes); }

// ---- Pool

class PoolHandle : public Napi::ObjectWrap<PoolHandle> {
 public:
  static Napi::Function define(Napi::Env env) {
    return DefineClass(env, "Pool",
                       {InstanceMethod<&PoolHandle::open>("open"), InstanceMethod<&PoolHandle::numbers>("numbers"),
                        InstanceMethod<&PoolHandle::setBudget>("setBudget"), InstanceMethod<&PoolHandle::close>("close")});
  }

  explicit PoolHandle(const Info& info) : Napi::ObjectWrap<PoolHandle>(info) { info.This().As<Napi::Object>().TypeTag(&kPoolTag); }

  static std::shared_ptr<PagePool> from(const Napi::Value& value) {
    if (!value.IsObject()) return nullptr;
    const Napi::Object object = value.As<Napi::Object>();
    return object.CheckTypeTag(&kPoolTag) ? Unwrap(object)->pool_ : nullptr;
  }

 private:
  // (budgetBytes)
  Napi::Value open(const Info& info) {
    return guarded(info, [&]() -> Status {
      uint64_t bytes;
      if (pool_ || !readBytes(info[0], &bytes)) return kBadArgument;
      pool_ = std::make_shared<ToldPool>(bytes, crewOf(info.Env()));
      return kOk;
    });
  }

  // (Float64Array[6] <- budget, used, peak, reserved, its peak, audit). The audit is computed only when asked for.
  Napi::Value numbers(const Info& info) {
    return guarded(info, [&]() -> Status {
      Span<double> out;
      if (!pool_) return kClosed;
      if (!readArray(info[0], napi_float64_array, &out) || out.length != 6) return kBadShape;
      out.data[0] = static_cast<double>(pool_->budgetBytes());
      out.data[1] = static_cast<double>(pool_->usedBytes());
      out.data[2] = static_cast<double>(pool_->peakBytes());
      out.data[3] = static_cast<double>(pool_->reservedBytes());
      out.data[4] = static_cast<double>(pool_->reservedPeakBytes());
      if (info[1].IsBoolean() && info[1].As<Napi::Boolean>().Value()) out.data[5] = static_cast<double>(pool_->auditBytes());
      return kOk;
    });
  }

  Napi::Value setBudget(const Info& info) {
    return guarded(info, [&]() -> Status {
      uint64_t bytes;
      if (!pool_) return kClosed;
      if (!readBytes(info[0], &bytes)) return kBadArgument;
      return pool_->setBudget(bytes) ? kOk : kBudgetTooSmall;
    });
  }

  Napi::Value close(const Info& info) {
    letGo(info.Env(), std::move(pool_));
    return answer(info, kOk);
  }

  void Finalize(Napi::Env env) override { letGo(env, std::move(pool_)); }

  std::shared_ptr<PagePool> pool_;
};

// ---- Cache

class CacheHandle : public Napi::ObjectWrap<CacheHandle> {
 public:
  static Napi::Function define(Napi::Env env) {
    return DefineClass(env, "Cache",
                       {InstanceMethod<&CacheHandle::open>("open"), InstanceMethod<&CacheHandle::openFork>("openFork"), InstanceMethod<&CacheHandle::adopt>("adopt"),
                        InstanceMethod<&CacheHandle::close>("close"), InstanceMethod<&CacheHandle::length>("length"),
                        InstanceMethod<&CacheHandle::append>("append"), InstanceMethod<&CacheHandle::appendBytes>("appendBytes"), InstanceMethod<&CacheHandle::attend>("attend"),
                        InstanceMethod<&CacheHandle::setSkipShare>("setSkipShare"), InstanceMethod<&CacheHandle::skipped>("skipped"),
                        InstanceMethod<&CacheHandle::reads<tableCall>>("table"), InstanceMethod<&CacheHandle::reads<formatCall>>("format"),
                        InstanceMethod<&CacheHandle::with<trialCall>>("trial"), InstanceMethod<&CacheHandle::with<originalCall>>("original"),
                        InstanceMethod<&CacheHandle::with<keptRowsCall>>("keptRows"), InstanceMethod<&CacheHandle::reads<sideDigestsCall>>("sideDigests"),
                        InstanceMethod<&CacheHandle::setSketch>("setSketch"), InstanceMethod<&CacheHandle::hasSketch>("hasSketch"),
                        InstanceMethod<&CacheHandle::with<transcodeCall>>("transcode"), InstanceMethod<&CacheHandle::decode>("decode"),
                        InstanceMethod<&CacheHandle::memory>("memory"),
                        InstanceMethod<&CacheHandle::account>("account"), InstanceMethod<&CacheHandle::setBudget>("setBudget"),
                        InstanceMethod<&CacheHandle::truncate>("truncate"), InstanceMethod<&CacheHandle::with<latentCall>>("latent"),
                        InstanceMethod<&CacheHandle::with<exportPageCall>>("exportPage"), InstanceMethod<&CacheHandle::with<importPageCall>>("importPage"),
                        InstanceMethod<&CacheHandle::with<importPagesCall>>("importPages"),
                        InstanceMethod<&CacheHandle::with<exportSideCall>>("exportSide"), InstanceMethod<&CacheHandle::with<exchangeSideCall>>("exchangeSide"),
                        InstanceMethod<&CacheHandle::with<freePageCall>>("freePage"),
                        InstanceMethod<&CacheHandle::with<evictPageCall>>("evictPage"),
                        InstanceMethod<&CacheHandle::with<holdForeignCall>>("holdForeign"), InstanceMethod<&CacheHandle::with<foreignBytesCall>>("foreignBytes"),
                        InstanceMethod<&CacheHandle::with<restoreForeignCall>>("restoreForeign"), InstanceMethod<&CacheHandle::with<trialForeignCall>>("trialForeign"),
                        InstanceMethod<&CacheHandle::with<startMoveCall>>("startMove"), InstanceMethod<&CacheHandle::with<finishMovesCall>>("finishMoves"),
                        InstanceMethod<&CacheHandle::with<startTrialCall>>("startTrial"), InstanceMethod<&CacheHandle::with<finishTrialsCall>>("finishTrials")});
  }

  explicit CacheHandle(const Info& info) : Napi::ObjectWrap<CacheHandle>(info) { info.This().As<Napi::Object>().TypeTag(&kCacheTag); }

  static CacheHandle* from(const Napi::Value& value) {
    if (!value.IsObject()) return nullptr;
    const Napi::Object object = value.As<Napi::Object>();
    return object.CheckTypeTag(&kCacheTag) ? Unwrap(object) : nullptr;
  }

  OpenCache held() const { return {cache_, told_}; }

 private:
  // (pool, Int32Array[7]: layers, H, n, d, window format, threads, open format; scale, Int32Array windows [layers],
  // Float32Array slopes [H or 0], budget bytes or undefined, cap of scores or undefined for none)
  Napi::Value open(const Info& info) {
    return guarded(info, [&]() -> Status {
      std::shared_ptr<PagePool> pool = PoolHandle::from(info[0]);
      Span<int32_t> shape, windows;
      Span<float> slopes;
      if (cache_) return kBadArgument;
      if (!pool) return kClosed;
      if (!readArray(info[1], napi_int32_array, &shape) || shape.length != 7) return kBadShape;
      uint64_t budget;
      if (!readCacheBudget(info[5], &budget)) return kBadArgument;
      if (!info[2].IsNumber() || !readArray(info[3], napi_int32_array, &windows) || !readFloats(info[4], &slopes)) return kBadArgument;
      CacheOptions options;
      options.shape = {shape.data[0], shape.data[1], shape.data[2], shape.data[3]};
      options.windowFormat = shape.data[4];
      options.openFormat = shape.data[6];
      const int threads = shape.data[5];
      const CacheShape& s = options.shape;
      if (s.layers < 1 || s.layers > kLayersMax || s.kvHeads < 1 || s.queryHeads < s.kvHeads || s.queryHeads > kHeadsMax) return kBadArgument;
      if (s.queryHeads % s.kvHeads != 0 || s.headDim < 8 || s.headDim > kHeadDimMax || s.headDim % 8 != 0) return kBadArgument;
      if (!isFormat(options.windowFormat) || !kFormats[options.windowFormat].isWindow) return kBadArgument;
      if (options.openFormat != kF16 && options.openFormat != options.windowFormat) return kBadArgument;
      if (!servesHeadDim(options.windowFormat, s.headDim)) return kUnsupported;
      if (threads < 1 || threads > kThreadsMax) return kBadArgument;
      options.threads = kHasThreads ? threads : 1;
      options.scale = info[2].As<Napi::Number>().FloatValue();
      if (!(std::fabs(options.scale) <= kLargestFactor)) return kBadValue;
      if (!info[6].IsUndefined()) {
        if (!info[6].IsNumber()) return kBadArgument;
        options.scoreCap = info[6].As<Napi::Number>().FloatValue();
        if (!(options.scoreCap >= kLeastCap && options.scoreCap <= kLargestFactor)) return kBadValue;
      }
      if (windows.length != static_cast<size_t>(s.layers)) return kBadShape;
      if (slopes.length != 0 && slopes.length != static_cast<size_t>(s.queryHeads)) return kBadShape;
      for (size_t i = 0; i < windows.length; i++) {
        if (windows.data[i] < 0) return kBadArgument;
      }
      for (size_t i = 0; i < slopes.length; i++) {
        if (!(std::fabs(slopes.data[i]) <= kLargestFactor)) return kBadValue;
      }
      options.window.assign(windows.data, windows.data + windows.length);
      options.slopes.assign(slopes.data, slopes.data + slopes.length);
      cache_ = Cache::open(std::make_shared<Account>(std::move(pool), budget), kernelsOf(info.Env()), std::move(options));
      return kOk;
    });
  }

  // (Float64Array[6] <- budget or infinity, used, peak, room left by cache and pool, audit, and what of the used bytes
  // belongs to no cache alone), of a cache and all its forks. The audit is computed only when asked for.
  Napi::Value account(const Info& info) {
    return guarded(info, [&]() -> Status {
      Span<double> out;
      if (!cache_) return kClosed;
      if (!readArray(info[0], napi_float64_array, &out) || out.length != 6) return kBadShape;
      const Account& account = cache_->account();
      out.data[0] = budgetNumber(account.budgetBytes());
      const double common = static_cast<double>(cache_->commonBytes());
      out.data[1] = cache_->countedBytes();
      out.data[2] = cache_->peakBytes();
      out.data[3] = static_cast<double>(account.roomBytes());
      out.data[5] = common;
      if (info[1].IsBoolean() && info[1].As<Napi::Boolean>().Value()) out.data[4] = static_cast<double>(account.pool()->auditBytes(&account)) + common;
      return kOk;
    });
  }

  // (budget bytes or undefined)
  Napi::Value setBudget(const Info& info) {
    return guarded(info, [&]() -> Status {
      uint64_t bytes;
      if (!cache_) return kClosed;
      if (!readCacheBudget(info[0], &bytes)) return kBadArgument;
      return cache_->account().setBudget(bytes) ? kOk : kBudgetTooSmall;
    });
  }

  // (the cache to fork)
  Napi::Value openFork(const Info& info) {
    return guarded(info, [&]() -> Status {
      CacheHandle* parent = from(info[0]);
      if (cache_ || !parent) return kBadArgument;
      if (!parent->cache_) return kClosed;
      Status status = kOk;
      cache_ = parent->cache_->fork(&status);
      return (cache_ ? this : parent)->settled(info, status);
    });
  }

  // (the cache to begin with, its pages)
  Napi::Value adopt(const Info& info) {
    return guarded(info, [&]() -> Status {
      CacheHandle* source = from(info[0]);
      int pages;
      if (!cache_) return kClosed;
      if (!source || !readInt(info[1], 1, 1 << 24, &pages)) return kBadArgument;
      return source->cache_ ? settled(info, cache_->adopt(*source->cache_, pages)) : kClosed;
    });
  }

  Napi::Value close(const Info& info) {
    drop(info.Env());
    return answer(info, kOk);
  }

  // Calls whose bodies are in other files.
  template <Status (*call)(Cache&, const Info&)>
  Napi::Value with(const Info& info) {
    return guarded(info, [&]() -> Status { return cache_ ? settled(info, call(*cache_, info)) : kClosed; });
  }

  // The same for calls that take no memory and free none, of which there are thousands between two steps: what the
  // cache holds is not counted again.
  template <Status (*call)(Cache&, const Info&)>
  Napi::Value reads(const Info& info) {
    return guarded(info, [&]() -> Status { return cache_ ? call(*cache_, info) : kClosed; });
  }

  void Finalize(Napi::Env env) override { drop(env); }

  void drop(Napi::Env env) {
    if (!cache_) return;
    std::shared_ptr<PagePool> pool = cache_->account().pool();
    cache_.reset();
    told_->tell(env, 0);
    letGo(env, std::move(pool));
  }

  Status settled(const Info& info, Status status) {
    settle(info.Env(), *cache_->account().pool());
    return told(info, status);
  }

  // Ends a call that may have taken memory beside the pool.
  Status told(const Info& info, Status status) {
    told_->tell(info.Env(), cache_->besideBytes());
    return status;
  }

  bool readLayer(const Napi::Value& value, int* layer) const { return readInt(value, 0, cache_->shape().layers - 1, layer); }

  // Reads a layer and one of its sealed pages; with `open`, the open page is allowed too.
  bool readPage(const Info& info, bool open, int* layer, int* page) const {
    if (!readLayer(info[0], layer)) return false;
    return readInt(info[1], 0, cache_->layer(*layer).sealed() - (open ? 0 : 1), page);
  }

  static bool readSide(const Napi::Value& value, bool* isKey) {
    int side;
    if (!readInt(value, 0, 1, &side)) return false;
    *isKey = side == 0;
    return true;
  }

  // (layer, Float64Array[2] <- tokens, sealed pages)
  Napi::Value length(const Info& info) {
    return guarded(info, [&]() -> Status {
      int layer;
      Span<double> out;
      if (!cache_) return kClosed;
      if (!readLayer(info[0], &layer)) return kBadArgument;
      if (!readArray(info[1], napi_float64_array, &out) || out.length != 2) return kBadShape;
      out.data[0] = cache_->layer(layer).length;
      out.data[1] = cache_->layer(layer).sealed();
      return kOk;
    });
  }

  // (tokens)
  Napi::Value truncate(const Info& info) {
    return guarded(info, [&]() -> Status {
      int tokens;
      if (!cache_) return kClosed;
      if (!readInt(info[0], 0, cache_->layer(0).length, &tokens)) return kBadArgument;
      return settled(info, cache_->truncate(tokens));
    });
  }

  // (layer, k, v)
  Napi::Value append(const Info& info) {
    return guarded(info, [&]() -> Status {
      int layer;
      Span<float> k, v;
      if (!cache_) return kClosed;
      if (!readLayer(info[0], &layer) || !readFloats(info[1], &k) || !readFloats(info[2], &v)) return kBadArgument;
      const size_t row = cache_->shape().rowElements();
      if (k.length == 0 || k.length != v.length || k.length % row != 0 || k.length / row > (1u << 30)) return kBadShape;
      return settled(info, cache_->append(layer, k.data, v.data, static_cast<int>(k.length / row)));
    });
  }

  // (layer, or -1 for all of them; tokens, Float64Array[1] <- bytes by which the count grows)
  Napi::Value appendBytes(const Info& info) {
    return guarded(info, [&]() -> Status {
      int layer, tokens;
      Span<double> out;
      if (!cache_) return kClosed;
      if (!readInt(info[0], -1, cache_->shape().layers - 1, &layer) || !readInt(info[1], 0, 1 << 30, &tokens)) return kBadArgument;
      if (!readArray(info[2], napi_float64_array, &out) || out.length != 1) return kBadShape;
      const int last = layer < 0 ? cache_->shape().layers - 1 : layer;
      out.data[0] = 0;
      for (int i = std::max(layer, 0); i <= last; i++) {
        if (tokens > (1 << 30) - cache_->layer(i).length) return kBadArgument;
        if (tokens > 0) out.data[0] += static_cast<double>(cache_->appendBytes(i, tokens));
      }
      return kOk;
    });
  }

  // (layer, q, out, xNorms | undefined, lse | undefined, observe, besideLse | undefined, besideOut | undefined)
  Napi::Value attend(const Info& info) {
    return guarded(info, [&]() -> Status {
      int layer;
      Span<float> q, out, norms, lse, besideLse, besideOut;
      if (!cache_) return kClosed;
      if (!readLayer(info[0], &layer) || !readFloats(info[1], &q) || !readFloats(info[2], &out)) return kBadArgument;
      if (!absent(info[3]) && !readFloats(info[3], &norms)) return kBadArgument;
      if (!absent(info[4]) && !readFloats(info[4], &lse)) return kBadArgument;
      if (!info[5].IsBoolean()) return kBadArgument;
      if (!readBeside(info[6], info[7], &besideLse, &besideOut)) return kBadArgument;
      const size_t row = cache_->shape().queryElements();
      const size_t tokens = q.length / row;
      if (q.length == 0 || q.length % row != 0 || tokens > static_cast<size_t>(cache_->layer(layer).length)) return kBadShape;
      if (out.length != q.length || (!absent(info[3]) && norms.length != tokens)) return kBadShape;
      if (!absent(info[4]) && lse.length != tokens * cache_->shape().queryHeads) return kBadShape;
      if (besideLse.data && (besideLse.length != tokens * cache_->shape().queryHeads || besideOut.length != q.length)) return kBadShape;
      return told(info, palimpsest::attend(*cache_, layer, q.data, static_cast<int>(tokens), out.data, norms.data, lse.data,
                                           info[5].As<Napi::Boolean>().Value(), {besideLse.data, besideOut.data}));
    });
  }

  template <class Set>
  Napi::Value setShare(const Info& info, const Set& set) {
    return guarded(info, [&]() -> Status {
      if (!cache_) return kClosed;
      if (!info[0].IsNumber()) return kBadArgument;
      const double share = info[0].As<Napi::Number>().DoubleValue();
      if (!(share >= 0 && share <= 1)) return kBadArgument;
      set(static_cast<float>(share));
      return kOk;
    });
  }

  template <class Read>
  Napi::Value readCounts(const Info& info, const Read& read) {
    return guarded(info, [&]() -> Status {
      int layer;
      Span<double> out;
      if (!cache_) return kClosed;
      if (!readLayer(info[0], &layer) || !readArray(info[1], napi_float64_array, &out)) return kBadArgument;
      if (out.length != 2) return kBadShape;
      const uint64_t* counts = read(cache_->layer(layer));
      for (int i = 0; i < 2; i++) out.data[i] = static_cast<double>(counts[i]);
      return kOk;
    });
  }

  // (share): values that together hold at most this share of a row's mass may be skipped; 0 reads all
  Napi::Value setSkipShare(const Info& info) { return setShare(info, [&](float share) { cache_->setSkipShare(share); }); }

  // (layer, Float64Array[2] <- heads of rot pages met while a share was set, those of them whose values were not read)
  Napi::Value skipped(const Info& info) { return readCounts(info, [](const Layer& layer) { return layer.skipped; }); }

  // (layer, sketch)
  Napi::Value setSketch(const Info& info) {
    return guarded(info, [&]() -> Status {
      int layer;
      Span<float> sketch;
      if (!cache_) return kClosed;
      if (!readLayer(info[0], &layer) || !readFloats(info[1], &sketch)) return kBadArgument;
      if (sketch.length != cache_->shape().queryElements() * kSketchRows) return kBadShape;
      if (!finite(sketch)) return kBadValue;
      cache_->setSketch(layer, sketch.data);
      return told(info, kOk);
    });
  }

  // (layer, Float64Array[1])
  Napi::Value hasSketch(const Info& info) {
    return guarded(info, [&]() -> Status {
      int layer;
      Span<double> out;
      if (!cache_) return kClosed;
      if (!readLayer(info[0], &layer)) return kBadArgument;
      if (!readArray(info[1], napi_float64_array, &out) || out.length != 1) return kBadShape;
      out.data[0] = cache_->hasSketch(layer);
      return kOk;
    });
  }

  // (layer, page, side, rows)
  Napi::Value decode(const Info& info) {
    return guarded(info, [&]() -> Status {
      int layer, page;
      bool isKey;
      Span<float> rows;
      if (!cache_) return kClosed;
      if (!readPage(info, true, &layer, &page) || !readSide(info[2], &isKey) || !readFloats(info[3], &rows)) return kBadArgument;
      const Layer& it = cache_->layer(layer);
      const size_t tokens = page == it.sealed() ? it.openRows() : kPageTokens;
      if (rows.length != tokens * cache_->shape().rowElements()) return kBadShape;
      if (page < it.sealed() && it.page(page).isGone()) return kUnsupported;
      cache_->decode(layer, page, isKey, rows.data);
      return kOk;
    });
  }

  // (Float64Array[5] <- open, sinks, pages, scratch, seal)
  Napi::Value memory(const Info& info) {
    return guarded(info, [&]() -> Status {
      Span<double> out;
      if (!cache_) return kClosed;
      if (!readArray(info[0], napi_float64_array, &out) || out.length != 5) return kBadShape;
      const CacheMemory memory = cache_->memory();
      out.data[0] = static_cast<double>(memory.open);
      out.data[1] = static_cast<double>(memory.sinks);
      out.data[2] = static_cast<double>(memory.pages);
      out.data[3] = static_cast<double>(memory.scratch);
      out.data[4] = static_cast<double>(cache_->sealBytes());
      return kOk;
    });
  }

  std::shared_ptr<Cache> cache_;
  std::shared_ptr<Told> told_ = std::make_shared<Told>();
};

// ---- Functions

// () -> { isa, available, compiler, abi }: instruction sets as numbers.
Napi::Value describe(const Info& info) {
  Napi::Env env = info.Env();
  Napi::Object about = Napi::Object::New(env);
  about.Set("isa", Napi::Number::New(env, env.GetInstanceData<Environment>()->kernels->isa));
  Napi::Array available = Napi::Array::New(env);
  uint32_t count = 0;
  for (const Isa isa : kIsasBestFirst) {
    if (kernelsFor(isa)) available.Set(count++, Napi::Number::New(env, isa));
  }
  about.Set("available", available);
#if defined(__clang__)
  about.Set("compiler", Napi::String::New(env, "clang " __clang_version__));
#elif defined(__GNUC__)
  about.Set("compiler", Napi::String::New(env, "gcc " __VERSION__));
#else
  about.Set("compiler", Napi::String::New(env, "unknown"));
#endif
  // native/load.ts computes the same line and refuses a binary with a different one.
  about.Set("abi", Napi::String::New(env, kAbi));
  return about;
}

// (isa number): used by caches opened from now on.
Napi::Value setIsa(const Info& info) {
  return guarded(info, [&]() -> Status {
    int isa;
    if (!readInt(info[0], 0, kIsaCount - 1, &isa)) return kBadArgument;
    const Kernels* kernels = kernelsFor(static_cast<Isa>(isa));
    if (!kernels) return kUnsupported;
    info.Env().GetInstanceData<Environment>()->kernels = kernels;
    return kOk;
  });
}

Napi::Object init(Napi::Env env, Napi::Object exports) {
  env.SetInstanceData(new Environment);
  exports.Set("Pool", PoolHandle::define(env));
  exports.Set("Cache", CacheHandle::define(env));
  exports.Set("describe", Napi::Function::New(env, describe, "describe"));
  exports.Set("setIsa", Napi::Function::New(env, setIsa, "setIsa"));
  exportFloats(env, exports);
  exportLatents(env, exports);
  exportBatches(env, exports);
  exportDense(env, exports);
  exportFiles(env, exports);
  exportLog(env, exports);
  exportPredictors(env, exports);
#if defined(PALIMPSEST_TEST_ALLOCATIONS)
  exportAllocations(env, exports);
#endif
  return exports;
}

}  // namespace

palimpsest::OpenCache palimpsest::openCacheOf(const Napi::Value& value) {
  const CacheHandle* handle = CacheHandle::from(value);
  return handle ? handle->held() : OpenCache{};
}

NODE_API_MODULE(palimpsest, init)
