// Pages of a cache that are held as latents (layer.h, latent_pages.h): put away, looked at, made keys and values again.
#include <algorithm>
#include <cstring>

#include "trial.h"

namespace palimpsest {

Status Cache::setLatentLayer(int index, std::shared_ptr<const LatentLayer> weights) {
  Layer& layer = layers_[index];
  for (const Page& page : layer.pages) {
    if (page.latent.isThere()) return kUnsupported;
  }
  layer.latent = std::move(weights);
  return kOk;
}

Status Cache::setRotary(std::shared_ptr<const RotaryTable> rotary) {
  for (const Layer& layer : layers_) {
    for (const Page& page : layer.pages) {
      if (page.latent.isThere()) return kUnsupported;
    }
  }
  rotary_ = std::move(rotary);
  return kOk;
}

void Cache::setLatentScratch(size_t bytes) {
  LatentBlocks& latents = workers_->latents;
  latents.mostBytes = bytes;
  if (latents.bytes() > bytes) std::vector<LatentBlock>().swap(latents.blocks);
}

namespace {

// Bytes that go when keys and values of a page do.
size_t releasedBy(const Page& page) {
  size_t released = 0;
  for (const PageSide* side : {&page.k, &page.v}) {
    for (const PartRef* part : {&side->codes, &side->low, &side->meta}) {
      if (!part->shared()) released += part->size();
    }
  }
  return released;
}

}  // namespace

bool Cache::mayHaveLatent(const Layer& layer, int pageIndex) const {
  const Page& page = layer.pages[pageIndex];
  if (!layer.latent || page.latent.isThere() || page.moving) return false;
  return !rotary_ || (pageIndex + 1) * kPageTokens <= rotary_->positions();
}

// Empty when memory ran out.
HeldLatent Cache::draftLatent(const Layer& layer, int format, const uint8_t* bytes) {
  const size_t size = latentBytes(format, layer.latent->width);
  HeldLatent latent;
  latent.bytes = account_->draft(size);
  if (!latent.bytes) return latent;
  std::memcpy(latent.bytes.bytes(), bytes, size);
  latent.format = format;
  latent.id = workers_->latents.nextId++;
  return latent;
}

Status Cache::keep(int index, int pageIndex, int format, const uint8_t* bytes) {
  Layer& layer = layers_[index];
  if (!mayHaveLatent(layer, pageIndex)) return kUnsupported;
  if (!account_->hasRoom(latentBytes(format, layer.latent->width))) return kBudgetExceeded;
  HeldLatent latent = draftLatent(layer, format, bytes);
  if (!latent.isThere()) return kNoMemory;
  latent.kept = true;
  account_->count(latent.bytes);
  layer.pages[pageIndex].latent = std::move(latent);
  return kOk;
}

Status Cache::hold(int index, int pageIndex, int format, const uint8_t* bytes, double* freed) {
  *freed = 0;
  Layer& layer = layers_[index];
  Page& page = layer.pages[pageIndex];
  if (!mayHaveLatent(layer, pageIndex)) return kUnsupported;
  endTrials(*this, index, pageIndex);
  if (!account_->hasRoom(latentBytes(format, layer.latent->width), releasedBy(page))) return kBudgetExceeded;
  HeldLatent latent = draftLatent(layer, format, bytes);
  if (!latent) return kNoMemory;
  const double before = static_cast<double>(account_->usedBytes());
  page.k = PageSide();
  page.v = PageSide();
  page.latent = std::move(latent);
  account_->count(page.latent.bytes);
  *freed = before - static_cast<double>(account_->usedBytes());
  return kOk;
}

void Cache::latentRows(const Layer& layer, int pageIndex, bool isKey, int head, float* rows, LatentScratch& scratch) const {
  const HeldLatent& held = layer.pages[pageIndex].latent;
  const LatentView view = latentView(held.format, layer.latent->width, held.bytes.bytes());
  recomputeHead(kernels_, *layer.latent, rotary_.get(), view, isKey, head, pageIndex * kPageTokens, rows, scratch);
  if (pageIndex == 0) restoreSinks(layer, isKey, head, rows, shape().headDim);
}

Status Cache::restore(int index, int pageIndex, int format, double* freed) {
  *freed = 0;
  Layer& layer = layers_[index];
  Page& page = layer.pages[pageIndex];
  if (!page.latent.isThere() || page.moving) return kUnsupported;
  if (isCoded(format) && !hasCodes(shape().headDim)) return kUnsupported;
  endTrials(*this, index, pageIndex);
  const bool isHeld = static_cast<bool>(page.latent);
  const size_t released = !isHeld ? releasedBy(page) : page.latent.bytes.shared() ? 0 : page.latent.bytes.size();
  if (!account_->hasRoom(2 * partSizes(format, shape().kvHeads, shape().headDim).total(), released)) return kBudgetExceeded;
  PageSide fresh[2];
  Scratch& scratch = workers_->scratch[0];
  for (const bool isKey : {true, false}) {
    const SideShape side = sideShape(isKey);
    if (!fresh[isKey ? 0 : 1].draft(*account_, format, side)) return kNoMemory;
    for (int head = 0; head < side.kvHeads; head++) {
      float* rows = scratch.keyRows.data();
      latentRows(layer, pageIndex, isKey, head, rows, scratch.latent);
      encodeHead(kernels_, format, isKey, side.headDim, pageIndex == 0 ? kSinkTokens : 0, rows, fresh[isKey ? 0 : 1].target(side, head));
    }
  }
  const double before = static_cast<double>(account_->usedBytes());
  if (isHeld) page.latent = HeldLatent();
  page.k = std::move(fresh[0]);
  page.v = std::move(fresh[1]);
  page.k.count(*account_);
  page.v.count(*account_);
  *freed = before - static_cast<double>(account_->usedBytes());
  return kOk;
}

void Cache::prepareLatents(int index, int from, int to) {
  Layer& layer = layers_[index];
  LatentBlocks& latents = workers_->latents;
  const size_t tile = static_cast<size_t>(shape().headDim) * kPageTokens;
  const size_t heads = shape().kvHeads;
  to = std::min(to, layer.sealed());
  latents.now++;
  bool isHeld = false;
  for (int page = from; page < to; page++) {
    const HeldLatent& held = layer.pages[page].latent;
    if (!held) continue;
    isHeld = true;
    for (LatentBlock& block : latents.blocks) {
      if (block.id == held.id) block.used = latents.now;
    }
  }
  if (!isHeld) return;
  // Everything that allocates, before any thread starts.
  for (Scratch& scratch : workers_->scratch) {
    scratch.latentTiles.grow(2 * heads * tile);
    scratch.latent.reserve(layer.latent->width, shape().headDim);
  }
  struct Fresh {
    int page;
    int block;
  };
  std::vector<Fresh> fresh;
  for (int page = from; page < to; page++) {
    const HeldLatent& held = layer.pages[page].latent;
    if (!held || latents.find(held.id)) continue;
    const int block = latents.claim(2 * heads * tile);
    if (block < 0) break;
    fresh.push_back({page, block});
  }
  // A block is one item per head, because heads are recomputed apart.
  auto task = [&](int item, int thread) {
    const auto [page, block] = fresh[item / heads];
    const int head = item % static_cast<int>(heads);
    uint16_t* tiles = latents.blocks[block].half.data();
    fillTiles(layer, page, head, tiles, workers_->scratch[thread]);
  };
  workers_->threads.each(static_cast<int>(fresh.size() * heads), task);
  for (const Fresh& one : fresh) latents.blocks[one.block].id = layer.pages[one.page].latent.id;
}

void Cache::latentViews(int index, int page, int head, Scratch& scratch, SideView* k, SideView* v) const {
  const size_t tile = static_cast<size_t>(shape().headDim) * kPageTokens;
  const LatentBlock* block = workers_->latents.find(layers_[index].pages[page].latent.id);
  *k = SideView();
  *v = SideView();
  k->half = (block ? block->half.data() : scratch.latentTiles.data()) + head * tile;
  v->half = k->half + shape().kvHeads * tile;
}

void Cache::fillLatent(int index, int page, int firstHead, int heads, Scratch& scratch) const {
  const Layer& layer = layers_[index];
  if (workers_->latents.find(layer.pages[page].latent.id)) return;
  for (int head = firstHead; head < firstHead + heads; head++) fillTiles(layer, page, head, scratch.latentTiles.data(), scratch);
}

void Cache::fillTiles(const Layer& layer, int page, int head, uint16_t* tiles, Scratch& scratch) const {
  const size_t tile = static_cast<size_t>(shape().headDim) * kPageTokens;
  for (const bool isKey : {true, false}) {
    latentRows(layer, page, isKey, head, scratch.keyRows.data(), scratch.latent);
    packTile(kernels_, isKey, shape().headDim, scratch.keyRows.data(), tiles + ((isKey ? 0 : shape().kvHeads) + head) * tile);
  }
}

}  // namespace palimpsest
