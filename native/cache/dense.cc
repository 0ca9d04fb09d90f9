#include "dense.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstring>

namespace palimpsest {

namespace {

// Bytes of rows that stay in the second-level cache while panels stream past.
constexpr size_t kRowBytes = size_t{512} << 10;

int panelsOf(int outputs) { return (outputs + kDensePanel - 1) / kDensePanel; }
uint8_t* bytesOf(Block* block) { return reinterpret_cast<uint8_t*>(block) + kHeapUnit; }

void fill(Buffer<float>& to, const float* from, int count, int padded) {
  to.grow(padded);
  std::copy(from, from + count, to.data());
  std::fill(to.data() + count, to.data() + padded, 0.0f);
}

}  // namespace

void Dense::Quantized::grow(int rows, int width) {
  const int blocks = denseBlocks(width);
  const size_t count = static_cast<size_t>(rows) * blocks;
  bytes.grow(count * 64);
  steps.grow(count);
  sums.grow(count * 2);
  view = {bytes.data(), steps.data(), sums.data(), blocks};
}

Dense::Dense(const Kernels* kernels, const DenseShape& shape, int threads) : kernels_(kernels), shape_(shape), threads_(threads), layers_(shape.layers + 1) {}

Dense::~Dense() {
  for (Layer& layer : layers_) {
    for (Matrix& matrix : layer.matrix) {
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
  if (norm == kAttnNorm) return shape_.hidden;
  if (layer == shape_.layers) return 0;
  if (norm == kQNorm || norm == kKNorm) {
    const int heads = !is(kWidthNorms) ? 1 : norm == kQNorm ? shape_.queryHeads : shape_.kvHeads;
    return heads * shape_.headDim;
  }
  return norm == kMlpNorm || is(kPostNorms) ? shape_.hidden : 0;
}

bool Dense::place(Matrix& matrix, size_t size) {
  matrix.block = heap_.take(size);
  if (matrix.block) bytes_ += size;
  return matrix.block;
}

void Dense::drop(Matrix& matrix, size_t size) {
  heap_.give(matrix.block);
  matrix.block = nullptr;
  bytes_ -= size;
}

Status Dense::setRows(int layer, int slot, DenseType type, const uint8_t* bytes, int from, int rows) {
  const int outputs = this->outputs(layer, slot), inputs = this->inputs(layer, slot);
  Matrix& matrix = layers_[layer].matrix[slot];
  if (inputs % kDenseTypes[type].values != 0) return kUnsupported;
  if (from != matrix.set || rows < 1 || rows > outputs - from || (from > 0 && type != matrix.type)) return kBadArgument;
  if (rows % kDensePanel != 0 && from + rows != outputs) return kBadArgument;
  const size_t panelBytes = densePanelBytes(kDenseTypes[type].form, denseBlocks(inputs)), size = panelsOf(outputs) * panelBytes;
  if (!matrix.block && !place(matrix, size)) return kNoMemory;
  uint8_t* panels = bytesOf(matrix.block) + from / kDensePanel * panelBytes;
  const size_t rowBytes = denseRowBytes(type, inputs);
  std::atomic<bool> finite{true};
  auto task = [&](int panel, int) {
    const int first = panel * kDensePanel;
    if (!packDensePanel(kernels_, type, bytes + first * rowBytes, std::min(kDensePanel, rows - first), inputs, panels + panel * panelBytes)) finite = false;
  };
  threads_.each(panelsOf(rows), task);
  if (!finite) {
    if (from == 0) drop(matrix, size);
    return kBadValue;
  }
  matrix.type = type;
  matrix.set = from + rows;
  return kOk;
}

Status Dense::setBias(int layer, int slot, const float* bias) {
  Matrix& matrix = layers_[layer].matrix[slot];
  const int outputs = this->outputs(layer, slot);
  if (!matrix.biased) bytes_ += outputs * sizeof(float);
  fill(matrix.bias, bias, outputs, panelsOf(outputs) * kDensePanel);
  matrix.biased = true;
  return kOk;
}

Status Dense::setNorm(int layer, int norm, const float* gain) {
  Layer& at = layers_[layer];
  const int size = normSize(layer, norm);
  if (!at.normed[norm]) bytes_ += size * sizeof(float);
  fill(at.norm[norm], gain, size, size);
  at.normed[norm] = true;
  return kOk;
}

bool Dense::complete() const {
  for (int layer = 0; layer < shape_.layers; layer++) {
    for (int slot = 0; slot < kDenseSlots; slot++) {
      if (layers_[layer].matrix[slot].set < outputs(layer, slot)) return false;
    }
    const bool* normed = layers_[layer].normed;
    if (!is(kNoPreNorms) && !(normed[kAttnNorm] && normed[kMlpNorm])) return false;
    if (is(kPostNorms) && !(normed[kAttnPost] && normed[kMlpPost])) return false;
  }
  return layers_[shape_.layers].matrix[kDenseQ].set == shape_.vocab && layers_[shape_.layers].normed[kAttnNorm];
}

Dense::Product Dense::product(int layer, int slot, const float* base, float* y) const {
  const Matrix& matrix = layers_[layer].matrix[slot];
  const DenseWeights weights = {kDenseTypes[matrix.type].form, bytesOf(matrix.block), matrix.biased ? matrix.bias.data() : nullptr, outputs(layer, slot)};
  return {weights, base, y};
}

// Normalizes rows of hidden size, where there are gains, and quantizes them into narrowRows_.
void Dense::norm(const float* x, int rows, const float* gain) {
  const int width = shape_.hidden;
  narrowRows_.grow(rows, width);
  lines_.grow(static_cast<size_t>(threads_.count()) * width);
  auto task = [&](int item, int thread) {
    float* line = lines_.data() + static_cast<size_t>(thread) * width;
    for (int row = item * 16; row < std::min(rows, item * 16 + 16); row++) {
      const float* from = x + static_cast<size_t>(row) * width;
      if (gain) kernels_->denseNorm(from, gain, shape_.epsilon, width, line);
      kernels_->denseRow(gain ? line : from, width, narrowRows_.view, row);
    }
  };
  threads_.each((rows + 15) / 16, task);
}

// The panels of all products are distributed together; an output does not depend on the thread that computes it.
void Dense::multiply(const Product* products, int count, const Quantized& rows, int n) {
  int panels = 0;
  double work = 0;
  for (int i = 0; i < count; i++) {
    panels += panelsOf(products[i].weights.outputs);
    work += static_cast<double>(products[i].weights.outputs) * rows.view.blocks * 32 * n;
  }
  // With many rows the kernel processes panels in pairs, so each item has an even number of them.
  const int parts = Threads::worthSharing(threads_.count(), work) ? threads_.count() * kItemsAThread : 1;
  const int share = std::max(2, ((panels + parts - 1) / parts + 1) / 2 * 2);
  const size_t perRow = static_cast<size_t>(rows.view.blocks) * 64;
  const int slice = static_cast<int>(std::clamp<size_t>(kRowBytes / perRow / 4 * 4, 16, kDenseSlice));
  auto task = [&](int item, int) {
    int from = item * share, to = std::min(panels, from + share);
    for (int i = 0; i < count && from < to; i++) {
      const DenseWeights& weights = products[i].weights;
      const int own = panelsOf(weights.outputs);
      if (from < own) {
        for (int row = 0; row < n; row += slice) {
          const size_t first = static_cast<size_t>(row) * rows.view.blocks, at = static_cast<size_t>(row) * weights.outputs;
          const DenseRows part = {rows.view.bytes + first * 64, rows.view.steps + first, rows.view.sums + first * 2, rows.view.blocks};
          const float* base = products[i].base ? products[i].base + at : nullptr;
          kernels_->densePanels(weights, from, std::min(to, own), part, std::min(slice, n - row), base, products[i].y + at);
        }
      }
      from = std::max(0, from - own);
      to -= own;
    }
  };
  threads_.each((panels + share - 1) / share, task);
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
  norm(x, tokens, gains(layer, kAttnNorm));
  const Product products[] = {product(layer, kDenseQ, nullptr, q), product(layer, kDenseK, nullptr, k), product(layer, kDenseV, nullptr, v)};
  multiply(products, 3, narrowRows_, tokens);
  headNorms(layer, kQNorm, q, tokens, shape_.queryHeads);
  headNorms(layer, kKNorm, k, tokens, shape_.kvHeads);
}

void Dense::afterAttention(int layer, const float* attention, const float* x, int tokens, float* xNext) {
  const int width = shape_.queryHeads * shape_.headDim, inner = shape_.intermediate;
  const size_t count = tokens;
  middle_.grow(count * shape_.hidden);
  gate_.grow(count * inner);
  up_.grow(count * inner);
  headRows_.grow(tokens, width);
  wideRows_.grow(tokens, inner);
  auto quantize = [&](int item, int) {
    for (int row = item * 16; row < std::min(tokens, item * 16 + 16); row++) {
      kernels_->denseRow(attention + static_cast<size_t>(row) * width, width, headRows_.view, row);
    }
  };
  threads_.each((tokens + 15) / 16, quantize);
  const bool post = is(kPostNorms);
  const Product o = product(layer, kDenseO, post ? nullptr : x, middle_.data());
  multiply(&o, 1, headRows_, tokens);
  if (post) addPost(layer, kAttnPost, x, tokens, middle_.data());
  norm(middle_.data(), tokens, gains(layer, kMlpNorm));
  const Product both[] = {product(layer, kDenseGate, nullptr, gate_.data()), product(layer, kDenseUp, nullptr, up_.data())};
  multiply(both, 2, narrowRows_, tokens);
  auto activate = [&](int item, int) {
    for (int row = item * 16; row < std::min(tokens, item * 16 + 16); row++) {
      float* gate = gate_.data() + static_cast<size_t>(row) * inner;
      kernels_->denseGate(gate, up_.data() + static_cast<size_t>(row) * inner, inner, is(kGelu));
      kernels_->denseRow(gate, inner, wideRows_.view, row);
    }
  };
  threads_.each((tokens + 15) / 16, activate);
  const Product down = product(layer, kDenseDown, post ? nullptr : middle_.data(), xNext);
  multiply(&down, 1, wideRows_, tokens);
  if (post) addPost(layer, kMlpPost, middle_.data(), tokens, xNext);
}

void Dense::first(const float* x, int tokens, float* q, float* k, float* v) {
  const size_t hidden = shape_.hidden, wide = shape_.queryHeads * shape_.headDim, narrow = shape_.kvHeads * shape_.headDim;
  for (size_t t = 0; t < static_cast<size_t>(tokens); t += kDenseSlice) {
    const int count = std::min(kDenseSlice, tokens - static_cast<int>(t));
    project(0, x + t * hidden, count, q + t * wide, k + t * narrow, v + t * narrow);
  }
}

void Dense::next(int layer, const float* attention, const float* x, int tokens, float* xNext, float* q, float* k, float* v) {
  const size_t hidden = shape_.hidden, wide = shape_.queryHeads * shape_.headDim, narrow = shape_.kvHeads * shape_.headDim;
  for (size_t t = 0; t < static_cast<size_t>(tokens); t += kDenseSlice) {
    const int count = std::min(kDenseSlice, tokens - static_cast<int>(t));
    afterAttention(layer, attention + t * wide, x + t * hidden, count, xNext + t * hidden);
    project(layer + 1, xNext + t * hidden, count, q + t * wide, k + t * narrow, v + t * narrow);
  }
}

void Dense::last(const float* attention, const float* x, int tokens, float* xNext) {
  const size_t hidden = shape_.hidden, wide = shape_.queryHeads * shape_.headDim;
  for (size_t t = 0; t < static_cast<size_t>(tokens); t += kDenseSlice) {
    afterAttention(shape_.layers - 1, attention + t * wide, x + t * hidden, std::min(kDenseSlice, tokens - static_cast<int>(t)), xNext + t * hidden);
  }
}

void Dense::logits(const float* x, int rows, float* out) {
  for (size_t t = 0; t < static_cast<size_t>(rows); t += kDenseSlice) {
    const int count = std::min(kDenseSlice, rows - static_cast<int>(t));
    norm(x + t * shape_.hidden, count, gains(shape_.layers, kAttnNorm));
    const Product head = product(shape_.layers, kDenseQ, nullptr, out + t * shape_.vocab);
    multiply(&head, 1, narrowRows_, count);
  }
}

}  // namespace palimpsest
