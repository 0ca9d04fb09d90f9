// Pages that a cache holds as latents (layer.h, latent_pages.h): holding, reading and restoring them.
#include <algorithm>
#include <cstring>

#include "trial.h"

namespace palimpsest {

Status Cache::setLatentLayer(int index, std::shared_ptr<const LatentLayer> weights) {
  Layer& layer = layers_[index];
  for (const std::shared_ptr<Page>& page : layer.pages) {
    if (page->latent.isThere()) return kUnsupported;
  }
  layer.latent = std::move(weights);
  return kOk;
}

Status Cache::setRotary(std::shared_ptr<const RotaryTable> rotary) {
  for (const Layer& layer : layers_) {
    for (const std::shared_ptr<Page>& page : layer.pages) {
      if (page->latent.isThere()) return kUnsupported;
    }
  }
  rotary_ = std::move(rotary);
  return kOk;
}

void Cache::setLatentScratch(size_t bytes) {
  LatentBlocks& latents = *latents_;
  latents.mostBytes = bytes;
  if (latents.bytes() > bytes) std::vector<LatentBlock>().swap(latents.blocks);
}

bool Cache::mayHaveLatent(const Layer& layer, int pageIndex) const {
  const Page& page = layer.page(pageIndex);
  if (!layer.latent || page.latent.isThere() || page.isCommon() || page.body->moving || page.isGone()) return false;
  return rotaryReaches(pageIndex);
}

bool Cache::recomputesToHalves(const PageLatent& latent, int pageIndex) {
  Scratch& scratch = workers_->scratch[0];
  float* rows = scratch.keyRows.data();
  if (!finiteLatent(latent.view())) return false;
  for (const bool isKey : {true, false}) {
    for (int head = 0; head < shape().kvHeads; head++) {
      recomputeHead(kernels_, *latent.weights, latent.rotary.get(), latent.view(), isKey, head, pageIndex * kPageTokens, rows, scratch.latent);
      if (!withinMagnitude(rows, static_cast<size_t>(kPageTokens) * shape().headDim, kHalfMax)) return false;
    }
  }
  return true;
}

// The result is empty when memory ran out.
PageLatent Cache::draftLatent(const Layer& layer, int format, const uint8_t* bytes) {
  PageLatent latent;
  latent.weights = layer.latent;
  latent.rotary = rotary_;
  if (!latent.draft(*account_, format)) return PageLatent();
  for (const PartRef& part : latent.part) {
    std::memcpy(part.bytes(), bytes, part.size());
    bytes += part.size();
  }
  latent.id = latents_->nextId++;
  return latent;
}

PageLatent Cache::draftLower(const PageLatent& from, int format, int pageIndex) {
  PageLatent latent;
  latent.weights = from.weights;
  latent.rotary = from.rotary;
  if (isLatentDemotion(from.format, format)) latent.part[0] = from.part[0];
  if (!latent.draft(*account_, format)) return PageLatent();
  lowerLatentPage(kernels_, from.view(), format, pageIndex == 0 ? kSinkTokens : 0, latent.part[0].bytes(), latent.part[1].bytes(),
                  workers_->scratch[0].latent);
  latent.id = latents_->nextId++;
  return latent;
}

Status Cache::keep(int index, int pageIndex, int format, const uint8_t* bytes) {
  Layer& layer = layers_[index];
  if (!mayHaveLatent(layer, pageIndex)) return kUnsupported;
  if (!account_->hasRoom(latentBytes(format, layer.latent->width))) return kBudgetExceeded;
  PageLatent latent = draftLatent(layer, format, bytes);
  if (!latent.isThere()) return kNoMemory;
  if (!finiteLatent(latent.view())) return kBadValue;
  latent.count(*account_);
  layer.page(pageIndex).latent = std::move(latent);
  return kOk;
}

Status Cache::hold(int index, int pageIndex, int format, const uint8_t* bytes, double* freed) {
  *freed = 0;
  Layer& layer = layers_[index];
  Page& page = layer.page(pageIndex);
  if (!mayHaveLatent(layer, pageIndex)) return kUnsupported;
  endTrials(*workers_, page);
  if (!account_->hasRoom(latentBytes(format, layer.latent->width), page.bytes())) return kBudgetExceeded;
  return holdAs(page, pageIndex, draftLatent(layer, format, bytes), freed);
}

Status Cache::toLatent(int index, int pageIndex, int format, double* freed) {
  *freed = 0;
  Page& page = layers_[index].page(pageIndex);
  if (!page.latent.isThere() || page.body->moving || format < page.latent.format) return kUnsupported;
  const bool isLower = format != page.latent.format;
  if (page.kind == kLatent && !isLower) return kOk;
  endTrials(*workers_, page);
  if (!isLower) return holdAs(page, pageIndex, page.latent, freed);
  const size_t kept = isLatentDemotion(page.latent.format, format) ? page.latent.part[0].size() : 0;
  if (!account_->hasRoom(latentBytes(format, page.latent.weights->width) - kept, page.bytes() - kept)) return kBudgetExceeded;
  return holdAs(page, pageIndex, draftLower(page.latent, format, pageIndex), freed);
}

Status Cache::holdAs(Page& page, int pageIndex, PageLatent latent, double* freed) {
  if (!latent.isThere()) return kNoMemory;
  if (!recomputesToHalves(latent, pageIndex)) return kBadValue;
  const double before = static_cast<double>(account_->usedBytes());
  for (PageSide* side : {&page.body->k, &page.body->v, &page.original[0], &page.original[1]}) *side = PageSide();
  for (KeptRows& rows : page.rows) rows = KeptRows();
  page.body->forgetTried();
  page.latent = std::move(latent);
  page.kind = kLatent;
  page.latent.count(*account_);
  *freed = before - static_cast<double>(account_->usedBytes());
  return kOk;
}

Status Cache::dropLatent(int index, int pageIndex, double* freed) {
  *freed = 0;
  Page& page = layers_[index].page(pageIndex);
  if (!page.latent.isThere() || page.kind != kResident) return kUnsupported;
  endTrials(*workers_, page);
  const double before = static_cast<double>(account_->usedBytes());
  page.latent = PageLatent();
  *freed = before - static_cast<double>(account_->usedBytes());
  return kOk;
}

void Cache::latentRows(const Layer& layer, int pageIndex, bool isKey, int head, float* rows, LatentScratch& scratch) const {
  const PageLatent& latent = layer.page(pageIndex).latent;
  recomputeHead(kernels_, *latent.weights, latent.rotary.get(), latent.view(), isKey, head, pageIndex * kPageTokens, rows, scratch);
  if (pageIndex == 0) restoreSinks(layer, isKey, head, rows, shape().headDim);
}

Status Cache::restore(int index, int pageIndex, int format, bool keepsLatent, double* freed) {
  *freed = 0;
  Layer& layer = layers_[index];
  Page& page = layer.page(pageIndex);
  if (!page.latent.isThere() || page.body->moving) return kUnsupported;
  if (!servesHeadDim(format, shape().headDim)) return kUnsupported;
  endTrials(*workers_, page);
  // A side that has the format is nearer to what it was than what the latent gives. A page held as one has no sides.
  PageSide* const sides[2] = {&page.body->k, &page.body->v};
  const auto stays = [&](bool isKey) { return page.kind == kResident && sides[isKey ? 0 : 1]->format == format; };
  size_t wanted = 0, released = keepsLatent ? 0 : page.latent.bytes();
  for (const bool isKey : {true, false}) {
    if (stays(isKey)) continue;
    wanted += sideBytes(format, shape().kvHeads, shape().headDim);
    released += sides[isKey ? 0 : 1]->bytesBeside(page.original[isKey ? 0 : 1]);
  }
  if (!account_->hasRoom(wanted, released)) return kBudgetExceeded;
  PageSide fresh[2];
  Scratch& scratch = workers_->scratch[0];
  for (const bool isKey : {true, false}) {
    if (stays(isKey)) continue;
    const SideShape side = sideShape(isKey);
    if (!fresh[isKey ? 0 : 1].draft(*account_, format, side)) return kNoMemory;
    const std::shared_ptr<const Steering> steering = Steering::of(kernels_, *layer.kept, shape(), isKey, format);
    for (int head = 0; head < side.kvHeads; head++) {
      float* rows = scratch.keyRows.data();
      latentRows(layer, pageIndex, isKey, head, rows, scratch.latent);
      if (!withinMagnitude(rows, static_cast<size_t>(kPageTokens) * side.headDim, kHalfMax)) return kBadValue;
      SideTarget target = fresh[isKey ? 0 : 1].target(side, head);
      target.steering = headOf(steering, head);
      kernels_->cold->encode(&target, 1, isKey, side.headDim, pageIndex == 0 ? kSinkTokens : 0, rows, side.headDim, scratch.workspace());
    }
  }
  const double before = static_cast<double>(account_->usedBytes());
  for (const bool isKey : {true, false}) {
    if (stays(isKey)) continue;
    PageSide& side = *sides[isKey ? 0 : 1];
    side = std::move(fresh[isKey ? 0 : 1]);
    side.count(*account_);
  }
  if (!keepsLatent) page.latent = PageLatent();
  page.kind = kResident;
  page.body->forgetTried();
  *freed = before - static_cast<double>(account_->usedBytes());
  return kOk;
}

void Cache::prepareLatents(int index, int from, int to) {
  Layer& layer = layers_[index];
  LatentBlocks& latents = *latents_;
  const size_t tile = static_cast<size_t>(shape().headDim) * kPageTokens;
  const size_t heads = shape().kvHeads;
  to = std::min(to, layer.sealed());
  latents.now++;
  int width = 0;
  for (int index = from; index < to; index++) {
    const Page& page = layer.page(index);
    if (page.kind != kLatent) continue;
    width = std::max(width, page.latent.weights->width);
    for (LatentBlock& block : latents.blocks) {
      if (block.id == page.latent.id) block.used = latents.now;
    }
  }
  if (width == 0) return;
  // Do everything that allocates before any thread starts.
  for (int thread = 0; thread < options_.threads; thread++) {
    Scratch& scratch = workers_->scratch[thread];
    scratch.latentTiles.grow(2 * heads * tile);
    scratch.keyRows.grow(tile);
    scratch.latent.reserve(width, shape().headDim);
  }
  struct Fresh {
    int page;
    int block;
  };
  std::vector<Fresh> fresh;
  for (int page = from; page < to; page++) {
    if (layer.page(page).kind != kLatent || latents.find(layer.page(page).latent.id)) continue;
    const int block = latents.claim(2 * heads * tile);
    if (block < 0) break;
    fresh.push_back({page, block});
  }
  // A block has one work item per head, because heads are recomputed separately.
  auto task = [&](int item, int thread) {
    const auto [page, block] = fresh[item / heads];
    const int head = item % static_cast<int>(heads);
    uint16_t* tiles = latents.blocks[block].half.data();
    fillTiles(layer, page, head, tiles, workers_->scratch[thread]);
  };
  workers_->threads->each(static_cast<int>(fresh.size() * heads), task, options_.threads);
  for (const Fresh& one : fresh) latents.blocks[one.block].id = layer.page(one.page).latent.id;
}

void Cache::latentViews(int index, int page, int head, Scratch& scratch, SideView* k, SideView* v) const {
  const size_t tile = static_cast<size_t>(shape().headDim) * kPageTokens;
  const LatentBlock* block = latents_->find(layers_[index].page(page).latent.id);
  *k = SideView();
  *v = SideView();
  const uint16_t* tiles = (block ? block->half.data() : scratch.latentTiles.data()) + head * tile;
  k->field[kF16Halves] = reinterpret_cast<const uint8_t*>(tiles);
  v->field[kF16Halves] = reinterpret_cast<const uint8_t*>(tiles + shape().kvHeads * tile);
}

void Cache::fillLatent(int index, int page, int firstHead, int heads, Scratch& scratch) const {
  const Layer& layer = layers_[index];
  if (latents_->find(layer.page(page).latent.id)) return;
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
