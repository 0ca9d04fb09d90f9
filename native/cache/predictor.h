// What parked pages are predicted by, and the way back from their residuals to rows. engine/park/ says what the bytes mean and is the reference
// (predictor.ts, residual.ts, rans.ts): the rows are the same to the bit. Pages do not depend on each other, so each may be read by another thread.
//
// A row of one side is base + weights * levels. The levels of a row, all in 8 bits, in the order of the weights here: keys and values of the layer below [2w] if
// there is one, for values the keys of this layer [w], and then its residuals times their factors, from the columns that spread most to those that spread
// least. A page codes the first of these columns alone, and the product ends with them. Sums are whole numbers, so their order makes no difference.
#pragma once
#include <vector>

#include "buffer.h"
#include "latent.h"

namespace palimpsest {

struct PredictedSide {
  PackedWeights weights;
  std::vector<float> base;  // [w]
  // Of the columns of residuals in the order of coding, [w]:
  std::vector<uint8_t> factors;  // times a residual within int8
  std::vector<uint8_t> tables;   // below the number of distributions
};

// The places of columns in the order in which they are coded: those with higher tables first, those with equal ones as they stand.
std::vector<int> codedOrder(const uint8_t* tables, int width);

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

  int width() const { return kvHeads * headDim; }
  // shares: [count][43], each distribution with no 0 and the sum 4096; false otherwise.
  bool setDistributions(const uint16_t* shares, int count);
  size_t bytes() const;
};

// Reads the pages of one position layer by layer, from the first on. It holds what the next layer is predicted from.
class PageReader {
 public:
  // Allocates everything that follows needs.
  void reserve(const Predictor& predictor);
  // Decodes a page of a layer from its residuals: rows k and v, [128][w] each, before the rotary embedding. False where the bytes are damaged.
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
