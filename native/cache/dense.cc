#include "dense.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstdint>
#include <cstring>

#include "finite.h"

namespace palimpsest {

namespace {

// Bytes of rows that stay in the second-level cache while panels stream past.
constexpr size_t kRowBytes = size_t{512} << 10;
// No matrix is larger, whatever the system promises: half of what this machine can address. Of a shape within all
// bounds it may have more bytes than a machine of 32 bits can count.
constexpr uint64_t kMatrixMost = SIZE_MAX / 2;

void fill(Buffer<float>& to, const float* from, int count, int padded) {
  to.grow(padded);
  std::copy(from, from + count, to.data());
  std::fill(to.data() + count, to.data() + padded, 0.0f);
}

// Takes the mean out of a row. What is left has the root mean square that the row has as its standard deviation.
void centre(const float* x, int width, float* y) {
  double sum = 0;
  for (int i = 0; i < width; i++) sum += x[i];
  const auto mean = static_cast<float>(sum / width);
  for (int i = 0; i < width; i++) y[i] = x[i] - mean;
}

// x times the share of a normal distribution below x.
void geluErf(float* x, int count) {
  for (int i = 0; i < count; i++) x[i] *= 0.5f * (1 + std::erf(x[i] * 0.70710678f));
}

}  // namespace

void Dense::Quantized::grow(int rows, int width, unsigned planes) {
  const int blocks = denseBlocks(width);
  const uint64_t count = static_cast<uint64_t>(rows) * blocks;
  for (int i = 0; i < 2; i++) {
    auto& [bytes, steps, sums, view, wanted] = of[i];
    wanted = (planes & (1u << i)) != 0;
    if (!wanted) continue;
    bytes.grow(count * 64);
    steps.grow(count);
    sums.grow(count * 2);
    view = {bytes.data(), steps.data(), sums.data(), blocks, i + 1};
  }
}

void Dense::Quantized::set(const Kernels* kernels, const float* x, int width, int row) {
  for (const Rows& rows : of) {
    if (rows.wanted) kernels->denseRow(x, width, rows.view, row);
  }
}

size_t Dense::Quantized::held() const {
  size_t total = 0;
  for (const Rows& rows : of) total += rows.bytes.bytes() + rows.steps.bytes() + rows.sums.bytes();
  return total;
}

Dense::Dense(const Kernels* kernels, const DenseShape& shape, Share threads) : kernels_(kernels), shape_(shape), threads_(std::move(threads)), layers_(shape.layers + 1) {
  if (is(kUngated)) {
    ones_.grow(shape.intermediate);
    std::fill(ones_.data(), ones_.data() + shape.intermediate, 1.0f);
  }
  if (shape.experts == 0) return;
  for (int layer = 0; layer < shape.layers; layer++) layers_[layer].ofExperts = std::vector<Matrix>(static_cast<size_t>(kDenseSlots - kDenseGate) * shape.experts);
  starts_.resize(shape.experts + 1);
  products_.reserve(2 * static_cast<size_t>(shape.experts));
}

Dense::~Dense() {
  for (size_t adapter = 0; adapter < adapters_.size(); adapter++) dropAdapter(static_cast<int>(adapter));
  for (Layer& layer : layers_) {
    for (Matrix& matrix : layer.matrix) {
      if (matrix.block) heap_.give(matrix.block);
    }
    for (Matrix& matrix : layer.ofExperts) {
      if (matrix.block) heap_.give(matrix.block);
    }
  }
}

int Dense::outputs(int layer, int slot) const {
  if (layer == shape_.layers) return shape_.vocab;
  switch (slot) {
    case kDenseQ: return shape_.queryHeads * shape_.headDim;
    case kDenseK:
    case kDenseV: return shape_.kvHeads * shape_.headDim;
    case kDenseGate:
    case kDenseUp: return shape_.intermediate;
    default: return shape_.hidden;
  }
}

int Dense::inputs(int layer, int slot) const {
  if (layer == shape_.layers) return shape_.hidden;
  return slot == kDenseO ? shape_.queryHeads * shape_.headDim : slot == kDenseDown ? shape_.intermediate : shape_.hidden;
}

int Dense::normSize(int layer, int norm) const {
  const int own = is(kLayerNorms) ? 2 * shape_.hidden : shape_.hidden;
  if (norm == kAttnNorm) return own;
  if (layer == shape_.layers) return 0;
  if (norm == kQNorm || norm == kKNorm) {
    const int heads = !is(kWidthNorms) ? 1 : norm == kQNorm ? shape_.queryHeads : shape_.kvHeads;
    return heads * shape_.headDim;
  }
  if (norm == kMlpNorm) return own;
  return is(kPostNorms) ? shape_.hidden : 0;
}

size_t Dense::heldBytes() const {
  size_t total = heap_.reservedBytes() + bytes_ - placed_;
  for (const Quantized* rows : {&narrowRows_, &headRows_, &wideRows_, &expertRows_}) total += rows->held();
  for (const Buffer<float>* rows : {&lines_, &middle_, &gate_, &up_, &ones_, &normed_, &shares_, &answers_, &ranked_, &plain_, &rankedSteps_}) total += rows->bytes();
  return total + rankedLines_.bytes() + routing_.bytes() + chosen_.bytes() + places_.bytes();
}

bool Dense::place(Matrix& matrix, uint64_t size) {
  if (size > kMatrixMost) return false;
  matrix.block = heap_.take(static_cast<size_t>(size));
  if (!matrix.block) return false;
  matrix.placed = static_cast<size_t>(size);
  bytes_ += matrix.placed;
  placed_ += matrix.placed;
  return true;
}

void Dense::drop(Matrix& matrix) {
  heap_.give(matrix.block);
  matrix.block = nullptr;
  bytes_ -= matrix.placed;
  placed_ -= matrix.placed;
}

Status Dense::setRows(int layer, int slot, int expert, DenseType type, const uint8_t* bytes, int from, int rows) {
  return pack(matrixAt(layer, slot, expert), outputs(layer, slot), inputs(layer, slot), type, bytes, from, rows);
}

Status Dense::pack(Matrix& matrix, int outputs, int inputs, DenseType type, const uint8_t* bytes, int from, int rows) {
  if (inputs % kDenseTypes[type].values != 0) return kUnsupported;
  if (from != matrix.set || rows < 1 || rows > outputs - from || (from > 0 && type != matrix.type)) return kBadArgument;
  if (rows % kDensePanel != 0 && from + rows != outputs) return kBadArgument;
  const size_t panelBytes = densePanelBytes(kDenseTypes[type].form, denseBlocks(inputs));
  const uint64_t size = static_cast<uint64_t>(panelsOf(outputs)) * panelBytes;
  if (!matrix.block && !place(matrix, size)) return kNoMemory;
  uint8_t* panels = bytesOf(matrix.block) + from / kDensePanel * panelBytes;
  const size_t rowBytes = denseRowBytes(type, inputs);
  std::atomic<bool> finite{true};
  auto task = [&](int panel, int) {
    const int first = panel * kDensePanel;
    if (!kernels_->cold->packWeights(type, bytes + first * rowBytes, std::min(kDensePanel, rows - first), inputs, panels + panel * panelBytes)) finite = false;
  };
  threads_.each(panelsOf(rows), task);
  if (!finite) {
    if (from == 0) drop(matrix);
    return kBadValue;
  }
  matrix.type = type;
  matrix.set = from + rows;
  return kOk;
}

Status Dense::setBias(int layer, int slot, const float* bias) {
  Matrix& matrix = layers_[layer].matrix[slot];
  const int outputs = this->outputs(layer, slot);
  if (!allFinite(bias, outputs)) return kBadValue;
  if (!matrix.biased) bytes_ += outputs * sizeof(float);
  fill(matrix.bias, bias, outputs, panelsOf(outputs) * kDensePanel);
  matrix.biased = true;
  return kOk;
}

Status Dense::setNorm(int layer, int norm, const float* gain) {
  Layer& at = layers_[layer];
  const int size = normSize(layer, norm);
  if (!allFinite(gain, size)) return kBadValue;
  if (!at.normed[norm]) bytes_ += size * sizeof(float);
  fill(at.norm[norm], gain, size, size);
  at.normed[norm] = true;
  return kOk;
}

bool Dense::complete() const {
  for (int layer = 0; layer < shape_.layers; layer++) {
    for (int slot = 0; slot < (shape_.experts > 0 ? kDenseGate : kDenseSlots); slot++) {
      if (is(kUngated) && slot == kDenseGate) continue;
      if (layers_[layer].matrix[slot].set < outputs(layer, slot)) return false;
    }
    if (shape_.experts > 0 && !complete(layers_[layer])) return false;
    const bool* normed = layers_[layer].normed;
    if (!is(kNoPreNorms) && !(normed[kAttnNorm] && normed[kMlpNorm])) return false;
    if (is(kPostNorms) && !(normed[kAttnPost] && normed[kMlpPost])) return false;
  }
  return layers_[shape_.layers].matrix[kDenseQ].set == shape_.vocab && layers_[shape_.layers].normed[kAttnNorm];
}

// What a step reads behind a matrix; behind the last one, the next step begins again. Null where rows choose it.
const uint8_t* Dense::behind(int layer, int slot) const {
  if (layer < shape_.layers && isOfExperts(slot)) return nullptr;
  const bool more = layer < shape_.layers && slot + 1 < kDenseSlots;
  const Matrix& matrix = more ? layers_[layer].matrix[slot + 1] : layers_[layer < shape_.layers ? layer + 1 : 0].matrix[kDenseQ];
  return matrix.block ? bytesOf(matrix.block) : nullptr;
}

// The product of `n` rows from `first` on.
Dense::Product Dense::product(int layer, int slot, const Quantized& rows, int n, const float* base, float* y, int expert, int first) {
  const Matrix& matrix = matrixAt(layer, slot, expert);
  DenseWeights weights = {kDenseTypes[matrix.type].form, bytesOf(matrix.block), matrix.biased ? matrix.bias.data() : nullptr, outputs(layer, slot),
                          behind(layer, slot)};
  if (layer < shape_.layers && mix_.count > 0) fetchBeside(layer, slot, n, weights);
  return {weights, rows.from(first, layers_[layer].planes[slot]), n, base, y};
}

unsigned Dense::planesOf(int layer, std::initializer_list<int> slots) const {
  unsigned planes = 0;
  for (int slot : slots) planes |= 1u << (layers_[layer].planes[slot] - 1);
  return planes;
}

// Normalizes rows of hidden size, where there are gains, and quantizes them into narrowRows_. kept: null, or where the
// normalized rows go.
void Dense::norm(const float* x, int rows, const float* gain, unsigned planes, float* kept) {
  const int width = shape_.hidden;
  narrowRows_.grow(rows, width, planes);
  lines_.grow(static_cast<size_t>(threads_.count()) * width);
  auto task = [&](int item, int thread) {
    for (int row = item * 16; row < std::min(rows, item * 16 + 16); row++) {
      float* line = kept ? kept + static_cast<size_t>(row) * width : lines_.data() + static_cast<size_t>(thread) * width;
      const float* from = x + static_cast<size_t>(row) * width;
      if (is(kLayerNorms)) {
        centre(from, width, line);
        kernels_->denseNorm(line, gain, shape_.epsilon, width, line);
        for (int i = 0; i < width; i++) line[i] += gain[width + i];
      } else if (gain) {
        kernels_->denseNorm(from, gain, shape_.epsilon, width, line);
      }
      narrowRows_.set(kernels_, gain ? line : from, width, row);
    }
  };
  threads_.each((rows + 15) / 16, task);
}

// The panels of all products are distributed together; an output does not depend on the thread that computes it.
void Dense::multiply(const Product* products, int count) {
  int panels = 0;
  double work = 0;
  for (int i = 0; i < count; i++) {
    panels += panelsOf(products[i].weights.outputs);
    work += static_cast<double>(products[i].weights.outputs) * products[i].rows.blocks * 32 * products[i].n;
  }
  // With many rows the kernel processes panels in pairs, so each item has an even number of them.
  const int parts = threads_.worthSharing(work) ? threads_.count() * kItemsAThread : 1;
  const int share = std::max(2, ((panels + parts - 1) / parts + 1) / 2 * 2);
  auto task = [&](int item, int) {
    int from = item * share, to = std::min(panels, from + share);
    for (int i = 0; i < count && from < to; i++) {
      const int own = panelsOf(products[i].weights.outputs);
      if (from < own) multiplyPanels(kernels_, products[i], from, std::min(to, own));
      from = std::max(0, from - own);
      to -= own;
    }
  };
  threads_.each((panels + share - 1) / share, task);
}

Dense::Product Dense::times(const Matrix& matrix, int outputs, const DenseRows& rows, int n, const float* base, float* y) {
  return {{kDenseTypes[matrix.type].form, bytesOf(matrix.block), nullptr, outputs, nullptr}, rows, n, base, y};
}

// It takes as many rows at a time as stay in the cache.
void Dense::multiplyPanels(const Kernels* kernels, const Product& product, int from, int to) {
  const auto& [given, rows, n, base, y] = product;
  DenseWeights weights = given;
  const size_t perRow = static_cast<size_t>(rows.blocks) * 64;
  const int slice = static_cast<int>(std::clamp<size_t>(kRowBytes / perRow / 4 * 4, 16, kDenseSlice));
  for (int row = 0; row < n; row += slice) {
    const size_t first = static_cast<size_t>(row) * rows.blocks, at = static_cast<size_t>(row) * weights.outputs;
    const DenseRows part = {rows.bytes + first * 64, rows.steps + first, rows.sums + first * 2, rows.blocks, rows.planes};
    kernels->densePanels(weights, from, to, part, std::min(slice, n - row), base ? base + at : nullptr, y + at);
    weights.spans = 0;  // it was fetched once
  }
}

const float* Dense::gains(int layer, int norm) const { return layers_[layer].normed[norm] ? layers_[layer].norm[norm].data() : nullptr; }

// Normalizes each head by itself, or all of a token together.
void Dense::headNorms(int layer, int norm, float* x, int tokens, int heads) {
  const float* gain = gains(layer, norm);
  if (!gain) return;
  const int width = normSize(layer, norm), rows = static_cast<int>(static_cast<size_t>(tokens) * heads * shape_.headDim / width);
  for (int row = 0; row < rows; row++, x += width) kernels_->denseNorm(x, gain, shape_.epsilon, width, x);
}

// Rows y of hidden size: normalizes them and adds base.
void Dense::addPost(int layer, int norm, const float* base, int tokens, float* y) {
  const float* gain = gains(layer, norm);
  const int width = shape_.hidden;
  for (int row = 0; row < tokens; row++, y += width, base += width) {
    kernels_->denseNorm(y, gain, shape_.epsilon, width, y);
    for (int i = 0; i < width; i++) y[i] += base[i];
  }
}

void Dense::project(int layer, const float* x, int tokens, float* q, float* k, float* v) {
  norm(x, tokens, gains(layer, kAttnNorm), planesOf(layer, {kDenseQ, kDenseK, kDenseV}));
  const Product products[] = {product(layer, kDenseQ, narrowRows_, tokens, nullptr, q), product(layer, kDenseK, narrowRows_, tokens, nullptr, k),
                              product(layer, kDenseV, narrowRows_, tokens, nullptr, v)};
  multiply(products, 3);
  adapt(layer, narrowRows_, tokens, {{kDenseQ, q, true}, {kDenseK, k, true}, {kDenseV, v, true}});
  headNorms(layer, kQNorm, q, tokens, shape_.queryHeads);
  headNorms(layer, kKNorm, k, tokens, shape_.kvHeads);
}

void Dense::afterAttention(int layer, const float* attention, const float* x, int tokens, float* xNext) {
  const int width = shape_.queryHeads * shape_.headDim;
  const size_t count = static_cast<size_t>(tokens) * shape_.hidden;
  middle_.grow(count);
  headRows_.grow(tokens, width, planesOf(layer, {kDenseO}));
  auto quantize = [&](int item, int) {
    for (int row = item * 16; row < std::min(tokens, item * 16 + 16); row++) {
      headRows_.set(kernels_, attention + static_cast<size_t>(row) * width, width, row);
    }
  };
  threads_.each((tokens + 15) / 16, quantize);
  const bool post = is(kPostNorms);
  const Product o = product(layer, kDenseO, headRows_, tokens, post ? nullptr : x, middle_.data());
  multiply(&o, 1);
  adapt(layer, headRows_, tokens, {{kDenseO, middle_.data(), post}});
  if (post) addPost(layer, kAttnPost, x, tokens, middle_.data());
  const float* gain = gains(layer, kMlpNorm);
  const float* base = post ? nullptr : middle_.data();
  const unsigned planes = is(kUngated) ? planesOf(layer, {kDenseUp}) : planesOf(layer, {kDenseGate, kDenseUp});
  if (shape_.experts > 0) {
    normed_.grow(count);
    norm(middle_.data(), tokens, gain, planes, normed_.data());
    mixExperts(layer, gain ? normed_.data() : middle_.data(), tokens, base, xNext);
  } else {
    norm(is(kParallel) ? x : middle_.data(), tokens, gain, planes);
    feedForward(layer, tokens, base, xNext);
  }
  if (post) addPost(layer, kMlpPost, middle_.data(), tokens, xNext);
}

// From narrowRows_ to y [tokens][hidden].
void Dense::feedForward(int layer, int tokens, const float* base, float* y) {
  const size_t count = static_cast<size_t>(tokens) * shape_.intermediate;
  gate_.grow(count);
  if (is(kUngated)) {
    const Product only = product(layer, kDenseUp, narrowRows_, tokens, nullptr, gate_.data());
    multiply(&only, 1);
    adapt(layer, narrowRows_, tokens, {{kDenseUp, gate_.data(), true}});
  } else {
    up_.grow(count);
    const Product both[] = {product(layer, kDenseGate, narrowRows_, tokens, nullptr, gate_.data()), product(layer, kDenseUp, narrowRows_, tokens, nullptr, up_.data())};
    multiply(both, 2);
    adapt(layer, narrowRows_, tokens, {{kDenseGate, gate_.data(), true}, {kDenseUp, up_.data(), true}});
  }
  activate(tokens, planesOf(layer, {kDenseDown}));
  const Product down = product(layer, kDenseDown, wideRows_, tokens, base, y);
  multiply(&down, 1);
  adapt(layer, wideRows_, tokens, {{kDenseDown, y, base == nullptr}});
}

// From gate_ and up_ to wideRows_. What is not gated is multiplied by ones.
void Dense::activate(int rows, unsigned planes) {
  const int inner = shape_.intermediate;
  wideRows_.grow(rows, inner, planes);
  auto task = [&](int item, int) {
    for (int row = item * 16; row < std::min(rows, item * 16 + 16); row++) {
      float* gate = gate_.data() + static_cast<size_t>(row) * inner;
      const float* up = is(kUngated) ? ones_.data() : up_.data() + static_cast<size_t>(row) * inner;
      if (!is(kGeluErf)) {
        kernels_->denseGate(gate, up, inner, is(kGelu));
      } else {
        geluErf(gate, inner);
        if (!is(kUngated)) for (int i = 0; i < inner; i++) gate[i] *= up[i];
      }
      wideRows_.set(kernels_, gate, inner, row);
    }
  };
  threads_.each((rows + 15) / 16, task);
}

void Dense::first(const float* x, int tokens, const DenseMix& mix, float* q, float* k, float* v) {
  const size_t hidden = shape_.hidden, wide = shape_.queryHeads * shape_.headDim, narrow = shape_.kvHeads * shape_.headDim;
  mix_ = mix;
  for (size_t t = 0; t < static_cast<size_t>(tokens); t += kDenseSlice) {
    mixFrom_ = static_cast<int>(t);
    const int count = std::min(kDenseSlice, tokens - static_cast<int>(t));
    project(0, x + t * hidden, count, q + t * wide, k + t * narrow, v + t * narrow);
  }
}

void Dense::next(int layer, const float* attention, const float* x, int tokens, const DenseMix& mix, float* xNext, float* q, float* k, float* v) {
  const size_t hidden = shape_.hidden, wide = shape_.queryHeads * shape_.headDim, narrow = shape_.kvHeads * shape_.headDim;
  mix_ = mix;
  for (size_t t = 0; t < static_cast<size_t>(tokens); t += kDenseSlice) {
    mixFrom_ = static_cast<int>(t);
    const int count = std::min(kDenseSlice, tokens - static_cast<int>(t));
    afterAttention(layer, attention + t * wide, x + t * hidden, count, xNext + t * hidden);
    project(layer + 1, xNext + t * hidden, count, q + t * wide, k + t * narrow, v + t * narrow);
  }
}

void Dense::last(const float* attention, const float* x, int tokens, const DenseMix& mix, float* xNext) {
  const size_t hidden = shape_.hidden, wide = shape_.queryHeads * shape_.headDim;
  mix_ = mix;
  for (size_t t = 0; t < static_cast<size_t>(tokens); t += kDenseSlice) {
    mixFrom_ = static_cast<int>(t);
    afterAttention(shape_.layers - 1, attention + t * wide, x + t * hidden, std::min(kDenseSlice, tokens - static_cast<int>(t)), xNext + t * hidden);
  }
}

void Dense::logits(const float* x, int rows, float* out) {
  for (size_t t = 0; t < static_cast<size_t>(rows); t += kDenseSlice) {
    const int count = std::min(kDenseSlice, rows - static_cast<int>(t));
    norm(x + t * shape_.hidden, count, gains(shape_.layers, kAttnNorm), planesOf(shape_.layers, {kDenseQ}));
    const Product head = product(shape_.layers, kDenseQ, narrowRows_, count, nullptr, out + t * shape_.vocab);
    multiply(&head, 1);
  }
  if (shape_.logitCap == 0) return;
  for (size_t t = 0; t < static_cast<size_t>(rows); t++) kernels_->capScores(out + t * shape_.vocab, shape_.vocab, shape_.logitCap);
}

}  // namespace palimpsest
