#include "latent.h"

#include <algorithm>
#include <cmath>
#include <cstring>

namespace palimpsest {

namespace {

constexpr size_t kAlign = 64;
constexpr int kBlock = 8;

size_t aligned(size_t bytes) { return (bytes + kAlign - 1) / kAlign * kAlign; }

template <typename T>
T* grown(std::vector<T>& buffer, size_t size) {
  if (buffer.size() < size) buffer.resize(size);
  return buffer.data();
}

size_t elementsOf(int width) { return static_cast<size_t>(kPageTokens) * width; }
size_t highBytes(int format, int width) { return elementsOf(width) / (format == kXq8 ? 1 : 4); }
size_t lowBytes(int format, int width) { return format == kXq8 ? 0 : elementsOf(width) / (format == kXq4 ? 4 : 8); }
size_t scaleBytes(int format) { return format == kXq8 ? kPageTokens * 2 : kPageTokens; }

// The page's levels in the order of gemmI8, unpacked if necessary.
const int8_t* levelsOf(const Kernels* kernels, const LatentView& view, LatentScratch& scratch) {
  if (view.format == kXq8) return reinterpret_cast<const int8_t*>(view.high);
  int8_t* tile = grown(scratch.tile, elementsOf(view.width));
  kernels->cold->unpackLatent(view.format, view.high, view.low, elementsOf(view.width), tile);
  return tile;
}

// The value of one level step in each row.
void rowWorths(const Kernels* kernels, const LatentView& view, float* worth) {
  if (view.format == kXq8) {
    kernels->fromHalf(static_cast<const uint16_t*>(view.scales), worth, kPageTokens);
    return;
  }
  for (int t = 0; t < kPageTokens; t++) worth[t] = rotWorth(view.format == kXq4 ? kRot4 : kRot3, static_cast<const int8_t*>(view.scales)[t]);
}

Workspace workspaceOf(LatentScratch& scratch, int width) {
  scratch.space.grow(latentSpace(width));
  return workspaceIn(scratch.space);
}

// int16 rows as two int8 rows each, x = 256 hi + lo, in the order of gemmI8 (blocks of 8 rows).
void splitRows(const int16_t* x, int rows, int count, int depth, int8_t* packed) {
  const int blocks = (2 * rows + kBlock - 1) / kBlock;
  std::memset(packed, 0, static_cast<size_t>(blocks) * kBlock * depth);
  for (int i = 0; i < rows; i++) {
    // Four rows of x fill a block, so both planes of a row are next to each other in the same block.
    int8_t* to = packed + static_cast<size_t>(i / 4) * kBlock * depth + i % 4 * 8;
    const int16_t* from = x + static_cast<size_t>(i) * count;
    for (int c = 0; c < count; c++) {
      const int high = (from[c] + 128) >> 8;
      int8_t* at = to + c / 4 * (kBlock * 4) + c % 4;
      at[0] = static_cast<int8_t>(high);
      at[4] = static_cast<int8_t>(from[c] - 256 * high);
    }
  }
}

}  // namespace

size_t LatentScratch::bytes() const {
  return tile.capacity() + rows.capacity() + quantized.capacity() * sizeof(int16_t) + (base.capacity() + turned.capacity()) * sizeof(float) +
         space.bytes();
}

void LatentScratch::reserve(int width, int outputs) {
  grown(tile, elementsOf(width));
  grown(rows, static_cast<size_t>(kBlock) * width);
  grown(base, 2 * static_cast<size_t>(outputs));
}

void LatentScratch::reserveToLower(int from, int to, int width) {
  grown(tile, 2 * elementsOf(width));
  if (isLatentDemotion(from, to)) return;
  grown(turned, elementsOf(width));
  space.grow(latentSpace(width));
}

size_t latentPartBytes(int format, int width, int part) {
  if (part == 1) return aligned(lowBytes(format, width)) + aligned(scaleBytes(format));
  return aligned(highBytes(format, width)) + aligned(static_cast<size_t>(width) * 2) + aligned(sizeof(float));
}

size_t latentBytes(int format, int width) { return latentPartBytes(format, width, 0) + latentPartBytes(format, width, 1); }

LatentView latentView(int format, int width, const uint8_t* first, const uint8_t* second) {
  LatentView view;
  view.format = format;
  view.width = width;
  view.high = first;
  view.low = second ? second : first + latentPartBytes(format, width, 0);
  view.scales = view.low + aligned(lowBytes(format, width));
  const uint8_t* mean = first + aligned(highBytes(format, width));
  view.mean = reinterpret_cast<const int16_t*>(mean);
  view.meanScale = reinterpret_cast<const float*>(mean + aligned(static_cast<size_t>(width) * 2));
  return view;
}

bool finiteLatent(const LatentView& view) {
  if (!std::isfinite(*view.meanScale)) return false;
  for (int t = 0; view.format == kXq8 && t < kPageTokens; t++) {
    if ((static_cast<const uint16_t*>(view.scales)[t] & 0x7c00) == 0x7c00) return false;
  }
  return true;
}

void encodeLatentPage(const Kernels* kernels, int format, int width, float* x, int firstRow, uint8_t* first, uint8_t* second, Workspace space) {
  if (!second) second = first + latentPartBytes(format, width, 0);
  const size_t high = highBytes(format, width), low = lowBytes(format, width);
  std::memset(first + high, 0, latentPartBytes(format, width, 0) - high);
  std::memset(second + low, 0, latentPartBytes(format, width, 1) - low);
  const LatentView view = latentView(format, width, first, second);
  kernels->cold->encodeLatent(format, x, width, firstRow, first, second, const_cast<void*>(view.scales), const_cast<int16_t*>(view.mean),
                        const_cast<float*>(view.meanScale), space);
}

void lowerLatentPage(const Kernels* kernels, const LatentView& from, int to, int firstRow, uint8_t* first, uint8_t* second, LatentScratch& scratch) {
  scratch.reserveToLower(from.format, to, from.width);
  if (!isLatentDemotion(from.format, to)) {
    decodeLatentPage(kernels, from, scratch.turned.data(), scratch);
    encodeLatentPage(kernels, to, from.width, scratch.turned.data(), firstRow, first, second, workspaceOf(scratch, from.width));
    return;
  }
  kernels->cold->demoteLatent(from.high, from.low, static_cast<const int8_t*>(from.scales), from.width, scratch.tile.data(), second,
                        reinterpret_cast<int8_t*>(second) + aligned(lowBytes(to, from.width)));
}

void decodeLatentPage(const Kernels* kernels, const LatentView& view, float* x, LatentScratch& scratch) {
  const int8_t* tile = levelsOf(kernels, view, scratch);
  float worth[kPageTokens];
  rowWorths(kernels, view, worth);
  const size_t width = view.width;
  for (size_t t = 0; t < kPageTokens; t++) {
    const int8_t* from = tile + t / kBlock * kBlock * width + t % kBlock * 4;
    for (size_t c = 0; c < width; c++) {
      const float part = static_cast<float>(from[c / 4 * (kBlock * 4) + c % 4]) * worth[t];
      x[t * width + c] = static_cast<float>(view.mean[c]) * *view.meanScale + part;
    }
  }
  kernels->cold->rotateLatent(x, kPageTokens, width, view.width, true, workspaceOf(scratch, view.width));
}

size_t gemmWeightBytes(int contraction, int outputs) {
  return static_cast<size_t>((contraction + 3) / 4 * 4) * ((outputs + 15) / 16 * 16);
}

void packLevels(const int8_t* levels, int rows, int contraction, int8_t* packed) {
  const size_t depth = (contraction + 3) / 4 * 4;
  const size_t blocks = (rows + kBlock - 1) / kBlock;
  std::memset(packed, 0, blocks * kBlock * depth);
  for (size_t t = 0; t < static_cast<size_t>(rows); t++) {
    int8_t* to = packed + t / kBlock * kBlock * depth + t % kBlock * 4;
    const int8_t* from = levels + t * contraction;
    for (int c = 0; c < contraction; c += 4, to += kBlock * 4) std::memcpy(to, from + c, std::min(4, contraction - c));
  }
}

PackedWeights::PackedWeights(const Kernels* kernels, const float* w, int outputs, int contraction, bool turned)
    : outputs_(outputs), contraction_(contraction), highScale_(outputs), lowScale_(outputs) {
  for (Buffer<uint8_t>* plane : {&high_, &low_}) {
    plane->grow(gemmWeightBytes(contraction, outputs));
    std::memset(plane->data(), 128, plane->bytes());
  }
  std::vector<float> line(contraction);
  std::vector<int16_t> codes(contraction);
  Buffer<uint8_t> space;
  if (turned) space.grow(latentSpace(contraction));
  int first = 0, panelOutputs = 0;
  for (int o = 0; o < outputs; o++) {
    if (o == first + panelOutputs) {
      first = o;
      panelOutputs = gemmPanelOutputs(outputs - o);
    }
    std::memcpy(line.data(), w + static_cast<size_t>(o) * contraction, sizeof(float) * contraction);
    // Latent rows are rotated, so the weights must be too: x·w = (Rx)·(Rw).
    if (turned) kernels->cold->rotateLatent(line.data(), 1, contraction, contraction, false, workspaceIn(space));
    lowScale_[o] = kernels->quantizeI16(line.data(), contraction, codes.data());
    highScale_[o] = lowScale_[o] * 256.0f;
    const size_t panel = static_cast<size_t>(first) * depth();
    const size_t lanes = (panelOutputs + 15) / 16 * 16;
    for (int c = 0; c < contraction; c++) {
      const int high = (codes[c] + 128) >> 8;
      const size_t at = panel + (c / 4 * lanes + (o - first)) * 4 + c % 4;
      high_[at] = static_cast<uint8_t>(high + 128);
      low_[at] = static_cast<uint8_t>(codes[c] - 256 * high + 128);
    }
  }
}

void PackedWeights::multiply(const Kernels* kernels, const int8_t* a, int rows, const float* rowScale, int planes, const float* base,
                             size_t baseStride, float* y, size_t yStride) const {
  kernels->gemmI8(a, rows, depth(), high_.data(), depth(), outputs_, rowScale, highScale_.data(), base, baseStride, y, yStride);
  if (planes > 1) kernels->gemmI8(a, rows, depth(), low_.data(), depth(), outputs_, rowScale, lowScale_.data(), y, yStride, y, yStride);
}

void PackedWeights::multiplyFirst(const Kernels* kernels, const int8_t* a, int rows, int contraction, const float* rowScale, const float* base, float* y,
                                  size_t yStride) const {
  kernels->gemmI8(a, rows, contraction, high_.data(), depth(), outputs_, rowScale, highScale_.data(), base, 0, y, yStride);
}

void materialize(const Kernels* kernels, const LatentView& view, const PackedWeights& weights, int planes, const float* bias, float* y,
                 size_t yStride, LatentScratch& scratch) {
  const size_t outputs = weights.outputs();
  int8_t* rows = grown(scratch.rows, static_cast<size_t>(kBlock) * weights.depth());
  splitRows(view.mean, 1, view.width, weights.depth(), rows);
  float* base = grown(scratch.base, 2 * outputs);
  const float scales[2] = {*view.meanScale * 256.0f, *view.meanScale};
  weights.multiply(kernels, rows, 2, scales, 2, nullptr, 0, base, outputs);
  for (size_t o = 0; o < outputs; o++) base[o] = (base[o] + base[outputs + o]) + (bias ? bias[o] : 0.0f);
  float worth[kPageTokens];
  rowWorths(kernels, view, worth);
  weights.multiply(kernels, levelsOf(kernels, view, scratch), kPageTokens, worth, planes, base, 0, y, yStride);
}

void mixLatentPage(const Kernels* kernels, const LatentView& view, const float* p, int n, float* mixed, LatentScratch& scratch) {
  const size_t width = view.width;
  float worth[kPageTokens];
  rowWorths(kernels, view, worth);
  float* weight = grown(scratch.turned, static_cast<size_t>(n) * kPageTokens + width);
  float* mean = weight + static_cast<size_t>(n) * kPageTokens;
  for (size_t c = 0; c < width; c++) mean[c] = static_cast<float>(view.mean[c]) * *view.meanScale;
  for (int i = 0; i < n; i++) {
    const float* row = p + static_cast<size_t>(i) * kPageTokens;
    float mass = 0;
    for (int t = 0; t < kPageTokens; t++) {
      mass += row[t];
      weight[static_cast<size_t>(i) * kPageTokens + t] = row[t] * worth[t];
    }
    kernels->axpy(mass, mean, mixed + i * width, view.width);
  }
  kernels->mixLatent(levelsOf(kernels, view, scratch), view.width, weight, n, kPageTokens, mixed, width);
}

void finishMix(const Kernels* kernels, const float* mixed, int n, const PackedWeights& weights, const float* bias, const float* mass, float* y,
               size_t yStride, LatentScratch& scratch) {
  const size_t width = weights.contraction(), outputs = weights.outputs();
  int16_t* quantized = grown(scratch.quantized, n * width);
  std::vector<float> scales(2 * static_cast<size_t>(n));
  for (int i = 0; i < n; i++) {
    const float scale = kernels->quantizeI16(mixed + i * width, static_cast<int>(width), quantized + i * width);
    scales[2 * i] = scale * 256.0f;
    scales[2 * i + 1] = scale;
  }
  int8_t* rows = grown(scratch.rows, (2 * static_cast<size_t>(n) + kBlock - 1) / kBlock * kBlock * weights.depth());
  splitRows(quantized, n, static_cast<int>(width), weights.depth(), rows);
  float* sums = grown(scratch.base, 2 * static_cast<size_t>(n) * outputs);
  weights.multiply(kernels, rows, 2 * n, scales.data(), 2, nullptr, 0, sums, outputs);
  for (int i = 0; i < n; i++) {
    for (size_t o = 0; o < outputs; o++) {
      const float sum = sums[2 * i * outputs + o] + sums[(2 * i + 1) * outputs + o];
      y[i * yStride + o] = sum + (bias ? bias[o] * mass[i] : 0.0f);
    }
  }
}

}  // namespace palimpsest
