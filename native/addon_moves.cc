// The part of the binding (addon.cc) for moves, trials, the page table, and stored pages and sides.
#include <napi.h>

#include <algorithm>
#include <array>
#include <limits>
#include <vector>

#include "arguments.h"
#include "cache/trial.h"
#include "environment.h"
#include "log/digest.h"

namespace palimpsest {

namespace {

// The page table's entry for a side that has no format.
constexpr uint8_t kNoFormat = 255;

bool readPage(const Cache& cache, const Info& info, int* layer, int* page) {
  return readInt(info[0], 0, cache.shape().layers - 1, layer) && readInt(info[1], 0, cache.layer(*layer).sealed() - 1, page);
}

// 0: keys, 1: values, 2: both.
bool readSides(const Napi::Value& value, Sides* sides) {
  int part;
  if (!readInt(value, 0, 2, &part)) return false;
  *sides = static_cast<Sides>(part + 1);
  return true;
}

bool readCandidates(const Napi::Value& value, std::vector<TrialCandidate>* candidates) {
  Span<uint8_t> moves;
  if (!readArray(value, napi_uint8_array, &moves) || moves.length % 2 != 0 || moves.length > 2 * kTrialCandidatesMax) return false;
  for (size_t i = 0; i < moves.length; i += 2) {
    const int format = moves.data[i + 1], latent = format - kLatentCandidatesFrom;
    if (moves.data[i] > 2 || !(isFormat(format) || (latent >= 0 && latent < kLatentFormats))) return false;
    candidates->push_back({static_cast<Sides>(moves.data[i] + 1), format});
  }
  return true;
}

}  // namespace

// (layer, Uint8Array kind [pages], kFormat [pages], vFormat [pages], latent [pages] 0 or the latent format + 1,
// Float64Array mass [pages + 1], Float64Array[1] <- mass of the sinks)
Status tableCall(Cache& cache, const Info& info) {
  int layer;
  Span<uint8_t> columns[4];
  Span<double> mass, sinks;
  if (!readInt(info[0], 0, cache.shape().layers - 1, &layer)) return kBadArgument;
  const Layer& it = cache.layer(layer);
  for (int i = 0; i < 4; i++) {
    if (!readArray(info[i + 1], napi_uint8_array, &columns[i])) return kBadArgument;
    if (columns[i].length != it.pages.size()) return kBadShape;
  }
  if (!readArray(info[5], napi_float64_array, &mass)) return kBadArgument;
  if (mass.length != it.pages.size() + 1) return kBadShape;
  if (!readArray(info[6], napi_float64_array, &sinks) || sinks.length != 1) return kBadShape;
  for (int index = 0; index < it.sealed(); index++) {
    const Page& page = it.page(index);
    const bool isResident = page.kind == kResident;
    columns[0].data[index] = page.kind;
    columns[1].data[index] = isResident ? static_cast<uint8_t>(page.body->k.format) : kNoFormat;
    columns[2].data[index] = isResident ? static_cast<uint8_t>(page.body->v.format) : kNoFormat;
    columns[3].data[index] = static_cast<uint8_t>(page.latent.format + 1);
    mass.data[index] = it.mass[index];
  }
  mass.data[it.sealed()] = it.openMass;
  sinks.data[0] = it.sinkMass;
  return kOk;
}

// (layer, page, part, format, Float64Array[1] <- bytes freed)
Status transcodeCall(Cache& cache, const Info& info) {
  int layer, page, format;
  Sides sides;
  Span<double> out;
  if (!readPage(cache, info, &layer, &page) || !readSides(info[2], &sides)) return kBadArgument;
  if (!readInt(info[3], 0, kFormatSlots - 1, &format) || !isFormat(format)) return kBadArgument;
  if (!readArray(info[4], napi_float64_array, &out) || out.length != 1) return kBadShape;
  return cache.transcode(layer, page, sides, format, out.data);
}

// (layer, page, part, format)
Status startMoveCall(Cache& cache, const Info& info) {
  int layer, page, format;
  Sides sides;
  if (!readPage(cache, info, &layer, &page) || !readSides(info[2], &sides)) return kBadArgument;
  if (!readInt(info[3], 0, kFormatSlots - 1, &format) || !isFormat(format)) return kBadArgument;
  return cache.startMove(layer, page, sides, format);
}

// (wait, Float64Array[1 + 2 * moves under way] <- how many were finished, then for each its status and the bytes freed)
Status finishMovesCall(Cache& cache, const Info& info) {
  Span<double> out;
  if (!info[0].IsBoolean()) return kBadArgument;
  const size_t moves = cache.movesUnderWay();
  if (!readArray(info[1], napi_float64_array, &out) || out.length != 1 + 2 * moves) return kBadShape;
  std::vector<MoveResult> results(moves);
  const size_t count = cache.finishMoves(info[0].As<Napi::Boolean>().Value(), results.data());
  out.data[0] = static_cast<double>(count);
  for (size_t i = 0; i < count; i++) {
    out.data[1 + 2 * i] = results[i].status;
    out.data[2 + 2 * i] = results[i].freed;
  }
  return kOk;
}

// (layer, page, side, Float64Array[1] <- format); answers kUnsupported when the side has none
Status formatCall(Cache& cache, const Info& info) {
  int layer, page, side;
  Span<double> out;
  if (!readPage(cache, info, &layer, &page) || !readInt(info[2], 0, 1, &side)) return kBadArgument;
  if (!readArray(info[3], napi_float64_array, &out) || out.length != 1) return kBadShape;
  const Page& it = cache.layer(layer).page(page);
  if (it.kind != kResident) return kUnsupported;
  out.data[0] = it.side(side == 0).format;
  return kOk;
}

// (layer, first page, Float64Array[3 * pages] <- CRC-32C of the codes of keys and values and of the latent of so many
// sealed pages, NaN where a page has none)
Status sideDigestsCall(Cache& cache, const Info& info) {
  int layer, first;
  Span<double> out;
  if (!readInt(info[0], 0, cache.shape().layers - 1, &layer)) return kBadArgument;
  const Layer& it = cache.layer(layer);
  if (!readInt(info[1], 0, it.sealed(), &first) || !readArray(info[2], napi_float64_array, &out)) return kBadArgument;
  if (out.length % 3 != 0 || out.length / 3 > it.pages.size() - first) return kBadShape;
  const auto digestOf = [](bool isThere, const auto& parts) {
    uint32_t crc = ~0u;
    for (const PartRef& part : parts) {
      if (part) crc = bestDigests().crc(crc, part.bytes(), part.size());
    }
    return isThere ? static_cast<double>(~crc) : std::numeric_limits<double>::quiet_NaN();
  };
  for (size_t at = 0; at < out.length; at += 3) {
    const Page& page = it.page(first + static_cast<int>(at / 3));
    for (const bool isKey : {true, false}) out.data[at + (isKey ? 0 : 1)] = digestOf(page.kind == kResident, page.side(isKey).part);
    out.data[at + 2] = digestOf(page.latent.isThere(), page.latent.part);
  }
  return kOk;
}

// (layer, page, Uint8Array [part, format, part, format ...], Float64Array errors)
Status trialCall(Cache& cache, const Info& info) {
  int layer, page;
  Span<double> errors;
  std::vector<TrialCandidate> candidates;
  if (!readPage(cache, info, &layer, &page) || !readCandidates(info[2], &candidates)) return kBadArgument;
  if (!readArray(info[3], napi_float64_array, &errors)) return kBadArgument;
  if (candidates.size() != errors.length) return kBadShape;
  return trial(cache, layer, page, candidates.data(), static_cast<int>(candidates.size()), errors.data);
}

// (operation, layer, page, side, Float64Array[1] <- bytes freed, the error, or the format)
Status originalCall(Cache& cache, const Info& info) {
  int operation, layer, page, side;
  Span<double> out;
  if (!readInt(info[0], 0, kOriginalOperations - 1, &operation) || !readInt(info[1], 0, cache.shape().layers - 1, &layer)) return kBadArgument;
  if (!readInt(info[2], 0, cache.layer(layer).sealed() - 1, &page) || !readInt(info[3], 0, 1, &side)) return kBadArgument;
  if (!readArray(info[4], napi_float64_array, &out) || out.length != 1) return kBadShape;
  const bool isKey = side == 0;
  const PageSide& original = cache.layer(layer).page(page).original[side];
  switch (static_cast<OriginalOperation>(operation)) {
    case kOriginalKeep: return cache.keepOriginal(layer, page, isKey);
    case kOriginalDrop: return cache.dropOriginal(layer, page, isKey, out.data);
    case kOriginalRestore: return cache.restoreOriginal(layer, page, isKey, out.data);
    case kOriginalTry: {
      const TrialCandidate candidate{sideBit(isKey), kAsOriginal};
      return trial(cache, layer, page, &candidate, 1, out.data);
    }
    case kOriginalFormat:
      out.data[0] = original.format;
      return original.isThere() ? kOk : kUnsupported;
  }
  return kBadArgument;
}

// (operation, layer, page, side, Uint16Array places of the rows to keep, Float64Array[1] <- bytes taken or freed, the
// error, or the number of rows)
Status keptRowsCall(Cache& cache, const Info& info) {
  int operation, layer, page, side;
  Span<uint16_t> places;
  Span<double> out;
  if (!readInt(info[0], 0, kKeptRowsOperations - 1, &operation) || !readInt(info[1], 0, cache.shape().layers - 1, &layer)) return kBadArgument;
  if (!readInt(info[2], 0, cache.layer(layer).sealed() - 1, &page) || !readInt(info[3], 0, 1, &side)) return kBadArgument;
  if (!readArray(info[4], napi_uint16_array, &places) || places.length > kKeptRowsMax) return kBadArgument;
  if (!readArray(info[5], napi_float64_array, &out) || out.length != 1) return kBadShape;
  const bool isKey = side == 0;
  const KeptRows& rows = cache.layer(layer).page(page).rows[side];
  switch (static_cast<KeptRowsOperation>(operation)) {
    case kRowsKeep: {
      if (places.length == 0) return kBadArgument;
      // Copied before they are checked, because another thread may change the caller's bytes.
      uint16_t copied[kKeptRowsMax];
      std::copy_n(places.data, places.length, copied);
      const Status status = cache.keepRows(layer, page, isKey, copied, static_cast<int>(places.length));
      out.data[0] = static_cast<double>(rows.part.size());
      return status;
    }
    case kRowsDrop: return cache.dropRows(layer, page, isKey, out.data);
    case kRowsTry: {
      const TrialCandidate candidate{sideBit(isKey), kAsKeptRows};
      return trial(cache, layer, page, &candidate, 1, out.data);
    }
    case kRowsCount:
      out.data[0] = rows.count;
      return kOk;
  }
  return kBadArgument;
}

// (layer, page, Uint8Array [part, format, part, format ...])
Status startTrialCall(Cache& cache, const Info& info) {
  int layer, page;
  std::vector<TrialCandidate> candidates;
  if (!readPage(cache, info, &layer, &page) || !readCandidates(info[2], &candidates)) return kBadArgument;
  return startTrial(cache, layer, page, candidates.data(), static_cast<int>(candidates.size()));
}

// (wait, Float64Array[1 + errors of all started trials] <- how many were finished, then the errors of those)
Status finishTrialsCall(Cache& cache, const Info& info) {
  Span<double> out;
  if (!info[0].IsBoolean()) return kBadArgument;
  if (!readArray(info[1], napi_float64_array, &out) || out.length != 1 + startedErrors(cache)) return kBadShape;
  out.data[0] = static_cast<double>(finishTrials(cache, info[0].As<Napi::Boolean>().Value(), out.data + 1));
  return kOk;
}

// (layer, page, Int32Array[2] <- bytes, width of the latent or 0; Uint8Array [bytes] <- or undefined to get only the
// numbers)
Status exportPageCall(Cache& cache, const Info& info) {
  int layer, page;
  Span<int32_t> about;
  Span<uint8_t> out;
  if (!readPage(cache, info, &layer, &page)) return kBadArgument;
  if (!readArray(info[2], napi_int32_array, &about) || about.length != 2) return kBadShape;
  const size_t bytes = cache.storedBytes(layer, page);
  if (bytes > INT32_MAX) return kUnsupported;
  const PageLatent& latent = cache.layer(layer).page(page).latent;
  about.data[0] = static_cast<int32_t>(bytes);
  about.data[1] = latent.isThere() ? latent.weights->width : 0;
  if (absent(info[3])) return kOk;
  if (!readArray(info[3], napi_uint8_array, &out) || out.length != bytes) return kBadShape;
  cache.exportPage(layer, page, out.data);
  return kOk;
}

// (layer, Int32Array[5]: kind, format of keys, of values, latent format + 1, width of the latent; Uint8Array bytes)
Status importPageCall(Cache& cache, const Info& info) {
  int layer;
  Span<int32_t> about;
  Span<uint8_t> bytes;
  if (!readInt(info[0], 0, cache.shape().layers - 1, &layer)) return kBadArgument;
  if (!readArray(info[1], napi_int32_array, &about) || about.length != 5) return kBadShape;
  if (!readArray(info[2], napi_uint8_array, &bytes)) return kBadArgument;
  const auto [kind, k, v, latent, width] = std::array<int32_t, 5>{about.data[0], about.data[1], about.data[2], about.data[3], about.data[4]};
  if ((kind != kResident && kind != kLatent && kind != kFreed && kind != kEvicted && kind != kForeign) || latent < 0 || latent > kLatentFormats) return kBadArgument;
  if (kind == kResident && (!isFormat(k) || !isFormat(v))) return kBadArgument;
  return cache.importPage(layer, {static_cast<PageKind>(kind), {k, v}, latent - 1, width, bytes.data, bytes.length});
}

// (layer, page, side, Float64Array[2] <- format, bytes; Uint8Array [bytes] <- or undefined to get only the numbers)
Status exportSideCall(Cache& cache, const Info& info) {
  int layer, page, side;
  Span<double> about;
  Span<uint8_t> out;
  if (!readPage(cache, info, &layer, &page) || !readInt(info[2], 0, 1, &side)) return kBadArgument;
  if (!readArray(info[3], napi_float64_array, &about) || about.length != 2) return kBadShape;
  const Page& it = cache.layer(layer).page(page);
  if (it.kind != kResident) return kUnsupported;
  const PageSide& held = it.side(side == 0);
  about.data[0] = held.format;
  about.data[1] = static_cast<double>(held.bytes());
  if (absent(info[4])) return kOk;
  if (!readArray(info[4], napi_uint8_array, &out) || out.length != held.bytes()) return kBadShape;
  cache.exportSide(layer, page, side == 0, out.data);
  return kOk;
}

// (layer, page, side, format, Uint8Array bytes, Float64Array[1] <- bytes freed)
Status exchangeSideCall(Cache& cache, const Info& info) {
  int layer, page, side, format;
  Span<uint8_t> bytes;
  Span<double> out;
  if (!readPage(cache, info, &layer, &page) || !readInt(info[2], 0, 1, &side)) return kBadArgument;
  if (!readInt(info[3], 0, kFormatSlots - 1, &format) || !isFormat(format)) return kBadArgument;
  if (!readArray(info[4], napi_uint8_array, &bytes)) return kBadArgument;
  if (!readArray(info[5], napi_float64_array, &out) || out.length != 1) return kBadShape;
  return cache.exchangeSide(layer, page, side == 0, {format, bytes.data, bytes.length}, out.data);
}

// (layer, page, Float64Array[1] <- bytes freed)
Status freePageCall(Cache& cache, const Info& info) {
  int layer, page;
  Span<double> out;
  if (!readPage(cache, info, &layer, &page)) return kBadArgument;
  if (!readArray(info[2], napi_float64_array, &out) || out.length != 1) return kBadShape;
  return cache.freePage(layer, page, out.data);
}

// (layer, page, Float64Array[1] <- bytes freed)
Status evictPageCall(Cache& cache, const Info& info) {
  int layer, page;
  Span<double> out;
  if (!readPage(cache, info, &layer, &page)) return kBadArgument;
  if (!readArray(info[2], napi_float64_array, &out) || out.length != 1) return kBadShape;
  return cache.evictPage(layer, page, out.data);
}

}  // namespace palimpsest
