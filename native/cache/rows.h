// Query rows of one or several KV heads, to which page after page is applied (the rows "meet" the page): scores, one
// online softmax, mixed values. Attention and trials use it. It holds the memory; the arithmetic is in the kernels
// (kernels/attend_page.h).
//
// Coded keys and values are read as integers: the row (or its probabilities times the token scales) is quantized to
// int16 once, the dot product is exact, and one factor follows. Rotated values have an accumulator of their own and are
// rotated back once.
#pragma once
#include "buffer.h"
#include "page.h"

namespace palimpsest {

// Scores, maxima, caps and slopes are in units of log2(e).
constexpr float kLog2E = 1.44269504f;

struct QueryRows {
  const Kernels* kernels = nullptr;
  int headDim = 0;
  int rows = 0;     // of all heads, head after head
  int heads = 1;    // KV heads processed together

  // Set by the caller between begin() and the first page; q already holds the softmax scale times log2(e).
  Buffer<float> q;        // [rows][d]
  Buffer<int> position;   // [rows]
  Buffer<float> slope;    // [rows], times log2(e); read only when alibi is set
  bool alibi = false;
  float cap = 0;          // of scores, times log2(e), as in PageRows
  int window = 0;         // tokens a row may look back, itself included; 0 = all
  float skipShare = 0;    // as in PageRows
  int room = kPageTokens;  // as in PageRows

  // Results: sums of 2^score relative to max, values not divided by the sum.
  Buffer<float> max;      // [rows]
  Buffer<float> sum;      // [rows]
  Buffer<float> mixed;    // [rows][d]
  // Heads of pages met since begin() or restart() whose values could have been skipped, and how many of them were.
  uint64_t skipped[2] = {0, 0};
  // The same for weights of 8 bits.
  // The sum of 2^(score - max at that time) over the last page met.
  Buffer<float> rowMass;  // [rows]

  // Grows the buffers where needed (the only place that allocates).
  void reserve(const Kernels* table, int dim, int rowCount, int headCount);
  // Starts new rows: forgets quantized copies and results.
  void begin(int rowCount, int headCount);
  // Starts the same rows again with an empty softmax.
  void restart();
  // Meets tokens [start + skip, start + count) of one page; sides as in Kernels::attendPage. False when no row sees any
  // of them; rowMass is then not valid.
  bool page(const SideView* sides, int start, int skip, int count);
  // Whether every row sees all tokens [start, end).
  bool seesAll(int start, int end) const;
  // Meets pages of which every row sees all tokens, as in Kernels::attendRun.
  void run(const SideView* sides, int pages, int known, int start, const PageNotes& notes);
  // Mixes other values for the one page met since begin() or restart(), with the same probabilities.
  void remix(const SideView& v);
  // Meets the sinks, float rows [heads][4][d] at positions 0..3.
  bool sinks(const float* k, const float* v);
  // Meets `count` single tokens at these ascending positions, which every row sees: float rows [heads][count][d].
  void few(const float* k, const float* v, int count, const int* positions);
  // Rotates the sums of rotated formats back and adds them to mixed.
  void finish();
  size_t bytes() const;

 private:
  int mask(int start, int skip, int count);
  // The same after first and last were set.
  void mixFew(const float* k, const float* v, int count, const int* positions, int visible);
  PageRows view();

  bool ready[2] = {false, false};   // as in PageRows
  bool turnedUsed = false;
  Buffer<IntegerRow> integers[3];   // [rows], by basis
  Buffer<float> scores;        // [rows][128]
  Buffer<float> mixedTurned;   // [rows][d]
  Buffer<float> rescale;       // [rows]
  Buffer<float> share;         // [rows]
  Buffer<float> skippedMass;   // [rows]
  Buffer<float> factor;        // [rows]
  Buffer<float> offset;        // [rows]
  Buffer<int> first;           // [rows]
  Buffer<int> last;            // [rows]
  Buffer<float> scales;        // [2][heads][128], of keys and values
  Buffer<float> steps;         // [heads], of values
  Buffer<IntegerRow> weights;  // [kWeightRows]
  Buffer<int8_t> tile;         // [128*d]
  Buffer<float> spare;         // [rows][d]
  Buffer<float> decoded;       // [128][d]
};

}  // namespace palimpsest
