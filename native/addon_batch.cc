// Several caches in one call: Batch. It knows its caches only for as long as they are open, and does nothing that would
// keep one. Members are added one by one, because a call has room for few objects (native/wasm.ts).
#include <napi.h>

#include <vector>

#include "arguments.h"
#include "cache/attend.h"
#include "cache/batch.h"
#include "environment.h"
#include "settle.h"

namespace palimpsest {

namespace {

template <class T>
bool isSame(const std::weak_ptr<T>& a, const std::weak_ptr<T>& b) {
  return !a.owner_before(b) && !b.owner_before(a);
}

bool isSame(const CacheShape& a, const CacheShape& b) {
  return a.layers == b.layers && a.queryHeads == b.queryHeads && a.kvHeads == b.kvHeads && a.headDim == b.headDim;
}

class BatchHandle : public Napi::ObjectWrap<BatchHandle> {
 public:
  static Napi::Function define(Napi::Env env) {
    return DefineClass(env, "Batch",
                       {InstanceMethod<&BatchHandle::clear>("clear"), InstanceMethod<&BatchHandle::add>("add"),
                        InstanceMethod<&BatchHandle::append>("append"), InstanceMethod<&BatchHandle::attend>("attend")});
  }

  explicit BatchHandle(const Info& info) : Napi::ObjectWrap<BatchHandle>(info) {}

 private:
  // A cache that may have been closed meanwhile.
  struct Known {
    std::weak_ptr<Cache> cache;
    std::weak_ptr<Told> told;
    int tokens;
  };

  // Those of a call, which nobody closes before it ends.
  struct Open {
    std::vector<std::shared_ptr<Cache>> caches;
    std::vector<Member> members;
  };

  // ()
  Napi::Value clear(const Info& info) {
    members_.clear();
    tokens_ = 0;
    return answer(info, kOk);
  }

  // (cache, tokens). Refused: what is no cache, or is there already; one of another pool, shape or set of kernels.
  Napi::Value add(const Info& info) {
    return guarded(info, [&]() -> Status {
      int tokens;
      const OpenCache given = openCacheOf(info[0]);
      if (!given.told || !readInt(info[1], 1, kTokensMost, &tokens) || tokens > kTokensMost - tokens_) return kBadArgument;
      if (!given.cache) return kClosed;
      const Known known{given.cache, given.told, tokens};
      for (const Known& other : members_) {
        if (isSame(other.cache, known.cache)) return kBadArgument;
      }
      if (!members_.empty()) {
        const std::shared_ptr<Cache> first = members_[0].cache.lock();
        if (!first) return kClosed;
        if (first->account().pool() != given.cache->account().pool()) return kBadArgument;
        if (!isSame(first->shape(), given.cache->shape())) return kBadShape;
        if (first->kernels() != given.cache->kernels()) return kUnsupported;
      }
      members_.push_back(known);
      tokens_ += tokens;
      return kOk;
    });
  }

  // Everybody, unless one was closed.
  bool open(Open* open, size_t* refused) const {
    open->caches.reserve(members_.size());
    open->members.reserve(members_.size());
    for (const Known& known : members_) {
      open->caches.push_back(known.cache.lock());
      if (!open->caches.back()) return *refused = open->members.size(), false;
      open->members.push_back({open->caches.back().get(), known.tokens});
    }
    return true;
  }

  // Runs a call of all members: `sizes` says whether the arrays have the right lengths. Writes which one was refused to
  // `at`, nothing where it was none of them in particular.
  template <class Sizes, class Work>
  Napi::Value call(const Info& info, const Napi::Value& at, const Sizes& sizes, const Work& work) {
    return guarded(info, [&]() -> Status {
      int layer;
      Span<double> who;
      if (members_.empty() || !readArray(at, napi_float64_array, &who) || who.length != 1) return kBadArgument;
      size_t refused;
      Open all;
      if (!open(&all, &refused)) return who.data[0] = static_cast<double>(refused), kClosed;
      const CacheShape& shape = all.members[0].cache->shape();
      if (!readInt(info[0], 0, shape.layers - 1, &layer)) return kBadArgument;
      if (!sizes(shape)) return kBadShape;
      const Status status = work(all.members, layer, &refused);
      // One in each call in turn, because asking each what it holds would take longer than a short step of it.
      turn_ = (turn_ + 1) % all.members.size();
      if (const std::shared_ptr<Told> told = members_[turn_].told.lock()) told->tell(info.Env(), all.members[turn_].cache->besideBytes());
      if (status != kOk) who.data[0] = static_cast<double>(refused);
      return status;
    });
  }

  // (layer, k, v, Float64Array[1] <- the member that was refused)
  Napi::Value append(const Info& info) {
    Span<float> k, v;
    if (!readFloats(info[1], &k) || !readFloats(info[2], &v)) return answer(info, kBadArgument);
    const auto sizes = [&](const CacheShape& shape) { return k.length == v.length && k.length == tokens_ * shape.rowElements(); };
    return call(info, info[3], sizes, [&](std::span<const Member> members, int layer, size_t* refused) {
      const Status status = palimpsest::append(members, layer, k.data, v.data, refused);
      settle(info.Env(), *members[0].cache->account().pool());
      return status;
    });
  }

  // (layer, q, out, xNorms | undefined, lse | undefined, observe, Float64Array[1] <- the member that was refused,
  // besideLse | undefined, besideOut | undefined)
  Napi::Value attend(const Info& info) {
    Span<float> q, out, norms, lse, besideLse, besideOut;
    if (!readFloats(info[1], &q) || !readFloats(info[2], &out)) return answer(info, kBadArgument);
    const bool hasNorms = !absent(info[3]), hasLse = !absent(info[4]);
    if ((hasNorms && !readFloats(info[3], &norms)) || (hasLse && !readFloats(info[4], &lse)) || !info[5].IsBoolean()) return answer(info, kBadArgument);
    if (!readBeside(info[7], info[8], &besideLse, &besideOut)) return answer(info, kBadArgument);
    const auto sizes = [&](const CacheShape& shape) {
      return q.length == tokens_ * shape.queryElements() && out.length == q.length && (!hasNorms || norms.length == tokens_) &&
             (!hasLse || lse.length == tokens_ * shape.queryHeads) &&
             (!besideLse.data || (besideLse.length == tokens_ * shape.queryHeads && besideOut.length == q.length));
    };
    return call(info, info[6], sizes, [&](std::span<const Member> members, int layer, size_t* refused) {
      return palimpsest::attend(members, layer, q.data, out.data, norms.data, lse.data, info[5].As<Napi::Boolean>().Value(), refused,
                                {besideLse.data, besideOut.data});
    });
  }

  static constexpr int kTokensMost = 1 << 30;
  std::vector<Known> members_;
  uint64_t tokens_ = 0;  // 64 bits, so that a product of sizes does not wrap on a machine of 32
  size_t turn_ = 0;
};

}  // namespace

void exportBatches(Napi::Env env, Napi::Object exports) { exports.Set("Batch", BatchHandle::define(env)); }

}  // namespace palimpsest
