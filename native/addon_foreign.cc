// The part of the binding (addon.cc) for pages that the caller codes.
#include <napi.h>

#include <cstring>

#include "arguments.h"
#include "cache/trial.h"
#include "environment.h"

namespace palimpsest {

namespace {

bool readPage(const Cache& cache, const Info& info, int* layer, int* page) {
  return readInt(info[0], 0, cache.shape().layers - 1, layer) && readInt(info[1], 0, cache.layer(*layer).sealed() - 1, page);
}

// Rows of all heads of a page; absent ones stay null where they may.
Status readRows(const Cache& cache, const Napi::Value& value, bool mayBeAbsent, const float** rows) {
  Span<float> given;
  if (mayBeAbsent && absent(value)) return kOk;
  if (!readFloats(value, &given)) return kBadArgument;
  if (given.length != kPageTokens * cache.shape().rowElements()) return kBadShape;
  *rows = given.data;
  return kOk;
}

}  // namespace

// (layer, page, Uint8Array bytes, Float64Array[1] <- bytes freed)
Status holdForeignCall(Cache& cache, const Info& info) {
  int layer, page;
  Span<uint8_t> bytes;
  Span<double> out;
  if (!readPage(cache, info, &layer, &page) || !readArray(info[2], napi_uint8_array, &bytes)) return kBadArgument;
  if (!readArray(info[3], napi_float64_array, &out) || out.length != 1) return kBadShape;
  return cache.holdForeign(layer, page, bytes.data, bytes.length, out.data);
}

// (layer, page, Float64Array[1] <- their number; Uint8Array [bytes] <- or undefined to get only the number)
Status foreignBytesCall(Cache& cache, const Info& info) {
  int layer, page;
  Span<double> about;
  Span<uint8_t> out;
  if (!readPage(cache, info, &layer, &page)) return kBadArgument;
  if (!readArray(info[2], napi_float64_array, &about) || about.length != 1) return kBadShape;
  const Page& it = cache.layer(layer).page(page);
  if (it.kind != kForeign) return kUnsupported;
  about.data[0] = it.foreignBytes;
  if (absent(info[3])) return kOk;
  if (!readArray(info[3], napi_uint8_array, &out) || out.length != it.foreignBytes) return kBadShape;
  std::memcpy(out.data, it.foreign.bytes(), it.foreignBytes);
  return kOk;
}

// (layer, page, format, k, v, Float64Array[1] <- bytes freed)
Status restoreForeignCall(Cache& cache, const Info& info) {
  int layer, page, format;
  const float *k = nullptr, *v = nullptr;
  Span<double> out;
  if (!readPage(cache, info, &layer, &page) || !readInt(info[2], 0, kFormatSlots - 1, &format) || !isFormat(format)) return kBadArgument;
  if (const Status status = readRows(cache, info[3], false, &k); status != kOk) return status;
  if (const Status status = readRows(cache, info[4], false, &v); status != kOk) return status;
  if (!readArray(info[5], napi_float64_array, &out) || out.length != 1) return kBadShape;
  return cache.restoreForeign(layer, page, format, k, v, out.data);
}

// (layer, page, k | undefined, v | undefined, Float64Array[1] <- the error)
Status trialForeignCall(Cache& cache, const Info& info) {
  int layer, page;
  GivenRows given;
  Span<double> out;
  if (!readPage(cache, info, &layer, &page)) return kBadArgument;
  if (const Status status = readRows(cache, info[2], true, &given.k); status != kOk) return status;
  if (const Status status = readRows(cache, info[3], true, &given.v); status != kOk) return status;
  if (!given.k && !given.v) return kBadArgument;
  if (!readArray(info[4], napi_float64_array, &out) || out.length != 1) return kBadShape;
  return trialGiven(cache, layer, page, given, out.data);
}

}  // namespace palimpsest
