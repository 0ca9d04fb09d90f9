// Pages held as latents, from which keys and values are recomputed: packed weights, the bytes of a latent page, and the
// recomputation.
//
//   bytes of a page   part 0: high codes (xq8: 128*width int8, else the plane of the two high bits), mean int16
//   [width], mean scale float
//                     part 1: low codes (xq4: the plane of the two low bits, xq3: of the third bit alone), row scales
//                     (xq8: f16 bits, else int8 k)
//                     each field starts at a multiple of 64. Outside a cache part 1 follows part 0. From xq4 to xq3
//                     part 0 stays as it is.
//   weights           int16 with one scale per output, as two int8 planes (w = 256 hi + lo), rotated like the latents,
//   so that nothing has to
//                     be rotated back at run time. The high plane alone is the int8 rounding of the same weights.
//
// A page's mean is always multiplied by both planes (two rows of work); the rows by the high plane, or by both where
// exactness is needed.
#pragma once
#include <vector>

#include "../kernels/kernels.h"
#include "buffer.h"

namespace palimpsest {

inline bool latentWidthServed(int width) { return width >= 64 && width <= 16384 && width % 16 == 0; }

struct LatentView {
  int format;
  int width;
  const uint8_t* high;
  const uint8_t* low;
  const void* scales;
  const int16_t* mean;
  const float* meanScale;
};

constexpr int kLatentParts = 2;
// Whether a latent goes to a lower format by its codes alone, which leaves part 0 in place.
constexpr bool isLatentDemotion(int from, int to) { return from == kXq4 && to == kXq3; }
size_t latentPartBytes(int format, int width, int part);
size_t latentBytes(int format, int width);
// second: part 1, null if it follows the first.
LatentView latentView(int format, int width, const uint8_t* first, const uint8_t* second = nullptr);
// Whether scales and mean are finite. Codes always are.
bool finiteLatent(const LatentView& view);
// x: [128][width], overwritten. first, second: the parts as in latentView(), 4-byte aligned; padding is cleared.
// second: as there. space: of latentSpace(width).
void encodeLatentPage(const Kernels* kernels, int format, int width, float* x, int firstRow, uint8_t* first, uint8_t* second, Workspace space);

// Bytes of one plane of packed weights.
size_t gemmWeightBytes(int contraction, int outputs);
// Reorders levels [rows][contraction] for gemmI8, in whole blocks of 8 rows; missing rows are zero.
void packLevels(const int8_t* levels, int rows, int contraction, int8_t* packed);

class PackedWeights {
 public:
  // w: [outputs][contraction], finite. Any contraction <= 65536 (padded to a multiple of 4). turned: apply the rotation
  // of latents first.
  PackedWeights(const Kernels* kernels, const float* w, int outputs, int contraction, bool turned);

  int outputs() const { return outputs_; }
  int contraction() const { return contraction_; }
  // The padded contraction.
  int depth() const { return (contraction_ + 3) / 4 * 4; }
  size_t bytes() const { return high_.bytes() + low_.bytes() + (highScale_.size() + lowScale_.size()) * sizeof(float); }

  // y[t][o] = base[t][o] + rowScale[t] * sum_c a[t][c] * w[c][o]. a: in the order of gemmI8. planes: 1 or 2.
  void multiply(const Kernels* kernels, const int8_t* a, int rows, const float* rowScale, int planes, const float* base, size_t baseStride,
                float* y, size_t yStride) const;
  // The same with the high plane and the first `contraction` columns of the weights alone, a multiple of 4. base: one
  // row for all.
  void multiplyFirst(const Kernels* kernels, const int8_t* a, int rows, int contraction, const float* rowScale, const float* base, float* y, size_t yStride) const;

 private:
  int outputs_;
  int contraction_;
  // Aligned: a vector of weights that crosses from one cache line to the next takes two loads.
  Buffer<uint8_t> high_;
  Buffer<uint8_t> low_;
  std::vector<float> highScale_;
  std::vector<float> lowScale_;
};

// Scratch for recomputing a page; it never shrinks.
struct LatentScratch {
  std::vector<int8_t> tile;
  std::vector<int8_t> rows;
  std::vector<int16_t> quantized;
  std::vector<float> base;
  std::vector<float> turned;
  Buffer<uint8_t> space;  // what kernels take (Workspace)
  // Allocates what materialize() needs for one page.
  void reserve(int width, int outputs);
  // Allocates what lowerLatentPage() needs.
  void reserveToLower(int from, int to, int width);
  size_t bytes() const;
};

// x: [128][width]. Rows that were before firstRow when the page was encoded decode to its mean.
void decodeLatentPage(const Kernels* kernels, const LatentView& view, float* x, LatentScratch& scratch);
// Writes a latent in a lower format, made of another; first is not used by a demotion, which leaves that part as it is.
void lowerLatentPage(const Kernels* kernels, const LatentView& from, int to, int firstRow, uint8_t* first, uint8_t* second, LatentScratch& scratch);

// y[t][o] = bias[o] + sum_c x̂[t][c] w[c][o] for the 128 rows. bias: [outputs] or null.
void materialize(const Kernels* kernels, const LatentView& view, const PackedWeights& weights, int planes, const float* bias, float* y,
                 size_t yStride, LatentScratch& scratch);

// mixed[i][c] += sum_t p[i][t] x̂[t][c] in the rotated basis: what attention over latents accumulates page by page. p:
// [n][128].
void mixLatentPage(const Kernels* kernels, const LatentView& view, const float* p, int n, float* mixed, LatentScratch& scratch);
// y[i][o] = bias[o]*mass[i] + sum_c mixed[i][c] w[c][o]: the values for what mixLatentPage accumulated. bias and mass:
// both or neither.
void finishMix(const Kernels* kernels, const float* mixed, int n, const PackedWeights& weights, const float* bias, const float* mass, float* y,
               size_t yStride, LatentScratch& scratch);

}  // namespace palimpsest
