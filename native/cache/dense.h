// Everything in a Llama-shaped transformer except attention and rotary embedding: packed matrices, norms, and the four
// pieces of a step (first, next, last, logits), which is split where attention happens. Rows are float32 [T][width];
// scratch holds kDenseSlice rows at a time. A matrix is kept in the form that the type of its weights has (DENSE_FORMS
// in layout.ts). Where a shape has experts, every layer has that many of gate, up and down, and a router that chooses
// some of them for each row (dense_experts.cc).
#pragma once
#include <initializer_list>
#include <memory>
#include <vector>

#include "../kernels/kernels.h"
#include "buffer.h"
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
  int experts;      // of a layer; 0: its feed-forward half is one gate, up and down
  int expertsUsed;  // for each row
  int features;  // of DenseFeature
  float epsilon;
  float logitCap;  // a logit l becomes logitCap * tanh(l / logitCap); 0: it stays as it is
};

// One extra layer after the last holds the output matrix in kDenseQ and the final norm in kAttnNorm. Norms of queries
// and keys may be absent.
constexpr int kDenseSlice = 128;

inline int panelsOf(int outputs) { return (outputs + kDensePanel - 1) / kDensePanel; }
inline uint8_t* bytesOf(Block* block) { return reinterpret_cast<uint8_t*>(block) + kHeapUnit; }

// Which rows of a call which adapters answer as well: [count][3] first row, rows, adapter. A part of several adapters
// is there several times, and they answer in this order. scales: [count].
struct DenseMix {
  const int32_t* parts;
  const float* scales;
  int count;
};

class Dense {
 public:
  Dense(const Kernels* kernels, const DenseShape& shape, Share threads);
  ~Dense();
  Dense(const Dense&) = delete;
  Dense& operator=(const Dense&) = delete;

  const DenseShape& shape() const { return shape_; }
  // expert: 0 for a matrix of which there is only one.
  bool has(int layer, int slot, int expert) const {
    if (layer == shape_.layers) return slot == kDenseQ && expert == 0;
    return layer < shape_.layers && slot < kDenseSlots && expert < (isOfExperts(slot) ? shape_.experts : 1);
  }
  bool isOfExperts(int slot) const { return shape_.experts > 0 && slot >= kDenseGate; }
  int outputs(int layer, int slot) const;
  int inputs(int layer, int slot) const;
  // 0 if there is no such norm. Those that take the mean out have gains and then biases.
  int normSize(int layer, int norm) const;

  // Packs `rows` rows of the matrix, from output `from` on, as a file stores them: rows * denseRowBytes(type, inputs)
  // bytes. They come in order: `from` is where the last call ended, all calls have the same type, and all but the last
  // a multiple of kDensePanel rows. Answers kUnsupported when blocks of the type do not divide the inputs, and
  // kBadValue, after which the same rows may be given again, when a weight is not finite.
  Status setRows(int layer, int slot, int expert, DenseType type, const uint8_t* bytes, int from, int rows);
  // Not of a matrix of experts. Like the other setters, it answers kBadValue and keeps what it has when a number is not
  // finite.
  Status setBias(int layer, int slot, const float* bias);
  // weights: [experts][hidden]. They stay float32, because they decide which experts a row meets.
  Status setRouter(int layer, const float* weights);
  Status setNorm(int layer, int norm, const float* gain);
  // What rows of a matrix, or of all experts' matrices in a slot, are rounded to: two planes, 16 bits, until it is
  // called, or one, 8 bits.
  void setPlanes(int layer, int slot, int planes) { layers_[layer].planes[slot] = static_cast<uint8_t>(planes); }
  // Sets what an adapter adds to what a matrix answers, b * (a * x): a [rank][inputs], rounded as kFromF32 is, and b
  // [outputs][rank], whose columns are rounded to 8 bits with a scale each. gains: null, or [outputs]; then gains times
  // what the matrix itself answers is added as well. Once per matrix and adapter, and not of a matrix of experts.
  Status setAdapter(int adapter, int layer, int slot, int rank, const float* a, const float* b, const float* gains);
  void dropAdapter(int adapter);
  bool hasAdapter(int adapter) const { return static_cast<size_t>(adapter) < adapters_.size() && adapters_[adapter] != nullptr; }
  // Whether every matrix and every required norm has been set.
  bool complete() const;
  size_t bytes() const { return bytes_; }
  // What is held from the system: weights with what their heap keeps beside them, and scratch.
  size_t heldBytes() const;

  // The caller checks sizes: x [tokens][hidden], q [tokens][H * d], k and v [tokens][n * d], attention as q.
  void first(const float* x, int tokens, const DenseMix& mix, float* q, float* k, float* v);
  void next(int layer, const float* attention, const float* x, int tokens, const DenseMix& mix, float* xNext, float* q, float* k, float* v);
  void last(const float* attention, const float* x, int tokens, const DenseMix& mix, float* xNext);
  void logits(const float* x, int rows, float* out);

 private:
  struct Matrix {
    Block* block = nullptr;
    Buffer<float> bias;
    bool biased = false;
    DenseType type = kFromF32;
    int set = 0;        // outputs
    size_t placed = 0;  // bytes
  };
  struct Layer {
    Matrix matrix[kDenseSlots];
    std::vector<Matrix> ofExperts;  // [gate, up, down][experts]
    Buffer<float> router;
    bool routed = false;
    Buffer<float> norm[kDenseNorms];
    bool normed[kDenseNorms] = {};
    uint8_t planes[kDenseSlots] = {2, 2, 2, 2, 2, 2, 2};
  };
  // Rows quantized for the kernels, in one plane, in two, or in both where matrices that read them differ.
  struct Quantized {
    struct Rows {
      Buffer<int8_t> bytes;
      Buffer<float> steps;
      Buffer<int32_t> sums;
      DenseRows view{};
      bool wanted = false;
    } of[2];
    // planes: what matrices want, from planesOf.
    void grow(int rows, int width, unsigned planes);
    void set(const Kernels* kernels, const float* x, int width, int row);
    size_t held() const;
    DenseRows from(int row, int planes) const {
      const DenseRows& view = of[planes - 1].view;
      const size_t first = static_cast<size_t>(row) * view.blocks;
      return {view.bytes + first * 64, view.steps + first, view.sums + first * 2, view.blocks, planes};
    }
  };
  // n rows times a matrix.
  struct Product {
    DenseWeights weights;
    DenseRows rows;
    int n;
    const float* base;
    float* y;
  };

  // What an adapter adds to a matrix; rank 0: nothing. In one block, as it is read: the panels of a, then, from byte
  // `second` on, b as an i8 tile [rank][outputs] (kernels.h), padded to multiples of 4 and 16, and behind it a float
  // scale for each of its rows, and the gains.
  struct Factors {
    int rank = 0;
    bool gained = false;
    size_t second = 0;
    Matrix matrix;
  };
  struct Adapter {
    std::vector<Factors> of;  // [layers][slots]
  };
  // Where what a matrix answers stands. plain: nothing was added to it yet, not even a bias.
  struct Answer {
    int slot;
    float* y;
    bool plain;
  };
  // The rows of a mix that are in work, as they lie in the slice.
  struct Added {
    const Factors* factors;
    int first, rows;
    float scale;
    int slot, outputs;
    float* y;
    size_t at;     // in ranked_
    size_t lines;  // in rankedLines_
    size_t steps;  // in rankedSteps_
    size_t plain;  // in plain_, where there are gains
  };

  Matrix& matrixAt(int layer, int slot, int expert) {
    Layer& at = layers_[layer];
    return isOfExperts(slot) && layer < shape_.layers ? at.ofExperts[static_cast<size_t>(slot - kDenseGate) * shape_.experts + expert] : at.matrix[slot];
  }
  bool place(Matrix& matrix, uint64_t size);
  void drop(Matrix& matrix);
  Status pack(Matrix& matrix, int outputs, int inputs, DenseType type, const uint8_t* bytes, int from, int rows);
  const uint8_t* behind(int layer, int slot) const;
  static Product times(const Matrix& matrix, int outputs, const DenseRows& rows, int n, const float* base, float* y);
  Product product(int layer, int slot, const Quantized& rows, int n, const float* base, float* y, int expert = 0, int first = 0);
  const float* gains(int layer, int norm) const;  // null where the norm is absent
  // A bit for each number of planes that matrices of a layer want.
  unsigned planesOf(int layer, std::initializer_list<int> slots) const;
  void norm(const float* x, int rows, const float* gain, unsigned planes, float* kept = nullptr);
  void multiply(const Product* products, int count);
  static void multiplyPanels(const Kernels* kernels, const Product& product, int from, int to);
  void project(int layer, const float* x, int tokens, float* q, float* k, float* v);
  void headNorms(int layer, int norm, float* x, int tokens, int heads);
  void addPost(int layer, int norm, const float* base, int tokens, float* y);
  bool is(DenseFeature feature) const { return (shape_.features & feature) != 0; }
  void afterAttention(int layer, const float* attention, const float* x, int tokens, float* xNext);
  void feedForward(int layer, int tokens, const float* base, float* y);
  void activate(int rows, unsigned planes);
  // dense_adapters.cc
  template <typename Work>
  void eachPart(int tokens, const Work& work) const;
  void setSecond(Factors& factors, int outputs, const float* b, const float* gains);
  void fetchBeside(int layer, int slot, int n, DenseWeights& weights);
  void keepPlain(int layer, const Quantized& rows, std::initializer_list<Answer> answers);
  void addRows(const Added& added, int from, int end);
  void adapt(int layer, const Quantized& rows, int tokens, std::initializer_list<Answer> answers);
  // dense_experts.cc
  bool complete(const Layer& layer) const;
  void mixExperts(int layer, const float* normed, int tokens, const float* base, float* y);
  void route(int layer, const float* normed, int tokens);
  void gather(int tokens, unsigned planes);
  void multiplyExperts(int layer);

  const Kernels* kernels_;
  DenseShape shape_;
  Share threads_;
  Heap heap_;
  std::vector<Layer> layers_;
  size_t bytes_ = 0;
  size_t placed_ = 0;     // those in the heap
  Quantized narrowRows_;  // of hidden size
  Quantized headRows_;    // of attention
  Quantized wideRows_;    // of the intermediate size
  Quantized expertRows_;  // of hidden size, those of an expert together
  Buffer<float> lines_;   // one row per thread
  Buffer<float> middle_, gate_, up_;
  Buffer<float> ones_;  // where nothing is gated, as wide as the intermediate size
  Buffer<float> normed_;      // rows as the router reads them
  Buffer<double> routing_;    // one number per expert and thread
  Buffer<int32_t> chosen_;    // [tokens][expertsUsed], ascending
  Buffer<float> shares_;      // [tokens][expertsUsed]
  Buffer<int32_t> places_;    // [tokens][expertsUsed], rows of expertRows_
  Buffer<float> answers_;     // what the experts say to these rows
  std::vector<int> starts_;   // [experts + 1], where the rows of each begin
  std::vector<Product> products_;
  std::vector<std::unique_ptr<Adapter>> adapters_;
  DenseMix mix_{};
  int mixFrom_ = 0;  // the row of the call with which the slice begins
  std::vector<Added> added_;
  std::vector<DenseSpan> beside_[kDenseSlots];  // factors of the rows in work
  Buffer<float> ranked_;          // what the first factors answer
  Buffer<int16_t> rankedLines_;   // the same in integers
  Buffer<float> plain_;           // what matrices answer to rows that have gains
  Buffer<float> rankedSteps_;     // the value of one unit of them, for each row and 256 ranks
};

}  // namespace palimpsest
