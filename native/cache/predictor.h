// What parked pages are predicted by, and the way back from their residuals to rows. engine/park/ says what the bytes mean and is the reference
// (predictor.ts, residual.ts, rans.ts): the rows are the same to the bit. Pages do not depend on each other, so each may be read by another thread.
//
// A row of one side is base + weights * levels. The levels of a row, all in 8 bits: its residuals times their factors [w], then what it is predicted
// from: keys and values of the layer below [2w] if there is one, and for values the keys of this layer [w].
#pragma once
#include <vector>

#include "buffer.h"
#include "latent.h"

namespace palimpsest {

struct PredictedSide {
  PackedWeights weights;
  std::vector<float> base;       // [w]
  std::vector<uint8_t> factors;  // [w], times a residual within int8
  std::vector<uint8_t> tables;   // [w], below the number of distributions
};

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
  std::vector<uint8_t> symbols;  // [distributions][4096], as Kernels::decodeResiduals reads them
  std::vector<uint32_t> shares;  // [distributions][43]

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
  // Rows [128][w] of one side in levels_.
  void toLevels(const Kernels* kernels, const PredictedLayer& layer, bool isKey, int width);
  // Puts levels [128][w] into columns [at, at + w) of rows of `depth` levels in the order of gemmI8.
  static void putColumns(const int8_t* levels, int width, int8_t* to, int depth, int at);
  void multiply(const Kernels* kernels, const PredictedSide& side, int width, int8_t* codes, bool hasBelow, bool hasKeys, float* rows);

  Buffer<float> k_;
  Buffer<float> v_;
  Buffer<uint8_t> tables_;  // [2][w]
  Buffer<int8_t> codes_;    // [2][128][w]
  Buffer<int8_t> levels_;   // [128][w]
  Buffer<int8_t> below_;    // the levels of the layer below, 2w to a row, in the order of gemmI8
  Buffer<int8_t> operand_;
};

}  // namespace palimpsest
