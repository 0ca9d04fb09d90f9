// What leaves a cache (layer.h) and comes back: the rows of a page, and the bytes of a sealed page, which are exported
// from one cache and imported into another. native/stored.ts adds the header that describes the bytes.
#include <cstring>

#include "layer.h"
#include "trial.h"

namespace palimpsest {

namespace {

// The largest value in the rows of a page: f16 holds up to 65,504, and the rounding of a code adds less than that
// again.
constexpr float kLargestRow = 131072.0f;

struct Piece {
  uint8_t* bytes;
  size_t size;
};

// All memory of a page, in the order of the stored bytes: keys, values, latent; of a foreign page its bytes alone.
std::vector<Piece> piecesOf(const Page& page) {
  std::vector<Piece> pieces;
  if (page.kind == kForeign) return {{page.foreign.bytes(), page.foreignBytes}};
  for (const PageSide* side : {&page.body->k, &page.body->v}) {
    for (const PartRef& part : side->part) pieces.push_back({part.bytes(), part.size()});
  }
  for (const PartRef& part : page.latent.part) pieces.push_back({part.bytes(), part.size()});
  return pieces;
}

}  // namespace

size_t Cache::storedBytes(int index, int pageIndex) const {
  const Page& page = layers_[index].page(pageIndex);
  return (page.kind == kForeign ? page.foreignBytes : page.heldBytes()) + (pageIndex == 0 ? sinkBytes() : 0);
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
  if (stored.kind == kFreed && options_.window[index] == 0) return kUnsupported;
  if ((stored.kind == kFreed || stored.kind == kEvicted || stored.kind == kForeign) && hasLatent) return kUnsupported;
  if (hasLatent && (!layer.latent || layer.latent->width != stored.latentWidth || !rotaryReaches(pageIndex))) return kUnsupported;
  // All sizes follow from the formats and are compared with the given size before anything is allocated.
  size_t pageBytes = hasLatent ? latentBytes(stored.latentFormat, stored.latentWidth) : 0;
  for (const int format : stored.formats) {
    if (stored.kind != kResident) continue;
    if (!servesHeadDim(format, shape().headDim)) return kUnsupported;
    pageBytes += sideBytes(format, shape().kvHeads, shape().headDim);
  }
  const size_t sinkSize = pageIndex == 0 ? sinkBytes() : 0;
  const size_t foreignBytes = stored.kind == kForeign && stored.size > sinkSize ? stored.size - sinkSize : 0;
  if (stored.kind == kForeign ? !isForeignSize(foreignBytes) : stored.size != pageBytes + sinkSize) return kBadShape;
  if (stored.kind == kForeign) pageBytes = alignedPart(foreignBytes);
  PartRef sinkPart = layer.sinks;
  const bool needsSinks = pageIndex == 0 && !sinkPart;
  if (!account_->hasRoom(pageBytes + (isOpenFull && !codesOpenRows() ? sealBytes() : 0) + (needsSinks ? sinkBytes() : 0))) return kBudgetExceeded;
  Seal before;
  if (isOpenFull && !draftSeal(0, before)) return kNoMemory;
  if (needsSinks && !(sinkPart = account_->draft(sinkBytes()))) return kNoMemory;
  auto page = std::make_shared<Page>();
  page->kind = stored.kind;
  if (stored.kind == kResident) {
    if (!page->body->k.draft(*account_, stored.formats[0], sideShape(true)) || !page->body->v.draft(*account_, stored.formats[1], sideShape(false))) return kNoMemory;
  }
  if (stored.kind == kForeign && !page->draftForeign(*account_, foreignBytes)) return kNoMemory;
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
  // The caller's bytes are read once, because another thread may change them, and by their bytes, because they may
  // begin anywhere.
  std::vector<uint16_t> sinks(pageIndex == 0 ? sinkBytes() / 2 : 0);
  if (pageIndex == 0) std::memcpy(sinks.data(), at, sinkBytes());
  if (page->kind == kResident && !holdsNumbers(*page, workers_->scratch[0].keyRows.data(), workers_->scratch[0].workspace())) return kBadValue;
  if (page->latent.isThere() && !recomputesToHalves(page->latent, pageIndex)) return kBadValue;
  if (!areHalves(sinks.data(), sinks.size())) return kBadValue;
  reservePages(layer, isOpenFull ? 2 : 1);
  // From here on nothing can fail.
  if (isOpenFull) seal(layer, std::move(before));
  if (pageIndex == 0) std::memcpy(sinkPart.bytes(), sinks.data(), sinkBytes());
  layer.sinks = std::move(sinkPart);
  account_->count(layer.sinks);
  page->body->k.count(*account_);
  page->body->v.count(*account_);
  page->latent.count(*account_);
  account_->count(page->foreign);
  layer.pages.push_back(std::move(page));
  layer.mass.push_back(0);
  layer.length += kPageTokens;
  return kOk;
}

void Cache::exportSide(int index, int pageIndex, bool isKey, uint8_t* out) const {
  for (const PartRef& part : layers_[index].page(pageIndex).side(isKey).part) {
    if (part.size() > 0) std::memcpy(out, part.bytes(), part.size());
    out += part.size();
  }
}

Status Cache::exchangeSide(int index, int pageIndex, bool isKey, const StoredSide& stored, double* freed) {
  *freed = 0;
  Page& page = layers_[index].page(pageIndex);
  if (page.kind != kResident || (page.body->moving & sideBit(isKey)) || !servesHeadDim(stored.format, shape().headDim)) return kUnsupported;
  if (stored.size != sideBytes(stored.format, shape().kvHeads, shape().headDim)) return kBadShape;
  // What a kept original has of the old bytes stays.
  Account& account = accountOf(page);
  const size_t released = page.isCommon() ? page.side(isKey).bytesBeside(PageSide(), 1) : page.side(isKey).bytesBeside(page.original[isKey ? 0 : 1]);
  if (!account.hasRoom(stored.size, released)) return kBudgetExceeded;
  PageSide fresh;
  if (!fresh.draft(account, stored.format, sideShape(isKey))) return kNoMemory;
  // Copied before they are checked, because another thread may change the caller's bytes.
  const uint8_t* at = stored.bytes;
  for (const PartRef& part : fresh.part) {
    if (part.size() > 0) std::memcpy(part.bytes(), at, part.size());
    at += part.size();
  }
  if (!holdsNumbers(fresh, isKey, workers_->scratch[0].keyRows.data(), workers_->scratch[0].workspace())) return kBadValue;
  endTrials(*workers_, page);
  const double before = countedBytes();
  page.body->tried[isKey ? 0 : 1] = PageSide();
  page.side(isKey) = std::move(fresh);
  page.side(isKey).count(account);
  *freed = before - countedBytes();
  return kOk;
}

// Whether all halves are finite.
bool Cache::areHalves(const uint16_t* halves, size_t count) const {
  std::vector<float> rows(count);
  kernels_->fromHalf(halves, rows.data(), count);
  return withinMagnitude(rows.data(), count, kHalfMax);
}

bool Cache::holdsNumbers(const Page& page, float* rows, Workspace space) const {
  return holdsNumbers(page.body->k, true, rows, space) && holdsNumbers(page.body->v, false, rows, space);
}

bool Cache::holdsNumbers(const PageSide& of, bool isKey, float* rows, Workspace space) const {
  const size_t d = shape().headDim;
  const SideShape side = sideShape(isKey);
  for (int head = 0; head < side.kvHeads; head++) {
    const SideView view = of.view(side, head);
    if (!kernels_->cold->isSound(view, side.headDim)) return false;
    // The rows of the sinks are checked too: their results are not used, but attention may compute them with the
    // others.
    kernels_->cold->decode(view, isKey, side.headDim, 0, rows, d, space);
    if (!withinMagnitude(rows, d * kPageTokens, kLargestRow)) return false;
  }
  return true;
}

void Cache::decode(int index, int pageIndex, bool isKey, float* out) {
  const Layer& layer = layers_[index];
  const size_t d = shape().headDim, stride = shape().rowElements();
  if (pageIndex < layer.sealed()) {
    const Page& page = layer.page(pageIndex);
    for (int head = 0; head < shape().kvHeads; head++, out += d) {
      materialize(index, pageIndex, isKey, head, out, stride, workers_->scratch[0]);
      if (page.kind == kResident) endAtHalf(page.side(isKey).view(sideShape(isKey), head), shape().headDim, kPageTokens, out, stride);
    }
    return;
  }
  const int rows = layer.openRows(), firstRow = codesOpenRows() && pageIndex == 0 ? kSinkTokens : 0;
  if (rows == 0) return;
  // The rows as those of a page with room for 128 tokens, which the kernels decode whole.
  Scratch& scratch = workers_->scratch[0];
  scratch.codes.grow(openBytes(kPageTokens));
  const SideShape side = openShape(isKey, layer.open.room);
  for (int head = 0; head < shape().kvHeads; head++) {
    SideView view = layer.open.side(isKey).view(side, head);
    std::memset(scratch.codes.data(), 0, openBytes(kPageTokens));
    size_t at = 0;
    for (int i = 0; i < side.places[view.format].fields; i++) {
      const FieldLayout& field = kFormats[view.format].field[i];
      copyField(field, isKey, side.headDim, view.field[i], layer.open.room, scratch.codes.data() + at, kPageTokens);
      view.field[i] = scratch.codes.data() + at;
      at += alignedPart(fieldBytes(field, side.headDim));
    }
    float* decoded = scratch.keyRows.data();
    kernels_->cold->decode(view, isKey, side.headDim, firstRow, decoded, d, scratch.workspace());
    endAtHalf(view, side.headDim, rows, decoded, d);
    if (firstRow > 0) restoreSinks(layer, isKey, head, decoded, d);
    for (int t = 0; t < rows; t++) std::memcpy(out + head * d + t * stride, decoded + t * d, sizeof(float) * d);
  }
}

}  // namespace palimpsest
