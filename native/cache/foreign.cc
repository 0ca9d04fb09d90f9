// Pages that somebody else codes (layer.h): only their bytes are here, counted like all others. Attention skips them as
// it does evicted ones; whoever understands the bytes adds what they give (attend.h: Beside).
#include <cstring>

#include "layer.h"
#include "steering.h"
#include "trial.h"

namespace palimpsest {

bool Page::draftForeign(Account& of, size_t bytes) {
  PartRef part = of.draft(alignedPart(bytes));
  if (!part) return false;
  std::memset(part.bytes() + bytes, 0, part.size() - bytes);
  foreign = std::move(part);
  foreignBytes = static_cast<uint32_t>(bytes);
  return true;
}

Status Cache::holdForeign(int index, int pageIndex, const uint8_t* bytes, size_t size, double* freed) {
  *freed = 0;
  Page& page = layers_[index].page(pageIndex);
  if (page.body->moving || page.isGone()) return kUnsupported;
  if (!isForeignSize(size)) return kBadShape;
  const size_t released = (page.isCommon() ? 0 : page.sideBytes()) + page.latent.bytes();
  if (!account_->hasRoom(alignedPart(size), released)) return kBudgetExceeded;
  Page drafted;
  if (!drafted.draftForeign(*account_, size)) return kNoMemory;
  auto nothing = std::make_shared<PageBody>();
  // From here on nothing can fail.
  std::memcpy(drafted.foreign.bytes(), bytes, size);
  endTrials(*workers_, page);
  const double before = countedBytes();
  // Forks have it as this as well; others that hold its keys and values go on with them.
  page.body = std::move(nothing);
  for (PageSide& original : page.original) original = PageSide();
  for (KeptRows& rows : page.rows) rows = KeptRows();
  page.latent = PageLatent();
  page.kind = kForeign;
  page.foreignBytes = drafted.foreignBytes;
  page.foreign = std::move(drafted.foreign);
  account_->count(page.foreign);
  *freed = before - countedBytes();
  return kOk;
}

Status Cache::restoreForeign(int index, int pageIndex, int format, const float* k, const float* v, double* freed) {
  *freed = 0;
  Layer& layer = layers_[index];
  Page& page = layer.page(pageIndex);
  if (page.kind != kForeign || !servesHeadDim(format, shape().headDim)) return kUnsupported;
  const size_t d = shape().headDim, stride = shape().rowElements();
  for (const float* rows : {k, v}) {
    if (!withinMagnitude(rows, kPageTokens * stride, kHalfMax)) return kBadValue;
  }
  if (!account_->hasRoom(2 * sideBytes(format, shape().kvHeads, shape().headDim), page.foreign.size())) return kBudgetExceeded;
  PageSide fresh[2];
  Scratch& scratch = workers_->scratch[0];
  reserveForTrials(scratch, kernels_, shape().headDim, shape().group(), 0);
  for (const bool isKey : {true, false}) {
    const SideShape side = sideShape(isKey);
    PageSide& made = fresh[isKey ? 0 : 1];
    if (!made.draft(*account_, format, side)) return kNoMemory;
    const std::shared_ptr<const Steering> steering = Steering::of(kernels_, *layer.kept, shape(), isKey, format);
    for (int head = 0; head < side.kvHeads; head++) {
      float* rows = scratch.keyRows.data();
      const float* from = (isKey ? k : v) + head * d;
      for (int t = 0; t < kPageTokens; t++) std::memcpy(rows + t * d, from + t * stride, sizeof(float) * d);
      if (pageIndex == 0) restoreSinks(layer, isKey, head, rows, d);
      SideTarget target = made.target(side, head);
      target.steering = headOf(steering, head);
      kernels_->cold->encode(&target, 1, isKey, side.headDim, pageIndex == 0 ? kSinkTokens : 0, rows, d, scratch.workspace());
    }
  }
  const double before = countedBytes();
  page.foreign = PartRef();
  page.kind = kResident;
  page.body->k = std::move(fresh[0]);
  page.body->v = std::move(fresh[1]);
  page.body->k.count(*account_);
  page.body->v.count(*account_);
  *freed = before - countedBytes();
  return kOk;
}

}  // namespace palimpsest
