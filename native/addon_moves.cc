// Moves and trials in the background for addon.cc, which see.
#include <napi.h>

#include <vector>

#include "arguments.h"
#include "cache/trial.h"
#include "environment.h"

namespace palimpsest {

// (layer, page, side, format)
Status startMoveCall(Cache& cache, const Info& info) {
  int layer, page, side, format;
  if (!readInt(info[0], 0, cache.shape().layers - 1, &layer)) return kBadArgument;
  if (!readInt(info[1], 0, cache.layer(layer).sealed() - 1, &page) || !readInt(info[2], 0, 1, &side)) return kBadArgument;
  if (!readInt(info[3], 0, kFormatCount - 1, &format)) return kBadArgument;
  return cache.startMove(layer, page, side == 0, format);
}

// (wait, Float64Array[1 + 2 * moves under way] <- how many were finished, then of each its status and the bytes freed)
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

namespace {

bool readCandidates(const Napi::Value& value, std::vector<TrialCandidate>* candidates) {
  Span<uint8_t> moves;
  if (!readArray(value, napi_uint8_array, &moves) || moves.length % 2 != 0 || moves.length > 2 * kTrialCandidates) return false;
  for (size_t i = 0; i < moves.length; i += 2) {
    if (moves.data[i] > 1 || moves.data[i + 1] >= kFormatCount) return false;
    candidates->push_back({moves.data[i] == 0, moves.data[i + 1]});
  }
  return true;
}

bool readPage(const Cache& cache, const Info& info, int* layer, int* page) {
  return readInt(info[0], 0, cache.shape().layers - 1, layer) && readInt(info[1], 0, cache.layer(*layer).sealed() - 1, page);
}

}  // namespace

// (layer, page, side, Float64Array[1] <- format)
Status formatCall(Cache& cache, const Info& info) {
  int layer, page, side;
  Span<double> out;
  if (!readPage(cache, info, &layer, &page) || !readInt(info[2], 0, 1, &side)) return kBadArgument;
  if (!readArray(info[3], napi_float64_array, &out) || out.length != 1) return kBadShape;
  out.data[0] = cache.layer(layer).pages[page].side(side == 0).format;
  return kOk;
}

// (layer, page, Uint8Array [side, format, side, format ...], Float64Array errors)
Status trialCall(Cache& cache, const Info& info) {
  int layer, page;
  Span<double> errors;
  std::vector<TrialCandidate> candidates;
  if (!readPage(cache, info, &layer, &page) || !readCandidates(info[2], &candidates)) return kBadArgument;
  if (!readArray(info[3], napi_float64_array, &errors)) return kBadArgument;
  if (candidates.size() != errors.length) return kBadShape;
  return trial(cache, layer, page, candidates.data(), static_cast<int>(candidates.size()), errors.data);
}

// (layer, page, Uint8Array [side, format, side, format ...])
Status startTrialCall(Cache& cache, const Info& info) {
  int layer, page;
  std::vector<TrialCandidate> candidates;
  if (!readPage(cache, info, &layer, &page) || !readCandidates(info[2], &candidates)) return kBadArgument;
  return startTrial(cache, layer, page, candidates.data(), static_cast<int>(candidates.size()));
}

// (wait, Float64Array[1 + errors of all trials that were started] <- how many were finished, then the errors of those)
Status finishTrialsCall(Cache& cache, const Info& info) {
  Span<double> out;
  if (!info[0].IsBoolean()) return kBadArgument;
  if (!readArray(info[1], napi_float64_array, &out) || out.length != 1 + startedErrors(cache)) return kBadShape;
  out.data[0] = static_cast<double>(finishTrials(cache, info[0].As<Napi::Boolean>().Value(), out.data + 1));
  return kOk;
}

}  // namespace palimpsest
