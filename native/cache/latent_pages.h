// What a cache needs to hold pages as latents: the weights of a layer, the rotary table, the latent of a page, and
// blocks of recently recomputed keys and values.
//
// A block is one page of one layer, all heads, as f16 tiles like those of the open page. Blocks are scratch memory of
// limited size: attention recomputes the pages it sees into blocks while there is room (evicting the least recently
// used), and recomputes the rest when it gets to them. Either way the tiles hold the same numbers.
#pragma once
#include <memory>
#include <vector>

#include "buffer.h"
#include "latent.h"
#include "pool.h"

namespace palimpsest {

// The weights that recompute keys and values of one layer; shared by forks.
struct LatentLayer {
  int width;
  std::vector<PackedWeights> k;  // one per KV head
  std::vector<PackedWeights> v;
  std::vector<float> kBias;      // [n][d] or empty
  std::vector<float> vBias;
  std::vector<float> kNorm;      // [d] gains of the norm applied to each key head, or empty
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

// A page's latent, if it has one, with the weights that recompute keys and values: a cache that shares the page needs
// none of its own. The id identifies the contents for as long as a cache and its forks live.
struct PageLatent {
  int format = -1;
  uint64_t id = 0;
  PartRef part[kLatentParts];
  std::shared_ptr<const LatentLayer> weights;
  std::shared_ptr<const RotaryTable> rotary;  // null for none
  bool isThere() const { return format >= 0; }
  size_t bytes() const { return part[0].size() + part[1].size(); }
  LatentView view() const { return latentView(format, weights->width, part[0].bytes(), part[1].bytes()); }
  // Drafts every missing part; false when memory ran out. The caller counts them when the page is complete.
  bool draft(Account& account, int newFormat);
  void count(Account& account) const;
};

// A page's latent and lower ones made of it, for trials of them.
class LowerLatents {
 public:
  // from: as long as this lives.
  explicit LowerLatents(const PageLatent& from) : from_(from) {}
  // Makes room for the latent in a format, which is not a better one.
  void add(int format);
  // Fills what was added. Allocates nothing once the scratch has what reserve() and reserveToLower() say.
  void make(const Kernels* kernels, int firstRow, LatentScratch& scratch);
  LatentView view(int format) const;
  // 0 before the first add().
  int width() const { return width_; }

 private:
  const PageLatent& from_;
  int width_ = 0;
  std::vector<uint8_t> bytes_[kLatentFormats];  // of a demotion part 1 alone, because part 0 is that of the latent
};

struct LatentBlock {
  uint64_t id = 0;
  uint64_t used = 0;
  Buffer<uint16_t> half;  // n K tiles [d][128], then n V tiles [128][d]
};

// Like the rest of a cache's scratch, this serves one call at a time.
struct LatentBlocks {
  size_t mostBytes = 0;
  uint64_t now = 0;
  uint64_t nextId = 1;
  std::vector<LatentBlock> blocks;

  // Null when there is no such block. Finding a block does not count as using it.
  const LatentBlock* find(uint64_t id) const;
  // Index of a block of `elements` halves without an id, which the caller sets once the block is written; negative when
  // the blocks used in this call leave no room.
  int claim(size_t elements);
  size_t bytes() const;
};

// Keys (norm and rotation included) or values of one head of a page, [128][d]. rotary: null for none.
void recomputeHead(const Kernels* kernels, const LatentLayer& layer, const RotaryTable* rotary, const LatentView& latent, bool isKey, int head,
                   int firstPosition, float* rows, LatentScratch& scratch);
// The same of both sides, as the f16 tiles of a page: tiles [2][128][d], rows [128][d]. False when a number is beyond
// the range of f16.
bool recomputeTiles(const Kernels* kernels, const PageLatent& from, const LatentView& latent, int head, int firstPosition, float* rows, uint16_t* tiles,
                    LatentScratch& scratch, SideView* k, SideView* v);
// rows [128][d] -> f16 tile.
void packTile(const Kernels* kernels, bool isKey, int headDim, const float* rows, uint16_t* tile);

}  // namespace palimpsest
