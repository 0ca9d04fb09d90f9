// What parked pages are predicted by, and the way back from their residuals to rows. engine/session/park/ says what the
// bytes mean and is the reference (predictor.ts, residual.ts, rans.ts): the rows are the same to the bit. Pages do not
// depend on each other, so each may be read by another thread.
//
// A row of one side is base + weights * levels. The levels of a row, all in 8 bits, in the order of the weights here:
// keys and values of the layer below [2w] if there is one, for values the keys of this layer [w], and then its
// residuals times their factors, from the columns that spread most to those that spread least. A page codes the first
// of these columns alone, and the product ends with them. Sums are whole numbers, so their order makes no difference.
#pragma once
#include <algorithm>
#include <memory>
#include <vector>

#include "buffer.h"
#include "latent.h"

namespace palimpsest {

struct PredictedSide {
  PackedWeights weights;
  std::vector<float> base;  // [w]
  // The columns of residuals in the order of coding, [w]:
  std::vector<uint8_t> factors;  // times a residual within int8
  std::vector<uint8_t> tables;   // below the number of distributions
  std::vector<int> order;        // where they stand among the columns that were given
  // From residuals to the columns in the order of coding, for those who write: null until it is set.
  std::unique_ptr<PackedWeights> back;
};

// The places of columns in the order in which they are coded: those with higher tables first, those with equal ones as
// they stand.
std::vector<int> codedOrder(const uint8_t* tables, int width);

// Half octaves by which the distributions of a side may be moved.
constexpr int kCodedShiftLeast = -4, kCodedShiftMost = 6;
// The head of a page has two shifts, int8, and how many columns are coded of each side, u16.
constexpr size_t kPredictedHead = 6;

struct PredictedLayer {
  PredictedSide k;
  PredictedSide v;
  std::vector<float> centres;  // [2w]: a level is (row - centre) * gain
  std::vector<float> gains;
};

struct Predictor {
  int kvHeads;
  int headDim;
  std::vector<PredictedLayer> layers;
  int distributions = 0;
  std::vector<uint32_t> slots;  // [distributions][4096], as Kernels::decodeResiduals reads them
  // For each symbol of each distribution, [distributions][43]: its share of 4096, where it begins, and what it takes.
  std::vector<uint16_t> shares, starts;
  std::vector<double> symbolBits;

  int width() const { return kvHeads * headDim; }
  // shares: [count][43], each distribution with no 0 and the sum 4096; false otherwise.
  bool setDistributions(const uint16_t* given, int count);
  // A distribution moved by so many half octaves, as far as there are any.
  uint8_t moved(int table, int shift) const { return static_cast<uint8_t>(std::clamp(table + shift, 0, distributions - 1)); }
  size_t bytes() const;
};

// Reads the pages of one position layer by layer, from the first on. It holds what the next layer is predicted from.
class PageReader {
 public:
  // Allocates everything that follows needs.
  void reserve(const Predictor& predictor);
  // Decodes a page of a layer from its residuals: rows k and v, [128][w] each, before the rotary embedding. False where
  // the bytes are damaged.
  bool read(const Kernels* kernels, const Predictor& predictor, int layer, const uint8_t* bytes, size_t size);
  // Takes the rows in k and v as those of a layer, which was stored in another way.
  void pass(const Kernels* kernels, const PredictedLayer& layer, int width);
  float* k() { return k_.data(); }
  float* v() { return v_.data(); }

 private:
  void multiply(const Kernels* kernels, const PredictedSide& side, int width, const int8_t* levels, int depth, float* rows);

  Buffer<float> k_;
  Buffer<float> v_;
  Buffer<uint8_t> tables_;  // [2][w]
  // Rows in the order of gemmI8, which holds blocks of eight:
  Buffer<int8_t> below_;    // the levels of the layer below, 2w to a row
  Buffer<int8_t> keyRows_;  // what keys are made of
  Buffer<int8_t> valueRows_;
};

}  // namespace palimpsest
