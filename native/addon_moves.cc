// Moves in the background for addon.cc, which see.
#include <napi.h>

#include <vector>

#include "arguments.h"
#include "cache/layer.h"
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

}  // namespace palimpsest
