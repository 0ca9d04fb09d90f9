// Puts all pages of a cache in place at once (layer.h): those that were stored as they are, and those that are
// predicted from layer to layer. Pages of different positions do not depend on each other and are read by as many
// threads as the cache has.
#include <algorithm>
#include <atomic>
#include <cstring>

#include "layer.h"
#include "predictor.h"

namespace palimpsest {

namespace {

// The tables that take a rotary embedding back. It may have made keys longer (YaRN), by the first cosine.
struct Turning {
  Buffer<float> cos;
  Buffer<float> sin;
};

void turnBack(const RotaryRows& rotary, size_t count, Turning& back) {
  back.cos.grow(count);
  back.sin.grow(count);
  const double amplitude = count == 0 ? 1 : static_cast<double>(rotary.cos[0]) * static_cast<double>(rotary.cos[0]);
  for (size_t i = 0; i < count; i++) {
    back.cos[i] = static_cast<float>(static_cast<double>(rotary.cos[i]) / amplitude);
    back.sin[i] = static_cast<float>(-static_cast<double>(rotary.sin[i]) / amplitude);
  }
}

bool areFinite(const uint16_t* halves, size_t count) {
  return std::all_of(halves, halves + count, [](uint16_t half) { return (half & 0x7c00) != 0x7c00; });
}

}  // namespace

// What a thread works with.
struct Cache::PageWork {
  PageReader reader;
  Buffer<float> rows;
  Buffer<uint8_t> space;
  Workspace workspace() { return workspaceIn(space); }
};

// What the records need is checked before anything is made: sizes follow from the formats, and what is stored has them.
// Sets `bytes` to what the pages take.
Status Cache::checkRecords(const PageRecords& given, size_t* bytes) const {
  const int layers = shape().layers, held = heldPages();
  for (const Layer& layer : layers_) {
    if (layer.length != held * kPageTokens || layer.sealed() != held) return kUnsupported;
  }
  const bool isPredicted = given.predictor != nullptr;
  if (isPredicted && (given.predictor->kvHeads != shape().kvHeads || given.predictor->headDim != shape().headDim ||
                      given.predictor->layers.size() != static_cast<size_t>(layers))) {
    return kBadShape;
  }
  *bytes = 0;
  for (int i = 0; i < given.pages * layers; i++) {
    const PageRecord& record = given.records[i];
    if (record.isPredicted && !isPredicted) return kBadArgument;
    size_t sides = 0;
    const int layer = i % layers, page = held + i / layers;
    const bool isGone = record.kind != kResident;
    if (record.kind == kFreed) {
      const int window = options_.window[layer];
      // Whatever goes on behind these pages must not see it.
      if (window == 0 || (page + 1) * kPageTokens > (held + given.pages) * kPageTokens - window + 1) return kUnsupported;
    }
    if (isGone) {
      // Nothing is predicted from it.
      if (layer + 1 < layers && given.records[i + 1].isPredicted) {
        *given.damaged = i;
        return kBadValue;
      }
    }
    for (const int format : record.formats) {
      if (isGone) break;
      if (!servesHeadDim(format, shape().headDim)) return kUnsupported;
      sides += sideBytes(format, shape().kvHeads, shape().headDim);
    }
    const size_t sinks = page == 0 ? sinkBytes() : 0;
    const size_t foreignBytes = record.kind == kForeign && record.size > sinks ? record.size - sinks : 0;
    const bool isSized = record.kind == kForeign ? isForeignSize(foreignBytes) : record.isPredicted ? record.size >= sinks : record.size == sides + sinks;
    if (!isSized) {
      *given.damaged = i;
      return kBadShape;
    }
    *bytes += sides + sinks + (record.kind == kForeign ? alignedPart(foreignBytes) : 0);
  }
  return kOk;
}

// Pages that are read, and their sinks, before they are the cache's.
struct Cache::Drafts {
  std::vector<std::shared_ptr<Page>> pages;
  std::vector<PartRef> sinks;
};

// Room for all pages of the records. false: there is none.
bool Cache::draftPages(const PageRecords& given, Drafts* drafts) {
  const int layers = shape().layers, withSinks = heldPages() == 0 ? layers : 0;
  drafts->pages.reserve(static_cast<size_t>(given.pages) * layers);
  drafts->sinks.resize(layers);
  for (int i = 0; i < given.pages * layers; i++) {
    const auto& page = drafts->pages.emplace_back(std::make_shared<Page>());
    const int* formats = given.records[i].formats;
    page->kind = given.records[i].kind;
    if (page->kind == kResident && (!page->body->k.draft(*account_, formats[0], sideShape(true)) || !page->body->v.draft(*account_, formats[1], sideShape(false)))) return false;
    if (page->kind == kForeign && !page->draftForeign(*account_, given.records[i].size - (i < withSinks ? sinkBytes() : 0))) return false;
    if (i < withSinks && !(drafts->sinks[i] = account_->draft(sinkBytes()))) return false;
  }
  return true;
}

// Reads all records into their drafts. Returns the first that is damaged, or their number.
int Cache::readRecords(const PageRecords& given, const Drafts& drafts) {
  const int layers = shape().layers, pages = given.pages;
  const bool isPredicted = given.predictor != nullptr;
  Turning back;
  if (isPredicted) turnBack(given.rotary, static_cast<size_t>(heldPages() + pages) * kPageTokens * (given.rotary.rotaryDim / 2), back);
  const int threads = std::min(options_.threads, std::max(pages, 1));
  std::vector<PageWork> work(threads);
  for (PageWork& one : work) {
    one.rows.grow(static_cast<size_t>(shape().headDim) * kPageTokens);
    one.space.grow(encodeSpace(shape().headDim));
    if (isPredicted) one.reader.reserve(*given.predictor);
  }
  std::atomic<int> damaged{pages * layers};
  auto task = [&](int page, int thread) {
    const RotaryRows reversed{back.cos.data(), back.sin.data(), given.rotary.rotaryDim, given.rotary.interleaved};
    for (int layer = 0; layer < layers; layer++) {
      const int at = page * layers + layer;
      const PageRecord& record = given.records[at];
      const bool isBelow = layer + 1 < layers && given.records[at + 1].isPredicted;
      Page& made = *drafts.pages[at];
      const bool isRead = record.isPredicted ? readPredicted(given, at, made, drafts.sinks, work[thread])
                                             : readStored(given, at, made, drafts.sinks, isBelow ? &reversed : nullptr, work[thread]);
      if (isRead) continue;
      for (int first = damaged.load(); at < first && !damaged.compare_exchange_weak(first, at);) {
      }
      return;
    }
  };
  workers_->threads->each(pages, task, threads);
  return damaged.load();
}

Status Cache::importPages(const PageRecords& given) {
  size_t needed = 0;
  if (const Status status = checkRecords(given, &needed); status != kOk) return status;
  if (!account_->hasRoom(needed)) return kBudgetExceeded;
  Drafts drafts;
  if (!draftPages(given, &drafts)) return kNoMemory;
  const int layers = shape().layers, withSinks = heldPages() == 0 ? layers : 0, records = given.pages * layers;
  for (Layer& layer : layers_) reservePages(layer, given.pages);
  if (const int damaged = readRecords(given, drafts); damaged < records) {
    *given.damaged = damaged;
    return kBadValue;
  }
  // From here on nothing can fail.
  for (int i = 0; i < records; i++) {
    Layer& layer = layers_[i % layers];
    drafts.pages[i]->body->k.count(*account_);
    drafts.pages[i]->body->v.count(*account_);
    account_->count(drafts.pages[i]->foreign);
    if (i < withSinks) {
      layer.sinks = std::move(drafts.sinks[i]);
      account_->count(layer.sinks);
    }
    layer.pages.push_back(std::move(drafts.pages[i]));
    layer.mass.push_back(0);
    layer.length += kPageTokens;
  }
  return kOk;
}

// A page as it is stored. reversed: not null if the layer above is predicted from its rows.
bool Cache::readStored(const PageRecords& given, int at, Page& page, const std::vector<PartRef>& sinks, const RotaryRows* reversed, PageWork& work) const {
  const int layer = at % shape().layers, position = heldPages() + at / shape().layers;
  const uint8_t* from = given.records[at].bytes;
  for (PageSide* side : {&page.body->k, &page.body->v}) {
    for (PartRef& part : side->part) {
      if (part.size() > 0) std::memcpy(part.bytes(), from, part.size());
      from += part.size();
    }
  }
  if (page.kind == kForeign) {
    std::memcpy(page.foreign.bytes(), from, page.foreignBytes);
    from += page.foreignBytes;
  }
  if (position == 0) {
    std::memcpy(sinks[layer].bytes(), from, sinkBytes());
    if (!areFinite(reinterpret_cast<const uint16_t*>(sinks[layer].bytes()), sinkBytes() / 2)) return false;
  }
  if (page.isGone()) return true;
  if (!holdsNumbers(page, work.rows.data(), work.workspace())) return false;
  if (!reversed) return true;
  const int d = shape().headDim, width = d * shape().kvHeads, firstRow = position == 0 ? kSinkTokens : 0;
  for (const bool isKey : {true, false}) {
    float* rows = isKey ? work.reader.k() : work.reader.v();
    for (int head = 0; head < shape().kvHeads; head++) {
      const uint16_t* exact = firstRow > 0 ? sinkRows(sinks[layer], isKey, head) : nullptr;
      materializeHead(kernels_, page.side(isKey).view(sideShape(isKey), head), isKey, d, firstRow, exact, rows + head * d, width, work.workspace());
    }
  }
  const size_t turned = static_cast<size_t>(position) * kPageTokens * (reversed->rotaryDim / 2);
  kernels_->cold->rope(work.reader.k(), kPageTokens, shape().kvHeads, d, reversed->rotaryDim, reversed->cos + turned, reversed->sin + turned, reversed->interleaved);
  work.reader.pass(kernels_, given.predictor->layers[layer], width);
  return true;
}

// A page that is predicted. Bytes: the sinks of page 0, rows of keys and then of values, f16; then its residuals.
bool Cache::readPredicted(const PageRecords& given, int at, Page& page, const std::vector<PartRef>& sinks, PageWork& work) const {
  const int layer = at % shape().layers, position = heldPages() + at / shape().layers;
  const PageRecord& record = given.records[at];
  const int d = shape().headDim, width = d * shape().kvHeads, firstRow = position == 0 ? kSinkTokens : 0;
  const size_t exactBytes = position == 0 ? sinkBytes() : 0;
  if (!work.reader.read(kernels_, *given.predictor, layer, record.bytes + exactBytes, record.size - exactBytes)) return false;
  const RotaryRows& rotary = given.rotary;
  const size_t turned = static_cast<size_t>(position) * kPageTokens * (rotary.rotaryDim / 2);
  kernels_->cold->rope(work.reader.k(), kPageTokens, shape().kvHeads, d, rotary.rotaryDim, rotary.cos + turned, rotary.sin + turned, rotary.interleaved);
  const uint8_t* exact = record.bytes;
  for (const bool isKey : {true, false}) {
    float* rows = isKey ? work.reader.k() : work.reader.v();
    for (int t = 0; t < firstRow; t++) {
      for (int head = 0; head < shape().kvHeads; head++, exact += sizeof(uint16_t) * d) {
        uint16_t* row = const_cast<uint16_t*>(sinkRows(sinks[layer], isKey, head)) + t * d;
        std::memcpy(row, exact, sizeof(uint16_t) * d);
        kernels_->fromHalf(row, rows + static_cast<size_t>(t) * width + head * d, d);
      }
    }
    if (!withinMagnitude(rows, static_cast<size_t>(width) * kPageTokens, kHalfMax)) return false;
    for (int head = 0; head < shape().kvHeads; head++) {
      const SideTarget target = page.side(isKey).target(sideShape(isKey), head);
      kernels_->cold->encode(&target, 1, isKey, d, firstRow, rows + static_cast<size_t>(head) * d, width, work.workspace());
    }
  }
  return true;
}

}  // namespace palimpsest
