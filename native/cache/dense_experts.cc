// Layers with experts: a router scores them for each row, the best few answer it, and the row takes their answers by
// shares. The rows that an expert answers are copied together, so that it is one product for all of them, and the
// products of all experts are one round of the threads. What a row gets depends on nothing but the row: scores are
// summed in a fixed order, in float64, in which the products are exact, and answers are added in the order of the
// experts.
#include <algorithm>
#include <cmath>
#include <cstring>

#include "dense.h"
#include "finite.h"
#include "powers.h"

namespace palimpsest {

namespace {

// Rows that a thread scores at a time.
constexpr int kRoutedRows = 4;

double score(const float* weights, const float* x, int count) {
  constexpr int kSums = 8;
  double sums[kSums] = {};
  int i = 0;
  for (; i + kSums <= count; i += kSums) {
    for (int j = 0; j < kSums; j++) sums[j] += static_cast<double>(weights[i + j]) * static_cast<double>(x[i + j]);
  }
  for (; i < count; i++) sums[i % kSums] += static_cast<double>(weights[i]) * static_cast<double>(x[i]);
  return ((sums[0] + sums[4]) + (sums[1] + sums[5])) + ((sums[2] + sums[6]) + (sums[3] + sums[7]));
}

// The `used` largest of the scores, ascending by index; of equal ones the first.
void choose(const double* scores, int experts, int used, int32_t* chosen) {
  int count = 0;
  for (int expert = 0; expert < experts; expert++) {
    if (count == used && !(scores[expert] > scores[chosen[used - 1]])) continue;
    int at = count < used ? count++ : used - 1;
    for (; at > 0 && scores[expert] > scores[chosen[at - 1]]; at--) chosen[at] = chosen[at - 1];
    chosen[at] = expert;
  }
  std::sort(chosen, chosen + used);
}

}  // namespace

Status Dense::setRouter(int layer, const float* weights) {
  Layer& at = layers_[layer];
  const size_t count = static_cast<size_t>(shape_.experts) * shape_.hidden;
  if (!allFinite(weights, count)) return kBadValue;
  at.router.grow(count);
  std::copy(weights, weights + count, at.router.data());
  if (!at.routed) bytes_ += count * sizeof(float);
  at.routed = true;
  return kOk;
}

bool Dense::complete(const Layer& layer) const {
  for (int slot = kDenseGate; slot < kDenseSlots; slot++) {
    for (int expert = 0; expert < shape_.experts; expert++) {
      if (layer.ofExperts[static_cast<size_t>(slot - kDenseGate) * shape_.experts + expert].set < outputs(0, slot)) return false;
    }
  }
  return layer.routed;
}

// Fills chosen_ and shares_. A share is the softmax of the score, over all experts or over those that are chosen.
void Dense::route(int layer, const float* normed, int tokens) {
  const int experts = shape_.experts, used = shape_.expertsUsed, width = shape_.hidden;
  const float* router = layers_[layer].router.data();
  chosen_.grow(static_cast<size_t>(tokens) * used);
  shares_.grow(static_cast<size_t>(tokens) * used);
  routing_.grow(static_cast<size_t>(threads_.count()) * experts);
  auto task = [&](int item, int thread) {
    double* scores = routing_.data() + static_cast<size_t>(thread) * experts;
    for (int row = item * kRoutedRows; row < std::min(tokens, item * kRoutedRows + kRoutedRows); row++) {
      for (int expert = 0; expert < experts; expert++) {
        scores[expert] = score(router + static_cast<size_t>(expert) * width, normed + static_cast<size_t>(row) * width, width);
      }
      int32_t* chosen = chosen_.data() + static_cast<size_t>(row) * used;
      choose(scores, experts, used, chosen);
      double most = scores[chosen[0]];
      for (int i = 1; i < used; i++) most = std::max(most, scores[chosen[i]]);
      const auto weight = [&](int expert) -> double { return powerOfTwo(static_cast<float>((scores[expert] - most) * 1.44269504088896340736)); };
      double total = 0;
      if (is(kShareAmongChosen)) {
        for (int i = 0; i < used; i++) total += weight(chosen[i]);
      } else {
        for (int expert = 0; expert < experts; expert++) total += weight(expert);
      }
      for (int i = 0; i < used; i++) shares_[static_cast<size_t>(row) * used + i] = static_cast<float>(weight(chosen[i]) / total);
    }
  };
  threads_.each((tokens + kRoutedRows - 1) / kRoutedRows, task);
}

// Copies the rows of narrowRows_ that each expert answers together. Fills starts_ and places_.
void Dense::gather(int tokens, unsigned planes) {
  const int used = shape_.expertsUsed, count = tokens * used;
  places_.grow(count);
  expertRows_.grow(count, shape_.hidden, planes);
  std::fill(starts_.begin(), starts_.end(), 0);
  for (int i = 0; i < count; i++) starts_[chosen_[i] + 1]++;
  for (int expert = 0; expert < shape_.experts; expert++) starts_[expert + 1] += starts_[expert];
  for (int i = 0; i < count; i++) places_[i] = starts_[chosen_[i]]++;
  // Each start has become the end, which is where the next one begins.
  for (int expert = shape_.experts; expert > 0; expert--) starts_[expert] = starts_[expert - 1];
  starts_[0] = 0;
  const size_t blocks = denseBlocks(shape_.hidden);
  auto task = [&](int item, int) {
    for (int i = item * 16; i < std::min(count, item * 16 + 16); i++) {
      for (int plane = 1; plane <= 2; plane++) {
        if ((planes & (1u << (plane - 1))) == 0) continue;
        const DenseRows from = narrowRows_.from(i / used, plane), to = expertRows_.from(places_[i], plane);
        std::memcpy(to.bytes, from.bytes, blocks * 64);
        std::memcpy(to.steps, from.steps, blocks * sizeof(float));
        std::memcpy(to.sums, from.sums, blocks * 2 * sizeof(int32_t));
      }
    }
  };
  threads_.each((count + 15) / 16, task);
}

// From expertRows_ to answers_.
void Dense::multiplyExperts(int layer) {
  const size_t inner = shape_.intermediate, hidden = shape_.hidden;
  const uint64_t rows = starts_[shape_.experts];
  gate_.grow(rows * inner);
  up_.grow(rows * inner);
  answers_.grow(rows * hidden);
  auto each = [&](auto add) {
    products_.clear();
    for (int expert = 0; expert < shape_.experts; expert++) {
      const int first = starts_[expert], n = starts_[expert + 1] - first;
      if (n > 0) add(expert, first, n);
    }
    multiply(products_.data(), static_cast<int>(products_.size()));
  };
  each([&](int expert, int first, int n) {
    products_.push_back(product(layer, kDenseGate, expertRows_, n, nullptr, gate_.data() + first * inner, expert, first));
    products_.push_back(product(layer, kDenseUp, expertRows_, n, nullptr, up_.data() + first * inner, expert, first));
  });
  activate(static_cast<int>(rows), planesOf(layer, {kDenseDown}));
  each([&](int expert, int first, int n) { products_.push_back(product(layer, kDenseDown, wideRows_, n, nullptr, answers_.data() + first * hidden, expert, first)); });
}

// normed [tokens][hidden], which narrowRows_ has as well; y [tokens][hidden] = base, or zero, + the shares of what the
// experts answer.
void Dense::mixExperts(int layer, const float* normed, int tokens, const float* base, float* y) {
  route(layer, normed, tokens);
  gather(tokens, planesOf(layer, {kDenseGate, kDenseUp}));
  multiplyExperts(layer);
  const size_t width = shape_.hidden, used = shape_.expertsUsed;
  auto task = [&](int item, int) {
    for (size_t row = item * size_t{16}; row < std::min<size_t>(tokens, item * size_t{16} + 16); row++) {
      float* to = y + row * width;
      if (base) {
        std::memcpy(to, base + row * width, width * sizeof(float));
      } else {
        std::memset(to, 0, width * sizeof(float));
      }
      for (size_t i = row * used; i < (row + 1) * used; i++) {
        const float share = shares_[i];
        const float* answer = answers_.data() + places_[i] * width;
        for (size_t at = 0; at < width; at++) to[at] += share * answer[at];
      }
    }
  };
  threads_.each((tokens + 15) / 16, task);
}

}  // namespace palimpsest
