// Exports the bytes of a sealed page from a cache and imports them into one (layer.h). native/stored.ts adds the header that describes them.
#include <cstring>

#include "layer.h"

namespace palimpsest {

namespace {

// The largest value in the rows of a page: f16 holds up to 65,504, and the rounding of a code adds less than that again.
constexpr float kLargestRow = 131072.0f;

struct Piece {
  uint8_t* bytes;
  size_t size;
};

// All memory of a page, in the order of the stored bytes: keys, values, latent.
std::vector<Piece> piecesOf(const Page& page) {
  std::vector<Piece> pieces;
  for (const PageSide* side : {&page.k, &page.v}) {
    for (const PartRef& part : side->part) pieces.push_back({part.bytes(), part.size()});
  }
  for (const PartRef& part : page.latent.part) pieces.push_back({part.bytes(), part.size()});
  return pieces;
}

}  // namespace

size_t Cache::storedBytes(int index, int pageIndex) const {
  return layers_[index].page(pageIndex).heldBytes() + (pageIndex == 0 ? sinkBytes() : 0);
}

void Cache::exportPage(int index, int pageIndex, uint8_t* out) const {
  for (const Piece& piece : piecesOf(layers_[index].page(pageIndex))) {
    if (piece.size > 0) std::memcpy(out, piece.bytes, piece.size);
    out += piece.size;
  }
  if (pageIndex == 0) std::memcpy(out, layers_[index].sinks.bytes(), sinkBytes());
}

Status Cache::importPage(int index, const StoredPage& stored) {
  Layer& layer = layers_[index];
  const bool isOpenFull = layer.openRows() == kPageTokens;
  if (layer.openRows() > 0 && !isOpenFull) return kUnsupported;
  const int pageIndex = layer.sealed() + (isOpenFull ? 1 : 0);
  if (layer.length > (1 << 30) - kPageTokens) return kBadArgument;
  const bool hasLatent = stored.latentFormat >= 0;
  if (stored.kind == kLatent && !hasLatent) return kBadArgument;
  if (hasLatent && (!layer.latent || layer.latent->width != stored.latentWidth || !rotaryReaches(pageIndex))) return kUnsupported;
  // All sizes follow from the formats and are compared with the given size before anything is allocated.
  size_t pageBytes = hasLatent ? latentBytes(stored.latentFormat, stored.latentWidth) : 0;
  for (const int format : stored.formats) {
    if (stored.kind == kLatent) continue;
    if (!servesHeadDim(format, shape().headDim)) return kUnsupported;
    pageBytes += sideBytes(format, shape().kvHeads, shape().headDim);
  }
  if (stored.size != pageBytes + (pageIndex == 0 ? sinkBytes() : 0)) return kBadShape;
  PartRef sinkPart = layer.sinks;
  const bool needsSinks = pageIndex == 0 && !sinkPart;
  if (!account_->hasRoom(pageBytes + (isOpenFull && !codesOpenRows() ? sealBytes() : 0) + (needsSinks ? sinkBytes() : 0))) return kBudgetExceeded;
  Seal before;
  if (isOpenFull && !draftSeal(0, before)) return kNoMemory;
  if (needsSinks && !(sinkPart = account_->draft(sinkBytes()))) return kNoMemory;
  auto page = std::make_shared<Page>();
  page->kind = stored.kind;
  if (stored.kind == kResident) {
    if (!page->k.draft(*account_, stored.formats[0], sideShape(true)) || !page->v.draft(*account_, stored.formats[1], sideShape(false))) return kNoMemory;
  }
  const uint8_t* at = stored.bytes;
  for (const Piece& piece : piecesOf(*page)) {
    if (piece.size > 0) std::memcpy(piece.bytes, at, piece.size);
    at += piece.size;
  }
  if (hasLatent) {
    page->latent = draftLatent(layer, stored.latentFormat, at);
    if (!page->latent.isThere()) return kNoMemory;
    at += page->latent.bytes();
  }
  const uint16_t* sinks = reinterpret_cast<const uint16_t*>(at);
  if (page->kind == kResident && !holdsNumbers(*page, workers_->scratch[0].keyRows.data())) return kBadValue;
  if (page->latent.isThere() && !recomputesToHalves(page->latent, pageIndex)) return kBadValue;
  if ((pageIndex == 0 && !areHalves(sinks, sinkBytes() / 2))) return kBadValue;
  reservePages(layer, isOpenFull ? 2 : 1);
  // From here on nothing can fail.
  if (isOpenFull) seal(layer, std::move(before));
  if (pageIndex == 0) std::memcpy(sinkPart.bytes(), at, sinkBytes());
  layer.sinks = std::move(sinkPart);
  account_->count(layer.sinks);
  page->k.count(*account_);
  page->v.count(*account_);
  page->latent.count(*account_);
  layer.pages.push_back(std::move(page));
  layer.mass.push_back(0);
  layer.length += kPageTokens;
  return kOk;
}

// Whether all halves are finite.
bool Cache::areHalves(const uint16_t* halves, size_t count) const {
  std::vector<float> rows(count);
  kernels_->fromHalf(halves, rows.data(), count);
  return withinMagnitude(rows.data(), count, kHalfMax);
}

bool Cache::holdsNumbers(const Page& page, float* rows) const {
  const size_t d = shape().headDim;
  for (const bool isKey : {true, false}) {
    const SideShape side = sideShape(isKey);
    for (int head = 0; head < side.kvHeads; head++) {
      const SideView view = page.side(isKey).view(side, head);
      if (!kernels_->isSound(view, side.headDim)) return false;
      // The rows of the sinks are checked too: their results are not used, but attention may compute them with the others.
      kernels_->decode(view, isKey, side.headDim, 0, rows, d);
      if (!withinMagnitude(rows, d * kPageTokens, kLargestRow)) return false;
    }
  }
  return true;
}

}  // namespace palimpsest
