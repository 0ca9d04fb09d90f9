// Low-rank adapters: to what a matrix W answers to a row x, an adapter adds scale * b * (a * x), beside W and never
// into it. The rows of a call may have different adapters, several, or none. Both factors are read as they are stored,
// in 8 bits. a is a matrix like all others, whose products have the same kernels; what it answers is rounded to 16 bits
// for each 256 ranks, and its products with b are summed as integers. So a row gets the same bits alone as among
// others, and a row without adapters is not touched. An adapter with gains (DoRA, whose gains are those of its outputs
// less 1) also adds scale * gains * (W * x), whatever else is added.
#include <algorithm>
#include <cmath>
#include <cstring>

#include "dense.h"
#include "finite.h"

namespace palimpsest {

namespace {

// Ranks whose products are summed at once (dotI8).
constexpr int kRanksAtOnce = 256;
// Rows of a slice that one thread takes.
constexpr int kRowsAtOnce = 8;

// The most bytes of factors that are fetched while a matrix is multiplied: they wait in the second-level cache.
constexpr size_t kBesideBytes = size_t{256} << 10;

constexpr int paddedRank(int rank) { return (rank + 3) / 4 * 4; }
constexpr int rankParts(int rank) { return (rank + kRanksAtOnce - 1) / kRanksAtOnce; }
constexpr uint64_t tileBytes(int rank, int outputs) { return static_cast<uint64_t>(paddedRank(rank)) * ((outputs + 15) / 16 * 16); }

// b where it is kept.
struct Second {
  int8_t* tile;
  float *scales, *gains;
  Second(uint8_t* at, int rank, int outputs)
      : tile(reinterpret_cast<int8_t*>(at)), scales(reinterpret_cast<float*>(at + tileBytes(rank, outputs))), gains(scales + rank) {}
};

}  // namespace

Status Dense::setAdapter(int adapter, int layer, int slot, int rank, const float* a, const float* b, const float* gains) {
  if (static_cast<size_t>(adapter) >= adapters_.size()) adapters_.resize(adapter + 1);
  std::unique_ptr<Adapter>& at = adapters_[adapter];
  if (!at) {
    at = std::make_unique<Adapter>();
    at->of = std::vector<Factors>(static_cast<size_t>(shape_.layers) * kDenseSlots);
  }
  Factors& factors = at->of[static_cast<size_t>(layer) * kDenseSlots + slot];
  if (factors.rank != 0) return kBadArgument;
  const int outputs = this->outputs(layer, slot), inputs = this->inputs(layer, slot);
  if (!allFinite(b, static_cast<size_t>(outputs) * rank) || (gains && !allFinite(gains, outputs))) return kBadValue;
  factors.second = panelsOf(rank) * densePanelBytes(kDenseTypes[kFromF32].form, denseBlocks(inputs));
  const uint64_t bytes = factors.second + tileBytes(rank, outputs) + (static_cast<uint64_t>(rank) + (gains ? outputs : 0)) * sizeof(float);
  if (!place(factors.matrix, (bytes + kHeapUnit - 1) / kHeapUnit * kHeapUnit)) return kNoMemory;
  const Status status = pack(factors.matrix, rank, inputs, kFromF32, reinterpret_cast<const uint8_t*>(a), 0, rank);
  if (status != kOk) return status;
  factors.rank = rank;
  factors.gained = gains != nullptr;
  setSecond(factors, outputs, b, gains);
  return kOk;
}

// b [outputs][rank]: column r, which rank r adds to the outputs, becomes a row of the tile with a scale.
void Dense::setSecond(Factors& factors, int outputs, const float* b, const float* gains) {
  const int rank = factors.rank;
  const Second to(bytesOf(factors.matrix.block) + factors.second, rank, outputs);
  std::memset(to.tile, 0, tileBytes(rank, outputs));
  std::fill(to.scales, to.scales + rank, 0.0f);
  for (int o = 0; o < outputs; o++) {
    for (int r = 0; r < rank; r++) to.scales[r] = std::max(to.scales[r], std::fabs(b[static_cast<size_t>(o) * rank + r]));
  }
  for (int r = 0; r < rank; r++) to.scales[r] /= 127;
  if (gains) std::copy(gains, gains + outputs, to.gains);
  const size_t quadBytes = static_cast<size_t>((outputs + 15) / 16) * 64;
  for (int o = 0; o < outputs; o++) {
    for (int r = 0; r < rank; r++) {
      // The scale of the smallest numbers is none.
      const float level = to.scales[r] == 0 ? 0 : std::nearbyint(b[static_cast<size_t>(o) * rank + r] / to.scales[r]);
      to.tile[r / 4 * quadBytes + static_cast<size_t>(o) * 4 + r % 4] = static_cast<int8_t>(std::clamp(level, -127.0f, 127.0f));
    }
  }
}

void Dense::dropAdapter(int adapter) {
  if (!hasAdapter(adapter)) return;
  for (Factors& factors : adapters_[adapter]->of) {
    if (factors.matrix.block) drop(factors.matrix);
  }
  adapters_[adapter] = nullptr;
}

// Rows from..end of the slice, as far as they are of `added`: rounds what a has answered, and adds its products with b.
void Dense::addRows(const Added& added, int from, int end) {
  from = std::max(from, added.first) - added.first;
  end = std::min(end, added.first + added.rows) - added.first;
  if (from >= end) return;
  const int rank = added.factors->rank, padded = paddedRank(rank), outputs = added.outputs;
  const Second second(bytesOf(added.factors->matrix.block) + added.factors->second, rank, outputs);
  int16_t* lines = rankedLines_.data() + added.lines;
  for (int part = 0; part < rankParts(rank); part++) {
    const int first = part * kRanksAtOnce, count = std::min(kRanksAtOnce, rank - first), wide = std::min(kRanksAtOnce, padded - first);
    float* steps = rankedSteps_.data() + added.steps + static_cast<size_t>(part) * added.rows;
    for (int row = from; row < end; row++) {
      float* values = ranked_.data() + added.at + static_cast<size_t>(row) * rank + first;
      int16_t* line = lines + static_cast<size_t>(row) * padded + first;
      for (int i = 0; i < count; i++) values[i] *= added.scale * second.scales[first + i];
      steps[row] = kernels_->quantizeI16(values, count, line);
      std::fill(line + count, line + wide, int16_t{0});
    }
    kernels_->addDotI8(second.tile + tileBytes(first, outputs), wide, outputs, lines + static_cast<size_t>(from) * padded + first, end - from, padded, steps + from,
                       added.y + static_cast<size_t>(from) * outputs, outputs);
  }
  if (!added.factors->gained) return;
  for (size_t row = from; row < static_cast<size_t>(end); row++) {
    const float* plain = plain_.data() + added.plain + row * outputs;
    float* y = added.y + row * outputs;
    for (int o = 0; o < outputs; o++) y[o] += added.scale * (second.gains[o] * plain[o]);
  }
}

// Keeps what matrices themselves answer to the rows that have gains, before anything is added.
void Dense::keepPlain(int layer, const Quantized& rows, std::initializer_list<Answer> answers) {
  size_t kept = 0;
  for (Added& added : added_) {
    added.plain = kept;
    if (added.factors->gained) kept += static_cast<size_t>(added.rows) * added.outputs;
  }
  if (kept == 0) return;
  plain_.grow(kept);
  products_.clear();
  for (const Added& added : added_) {
    if (!added.factors->gained) continue;
    const bool plain = std::any_of(answers.begin(), answers.end(), [&](const Answer& answer) { return answer.slot == added.slot && answer.plain; });
    float* to = plain_.data() + added.plain;
    if (plain && !layers_[layer].matrix[added.slot].biased) {
      std::copy(added.y, added.y + static_cast<size_t>(added.rows) * added.outputs, to);
    } else {
      products_.push_back(product(layer, added.slot, rows, added.rows, nullptr, to, 0, added.first));
      products_.back().weights.bias = nullptr;
    }
  }
  multiply(products_.data(), static_cast<int>(products_.size()));
}

// Calls work(first row, end, adapter, scale) for the parts of the mix among the first `tokens` rows of the slice.
// Neighbours with the same adapter and scale are one part.
template <typename Work>
void Dense::eachPart(int tokens, const Work& work) const {
  for (int part = 0; part < mix_.count;) {
    const int32_t* at = mix_.parts + static_cast<size_t>(part) * 3;
    const float scale = mix_.scales[part];
    int last = at[0] + at[1];
    for (part++; part < mix_.count && mix_.scales[part] == scale; part++) {
      const int32_t* next = mix_.parts + static_cast<size_t>(part) * 3;
      if (next[0] != last || next[2] != at[2]) break;
      last += next[1];
    }
    const int first = std::max(at[0] - mixFrom_, 0), end = std::min(last - mixFrom_, tokens);
    if (first < end && hasAdapter(at[2])) work(first, end, at[2], scale);
  }
}

// Has what adapters add to a matrix fetched while the rows are multiplied with it: few rows would wait for memory.
void Dense::fetchBeside(int layer, int slot, int n, DenseWeights& weights) {
  std::vector<DenseSpan>& spans = beside_[slot];
  spans.clear();
  size_t bytes = 0;
  eachPart(n, [&](int, int, int adapter, float) {
    const Matrix& matrix = adapters_[adapter]->of[static_cast<size_t>(layer) * kDenseSlots + slot].matrix;
    if (!matrix.block || bytes + matrix.placed > kBesideBytes) return;
    spans.push_back({bytesOf(matrix.block), matrix.placed});
    bytes += matrix.placed;
  });
  const size_t panels = panelsOf(weights.outputs);
  weights.beside = spans.data();
  weights.spans = static_cast<int>(spans.size());
  weights.share = (bytes + panels - 1) / panels;
}

// Adds to what matrices have answered to `rows` what the adapters of these rows add.
void Dense::adapt(int layer, const Quantized& rows, int tokens, std::initializer_list<Answer> answers) {
  added_.clear();
  products_.clear();
  size_t ranked = 0, lines = 0, steps = 0;
  double work = 0;
  eachPart(tokens, [&](int first, int end, int adapter, float scale) {
    for (const Answer& answer : answers) {
      const Factors& factors = adapters_[adapter]->of[static_cast<size_t>(layer) * kDenseSlots + answer.slot];
      if (factors.rank == 0) continue;
      const int outputs = this->outputs(layer, answer.slot);
      const size_t count = end - first;
      added_.push_back({&factors, first, end - first, scale, answer.slot, outputs, answer.y + static_cast<size_t>(first) * outputs, ranked, lines, steps, 0});
      products_.push_back(times(factors.matrix, factors.rank, rows.from(first, layers_[layer].planes[answer.slot]), end - first, nullptr, nullptr));
      ranked += count * factors.rank;
      lines += count * paddedRank(factors.rank);
      steps += count * rankParts(factors.rank);
      work += static_cast<double>(count) * factors.rank * outputs;
    }
  });
  if (added_.empty()) return;
  ranked_.grow(ranked);
  rankedLines_.grow(lines);
  rankedSteps_.grow(steps);
  for (size_t i = 0; i < added_.size(); i++) products_[i].y = ranked_.data() + added_[i].at;
  multiply(products_.data(), static_cast<int>(products_.size()));
  keepPlain(layer, rows, answers);
  // Several adapters may add to the same rows of a matrix, and do so one after the other.
  const int blocks = (tokens + kRowsAtOnce - 1) / kRowsAtOnce;
  auto task = [&](int item, int) {
    const Answer& answer = answers.begin()[item / blocks];
    const int from = item % blocks * kRowsAtOnce;
    for (const Added& added : added_) {
      if (added.slot == answer.slot) addRows(added, from, from + kRowsAtOnce);
    }
  };
  const int items = static_cast<int>(answers.size()) * blocks;
  if (threads_.worthSharing(work)) {
    threads_.each(items, task);
  } else {
    for (int item = 0; item < items; item++) task(item, 0);
  }
}

}  // namespace palimpsest
