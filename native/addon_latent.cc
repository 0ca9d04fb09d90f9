// The JavaScript binding of latents and packed weights: typed arrays in, a status out, every length checked (see
// addon.cc).
#include <cmath>
#include <memory>

#include "arguments.h"
#include "cache/latent.h"
#include "cache/layer.h"
#include "environment.h"
#include "settle.h"

namespace palimpsest {

namespace {

constexpr int kMaxOutputs = 1 << 20;
constexpr int kGemmContractionMax = 1 << 16;
constexpr int kMaxRows = 1 << 24;
constexpr napi_type_tag kWeightsTag = {0x51d8be20a7f34c19ULL, 0x8e04f6ab13c27d95ULL};

class WeightsHandle : public Napi::ObjectWrap<WeightsHandle> {
 public:
  static Napi::Function define(Napi::Env env) {
    return DefineClass(env, "Weights",
                       {InstanceMethod<&WeightsHandle::open>("open"), InstanceMethod<&WeightsHandle::close>("close"),
                        InstanceMethod<&WeightsHandle::bytes>("bytes"), InstanceMethod<&WeightsHandle::multiply>("multiply"),
                        InstanceMethod<&WeightsHandle::materialize>("materialize"), InstanceMethod<&WeightsHandle::finishMix>("finishMix")});
  }

  explicit WeightsHandle(const Info& info) : Napi::ObjectWrap<WeightsHandle>(info) { info.This().As<Napi::Object>().TypeTag(&kWeightsTag); }

 private:
  // (w [outputs][contraction], outputs, contraction, turned)
  Napi::Value open(const Info& info) {
    return guarded(info, [&]() -> Status {
      Span<float> w;
      int outputs, contraction;
      if (weights_ || !readFloats(info[0], &w) || !info[3].IsBoolean()) return kBadArgument;
      if (!readInt(info[1], 1, kMaxOutputs, &outputs) || !readInt(info[2], 1, kGemmContractionMax, &contraction)) return kBadArgument;
      if (w.length != static_cast<uint64_t>(outputs) * contraction) return kBadShape;
      const bool turned = info[3].As<Napi::Boolean>().Value();
      if (turned && !latentWidthServed(contraction)) return kUnsupported;
      if (!finite(w)) return kBadValue;
      weights_ = std::make_unique<PackedWeights>(kernelsOf(info.Env()), w.data, outputs, contraction, turned);
      turned_ = turned;
      return told(info);
    });
  }

  Napi::Value close(const Info& info) {
    weights_.reset();
    scratch_ = LatentScratch();
    told_.tell(info.Env(), 0);
    return answer(info, kOk);
  }

  // (Float64Array[1])
  Napi::Value bytes(const Info& info) {
    return guarded(info, [&]() -> Status {
      Span<double> out;
      if (!weights_) return kClosed;
      if (!readArray(info[0], napi_float64_array, &out) || out.length != 1) return kBadShape;
      out.data[0] = static_cast<double>(weights_->bytes());
      return kOk;
    });
  }

  // (levels Int8Array [rows][contraction], rows, rowScale [rows], planes, base [outputs] | undefined, out
  // [rows][outputs])
  Napi::Value multiply(const Info& info) {
    return guarded(info, [&]() -> Status {
      Span<int8_t> levels;
      Span<float> scale, base, out;
      int rows, planes;
      if (!weights_) return kClosed;
      if (turned_ || !readArray(info[0], napi_int8_array, &levels) || !readInt(info[1], 0, kMaxRows, &rows)) return kBadArgument;
      if (!readFloats(info[2], &scale) || !readInt(info[3], 1, 2, &planes)) return kBadArgument;
      if ((!absent(info[4]) && !readFloats(info[4], &base)) || !readFloats(info[5], &out)) return kBadArgument;
      // Use 64 bits, because size_t has only 32 in WebAssembly.
      const uint64_t outputs = weights_->outputs(), contraction = weights_->contraction();
      if (levels.length != rows * contraction || scale.length != static_cast<uint64_t>(rows) || out.length != rows * outputs) return kBadShape;
      if (!absent(info[4]) && base.length != outputs) return kBadShape;
      if (rows == 0) return kOk;
      const size_t blocks = (static_cast<size_t>(rows) + 7) / 8;
      if (scratch_.tile.size() < blocks * 8 * weights_->depth()) scratch_.tile.resize(blocks * 8 * weights_->depth());
      packLevels(levels.data, rows, static_cast<int>(contraction), scratch_.tile.data());
      weights_->multiply(kernelsOf(info.Env()), scratch_.tile.data(), rows, scale.data, planes, base.data, 0, out.data, outputs);
      return told(info);
    });
  }

  // (format, page Uint8Array, planes, bias [outputs] | undefined, out [128][outputs])
  Napi::Value materialize(const Info& info) {
    return guarded(info, [&]() -> Status {
      int format, planes;
      Span<uint8_t> page;
      Span<float> bias, out;
      if (!weights_) return kClosed;
      if (!turned_ || !readInt(info[0], 0, kLatentFormats - 1, &format) || !readArray(info[1], napi_uint8_array, &page)) return kBadArgument;
      if (!readInt(info[2], 1, 2, &planes) || (!absent(info[3]) && !readFloats(info[3], &bias)) || !readFloats(info[4], &out)) return kBadArgument;
      const size_t outputs = weights_->outputs();
      const int width = weights_->contraction();
      if (page.length != latentBytes(format, width) || out.length != outputs * kPageTokens) return kBadShape;
      if (reinterpret_cast<uintptr_t>(page.data) % 4 != 0) return kBadArgument;
      if (!absent(info[3]) && bias.length != outputs) return kBadShape;
      if (!finiteLatent(latentView(format, width, page.data))) return kBadValue;
      palimpsest::materialize(kernelsOf(info.Env()), latentView(format, width, page.data), *weights_, planes, bias.data, out.data, outputs, scratch_);
      return told(info);
    });
  }

  // (mixed [n][width], bias [outputs] | undefined, mass [n] | undefined, out [n][outputs])
  Napi::Value finishMix(const Info& info) {
    return guarded(info, [&]() -> Status {
      Span<float> mixed, bias, mass, out;
      if (!weights_) return kClosed;
      if (!readFloats(info[0], &mixed) || !readFloats(info[3], &out)) return kBadArgument;
      if (absent(info[1]) != absent(info[2])) return kBadArgument;
      if (!absent(info[1]) && (!readFloats(info[1], &bias) || !readFloats(info[2], &mass))) return kBadArgument;
      const size_t outputs = weights_->outputs(), width = weights_->contraction();
      const size_t n = mixed.length / width;
      if (mixed.length == 0 || mixed.length % width != 0 || n > 65536 || out.length != n * outputs) return kBadShape;
      if (!absent(info[1]) && (bias.length != outputs || mass.length != n)) return kBadShape;
      palimpsest::finishMix(kernelsOf(info.Env()), mixed.data, static_cast<int>(n), *weights_, bias.data, mass.data, out.data, outputs, scratch_);
      return told(info);
    });
  }

  // Ends a call that may have taken memory.
  Status told(const Info& info) {
    told_.tell(info.Env(), weights_->bytes() + scratch_.bytes());
    return kOk;
  }

  std::unique_ptr<PackedWeights> weights_;
  bool turned_ = false;
  LatentScratch scratch_;
  Told told_;
};

// Reads a format, a width and a page of that format and width.
bool readPage(const Info& info, int* format, int* width, Span<uint8_t>* page) {
  if (!readInt(info[0], 0, kLatentFormats - 1, format) || !readInt(info[1], 64, 16384, width)) return false;
  return latentWidthServed(*width) && readArray(info[2], napi_uint8_array, page) && reinterpret_cast<uintptr_t>(page->data) % 4 == 0;
}

// (format, width, page Uint8Array <-, x [128][width], firstRow)
Napi::Value encode(const Info& info) {
  return guarded(info, [&]() -> Status {
    int format, width, firstRow;
    Span<uint8_t> page;
    Span<float> x;
    if (!readPage(info, &format, &width, &page) || !readFloats(info[3], &x) || !readInt(info[4], 0, kSinkTokens, &firstRow)) return kBadArgument;
    if (page.length != latentBytes(format, width) || x.length != static_cast<uint64_t>(kPageTokens) * width) return kBadShape;
    for (size_t i = 0; i < x.length; i++) {
      if (!(std::fabs(x.data[i]) <= 65504.0f)) return kBadValue;
    }
    std::vector<float> rows(x.data, x.data + x.length);
    Buffer<uint8_t> space;
    space.grow(latentSpace(width));
    encodeLatentPage(kernelsOf(info.Env()), format, width, rows.data(), firstRow, page.data, nullptr, workspaceIn(space));
    return kOk;
  });
}

// (format, width, page Uint8Array, x [128][width] <-)
Napi::Value decode(const Info& info) {
  return guarded(info, [&]() -> Status {
    int format, width;
    Span<uint8_t> page;
    Span<float> x;
    if (!readPage(info, &format, &width, &page) || !readFloats(info[3], &x)) return kBadArgument;
    if (page.length != latentBytes(format, width) || x.length != static_cast<uint64_t>(kPageTokens) * width) return kBadShape;
    if (!finiteLatent(latentView(format, width, page.data))) return kBadValue;
    LatentScratch scratch;
    decodeLatentPage(kernelsOf(info.Env()), latentView(format, width, page.data), x.data, scratch);
    return kOk;
  });
}

// (format, width, page Uint8Array, p [n][128], mixed [n][width] <-)
Napi::Value mix(const Info& info) {
  return guarded(info, [&]() -> Status {
    int format, width;
    Span<uint8_t> page;
    Span<float> p, mixed;
    if (!readPage(info, &format, &width, &page) || !readFloats(info[3], &p) || !readFloats(info[4], &mixed)) return kBadArgument;
    const size_t n = p.length / kPageTokens;
    if (page.length != latentBytes(format, width) || p.length % kPageTokens != 0 || n > 65536 || mixed.length != n * width) return kBadShape;
    if (!finiteLatent(latentView(format, width, page.data))) return kBadValue;
    LatentScratch scratch;
    if (n > 0) mixLatentPage(kernelsOf(info.Env()), latentView(format, width, page.data), p.data, static_cast<int>(n), mixed.data, scratch);
    return kOk;
  });
}

// Reads an optional array of finite floats.
bool readOptional(const Napi::Value& value, Span<float>* out) { return absent(value) || (readFloats(value, out) && finite(*out)); }

std::vector<float> copied(const Span<float>& x) { return std::vector<float>(x.data, x.data + x.length); }

// (layer, width, wk [n*d][width], wv, kBias [n*d] | undefined, vBias | undefined, kNorm [d] | undefined, epsilon)
Status setWeights(Cache& cache, const Info& info) {
  const CacheShape& shape = cache.shape();
  const size_t d = shape.headDim, row = shape.rowElements();
  int index, width;
  Span<float> k, v, kBias, vBias, kNorm;
  if (!readInt(info[1], 0, shape.layers - 1, &index) || !readInt(info[2], 1, 1 << 16, &width)) return kBadArgument;
  if (!latentWidthServed(width)) return kUnsupported;
  if (!readFloats(info[3], &k) || !readFloats(info[4], &v) || !info[8].IsNumber()) return kBadArgument;
  if (!readOptional(info[5], &kBias) || !readOptional(info[6], &vBias) || !readOptional(info[7], &kNorm)) return kBadValue;
  if (k.length != uint64_t{row} * width || v.length != k.length) return kBadShape;
  if ((kBias.data && kBias.length != row) || (vBias.data && vBias.length != row) || (kNorm.data && kNorm.length != d)) return kBadShape;
  const float epsilon = info[8].As<Napi::Number>().FloatValue();
  if (!finite(k) || !finite(v) || !(epsilon >= 0) || !std::isfinite(epsilon)) return kBadValue;
  auto weights = std::make_shared<LatentLayer>();
  weights->width = width;
  for (int head = 0; head < shape.kvHeads; head++) {
    const size_t from = static_cast<size_t>(head) * d * width;
    weights->k.emplace_back(cache.kernels(), k.data + from, shape.headDim, width, true);
    weights->v.emplace_back(cache.kernels(), v.data + from, shape.headDim, width, true);
  }
  weights->kBias = copied(kBias);
  weights->vBias = copied(vBias);
  weights->kNorm = copied(kNorm);
  weights->kNormEpsilon = epsilon;
  return cache.setLatentLayer(index, std::move(weights));
}

// (cos [positions][rotaryDim/2], sin, rotaryDim, interleaved)
Status setRotary(Cache& cache, const Info& info) {
  Span<float> cos, sin;
  int rotaryDim;
  if (!readFloats(info[1], &cos) || !readFloats(info[2], &sin) || !info[4].IsBoolean()) return kBadArgument;
  if (!readInt(info[3], 2, cache.shape().headDim, &rotaryDim) || rotaryDim % 2 != 0) return kBadArgument;
  if (cos.length != sin.length || cos.length % (rotaryDim / 2) != 0 || cos.length / (rotaryDim / 2) > (1u << 30)) return kBadShape;
  if (!finite(cos) || !finite(sin)) return kBadValue;
  auto table = std::make_shared<RotaryTable>();
  *table = {copied(cos), copied(sin), rotaryDim, info[4].As<Napi::Boolean>().Value()};
  return cache.setRotary(std::move(table));
}

// (layer, page, format of the latent or of the restored page, Float64Array[1] <- bytes freed; to hold or keep the bytes
// Uint8Array, to restore whether the latent stays, undefined if it stays where it was kept beside)
Status moveLatent(Cache& cache, const Info& info, LatentOperation operation) {
  int layer, page, format;
  Span<double> out;
  if (!readInt(info[1], 0, cache.shape().layers - 1, &layer)) return kBadArgument;
  if (!readInt(info[2], 0, cache.layer(layer).sealed() - 1, &page)) return kBadArgument;
  if (!readInt(info[3], 0, (operation == kLatentRestore ? kFormatSlots : kLatentFormats) - 1, &format)) return kBadArgument;
  if (operation == kLatentRestore && !isFormat(format)) return kBadArgument;
  if (!readArray(info[4], napi_float64_array, &out) || out.length != 1) return kBadShape;
  if (operation == kLatentMove) return cache.toLatent(layer, page, format, out.data);
  if (operation == kLatentDrop) return cache.dropLatent(layer, page, out.data);
  if (operation == kLatentRestore) {
    if (!absent(info[5]) && !info[5].IsBoolean()) return kBadArgument;
    const bool isBeside = cache.layer(layer).page(page).kind == kResident;
    return cache.restore(layer, page, format, absent(info[5]) ? isBeside : info[5].As<Napi::Boolean>().Value(), out.data);
  }
  Span<uint8_t> bytes;
  if (!readArray(info[5], napi_uint8_array, &bytes)) return kBadArgument;
  if (!cache.layer(layer).latent) return kUnsupported;
  if (bytes.length != latentBytes(format, cache.layer(layer).latent->width)) return kBadShape;
  if (operation == kLatentHold) return cache.hold(layer, page, format, bytes.data, out.data);
  out.data[0] = 0;
  return cache.keep(layer, page, format, bytes.data);
}

}  // namespace

Status latentCall(Cache& cache, const Info& info) {
  int operation, bytes;
  if (!readInt(info[0], 0, kLatentOperations - 1, &operation)) return kBadArgument;
  switch (static_cast<LatentOperation>(operation)) {
    case kLatentWeights: return setWeights(cache, info);
    case kLatentRotary: return setRotary(cache, info);
    case kLatentHold:
    case kLatentRestore:
    case kLatentMove:
    case kLatentDrop:
    case kLatentKeep: return moveLatent(cache, info, static_cast<LatentOperation>(operation));
    case kLatentScratch:
      if (!readInt(info[1], 0, 1 << 30, &bytes)) return kBadArgument;
      cache.setLatentScratch(static_cast<size_t>(bytes));
      return kOk;
  }
  return kBadArgument;
}

void exportLatents(Napi::Env env, Napi::Object exports) {
  exports.Set("Weights", WeightsHandle::define(env));
  exports.Set("encodeLatent", Napi::Function::New(env, encode, "encodeLatent"));
  exports.Set("decodeLatent", Napi::Function::New(env, decode, "decodeLatent"));
  exports.Set("mixLatent", Napi::Function::New(env, mix, "mixLatent"));
}

}  // namespace palimpsest
