// Low-rank adapters: to what a matrix W answers to a row x, an adapter adds scale * b * (a * x), beside W and never
// into it. The rows of a call may have different adapters, several, or none. Both factors are matrices like all others,
// and their products have the same kernels, so a row gets the same bits alone as among others; a row without adapters
// is not touched.
#include <algorithm>

#include "dense.h"

namespace palimpsest {

Status Dense::setAdapter(int adapter, int layer, int slot, int rank, const float* a, const float* b) {
  if (static_cast<size_t>(adapter) >= adapters_.size()) adapters_.resize(adapter + 1);
  std::unique_ptr<Adapter>& at = adapters_[adapter];
  if (!at) {
    at = std::make_unique<Adapter>();
    at->of = std::vector<Factors>(static_cast<size_t>(shape_.layers) * kDenseSlots);
  }
  Factors& factors = at->of[static_cast<size_t>(layer) * kDenseSlots + slot];
  if (factors.rank != 0) return kBadArgument;
  const int outputs = this->outputs(layer, slot), inputs = this->inputs(layer, slot);
  Status status = pack(factors.a, rank, inputs, kFromF32, reinterpret_cast<const uint8_t*>(a), 0, rank);
  if (status == kOk) status = pack(factors.b, outputs, rank, kFromF32, reinterpret_cast<const uint8_t*>(b), 0, outputs);
  if (status == kOk) factors.rank = rank;
  return status;
}

void Dense::dropAdapter(int adapter) {
  if (!hasAdapter(adapter)) return;
  for (Factors& factors : adapters_[adapter]->of) {
    for (Matrix* matrix : {&factors.a, &factors.b}) {
      if (matrix->block) drop(*matrix);
    }
  }
  adapters_[adapter] = nullptr;
}

// Adds to what matrices have answered to `rows` what the adapters of these rows add.
void Dense::adapt(int layer, const Quantized& rows, int tokens, std::initializer_list<Answer> answers) {
  added_.clear();
  products_.clear();
  size_t ranked = 0;
  for (int part = 0; part < mix_.count; part++) {
    const int32_t* at = mix_.parts + static_cast<size_t>(part) * 3;
    const int first = std::max(at[0] - mixFrom_, 0), end = std::min(at[0] + at[1] - mixFrom_, tokens);
    if (first >= end || !hasAdapter(at[2])) continue;
    for (const Answer& answer : answers) {
      const Factors& factors = adapters_[at[2]]->of[static_cast<size_t>(layer) * kDenseSlots + answer.slot];
      if (factors.rank == 0) continue;
      const int outputs = this->outputs(layer, answer.slot);
      added_.push_back({&factors, first, end - first, mix_.scales[part], outputs, answer.y + static_cast<size_t>(first) * outputs, ranked});
      products_.push_back(times(factors.a, factors.rank, rows.from(first, layers_[layer].planes[answer.slot]), end - first, nullptr, nullptr));
      ranked += static_cast<size_t>(end - first) * factors.rank;
    }
  }
  if (added_.empty()) return;
  ranked_.grow(ranked);
  for (size_t i = 0; i < added_.size(); i++) products_[i].y = ranked_.data() + added_[i].at;
  multiply(products_.data(), static_cast<int>(products_.size()));
  // One after the other, because several adapters may add to the same rows.
  for (const Added& added : added_) {
    const int rank = added.factors->rank;
    float* values = ranked_.data() + added.at;
    rankedRows_.grow(added.rows, rank, 2);
    for (int row = 0; row < added.rows; row++, values += rank) {
      for (int i = 0; i < rank; i++) values[i] *= added.scale;
      rankedRows_.set(kernels_, values, rank, row);
    }
    const Product product = times(added.factors->b, added.outputs, rankedRows_.from(0, 2), added.rows, added.y, added.y);
    multiply(&product, 1);
  }
}

}  // namespace palimpsest
