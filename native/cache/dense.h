// Everything in a Llama-shaped transformer except attention and rotary embedding: packed matrices, norms, and the four pieces of a step
// (first, next, last, logits), which is split where attention happens. Rows are float32 [T][width]; scratch holds kDenseSlice rows at a time.
// A matrix is kept in the form that the type of its weights has (DENSE_FORMS in layout.ts).
#pragma once
#include <vector>

#include "../kernels/kernels.h"
#include "buffer.h"
#include "dense_pack.h"
#include "heap.h"
#include "threads.h"

namespace palimpsest {

struct DenseShape {
  int layers;
  int hidden;
  int intermediate;
  int queryHeads;
  int kvHeads;
  int headDim;
  int vocab;
  int features;  // of DenseFeature
  float epsilon;
};

// One extra layer after the last holds the output matrix in kDenseQ and the final norm in kAttnNorm. Norms of queries and keys may be absent.
constexpr int kDenseSlice = 128;

class Dense {
 public:
  Dense(const Kernels* kernels, const DenseShape& shape, int threads);
  ~Dense();
  Dense(const Dense&) = delete;
  Dense& operator=(const Dense&) = delete;

  const DenseShape& shape() const { return shape_; }
  bool has(int layer, int slot) const { return layer < shape_.layers ? slot < kDenseSlots : layer == shape_.layers && slot == kDenseQ; }
  int outputs(int layer, int slot) const;
  int inputs(int layer, int slot) const;
  int normSize(int layer, int norm) const;  // 0 if there is no such norm

  // Packs `rows` rows of the matrix, from output `from` on, as a file stores them: rows * denseRowBytes(type, inputs) bytes. They come in order: `from`
  // is where the last call ended, all calls have the same type, and all but the last a multiple of kDensePanel rows. Answers kUnsupported when
  // blocks of the type do not divide the inputs, and kBadValue, after which the same rows may be given again, when a weight is not finite.
  Status setRows(int layer, int slot, DenseType type, const uint8_t* bytes, int from, int rows);
  Status setBias(int layer, int slot, const float* bias);
  Status setNorm(int layer, int norm, const float* gain);
  // Whether every matrix and every required norm has been set.
  bool complete() const;
  size_t bytes() const { return bytes_; }

  // The caller checks sizes: x [tokens][hidden], q [tokens][H * d], k and v [tokens][n * d], attention as q.
  void first(const float* x, int tokens, float* q, float* k, float* v);
  void next(int layer, const float* attention, const float* x, int tokens, float* xNext, float* q, float* k, float* v);
  void last(const float* attention, const float* x, int tokens, float* xNext);
  void logits(const float* x, int rows, float* out);

 private:
  struct Matrix {
    Block* block = nullptr;
    Buffer<float> bias;
    bool biased = false;
    DenseType type = kFromF32;
    int set = 0;  // outputs
  };
  struct Layer {
    Matrix matrix[kDenseSlots];
    Buffer<float> norm[kDenseNorms];
    bool normed[kDenseNorms] = {};
  };
  // Rows quantized for the kernels.
  struct Quantized {
    Buffer<int8_t> bytes;
    Buffer<float> steps;
    Buffer<int32_t> sums;
    DenseRows view{};
    void grow(int rows, int width);
  };
  struct Product {
    DenseWeights weights;
    const float* base;
    float* y;
  };

  bool place(Matrix& matrix, size_t size);
  void drop(Matrix& matrix, size_t size);
  Product product(int layer, int slot, const float* base, float* y) const;
  const float* gains(int layer, int norm) const;  // null where the norm is absent
  void norm(const float* x, int rows, const float* gain);
  void multiply(const Product* products, int count, const Quantized& rows, int n);
  void project(int layer, const float* x, int tokens, float* q, float* k, float* v);
  void headNorms(int layer, int norm, float* x, int tokens, int heads);
  void addPost(int layer, int norm, const float* base, int tokens, float* y);
  bool is(DenseFeature feature) const { return (shape_.features & feature) != 0; }
  void afterAttention(int layer, const float* attention, const float* x, int tokens, float* xNext);

  const Kernels* kernels_;
  DenseShape shape_;
  Threads threads_;
  Heap heap_;
  std::vector<Layer> layers_;
  size_t bytes_ = 0;
  Quantized narrowRows_;  // of hidden size
  Quantized headRows_;    // of attention
  Quantized wideRows_;    // of the intermediate size
  Buffer<float> lines_;   // one row per thread
  Buffer<float> middle_, gate_, up_;
};

}  // namespace palimpsest
