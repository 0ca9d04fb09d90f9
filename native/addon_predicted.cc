// The JavaScript binding of predictors, and of all pages of a cache at once: typed arrays in, a status out, every
// length checked (see addon.cc).
#include <algorithm>
#include <cmath>
#include <memory>

#include "arguments.h"
#include "cache/layer.h"
#include "cache/page_writer.h"
#include "cache/predictor.h"
#include "environment.h"
#include "settle.h"

namespace palimpsest {

namespace {

constexpr int kWidthMax = 1 << 14;
constexpr int kDistributionsMax = 64;
constexpr int kRecordNumbers = 5;
constexpr int kRecordWays = 5;  // stored, predicted, stored and freed, stored and evicted, bytes of the caller
constexpr napi_type_tag kPredictorTag = {0x3fd0a1b97c64e825ULL, 0xa6e2459bd8170c3fULL};

bool isWhole(double x, size_t most) { return x >= 0 && x <= static_cast<double>(most) && x == std::floor(x); }

template <typename Element>
std::vector<Element> copied(const Span<Element>& x) { return std::vector<Element>(x.data, x.data + x.length); }

class PredictorHandle : public Napi::ObjectWrap<PredictorHandle> {
 public:
  static Napi::Function define(Napi::Env env) {
    return DefineClass(env, "Predictor",
                       {InstanceMethod<&PredictorHandle::open>("open"), InstanceMethod<&PredictorHandle::addLayer>("addLayer"),
                        InstanceMethod<&PredictorHandle::setBack>("setBack"), InstanceMethod<&PredictorHandle::write>("write"),
                        InstanceMethod<&PredictorHandle::bytes>("bytes"), InstanceMethod<&PredictorHandle::close>("close")});
  }

  explicit PredictorHandle(const Info& info) : Napi::ObjectWrap<PredictorHandle>(info) { info.This().As<Napi::Object>().TypeTag(&kPredictorTag); }

  // Null for anything else, and for one that is closed.
  static const Predictor* from(const Napi::Value& value) {
    if (!value.IsObject()) return nullptr;
    const Napi::Object object = value.As<Napi::Object>();
    return object.CheckTypeTag(&kPredictorTag) ? Unwrap(object)->predictor_.get() : nullptr;
  }

 private:
  // (kvHeads, headDim, shares Uint16Array [distributions][43])
  Napi::Value open(const Info& info) {
    return guarded(info, [&]() -> Status {
      int kvHeads, headDim;
      Span<uint16_t> shares;
      if (predictor_ || !readInt(info[0], 1, kHeadsMax, &kvHeads) || !readInt(info[1], 8, kHeadDimMax, &headDim)) return kBadArgument;
      if (headDim % 8 != 0 || kvHeads * headDim > kWidthMax || !readArray(info[2], napi_uint16_array, &shares)) return kBadArgument;
      const size_t count = shares.length / kCodedSymbols;
      if (shares.length % kCodedSymbols != 0 || count < 1 || count > kDistributionsMax) return kBadShape;
      auto made = std::make_unique<Predictor>();
      made->kvHeads = kvHeads;
      made->headDim = headDim;
      if (!made->setDistributions(shares.data, static_cast<int>(count))) return kBadValue;
      predictor_ = std::move(made);
      return told(info);
    });
  }

  // One side: (weights Int8Array [w][contraction], scales [w], base [w], factors Uint8Array [w], tables Uint8Array
  // [w]), from info[first] on.
  Status readSide(const Info& info, size_t first, size_t contraction, std::unique_ptr<PredictedSide>* out) const {
    const size_t width = predictor_->width();
    Span<int8_t> weights;
    Span<float> scales, base;
    Span<uint8_t> factors, tables;
    if (!readArray(info[first], napi_int8_array, &weights) || !readFloats(info[first + 1], &scales) || !readFloats(info[first + 2], &base)) return kBadArgument;
    if (!readArray(info[first + 3], napi_uint8_array, &factors) || !readArray(info[first + 4], napi_uint8_array, &tables)) return kBadArgument;
    if (weights.length != width * contraction || scales.length != width || base.length != width || factors.length != width || tables.length != width) {
      return kBadShape;
    }
    if (!finite(scales) || !finite(base)) return kBadValue;
    for (size_t i = 0; i < width; i++) {
      if (factors.data[i] * kCodedLevelMax > 127 || tables.data[i] >= predictor_->distributions) return kBadValue;
    }
    // The same numbers as in engine/session/park/predictor.ts, with inputs first and then residuals in the order of
    // coding (cache/predictor.h).
    std::vector<int> order = codedOrder(tables.data, static_cast<int>(width));
    std::vector<float> floats(weights.length);
    std::vector<uint8_t> codedFactors(width), codedTables(width);
    const size_t inputs = contraction - width;
    for (size_t o = 0; o < width; o++) {
      const double scale = static_cast<double>(scales.data[o]);
      const int8_t* from = weights.data + o * contraction;
      float* to = floats.data() + o * contraction;
      for (size_t c = 0; c < inputs; c++) to[c] = static_cast<float>(static_cast<double>(from[width + c]) * scale);
      for (size_t c = 0; c < width; c++) to[inputs + c] = static_cast<float>(static_cast<double>(from[order[c]]) * scale);
    }
    if (!allFinite(floats.data(), floats.size())) return kBadValue;
    for (size_t c = 0; c < width; c++) {
      codedFactors[c] = factors.data[order[c]];
      codedTables[c] = tables.data[order[c]];
    }
    *out = std::make_unique<PredictedSide>(PredictedSide{PackedWeights(kernelsOf(info.Env()), floats.data(), static_cast<int>(width), static_cast<int>(contraction), false),
                                                         copied(base), std::move(codedFactors), std::move(codedTables), std::move(order), nullptr});
    return kOk;
  }

  // (keys and then values as in readSide, centres [2w], gains [2w])
  Napi::Value addLayer(const Info& info) {
    return guarded(info, [&]() -> Status {
      if (!predictor_) return kClosed;
      const size_t width = predictor_->width(), below = predictor_->layers.empty() ? 0 : 2 * width;
      if (predictor_->layers.size() >= kLayersMax) return kBadArgument;
      std::unique_ptr<PredictedSide> k, v;
      Span<float> centres, gains;
      if (!readFloats(info[10], &centres) || !readFloats(info[11], &gains)) return kBadArgument;
      if (centres.length != 2 * width || gains.length != 2 * width) return kBadShape;
      if (!finite(centres) || !finite(gains)) return kBadValue;
      if (const Status status = readSide(info, 0, width + below, &k); status != kOk) return status;
      if (const Status status = readSide(info, 5, 2 * width + below, &v); status != kOk) return status;
      predictor_->layers.push_back({std::move(*k), std::move(*v), copied(centres), copied(gains)});
      return told(info);
    });
  }

  // (layer, whether it is of keys, Float32Array [w][w]): row c turns residuals into codes of column c, of those as they
  // stand in addLayer.
  Napi::Value setBack(const Info& info) {
    return guarded(info, [&]() -> Status {
      int layer;
      Span<float> turn;
      if (!predictor_) return kClosed;
      if (!readInt(info[0], 0, static_cast<int>(predictor_->layers.size()) - 1, &layer) || !info[1].IsBoolean() || !readFloats(info[2], &turn)) return kBadArgument;
      const size_t width = predictor_->width();
      if (turn.length != width * width) return kBadShape;
      if (!finite(turn)) return kBadValue;
      PredictedSide& side = info[1].As<Napi::Boolean>().Value() ? predictor_->layers[layer].k : predictor_->layers[layer].v;
      std::vector<float> rows(turn.length);
      for (size_t c = 0; c < width; c++) std::copy_n(turn.data + side.order[c] * width, width, rows.data() + c * width);
      side.back = std::make_unique<PackedWeights>(kernelsOf(info.Env()), rows.data(), static_cast<int>(width), static_cast<int>(width), false);
      return told(info);
    });
  }

  // (layer, below Int8Array [128][2w] or undefined, k [128][w], v, firstRow, out Uint8Array, levels Int8Array
  // [128][2w], Float64Array[1] <- bytes written): PageWriter::write.
  Napi::Value write(const Info& info) {
    return guarded(info, [&]() -> Status {
      int layer, firstRow;
      Span<int8_t> below{}, levels;
      Span<float> k, v;
      Span<uint8_t> out;
      Span<double> written;
      if (!predictor_) return kClosed;
      if (!readInt(info[0], 0, static_cast<int>(predictor_->layers.size()) - 1, &layer) || !readInt(info[4], 0, kPageTokens, &firstRow)) return kBadArgument;
      if (!readFloats(info[2], &k) || !readFloats(info[3], &v) || !readArray(info[5], napi_uint8_array, &out)) return kBadArgument;
      if (!readArray(info[6], napi_int8_array, &levels) || !readArray(info[7], napi_float64_array, &written)) return kBadArgument;
      if (absent(info[1]) != (layer == 0) || (layer > 0 && !readArray(info[1], napi_int8_array, &below))) return kBadArgument;
      const size_t elements = static_cast<size_t>(predictor_->width()) * kPageTokens;
      if (k.length != elements || v.length != elements || levels.length != 2 * elements || written.length != 1) return kBadShape;
      if (layer > 0 && below.length != 2 * elements) return kBadShape;
      if (!finite(k) || !finite(v)) return kBadValue;
      if (!predictor_->layers[layer].k.back || !predictor_->layers[layer].v.back) return kUnsupported;
      if (!writer_) writer_ = std::make_unique<PageWriter>();
      writer_->reserve(*predictor_);
      // Levels may be given as what the next call has below, so the writer reads all of `below` before it writes any.
      written.data[0] = static_cast<double>(
          writer_->write(kernelsOf(info.Env()), *predictor_, layer, below.data, k.data, v.data, firstRow, out.data, out.length, levels.data));
      return told(info);
    });
  }

  // (Float64Array[1])
  Napi::Value bytes(const Info& info) {
    return guarded(info, [&]() -> Status {
      Span<double> out;
      if (!predictor_) return kClosed;
      if (!readArray(info[0], napi_float64_array, &out) || out.length != 1) return kBadShape;
      out.data[0] = static_cast<double>(predictor_->bytes());
      return kOk;
    });
  }

  Napi::Value close(const Info& info) {
    predictor_.reset();
    writer_.reset();
    told_.tell(info.Env(), 0);
    return answer(info, kOk);
  }

  // Ends a call that may have taken memory.
  Status told(const Info& info) {
    told_.tell(info.Env(), predictor_->bytes() + (writer_ ? writer_->bytes() : 0));
    return kOk;
  }

  std::unique_ptr<Predictor> predictor_;
  std::unique_ptr<PageWriter> writer_;  // made when something is written
  Told told_;
};

}  // namespace

// (bytes Uint8Array, records Float64Array [pages][layers][5]: whether it is predicted, formats of keys and values,
// where it begins, its size; a predictor or undefined, cos [tokens][rotaryDim/2], sin, rotaryDim, interleaved;
// Float64Array[1] <- the record that is damaged, -1 for none)
Status importPagesCall(Cache& cache, const Info& info) {
  Span<uint8_t> bytes;
  Span<double> numbers;
  Span<double> out;
  PageRecords given{};
  if (!readArray(info[0], napi_uint8_array, &bytes) || !readArray(info[1], napi_float64_array, &numbers)) return kBadArgument;
  if (!readArray(info[7], napi_float64_array, &out) || out.length != 1) return kBadShape;
  const size_t layers = cache.shape().layers, count = numbers.length / kRecordNumbers;
  if (numbers.length % (kRecordNumbers * layers) != 0 || count / layers >= 1u << 22 || count > 1u << 24) return kBadShape;
  given.pages = static_cast<int>(count / layers);
  std::vector<PageRecord> records(count);
  for (size_t i = 0; i < count; i++) {
    const double* of = numbers.data + i * kRecordNumbers;
    if (!isWhole(of[0], kRecordWays - 1) || !isWhole(of[1], kFormatSlots - 1) || !isWhole(of[2], kFormatSlots - 1)) return kBadArgument;
    const int k = static_cast<int>(of[1]), v = static_cast<int>(of[2]);
    if (!isFormat(k) || !isFormat(v)) return kBadArgument;
    if (!isWhole(of[3], bytes.length) || !isWhole(of[4], bytes.length - static_cast<size_t>(of[3]))) return kBadShape;
    const PageKind kind = of[0] == 2 ? kFreed : of[0] == 3 ? kEvicted : of[0] == 4 ? kForeign : kResident;
    records[i] = {of[0] == 1, kind, {k, v}, bytes.data + static_cast<size_t>(of[3]), static_cast<size_t>(of[4])};
  }
  given.records = records.data();
  if (!absent(info[2])) {
    Span<float> cos, sin;
    given.predictor = PredictorHandle::from(info[2]);
    if (!given.predictor) return kClosed;
    if (!readFloats(info[3], &cos) || !readFloats(info[4], &sin) || !info[6].IsBoolean()) return kBadArgument;
    if (!readInt(info[5], 2, cache.shape().headDim, &given.rotary.rotaryDim) || given.rotary.rotaryDim % 2 != 0) return kBadArgument;
    const size_t wanted = static_cast<size_t>(cache.heldPages() + given.pages) * kPageTokens * (given.rotary.rotaryDim / 2);
    if (cos.length != wanted || sin.length != wanted) return kBadShape;
    if (!finite(cos) || !finite(sin) || (wanted > 0 && cos.data[0] == 0)) return kBadValue;
    given.rotary.cos = cos.data;
    given.rotary.sin = sin.data;
    given.rotary.interleaved = info[6].As<Napi::Boolean>().Value();
  }
  int damaged = -1;
  given.damaged = &damaged;
  const Status status = cache.importPages(given);
  out.data[0] = damaged;
  return status;
}

void exportPredictors(Napi::Env env, Napi::Object exports) { exports.Set("Predictor", PredictorHandle::define(env)); }

}  // namespace palimpsest
