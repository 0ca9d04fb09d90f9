// Latents and packed weights as JavaScript sees them: typed arrays in, a status out, every length checked (see addon.cc).
#include <cmath>
#include <memory>

#include "arguments.h"
#include "cache/latent.h"
#include "environment.h"

namespace palimpsest {

namespace {

constexpr int kMaxOutputs = 1 << 20;
constexpr int kMaxContraction = 1 << 16;
constexpr int kMaxRows = 1 << 24;
constexpr napi_type_tag kWeightsTag = {0x51d8be20a7f34c19ULL, 0x8e04f6ab13c27d95ULL};

bool finite(const Span<float>& x) {
  for (size_t i = 0; i < x.length; i++) {
    if (!std::isfinite(x.data[i])) return false;
  }
  return true;
}

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
      if (!readInt(info[1], 1, kMaxOutputs, &outputs) || !readInt(info[2], 1, kMaxContraction, &contraction)) return kBadArgument;
      if (w.length != static_cast<uint64_t>(outputs) * contraction) return kBadShape;
      const bool turned = info[3].As<Napi::Boolean>().Value();
      if (turned && !latentWidthServed(contraction)) return kUnsupported;
      if (!finite(w)) return kBadValue;
      weights_ = std::make_unique<PackedWeights>(kernelsOf(info.Env()), w.data, outputs, contraction, turned);
      turned_ = turned;
      return kOk;
    });
  }

  Napi::Value close(const Info& info) {
    weights_.reset();
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

  // (levels Int8Array [rows][contraction], rows, rowScale [rows], planes, base [outputs] | undefined, out [rows][outputs])
  Napi::Value multiply(const Info& info) {
    return guarded(info, [&]() -> Status {
      Span<int8_t> levels;
      Span<float> scale, base, out;
      int rows, planes;
      if (!weights_) return kClosed;
      if (turned_ || !readArray(info[0], napi_int8_array, &levels) || !readInt(info[1], 0, kMaxRows, &rows)) return kBadArgument;
      if (!readFloats(info[2], &scale) || !readInt(info[3], 1, 2, &planes)) return kBadArgument;
      if ((!absent(info[4]) && !readFloats(info[4], &base)) || !readFloats(info[5], &out)) return kBadArgument;
      const size_t outputs = weights_->outputs(), contraction = weights_->contraction();
      if (levels.length != rows * contraction || scale.length != static_cast<uint64_t>(rows) || out.length != rows * outputs) return kBadShape;
      if (!absent(info[4]) && base.length != outputs) return kBadShape;
      if (rows == 0) return kOk;
      const size_t blocks = (static_cast<size_t>(rows) + 7) / 8;
      if (scratch_.tile.size() < blocks * 8 * weights_->depth()) scratch_.tile.resize(blocks * 8 * weights_->depth());
      packLevels(levels.data, rows, static_cast<int>(contraction), scratch_.tile.data());
      weights_->multiply(kernelsOf(info.Env()), scratch_.tile.data(), rows, scale.data, planes, base.data, 0, out.data, outputs);
      return kOk;
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
      palimpsest::materialize(kernelsOf(info.Env()), latentView(format, width, page.data), *weights_, planes, bias.data, out.data, outputs, scratch_);
      return kOk;
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
      return kOk;
    });
  }

  std::unique_ptr<PackedWeights> weights_;
  bool turned_ = false;
  LatentScratch scratch_;
};

// Format, width and a page of them.
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
    encodeLatentPage(kernelsOf(info.Env()), format, width, rows.data(), firstRow, page.data);
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
    decodeLatentPage(kernelsOf(info.Env()), latentView(format, width, page.data), x.data);
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
    LatentScratch scratch;
    if (n > 0) mixLatentPage(kernelsOf(info.Env()), latentView(format, width, page.data), p.data, static_cast<int>(n), mixed.data, scratch);
    return kOk;
  });
}

}  // namespace

void exportLatents(Napi::Env env, Napi::Object exports) {
  exports.Set("Weights", WeightsHandle::define(env));
  exports.Set("encodeLatent", Napi::Function::New(env, encode, "encodeLatent"));
  exports.Set("decodeLatent", Napi::Function::New(env, decode, "decodeLatent"));
  exports.Set("mixLatent", Napi::Function::New(env, mix, "mixLatent"));
}

}  // namespace palimpsest
