#include "latent_pages.h"

#include <cmath>

#include "layer.h"

namespace palimpsest {

size_t LatentLayer::bytes() const {
  size_t total = (kBias.size() + vBias.size() + kNorm.size()) * sizeof(float);
  for (const std::vector<PackedWeights>* side : {&k, &v}) {
    for (const PackedWeights& head : *side) total += head.bytes();
  }
  return total;
}

bool PageLatent::draft(Account& account, int newFormat) {
  format = newFormat;
  for (int i = 0; i < kLatentParts; i++) {
    if (!part[i] && !(part[i] = account.draft(latentPartBytes(format, weights->width, i)))) return false;
  }
  return true;
}

void PageLatent::count(Account& account) const {
  for (const PartRef& one : part) account.count(one);
}

void LowerLatents::add(int format) {
  width_ = from_.weights->width;
  const size_t kept = isLatentDemotion(from_.format, format) ? latentPartBytes(format, width_, 0) : 0;
  if (format != from_.format) bytes_[format].resize(latentBytes(format, width_) - kept);
}

void LowerLatents::make(const Kernels* kernels, int firstRow, LatentScratch& scratch) {
  for (int format = 0; format < kLatentFormats; format++) {
    if (bytes_[format].empty()) continue;
    uint8_t* first = bytes_[format].data();
    uint8_t* second = isLatentDemotion(from_.format, format) ? first : first + latentPartBytes(format, width_, 0);
    lowerLatentPage(kernels, from_.view(), format, firstRow, first, second, scratch);
  }
}

LatentView LowerLatents::view(int format) const {
  if (format == from_.format) return from_.view();
  const uint8_t* bytes = bytes_[format].data();
  return isLatentDemotion(from_.format, format) ? latentView(format, width_, from_.part[0].bytes(), bytes) : latentView(format, width_, bytes);
}

const LatentBlock* LatentBlocks::find(uint64_t id) const {
  for (const LatentBlock& block : blocks) {
    if (block.id == id) return &block;
  }
  return nullptr;
}

int LatentBlocks::claim(size_t elements) {
  const size_t room = mostBytes / (elements * sizeof(uint16_t));
  int at = -1;
  if (blocks.size() < room) {
    at = static_cast<int>(blocks.size());
    blocks.emplace_back();
  } else {
    for (size_t i = 0; i < blocks.size(); i++) {
      if (blocks[i].used != now && (at < 0 || blocks[i].used < blocks[at].used)) at = static_cast<int>(i);
    }
    if (at < 0) return -1;
  }
  blocks[at].id = 0;
  blocks[at].used = now;
  blocks[at].half.grow(elements);
  return at;
}

size_t LatentBlocks::bytes() const {
  size_t total = 0;
  for (const LatentBlock& block : blocks) total += block.half.bytes();
  return total;
}

void recomputeHead(const Kernels* kernels, const LatentLayer& layer, const RotaryTable* rotary, const LatentView& latent, bool isKey, int head,
                   int firstPosition, float* rows, LatentScratch& scratch) {
  const PackedWeights& weights = isKey ? layer.k[head] : layer.v[head];
  const size_t d = weights.outputs();
  const std::vector<float>& bias = isKey ? layer.kBias : layer.vBias;
  // The error of int8 weights is negligible beside that of xq4, but not beside that of xq8.
  const int planes = latent.format == kXq8 ? 2 : 1;
  materialize(kernels, latent, weights, planes, bias.empty() ? nullptr : bias.data() + head * d, rows, d, scratch);
  if (!isKey) return;
  if (!layer.kNorm.empty()) {
    for (int t = 0; t < kPageTokens; t++) {
      float* row = rows + t * d;
      const float square = kernels->dot(row, row, static_cast<int>(d)) / static_cast<float>(d);
      const float factor = 1.0f / std::sqrt(square + layer.kNormEpsilon);
      for (size_t c = 0; c < d; c++) row[c] = row[c] * factor * layer.kNorm[c];
    }
  }
  if (!rotary) return;
  const size_t at = static_cast<size_t>(firstPosition) * (rotary->rotaryDim / 2);
  kernels->cold->rope(rows, kPageTokens, 1, static_cast<int>(d), rotary->rotaryDim, rotary->cos.data() + at, rotary->sin.data() + at, rotary->interleaved);
}

bool recomputeTiles(const Kernels* kernels, const PageLatent& from, const LatentView& latent, int head, int firstPosition, float* rows, uint16_t* tiles,
                    LatentScratch& scratch, SideView* k, SideView* v) {
  const int d = from.weights->k[head].outputs();
  const size_t elements = static_cast<size_t>(kPageTokens) * d;
  for (const bool isKey : {true, false}) {
    recomputeHead(kernels, *from.weights, from.rotary.get(), latent, isKey, head, firstPosition, rows, scratch);
    if (!withinMagnitude(rows, elements, kHalfMax)) return false;
    packTile(kernels, isKey, d, rows, tiles);
    SideView* view = isKey ? k : v;
    *view = SideView();
    view->field[kF16Halves] = reinterpret_cast<const uint8_t*>(tiles);
    tiles += elements;
  }
  return true;
}

void packTile(const Kernels* kernels, bool isKey, int headDim, const float* rows, uint16_t* tile) {
  const size_t d = headDim;
  if (!isKey) {
    kernels->toHalf(rows, tile, kPageTokens * d);
    return;
  }
  uint16_t line[256];
  for (int t = 0; t < kPageTokens; t++) {
    kernels->toHalf(rows + t * d, line, d);
    for (size_t c = 0; c < d; c++) tile[c * kPageTokens + t] = line[c];
  }
}

}  // namespace palimpsest
