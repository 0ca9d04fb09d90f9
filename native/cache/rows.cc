#include "rows.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

namespace palimpsest {

namespace {

struct ScaleTable {
  float scale[256];
  ScaleTable() {
    for (int k = -128; k < 128; k++) scale[k + 128] = rotScale(static_cast<int8_t>(k));
  }
};

const float* rotScales() {
  static const ScaleTable table;
  return table.scale + 128;
}

template <typename T>
void grow(std::vector<T>& buffer, size_t size) {
  if (buffer.size() < size) buffer.resize(size);
}

template <typename T>
size_t bytesOf(const std::vector<T>& buffer) {
  return buffer.capacity() * sizeof(T);
}

}  // namespace

void QueryRows::reserve(const Kernels* table, int dim, int rowCount) {
  kernels = table;
  headDim = dim;
  const size_t n = rowCount;
  const size_t d = dim;
  rotScales();
  for (std::vector<float>* buffer : {&q, &mixed, &turned, &mixedTurned}) grow(*buffer, n * d);
  for (std::vector<float>* buffer : {&slope, &max, &sum, &rowMass, &plainScale, &turnedScale, &weightScale, &rescale}) grow(*buffer, n);
  for (std::vector<int>* buffer : {&position, &first, &last}) grow(*buffer, n);
  grow(plain16, n * d);
  grow(turned16, n * d);
  grow(scores, n * kPageTokens);
  grow(weights16, n * kPageTokens);
  grow(dots, n * std::max<size_t>(kPageTokens, d));
  grow(tile, kPageTokens * d);
  grow(tokenScale, kPageTokens);
  grow(meanRow, d);
}

void QueryRows::begin(int rowCount) {
  rows = rowCount;
  plainReady = false;
  turnedReady = false;
  restart();
}

void QueryRows::restart() {
  const size_t n = rows;
  turnedUsed = false;
  std::fill_n(max.begin(), n, -std::numeric_limits<float>::infinity());
  std::fill_n(sum.begin(), n, 0.0f);
  std::fill_n(mixed.begin(), n * headDim, 0.0f);
}

// Sets which tokens of the page each row sees; answers one past the last token any row sees, 0 for none.
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

void QueryRows::expandMean(const SideView& side) {
  float scale;
  kernels->fromHalf(&side.meanScale, &scale, 1);
  for (int c = 0; c < headDim; c++) meanRow[c] = scale * side.mean[c];
}

void QueryRows::scoreKeys(const SideView& k, int visible) {
  const size_t d = headDim;
  if (k.format == kF16) {
    const int outputs = (visible + 7) / 8 * 8;
    kernels->dotF16(k.half, headDim, outputs, kPageTokens, q.data(), rows, d, scores.data(), kPageTokens);
    return;
  }
  if (k.format == kQ8) {
    if (!plainReady) {
      for (int r = 0; r < rows; r++) plainScale[r] = kernels->quantizeI16(&q[r * d], headDim, &plain16[r * d]);
      plainReady = true;
    }
    kernels->fromHalf(k.rowScales, tokenScale.data(), kPageTokens);
    kernels->dotI8(k.tile, headDim, kPageTokens, plain16.data(), rows, d, dots.data(), kPageTokens);
    for (int r = 0; r < rows; r++) {
      const size_t at = static_cast<size_t>(r) * kPageTokens;
      kernels->scaleDots(&dots[at], tokenScale.data(), plainScale[r], 0.0f, &scores[at], kPageTokens);
    }
    return;
  }
  if (!turnedReady) {
    std::memcpy(turned.data(), q.data(), sizeof(float) * rows * d);
    kernels->rotate(turned.data(), rows, d, headDim, false);
    for (int r = 0; r < rows; r++) turnedScale[r] = kernels->quantizeI16(&turned[r * d], headDim, &turned16[r * d]);
    turnedReady = true;
  }
  const float* table = rotScales();
  for (int t = 0; t < kPageTokens; t++) tokenScale[t] = table[k.k[t]];
  expandMean(k);
  kernels->unpackRot(k.format, k.hi, k.lo, kPageTokens * d, tile.data());
  kernels->dotI8(tile.data(), headDim, kPageTokens, turned16.data(), rows, d, dots.data(), kPageTokens);
  const float divisor = 1.0f / static_cast<float>(rotDivisor(k.format));
  for (int r = 0; r < rows; r++) {
    const size_t at = static_cast<size_t>(r) * kPageTokens;
    const float offset = kernels->dot(&q[r * d], meanRow.data(), headDim);
    kernels->scaleDots(&dots[at], tokenScale.data(), turnedScale[r] * divisor, offset, &scores[at], kPageTokens);
  }
}

// One step of the online softmax over the scores; what was gathered before follows the new maximum.
void QueryRows::soften(int start, int visible) {
  if (alibi) {
    for (int r = 0; r < rows; r++) {
      float* score = &scores[static_cast<size_t>(r) * kPageTokens];
      for (int t = 0; t < visible; t++) score[t] -= slope[r] * static_cast<float>(position[r] - start - t);
    }
  }
  kernels->softmaxPage(scores.data(), rows, kPageTokens, first.data(), last.data(), max.data(), sum.data(), rescale.data(),
                       rowMass.data());
  for (int r = 0; r < rows; r++) {
    if (rescale[r] == 1.0f) continue;
    kernels->scaleRow(rescale[r], &mixed[static_cast<size_t>(r) * headDim], headDim);
    if (turnedUsed) kernels->scaleRow(rescale[r], &mixedTurned[static_cast<size_t>(r) * headDim], headDim);
  }
}

void QueryRows::mixValues(const SideView& v, int visible) {
  const size_t d = headDim;
  if (v.format == kF16) {
    // `turned` is free to be overwritten: its int16 copy is what scores use.
    kernels->dotF16(v.half, visible, headDim, headDim, scores.data(), rows, kPageTokens, turned.data(), d);
    for (int r = 0; r < rows; r++) kernels->axpy(1.0f, &turned[r * d], &mixed[r * d], headDim);
    return;
  }
  const bool rot = isRot(v.format);
  if (rot) {
    const float* table = rotScales();
    for (int t = 0; t < kPageTokens; t++) tokenScale[t] = table[v.k[t]];
  } else {
    kernels->fromHalf(v.rowScales, tokenScale.data(), kPageTokens);
  }
  for (int r = 0; r < rows; r++) {
    const size_t at = static_cast<size_t>(r) * kPageTokens;
    weightScale[r] = kernels->weighI16(&scores[at], tokenScale.data(), kPageTokens, &weights16[at]);
  }
  const int8_t* codes = v.tile;
  float divisor = 1.0f;
  float* target = mixed.data();
  if (rot) {
    kernels->unpackRot(v.format, v.hi, v.lo, kPageTokens * d, tile.data());
    codes = tile.data();
    divisor = 1.0f / static_cast<float>(rotDivisor(v.format));
    if (!turnedUsed) std::fill_n(mixedTurned.begin(), rows * d, 0.0f);
    turnedUsed = true;
    target = mixedTurned.data();
    expandMean(v);
  }
  kernels->dotI8(codes, kPageTokens, headDim, weights16.data(), rows, kPageTokens, dots.data(), d);
  for (int r = 0; r < rows; r++) {
    kernels->addDots(weightScale[r] * divisor, &dots[r * d], target + r * d, headDim);
    if (rot) kernels->axpy(rowMass[r], meanRow.data(), &mixed[r * d], headDim);
  }
}

bool QueryRows::page(const SideView& k, const SideView& v, int start, int skip, int count) {
  const int visible = mask(start, skip, count);
  if (visible == 0) return false;
  scoreKeys(k, visible);
  soften(start, visible);
  mixValues(v, visible);
  return true;
}

void QueryRows::remix(const SideView& v) {
  turnedUsed = false;
  std::fill_n(mixed.begin(), static_cast<size_t>(rows) * headDim, 0.0f);
  mixValues(v, kPageTokens);
}

bool QueryRows::sinks(const float* k, const float* v, int count) {
  const int visible = mask(0, 0, count);
  if (visible == 0) return false;
  const size_t d = headDim;
  for (int r = 0; r < rows; r++) {
    for (int t = 0; t < visible; t++) {
      scores[static_cast<size_t>(r) * kPageTokens + t] = kernels->dot(&q[r * d], k + t * d, headDim);
    }
  }
  soften(0, visible);
  for (int r = 0; r < rows; r++) {
    for (int t = first[r]; t < last[r]; t++) {
      kernels->axpy(scores[static_cast<size_t>(r) * kPageTokens + t], v + t * d, &mixed[r * d], headDim);
    }
  }
  return true;
}

void QueryRows::finish() {
  if (!turnedUsed) return;
  const size_t d = headDim;
  kernels->rotate(mixedTurned.data(), rows, d, headDim, true);
  for (int r = 0; r < rows; r++) kernels->axpy(1.0f, &mixedTurned[r * d], &mixed[r * d], headDim);
  turnedUsed = false;
}

size_t QueryRows::bytes() const {
  size_t total = bytesOf(plain16) + bytesOf(turned16) + bytesOf(weights16) + bytesOf(dots) + bytesOf(tile);
  for (const std::vector<float>* buffer :
       {&q, &slope, &max, &sum, &mixed, &rowMass, &turned, &plainScale, &turnedScale, &scores, &weightScale, &mixedTurned, &rescale, &tokenScale, &meanRow}) {
    total += bytesOf(*buffer);
  }
  for (const std::vector<int>* buffer : {&position, &first, &last}) total += bytesOf(*buffer);
  return total;
}

}  // namespace palimpsest
