// Pages that are let go (layer.h) and give their bytes back: those that a sliding window has left behind, which no
// query from now on sees, and those that are evicted, which attention skips.
#include <algorithm>

#include "layer.h"
#include "trial.h"

namespace palimpsest {

namespace {

// The first position that a query sees.
int firstSeen(int position, int window) { return std::max(0, position - window + 1); }

}  // namespace

bool Cache::seesFreed(int index, int position, int pages) const {
  const int window = options_.window[index];
  if (window == 0) return false;
  for (int page = firstSeen(position, window) / kPageTokens; page < pages; page++) {
    if (layers_[index].page(page).kind == kFreed) return true;
  }
  return false;
}

Status Cache::freePage(int index, int pageIndex, double* freed) {
  *freed = 0;
  Layer& layer = layers_[index];
  const int window = options_.window[index];
  Page& page = layer.page(pageIndex);
  if (window == 0 || page.body->moving || (pageIndex + 1) * kPageTokens > firstSeen(layer.length, window)) return kUnsupported;
  if (page.kind == kFreed) return kOk;
  auto nothing = std::make_shared<Page>();
  nothing->kind = kFreed;
  endTrials(*workers_, page);
  const double before = countedBytes();
  layer.pages[pageIndex] = std::move(nothing);
  *freed = before - countedBytes();
  return kOk;
}

bool Cache::isEvictedFrom(int index, int position) const {
  const Layer& layer = layers_[index];
  for (int page = position / kPageTokens; page < layer.sealed(); page++) {
    if (layer.page(page).isSkipped()) return true;
  }
  return false;
}

Status Cache::evictPage(int index, int pageIndex, double* freed) {
  *freed = 0;
  Page& page = layers_[index].page(pageIndex);
  if (page.body->moving || page.kind == kFreed) return kUnsupported;
  if (page.kind == kEvicted) return kOk;
  endTrials(*workers_, page);
  const double before = countedBytes();
  // Forks are without it as well; others that hold it go on with it.
  page.body = std::make_shared<PageBody>();
  for (PageSide& original : page.original) original = PageSide();
  for (KeptRows& rows : page.rows) rows = KeptRows();
  page.latent = PageLatent();
  page.foreign = PartRef();
  page.kind = kEvicted;
  *freed = before - countedBytes();
  return kOk;
}

}  // namespace palimpsest
