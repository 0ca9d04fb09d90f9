// The JavaScript binding of the matrices around attention: typed arrays in, a status out, every length checked (see
// addon.cc).
#include <algorithm>
#include <cmath>
#include <memory>

#include "arguments.h"
#include "cache/dense.h"
#include "environment.h"
#include "settle.h"

namespace palimpsest {

namespace {

constexpr int kMaxSize = 1 << 20;
constexpr int kMaxTokens = 1 << 20;
constexpr int kMaxRank = 4096;
constexpr int kAdaptersMax = 1 << 16;
constexpr napi_type_tag kDenseTag = {0x1f77c30a94be4d62ULL, 0xa6d05e82f1c93b47ULL};

class DenseHandle : public Napi::ObjectWrap<DenseHandle> {
 public:
  static Napi::Function define(Napi::Env env) {
    return DefineClass(env, "Dense",
                       {InstanceMethod<&DenseHandle::open>("open"), InstanceMethod<&DenseHandle::close>("close"),
                        InstanceMethod<&DenseHandle::bytes>("bytes"), InstanceMethod<&DenseHandle::setRows>("setRows"),
                        InstanceMethod<&DenseHandle::setBias>("setBias"), InstanceMethod<&DenseHandle::setRouter>("setRouter"),
                        InstanceMethod<&DenseHandle::setNorm>("setNorm"), InstanceMethod<&DenseHandle::setPlanes>("setPlanes"),
                        InstanceMethod<&DenseHandle::setAdapter>("setAdapter"), InstanceMethod<&DenseHandle::dropAdapter>("dropAdapter"), InstanceMethod<&DenseHandle::first>("first"),
                        InstanceMethod<&DenseHandle::next>("next"), InstanceMethod<&DenseHandle::last>("last"),
                        InstanceMethod<&DenseHandle::logits>("logits")});
  }

  explicit DenseHandle(const Info& info) : Napi::ObjectWrap<DenseHandle>(info) { info.This().As<Napi::Object>().TypeTag(&kDenseTag); }

 private:
  // (Int32Array[11] layers, hidden, intermediate, query heads, KV heads, head size, vocabulary, threads, features,
  // experts, experts of a row; epsilon, cap of logits or undefined for none)
  Napi::Value open(const Info& info) {
    return guarded(info, [&]() -> Status {
      Span<int32_t> numbers;
      if (dense_ || !readArray(info[0], napi_int32_array, &numbers) || numbers.length != 11 || !info[1].IsNumber()) return kBadArgument;
      constexpr int kMost[] = {4096, kMaxSize, kMaxSize, 1024, 1024, 1024, 1 << 24, 64};
      for (int i = 0; i < 8; i++) {
        if (numbers.data[i] < 1 || numbers.data[i] > kMost[i]) return kBadArgument;
      }
      const int32_t* at = numbers.data;
      if (at[8] < 0 || at[8] > kDenseFeatures) return kBadArgument;
      const int experts = at[9], used = at[10];
      if ((at[8] & kLayerNorms) && (at[8] & (kNoPreNorms | kPostNorms))) return kBadArgument;
      if (experts > 0 && (at[8] & (kLayerNorms | kParallel | kUngated | kGeluErf))) return kBadArgument;
      if (experts < 0 || experts > kExpertsMax || experts > kExpertsAllMax / at[0]) return kBadArgument;
      if (experts == 0 ? used != 0 : used < 1 || used > std::min(experts, kExpertsUsedMax)) return kBadArgument;
      const double epsilon = info[1].As<Napi::Number>().DoubleValue();
      if (!(epsilon >= 0 && epsilon <= 1) || at[3] * at[5] > kMaxSize || at[4] * at[5] > kMaxSize) return kBadArgument;
      float cap = 0;
      if (!info[2].IsUndefined()) {
        if (!info[2].IsNumber()) return kBadArgument;
        cap = info[2].As<Napi::Number>().FloatValue();
        if (!(cap >= kLeastCap && cap <= kLargestFactor)) return kBadArgument;
      }
      const DenseShape shape = {at[0], at[1], at[2], at[3], at[4], at[5], at[6], experts, used, at[8], static_cast<float>(epsilon), cap};
      dense_ = std::make_unique<Dense>(kernelsOf(info.Env()), shape, Share(crewOf(info.Env()), kHasThreads ? at[7] : 1));
      return kOk;
    });
  }

  Napi::Value close(const Info& info) {
    dense_.reset();
    told_.tell(info.Env(), 0);
    return answer(info, kOk);
  }

  // (Float64Array[1])
  Napi::Value bytes(const Info& info) {
    return guarded(info, [&]() -> Status {
      Span<double> out;
      if (!dense_) return kClosed;
      if (!readArray(info[0], napi_float64_array, &out) || out.length != 1) return kBadShape;
      out.data[0] = static_cast<double>(dense_->bytes());
      return kOk;
    });
  }

  bool readSlot(const Info& info, int* layer, int* slot) {
    return readInt(info[0], 0, dense_->shape().layers, layer) && readInt(info[1], 0, kDenseSlots - 1, slot);
  }

  // (layer, slot, type, bytes of the rows as a file stores them, the first of these rows, their number, expert)
  Napi::Value setRows(const Info& info) {
    return guarded(info, [&]() -> Status {
      int layer, slot, type, from, rows, expert;
      Span<uint8_t> bytes;
      if (!dense_) return kClosed;
      if (!readSlot(info, &layer, &slot) || !readInt(info[2], 0, kDenseTypeCount - 1, &type)) return kBadArgument;
      if (!readArray(info[3], napi_uint8_array, &bytes)) return kBadArgument;
      if (!readInt(info[6], 0, kExpertsMax, &expert) || !dense_->has(layer, slot, expert)) return kBadArgument;
      if (!readInt(info[4], 0, 1 << 24, &from) || !readInt(info[5], 1, 1 << 24, &rows)) return kBadArgument;
      if (bytes.length != static_cast<uint64_t>(rows) * denseRowBytes(static_cast<DenseType>(type), dense_->inputs(layer, slot))) return kBadShape;
      complete_ = false;
      return told(info, dense_->setRows(layer, slot, expert, static_cast<DenseType>(type), bytes.data, from, rows));
    });
  }

  // (layer, slot, bias [outputs])
  Napi::Value setBias(const Info& info) {
    return guarded(info, [&]() -> Status {
      int layer, slot;
      Span<float> bias;
      if (!dense_) return kClosed;
      if (!readSlot(info, &layer, &slot) || !readFloats(info[2], &bias)) return kBadArgument;
      if (!dense_->has(layer, slot, 0) || (layer < dense_->shape().layers && dense_->isOfExperts(slot))) return kBadArgument;
      if (bias.length != static_cast<size_t>(dense_->outputs(layer, slot))) return kBadShape;
      return told(info, dense_->setBias(layer, slot, bias.data));
    });
  }

  // (layer, weights [experts][hidden])
  Napi::Value setRouter(const Info& info) {
    return guarded(info, [&]() -> Status {
      int layer;
      Span<float> weights;
      if (!dense_) return kClosed;
      const DenseShape& shape = dense_->shape();
      if (shape.experts == 0 || !readInt(info[0], 0, shape.layers - 1, &layer) || !readFloats(info[1], &weights)) return kBadArgument;
      if (weights.length != static_cast<size_t>(shape.experts) * shape.hidden) return kBadShape;
      return told(info, dense_->setRouter(layer, weights.data));
    });
  }

  // (layer, norm, gain)
  Napi::Value setNorm(const Info& info) {
    return guarded(info, [&]() -> Status {
      int layer, norm;
      Span<float> gain;
      if (!dense_) return kClosed;
      if (!readInt(info[0], 0, dense_->shape().layers, &layer) || !readInt(info[1], 0, kDenseNorms - 1, &norm)) return kBadArgument;
      if (!readFloats(info[2], &gain)) return kBadArgument;
      if (gain.length == 0 || gain.length != static_cast<size_t>(dense_->normSize(layer, norm))) return kBadShape;
      return told(info, dense_->setNorm(layer, norm, gain.data));
    });
  }

  // (layer, slot, planes: 1 or 2)
  Napi::Value setPlanes(const Info& info) {
    return guarded(info, [&]() -> Status {
      int layer, slot, planes;
      if (!dense_) return kClosed;
      if (!readSlot(info, &layer, &slot) || !readInt(info[2], 1, 2, &planes) || !dense_->has(layer, slot, 0)) return kBadArgument;
      dense_->setPlanes(layer, slot, planes);
      return kOk;
    });
  }

  // (adapter, layer, slot, rank, a [rank][inputs], b [outputs][rank], gains [outputs] or undefined)
  Napi::Value setAdapter(const Info& info) {
    return guarded(info, [&]() -> Status {
      int adapter, layer, slot, rank;
      Span<float> a, b, gains = {};
      if (!dense_) return kClosed;
      if (!readInt(info[0], 0, kAdaptersMax - 1, &adapter) || !readInt(info[1], 0, dense_->shape().layers - 1, &layer)) return kBadArgument;
      if (!readInt(info[2], 0, kDenseSlots - 1, &slot) || dense_->isOfExperts(slot) || !readInt(info[3], 1, kMaxRank, &rank)) return kBadArgument;
      if (!readFloats(info[4], &a) || a.length != static_cast<uint64_t>(rank) * dense_->inputs(layer, slot)) return kBadShape;
      if (!readFloats(info[5], &b) || b.length != static_cast<uint64_t>(rank) * dense_->outputs(layer, slot)) return kBadShape;
      const bool gained = !info[6].IsUndefined();
      if (gained && (!readFloats(info[6], &gains) || gains.length != static_cast<size_t>(dense_->outputs(layer, slot)))) return kBadShape;
      return told(info, dense_->setAdapter(adapter, layer, slot, rank, a.data, b.data, gained ? gains.data : nullptr));
    });
  }

  // (adapter)
  Napi::Value dropAdapter(const Info& info) {
    return guarded(info, [&]() -> Status {
      int adapter;
      if (!dense_) return kClosed;
      if (!readInt(info[0], 0, kAdaptersMax - 1, &adapter)) return kBadArgument;
      dense_->dropAdapter(adapter);
      return told(info, kOk);
    });
  }

  // Which rows of `tokens` have which adapters, from parts [count][3] and scales [count]; undefined: none has any.
  bool readMix(const Napi::Value& parts, const Napi::Value& scales, int tokens, DenseMix* mix) {
    *mix = {};
    if (parts.IsUndefined()) return true;
    Span<int32_t> rows;
    Span<float> factors;
    if (!readArray(parts, napi_int32_array, &rows) || !readFloats(scales, &factors) || rows.length != factors.length * 3 || factors.length > kMaxTokens) return false;
    for (size_t i = 0; i < factors.length; i++) {
      const int32_t* at = rows.data + i * 3;
      if (at[0] < 0 || at[1] < 1 || at[0] > tokens - at[1] || at[2] < 0 || !dense_->hasAdapter(at[2])) return false;
    }
    *mix = {rows.data, factors.data, static_cast<int>(factors.length)};
    return true;
  }

  // Runs `body` for `tokens` tokens if the model is complete.
  template <typename Body>
  Napi::Value run(const Info& info, int tokensAt, Body body) {
    return guarded(info, [&]() -> Status {
      int tokens;
      if (!dense_) return kClosed;
      if (!complete_) complete_ = dense_->complete();
      if (!complete_ || !readInt(info[tokensAt], 1, kMaxTokens, &tokens)) return kBadArgument;
      return told(info, body(tokens));
    });
  }

  // Ends a call that may have taken or freed memory.
  Status told(const Info& info, Status status) {
    told_.tell(info.Env(), dense_->heldBytes());
    return status;
  }

  // Reads a float array of tokens * width.
  static bool rowsOf(const Napi::Value& value, int tokens, int width, Span<float>* out) {
    return readFloats(value, out) && out->length == static_cast<uint64_t>(tokens) * width;
  }

  int queryWidth() const { return dense_->shape().queryHeads * dense_->shape().headDim; }
  int keyWidth() const { return dense_->shape().kvHeads * dense_->shape().headDim; }

  // (x, tokens, q, k, v, parts, scales)
  Napi::Value first(const Info& info) {
    return run(info, 1, [&](int tokens) -> Status {
      Span<float> x, q, k, v;
      if (!rowsOf(info[0], tokens, dense_->shape().hidden, &x) || !rowsOf(info[2], tokens, queryWidth(), &q)) return kBadShape;
      if (!rowsOf(info[3], tokens, keyWidth(), &k) || !rowsOf(info[4], tokens, keyWidth(), &v)) return kBadShape;
      DenseMix mix;
      if (!readMix(info[5], info[6], tokens, &mix)) return kBadArgument;
      dense_->first(x.data, tokens, mix, q.data, k.data, v.data);
      return kOk;
    });
  }

  // (layer, attention, x, tokens, xNext, q, k, v, parts, scales)
  Napi::Value next(const Info& info) {
    return run(info, 3, [&](int tokens) -> Status {
      int layer;
      Span<float> attention, x, xNext, q, k, v;
      if (!readInt(info[0], 0, dense_->shape().layers - 2, &layer)) return kBadArgument;
      const int hidden = dense_->shape().hidden;
      if (!rowsOf(info[1], tokens, queryWidth(), &attention) || !rowsOf(info[2], tokens, hidden, &x)) return kBadShape;
      if (!rowsOf(info[4], tokens, hidden, &xNext) || !rowsOf(info[5], tokens, queryWidth(), &q)) return kBadShape;
      if (!rowsOf(info[6], tokens, keyWidth(), &k) || !rowsOf(info[7], tokens, keyWidth(), &v)) return kBadShape;
      DenseMix mix;
      if (!readMix(info[8], info[9], tokens, &mix)) return kBadArgument;
      dense_->next(layer, attention.data, x.data, tokens, mix, xNext.data, q.data, k.data, v.data);
      return kOk;
    });
  }

  // (attention, x, tokens, xNext, parts, scales)
  Napi::Value last(const Info& info) {
    return run(info, 2, [&](int tokens) -> Status {
      Span<float> attention, x, xNext;
      const int hidden = dense_->shape().hidden;
      if (!rowsOf(info[0], tokens, queryWidth(), &attention) || !rowsOf(info[1], tokens, hidden, &x)) return kBadShape;
      if (!rowsOf(info[3], tokens, hidden, &xNext)) return kBadShape;
      DenseMix mix;
      if (!readMix(info[4], info[5], tokens, &mix)) return kBadArgument;
      dense_->last(attention.data, x.data, tokens, mix, xNext.data);
      return kOk;
    });
  }

  // (x, rows, out [rows][vocab])
  Napi::Value logits(const Info& info) {
    return run(info, 1, [&](int rows) -> Status {
      Span<float> x, out;
      if (!rowsOf(info[0], rows, dense_->shape().hidden, &x) || !rowsOf(info[2], rows, dense_->shape().vocab, &out)) return kBadShape;
      dense_->logits(x.data, rows, out.data);
      return kOk;
    });
  }

  std::unique_ptr<Dense> dense_;
  Told told_;
  bool complete_ = false;
};

}  // namespace

void exportDense(Napi::Env env, Napi::Object exports) { exports.Set("Dense", DenseHandle::define(env)); }

}  // namespace palimpsest
