#include "rows.h"

#include <algorithm>
#include <cstring>
#include <limits>

namespace palimpsest {

void QueryRows::reserve(const Kernels* table, int dim, int rowCount, int headCount) {
  kernels = table;
  headDim = dim;
  const size_t n = rowCount;
  const size_t d = dim;
  for (Buffer<float>* buffer : {&q, &mixed, &mixedTurned, &spare}) buffer->grow(n * d);
  for (Buffer<float>* buffer : {&slope, &max, &sum, &rowMass, &rescale, &share, &skippedMass, &factor, &offset}) buffer->grow(n);
  for (Buffer<int>* buffer : {&position, &first, &last}) buffer->grow(n);
  for (Buffer<IntegerRow>& basis : integers) basis.grow(n);
  scores.grow(n * kPageTokens);
  scales.grow(2 * static_cast<size_t>(headCount) * kPageTokens);
  steps.grow(headCount);
  weights.grow(kWeightRows);
  tile.grow(kPageTokens * d);
  decoded.grow(kPageTokens * d);
}

void QueryRows::begin(int rowCount, int headCount) {
  rows = rowCount;
  heads = headCount;
  ready[kPlain] = ready[kTurned] = false;
  skipShare = 0;
  cap = 0;
  restart();
}

void QueryRows::restart() {
  const size_t n = rows;
  turnedUsed = false;
  room = kPageTokens;
  skipped[0] = skipped[1] = 0;
  std::fill_n(max.data(), n, -std::numeric_limits<float>::infinity());
  std::fill_n(sum.data(), n, 0.0f);
  std::fill_n(skippedMass.data(), n, 0.0f);
  std::fill_n(mixed.data(), n * headDim, 0.0f);
  std::fill_n(mixedTurned.data(), n * headDim, 0.0f);
}

// Sets which tokens of the page each row sees. Returns one past the last token that any row sees, 0 for none.
int QueryRows::mask(int start, int skip, int count) {
  int visible = 0;
  for (int r = 0; r < rows; r++) {
    const int oldest = window > 0 ? position[r] - window + 1 - start : 0;
    const int from = std::max(skip, oldest);
    const int to = std::min(count, position[r] + 1 - start);
    first[r] = from < to ? from : 0;
    last[r] = from < to ? to : 0;
    visible = std::max(visible, last[r]);
  }
  return visible;
}

PageRows QueryRows::view() {
  PageRows view;
  view.count = rows;
  view.heads = heads;
  view.perHead = rows / heads;
  view.d = headDim;
  view.q = q.data();
  for (int basis = 0; basis < 3; basis++) view.integers[basis] = integers[basis].data();
  view.ready = ready;
  view.turnedBack = &turnedUsed;
  view.cap = cap;
  view.slope = alibi ? slope.data() : nullptr;
  view.position = position.data();
  view.first = first.data();
  view.last = last.data();
  view.scores = scores.data();
  view.max = max.data();
  view.sum = sum.data();
  view.mixed = mixed.data();
  view.mixedTurned = mixedTurned.data();
  view.rowMass = rowMass.data();
  view.room = room;
  view.skipShare = skipShare;
  view.skippedMass = skippedMass.data();
  view.skipped = skipped;
  view.rescale = rescale.data();
  view.share = share.data();
  view.factor = factor.data();
  view.offset = offset.data();
  view.keyScales = scales.data();
  view.valueScales = scales.data() + static_cast<size_t>(heads) * kPageTokens;
  view.valueSteps = steps.data();
  view.weights = weights.data();
  view.tile = tile.data();
  view.spare = spare.data();
  view.decoded = decoded.data();
  return view;
}

bool QueryRows::page(const SideView* sides, int start, int skip, int count) {
  const int visible = mask(start, skip, count);
  if (visible == 0) return false;
  kernels->attendPage(sides, view(), start, visible);
  return true;
}

// Positions ascend along the rows of a head and are the same for every head.
bool QueryRows::seesAll(int start, int end) const {
  return position[0] >= end - 1 && (window == 0 || position[rows - 1] - window + 1 <= start);
}

void QueryRows::run(const SideView* sides, int pages, int known, int start, const PageNotes& notes) {
  std::fill_n(first.data(), rows, 0);
  std::fill_n(last.data(), rows, kPageTokens);
  kernels->attendRun(sides, pages, known, start, view(), notes);
}

void QueryRows::remix(const SideView& v) {
  std::fill_n(mixed.data(), static_cast<size_t>(rows) * headDim, 0.0f);
  std::fill_n(mixedTurned.data(), static_cast<size_t>(rows) * headDim, 0.0f);
  turnedUsed = false;
  kernels->mixPage(&v, view(), kPageTokens);
}

bool QueryRows::sinks(const float* k, const float* v) {
  constexpr int kPositions[kSinkTokens] = {0, 1, 2, 3};
  const int visible = mask(0, 0, kSinkTokens);
  if (visible > 0) mixFew(k, v, kSinkTokens, kPositions, visible);
  return visible > 0;
}

void QueryRows::few(const float* k, const float* v, int count, const int* positions) {
  std::fill_n(first.data(), rows, 0);
  std::fill_n(last.data(), rows, count);
  mixFew(k, v, count, positions, count);
}

void QueryRows::mixFew(const float* k, const float* v, int count, const int* positions, int visible) {
  const size_t d = headDim;
  const int perHead = rows / heads;
  for (int r = 0; r < rows; r++) {
    const float* keys = k + r / perHead * count * d;
    float* score = &scores[static_cast<size_t>(r) * kPageTokens];
    for (int t = 0; t < visible; t++) score[t] = kernels->dot(&q[r * d], keys + t * d, headDim);
    if (cap > 0) kernels->capScores(score, visible, cap);
    for (int t = 0; alibi && t < visible; t++) score[t] -= slope[r] * static_cast<float>(position[r] - positions[t]);
  }
  kernels->softmaxPage(scores.data(), rows, kPageTokens, first.data(), last.data(), max.data(), sum.data(), rescale.data(), share.data(), rowMass.data());
  for (int r = 0; r < rows; r++) {
    const float* values = v + r / perHead * count * d;
    skippedMass[r] *= rescale[r];
    kernels->scaleRow(rescale[r], &mixed[r * d], headDim);
    kernels->scaleRow(rescale[r], &mixedTurned[r * d], headDim);
    for (int t = first[r]; t < last[r]; t++) {
      kernels->axpy(scores[static_cast<size_t>(r) * kPageTokens + t] * share[r], values + t * d, &mixed[r * d], headDim);
    }
  }
}

void QueryRows::finish() {
  if (!turnedUsed) return;
  const size_t d = headDim;
  kernels->rotate(mixedTurned.data(), rows, d, headDim, true);
  for (int r = 0; r < rows; r++) kernels->axpy(1.0f, &mixedTurned[r * d], &mixed[r * d], headDim);
  turnedUsed = false;
}

size_t QueryRows::bytes() const {
  size_t total = weights.bytes() + tile.bytes();
  for (const Buffer<IntegerRow>& basis : integers) total += basis.bytes();
  for (const Buffer<float>* buffer : {&q, &slope, &max, &sum, &mixed, &rowMass, &scores, &mixedTurned, &rescale, &share, &skippedMass, &factor, &offset, &spare, &decoded, &scales, &steps}) {
    total += buffer->bytes();
  }
  for (const Buffer<int>* buffer : {&position, &first, &last}) total += buffer->bytes();
  return total;
}

}  // namespace palimpsest
