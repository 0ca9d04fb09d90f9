// What a cache keeps to hold pages as latents: the weights of a layer, the rotary table, the latent of a page, and blocks of keys and
// values recomputed lately.
//
// A block is one page of one layer, all heads, as f16 tiles like those of the open page. Blocks are scratch within a stated size: attention
// makes the pages it sees into blocks while there is room (the least recently used go first), and recomputes the rest as it meets them. Either way the tiles hold the same numbers.
#pragma once
#include <memory>
#include <vector>

#include "buffer.h"
#include "latent.h"
#include "pool.h"

namespace palimpsest {

// What keys and values of one layer are recomputed with; shared by forks.
struct LatentLayer {
  int width;
  std::vector<PackedWeights> k;  // one per KV head
  std::vector<PackedWeights> v;
  std::vector<float> kBias;      // [n][d] or empty
  std::vector<float> vBias;
  std::vector<float> kNorm;      // [d] gains of the norm of each key head, or empty
  float kNormEpsilon;
  size_t bytes() const;
};

// cos, sin: [positions][rotaryDim / 2].
struct RotaryTable {
  std::vector<float> cos;
  std::vector<float> sin;
  int rotaryDim;
  bool interleaved;
  int positions() const { return static_cast<int>(cos.size() / (rotaryDim / 2)); }
};

// A page's latent, or nothing, and what keys and values are recomputed with: whoever shares the page needs no weights of its own.
// The id names the contents for as long as a cache and its forks live.
struct PageLatent {
  int format = -1;
  uint64_t id = 0;
  PartRef bytes;
  std::shared_ptr<const LatentLayer> weights;
  std::shared_ptr<const RotaryTable> rotary;  // null for none
  bool isThere() const { return format >= 0; }
  LatentView view() const { return latentView(format, weights->width, bytes.bytes()); }
};

struct LatentBlock {
  uint64_t id = 0;
  uint64_t used = 0;
  Buffer<uint16_t> half;  // n K tiles [d][128], then n V tiles [128][d]
};

// Not for two calls at once, like the rest of a cache's scratch.
struct LatentBlocks {
  size_t mostBytes = 0;
  uint64_t now = 0;
  uint64_t nextId = 1;
  std::vector<LatentBlock> blocks;

  // Null when it is not there. Does not count as use.
  const LatentBlock* find(uint64_t id) const;
  // Index of a block of `elements` halves that has no id yet (whoever writes it gives it one); negative when there is no room beside what was
  // used in this call.
  int claim(size_t elements);
  size_t bytes() const;
};

// Keys (norm and rotation included) or values of one head of a page, [128][d]. rotary: null for none.
void recomputeHead(const Kernels* kernels, const LatentLayer& layer, const RotaryTable* rotary, const LatentView& latent, bool isKey, int head,
                   int firstPosition, float* rows, LatentScratch& scratch);
// rows [128][d] -> f16 tile.
void packTile(const Kernels* kernels, bool isKey, int headDim, const float* rows, uint16_t* tile);

}  // namespace palimpsest
