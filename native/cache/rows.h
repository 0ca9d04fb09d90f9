// Query rows of one KV head that meet page after page: scores, one online softmax, mixed values.
// A row is one query head at one position; all rows share every page that is unpacked. Used by attend and by trials.
//
// Coded keys and values are read as integers: the row (or its probabilities times the token scales) is quantized to int16
// once, the dot is exact, one factor follows. Rotated values gather in an accumulator of their own and are turned back once.
#pragma once
#include <vector>

#include "page.h"

namespace palimpsest {

struct QueryRows {
  const Kernels* kernels = nullptr;
  int headDim = 0;
  int rows = 0;

  // Set by the caller between begin() and the first page; q already holds the softmax scale.
  std::vector<float> q;         // [rows][d]
  std::vector<int> position;    // [rows]
  std::vector<float> slope;     // [rows], read only when alibi is set
  bool alibi = false;
  int window = 0;               // tokens a row may look back, itself included; 0 = all

  // Results: exp-sums relative to max, values not divided by the sum.
  std::vector<float> max;       // [rows]
  std::vector<float> sum;       // [rows]
  std::vector<float> mixed;     // [rows][d]
  // Of the page met last: sum of exp(score - max at that time).
  std::vector<float> rowMass;   // [rows]

  // Grows the buffers where needed (the only place that allocates).
  void reserve(const Kernels* table, int dim, int rowCount);
  // New rows: forgets quantized copies and results.
  void begin(int rowCount);
  // The same rows once more, from an empty softmax.
  void restart();
  // Meets tokens [start + skip, start + count) of one page. False when no row sees any of them (rowMass is then not valid).
  bool page(const SideView& k, const SideView& v, int start, int skip, int count);
  // Mixes other values of the one page met since begin() or restart(), by the same probabilities.
  void remix(const SideView& v);
  // Meets up to four tokens given as float rows [count][d] at positions 0..count-1.
  bool sinks(const float* k, const float* v, int count);
  // Turns what rotated pages gathered back and adds it to mixed.
  void finish();
  size_t bytes() const;

 private:
  int mask(int start, int skip, int count);
  void scoreKeys(const SideView& k, int visible);
  void soften(int start, int visible);
  void mixValues(const SideView& v, int visible);
  void expandMean(const SideView& side);

  bool plainReady = false;
  bool turnedReady = false;
  bool turnedUsed = false;
  std::vector<float> turned;       // rotated q, scratch only
  std::vector<int16_t> plain16;    // [rows][d]
  std::vector<int16_t> turned16;
  std::vector<float> plainScale;   // [rows]
  std::vector<float> turnedScale;
  std::vector<float> scores;       // [rows][128]
  std::vector<int32_t> dots;       // [rows][max(128, d)]
  std::vector<int16_t> weights16;  // [rows][128]
  std::vector<float> weightScale;  // [rows]
  std::vector<float> mixedTurned;  // [rows][d]
  std::vector<float> rescale;      // [rows]
  std::vector<int> first;
  std::vector<int> last;
  std::vector<int8_t> tile;        // [128*d]
  std::vector<float> tokenScale;   // [128]
  std::vector<float> meanRow;      // [d]
};

}  // namespace palimpsest
