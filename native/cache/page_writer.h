// The way from rows to the residuals of a predicted page (predictor.h reads them). engine/session/park/residual.ts is
// the reference: the bytes are the same. Residuals are taken against what the reader will have, so that errors do not
// add up from layer to layer.
#pragma once
#include <vector>

#include "buffer.h"
#include "predictor.h"

namespace palimpsest {

// What one page is written with. It may be used for one page after the other.
class PageWriter {
 public:
  // Allocates everything that follows needs.
  void reserve(const Predictor& predictor);
  size_t bytes() const;
  // Writes a page of a layer whose sides have their `back`. below: the levels of the layer below [128][2w] in the order
  // of gemmI8, null for the first layer. k, v: rows [128][w] before the rotary embedding; those before firstRow are not
  // coded. Returns how many bytes were written to `out`, 0 where `room` does not hold them. levels: what the layer
  // above is predicted from, as `below`: of what a reader will have, or of the rows themselves where nothing was
  // written.
  size_t write(const Kernels* kernels, const Predictor& predictor, int layer, const int8_t* below, const float* k, const float* v, int firstRow, uint8_t* out,
               size_t room, int8_t* levels);

 private:
  // A side that was coded: by how much its distributions were moved, and how many of its columns hold anything.
  struct Side {
    int shift;
    int count;
    Buffer<int8_t> columns;   // [w][128] in the order of coding
    Buffer<uint8_t> tables;   // [w]
  };

  // inputs: rows of gemmI8 [128][width of inputs]. made <- the rows that a reader will have.
  void code(const Kernels* kernels, const Predictor& predictor, const PredictedSide& by, const int8_t* inputs, int inputWidth, const float* wanted, int firstRow,
            Side& side, float* made);
  void chooseTables(const Predictor& predictor, const PredictedSide& by, Side& side);
  size_t encode(const Predictor& predictor, uint8_t* out, size_t room);

  Side sides_[2];
  Buffer<float> madeKeys_, madeValues_, residuals_;
  Buffer<int8_t> valueInputs_;  // the layer below, then the keys of this one
  Buffer<int8_t> rows_;         // inputs and residuals
  Buffer<int8_t> line_, packed_;
  Buffer<uint16_t> words_;
};

}  // namespace palimpsest
