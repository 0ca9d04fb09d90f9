#include "layer.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>

#include "trial.h"

namespace palimpsest {

bool withinMagnitude(const float* x, size_t count, float largest) {
  // Magnitudes are ordered as the integers of their bits, and infinities and NaN are above all others. The bits of all
  // are combined instead of leaving early, so that the loop vectorizes.
  const uint32_t most = std::bit_cast<uint32_t>(largest);
  uint32_t beyond = 0;
  for (size_t i = 0; i < count; i++) {
    uint32_t bits;
    std::memcpy(&bits, x + i, sizeof bits);
    // The difference wraps, and its sign is set, where the bits are above the most.
    beyond |= most - (bits & 0x7fffffff);
  }
  return beyond >> 31 == 0;
}

void halvesOf(const Kernels* kernels, const float* x, uint16_t* halves, size_t count) {
  float line[256];
  for (size_t done = 0; done < count; done += 256) {
    const size_t some = std::min<size_t>(256, count - done);
    for (size_t i = 0; i < some; i++) line[i] = std::min(kHalfMax, std::max(-kHalfMax, x[done + i]));
    kernels->toHalf(line, halves + done, some);
  }
}

std::unique_ptr<Cache> Cache::open(std::shared_ptr<Account> account, const Kernels* kernels, CacheOptions options) {
  std::unique_ptr<Cache> cache(new Cache(std::move(account), kernels, std::move(options)));
  cache->layers_.resize(cache->shape().layers);
  cache->latents_ = std::make_shared<LatentBlocks>();
  std::weak_ptr<Workers>& workers = cache->account_->pool()->workers;
  cache->workers_ = workers.lock();
  if (!cache->workers_) workers = cache->workers_ = std::make_shared<Workers>(cache->account_->pool()->crew());
  cache->workers_->grow(cache->options_.threads);
  Scratch& scratch = cache->workers_->scratch[0];
  scratch.keyRows.grow(static_cast<size_t>(kPageTokens) * cache->shape().headDim);
  scratch.space.grow(encodeSpace(cache->shape().headDim));
  cache->account_->pool()->enter(cache.get());
  return cache;
}

Cache::Cache(std::shared_ptr<Account> account, const Kernels* kernels, CacheOptions options)
    : account_(std::move(account)), kernels_(kernels), options_(std::move(options)) {
  for (int format = 0; format < kFormatSlots; format++) places_[format] = sidePlaces(format, shape().kvHeads, shape().headDim);
  for (int room = kOpenRowsLeast; room <= kPageTokens; room *= 2) {
    openPlaces_[roomIndex(room)][options_.openFormat] = sidePlaces(options_.openFormat, shape().kvHeads, shape().headDim, room);
  }
}

Cache::~Cache() {
  dropMoves();
  account_->pool()->leave(this);
}

void Cache::visitParts(uint32_t walk, const std::function<void(PartRef&)>& visit) {
  for (Layer& layer : layers_) {
    for (PageSide* side : {&layer.open.k, &layer.open.v}) {
      for (PartRef& part : side->part) visit(part);
    }
    visit(layer.sinks);
    for (const std::shared_ptr<Page>& page : layer.pages) {
      if (page->walk == walk) continue;  // a fork has shown it
      page->walk = walk;
      if (page->body->walk != walk) {
        page->body->walk = walk;
        for (PageSide* side : {&page->body->k, &page->body->v}) {
          for (PartRef& part : side->part) visit(part);
        }
      }
      for (PageSide& side : page->original) {
        for (PartRef& part : side.part) visit(part);
      }
      for (KeptRows& rows : page->rows) visit(rows.part);
      for (PartRef& part : page->latent.part) visit(part);
      visit(page->foreign);
    }
  }
}

Cache::Growth Cache::growthBy(const Layer& layer, int tokens) const {
  Growth growth;
  growth.seals = std::max(0, (layer.length + tokens - 1) / kPageTokens - layer.sealed());
  const int rows = growth.seals > 0 ? kPageTokens : layer.openRows() + tokens;
  if (rows > layer.open.room) {
    growth.room = roomFor(rows);
    growth.added += openBytes(growth.room);
    growth.freed = layer.open.bytes();
  }
  if (growth.seals > 0 && codesOpenRows()) {
    growth.lastRoom = roomFor(layer.openRows() + tokens - growth.seals * kPageTokens);
    growth.added += openBytes(kPageTokens) * (growth.seals - 1) + openBytes(growth.lastRoom);
  } else {
    growth.added += sealBytes() * growth.seals;
  }
  growth.sinks = !layer.sinks && (codesOpenRows() ? rows > 0 : growth.room == kPageTokens);
  if (growth.sinks) growth.added += sinkBytes();
  return growth;
}

bool Cache::draftOpen(int room, OpenPage& open) const {
  open.room = room;
  for (const bool isKey : {true, false}) {
    PageSide& side = open.side(isKey);
    if (room == 0) continue;
    if (!side.draft(*account_, options_.openFormat, openShape(isKey, room), room)) return false;
    // Attention computes rows that are not there yet as well, before it masks them.
    for (PartRef& part : side.part) {
      if (part) std::memset(part.bytes(), 0, part.size());
    }
  }
  return true;
}

void Cache::countOpen(const Layer& layer) const {
  layer.open.k.count(*account_);
  layer.open.v.count(*account_);
}

bool Cache::draftGrowth(const Layer& from, const Growth& growth, OpenPage& open, PartRef& sinks) const {
  if (growth.sinks) {
    sinks = account_->draft(sinkBytes());
    if (!sinks) return false;
    if (from.sinks) std::memcpy(sinks.bytes(), from.sinks.bytes(), sinks.size());
    else std::memset(sinks.bytes(), 0, sinks.size());
  }
  if (growth.room == 0) return true;
  OpenPage larger;
  if (!draftOpen(growth.room, larger)) return false;
  for (const bool isKey : {true, false}) {
    if (from.openRows() == 0) continue;
    const SideShape before = openShape(isKey, from.open.room), after = openShape(isKey, growth.room);
    for (int head = 0; head < shape().kvHeads; head++) {
      const SideView rows = from.open.side(isKey).view(before, head);
      const SideTarget target = larger.side(isKey).target(after, head);
      for (int i = 0; i < kFormats[options_.openFormat].fields; i++) {
        copyField(kFormats[options_.openFormat].field[i], isKey, shape().headDim, rows.field[i], from.open.room, target.field[i], growth.room);
      }
    }
  }
  open = std::move(larger);
  return true;
}

size_t Cache::appendBytes(int index, int tokens) const {
  const Growth growth = growthBy(layers_[index], tokens);
  return growth.added - growth.freed;
}

const uint16_t* Cache::sinkRows(const PartRef& sinks, bool isKey, int head) const {
  const size_t elements = static_cast<size_t>(shape().headDim) * kSinkTokens;
  return reinterpret_cast<const uint16_t*>(sinks.bytes()) + (isKey ? 0 : shape().kvHeads * elements) + head * elements;
}

void Cache::restoreSinks(const Layer& layer, bool isKey, int head, float* rows, size_t stride) const {
  const uint16_t* sinks = sinkRows(layer, isKey, head);
  for (int t = 0; t < kSinkTokens; t++) kernels_->fromHalf(sinks + static_cast<size_t>(t) * shape().headDim, rows + t * stride, shape().headDim);
}

size_t Cache::sealBytes() const {
  return 2 * sideBytes(options_.windowFormat, shape().kvHeads, shape().headDim);
}

// Writes `count` tokens to the open page from row `row` on, in its format.
void Cache::write(Layer& layer, const float* k, const float* v, int row, int count) {
  const size_t n = shape().kvHeads, d = shape().headDim;
  for (const bool isKey : {true, false}) {
    const float* rows = isKey ? k : v;
    const SideShape side = openShape(isKey, layer.open.room);
    for (size_t head = 0; head < n; head++) {
      const SideTarget target = layer.open.side(isKey).target(side, static_cast<int>(head));
      for (int t = 0; t < count; t++) {
        const float* x = rows + (t * n + head) * d;
        if (codesOpenRows() && layer.sealed() == 0 && row + t < kSinkTokens) {
          kernels_->toHalf(x, const_cast<uint16_t*>(sinkRows(layer, isKey, static_cast<int>(head))) + (row + t) * d, d);
        } else {
          kernels_->cold->writeRow(target, isKey, shape().headDim, layer.open.room, row + t, x);
        }
      }
    }
  }
}

bool Cache::draftSeal(int nextRoom, Seal& seal) {
  seal.page = std::make_shared<Page>();
  if (codesOpenRows()) return draftOpen(nextRoom, seal.next);
  for (const bool isKey : {true, false}) {
    if (!seal.page->side(isKey).draft(*account_, options_.windowFormat, sideShape(isKey))) return false;
  }
  return true;
}

void Cache::seal(Layer& layer, Seal seal) {
  Page& page = *seal.page;
  if (codesOpenRows()) {
    page.body->k = std::move(layer.open.k);
    page.body->v = std::move(layer.open.v);
    layer.open = std::move(seal.next);
    countOpen(layer);
  } else {
    encodeOpen(layer, page);
  }
  layer.mass.push_back(layer.openMass);
  layer.openMass = 0;
  layer.pages.push_back(std::move(seal.page));
  if (layer.sealed() > kTriedPages) layer.page(layer.sealed() - 1 - kTriedPages).body->forgetTried();
}

// Encodes an open page in f16 to a page, and writes the sinks.
void Cache::encodeOpen(Layer& layer, Page& page) {
  const int d = shape().headDim;
  const int firstRow = layer.pages.empty() ? kSinkTokens : 0;
  for (const bool isKey : {true, false}) {
    const SideShape side = sideShape(isKey);
    for (int head = 0; head < side.kvHeads; head++) {
      const SideView open = layer.open.side(isKey).view(side, head);
      const SideTarget target = page.side(isKey).target(side, head);
      if (options_.windowFormat == kF16 && firstRow == 0) {
        std::memcpy(target.field[kF16Halves], open.field[kF16Halves], sizeof(uint16_t) * d * kPageTokens);
        continue;
      }
      float* rows = workers_->scratch[0].keyRows.data();
      const Workspace space = workers_->scratch[0].workspace();
      kernels_->cold->decode(open, isKey, d, firstRow, rows, d, space);
      if (firstRow > 0) kernels_->toHalf(rows, const_cast<uint16_t*>(sinkRows(layer, isKey, head)), static_cast<size_t>(kSinkTokens) * d);
      kernels_->cold->encode(&target, 1, isKey, d, firstRow, rows, d, space);
    }
    page.side(isKey).count(*account_);
  }
}

// Reserves room for `more` pages, so that adding them cannot fail.
void Cache::reservePages(Layer& layer, int more) {
  const size_t pages = layer.pages.size() + more;
  if (layer.pages.capacity() < pages) layer.pages.reserve(std::max(pages, 2 * layer.pages.capacity()));
  if (layer.mass.capacity() < pages) layer.mass.reserve(layer.pages.capacity());
}

Status Cache::append(int index, const float* k, const float* v, int tokens) {
  Appending draft;
  const Status status = draftAppend(index, k, v, tokens, {}, &draft);
  if (status == kOk) makeAppend(index, k, v, tokens, std::move(draft));
  return status;
}

Status Cache::draftAppend(int index, const float* k, const float* v, int tokens, const Pending& before, Appending* draft) {
  Layer& layer = layers_[index];
  const size_t row = shape().rowElements();
  if (tokens <= 0 || tokens > (1 << 30) - layer.length) return kBadArgument;
  if (!withinMagnitude(k, row * tokens, kHalfMax) || !withinMagnitude(v, row * tokens, kHalfMax)) return kBadValue;
  const Growth growth = growthBy(layer, tokens);
  if (growth.added > 0 && !account_->hasRoom(growth.added, growth.freed, before)) return kBudgetExceeded;
  draft->growth = growth;
  draft->seals = std::vector<Seal>(growth.seals);
  for (int i = 0; i < growth.seals; i++) {
    if (!draftSeal(i + 1 < growth.seals ? kPageTokens : growth.lastRoom, draft->seals[i])) return kNoMemory;
  }
  reservePages(layer, growth.seals);
  draft->open = layer.open;
  draft->sinks = layer.sinks;
  if (!draftGrowth(layer, growth, draft->open, draft->sinks)) return kNoMemory;
  draft->fresh = draftFresh(tokens);
  return kOk;
}

void Cache::makeAppend(int index, const float* k, const float* v, int tokens, Appending draft) {
  Layer& layer = layers_[index];
  const size_t row = shape().rowElements();
  layer.open = std::move(draft.open);
  layer.sinks = std::move(draft.sinks);
  countOpen(layer);
  account_->count(layer.sinks);
  if (draft.fresh.bytes() > 0) fresh_.halves = std::move(draft.fresh);
  int sealed = 0;
  for (int done = 0; done < tokens;) {
    if (layer.openRows() == kPageTokens) seal(layer, std::move(draft.seals[sealed++]));
    const int count = std::min(tokens - done, kPageTokens - layer.openRows());
    write(layer, k + done * row, v + done * row, layer.openRows(), count);
    layer.length += count;
    done += count;
  }
  keepFresh(index, k, v, tokens);
}

Buffer<uint16_t> Cache::draftFresh(int tokens) const {
  Buffer<uint16_t> halves;
  const size_t size = 2 * shape().rowElements() * roomFor(std::min(tokens, kPageTokens));
  if (!codesOpenRows() || size * sizeof(uint16_t) <= fresh_.halves.bytes()) return halves;
  halves.grow(size);
  // Rows that are not there are computed before they are masked.
  std::memset(halves.data(), 0, halves.bytes());
  return halves;
}

void Cache::keepFresh(int index, const float* k, const float* v, int tokens) {
  FreshRows& fresh = fresh_;
  const Layer& layer = layers_[index];
  const int rows = layer.openRows(), first = std::max(rows - tokens, layer.sealed() == 0 ? kSinkTokens : 0);
  fresh.layer = -1;
  if (!codesOpenRows() || rows <= first) return;
  fresh.layer = index;
  fresh.length = layer.length;
  fresh.first = first;
  fresh.count = rows - first;
  fresh.room = roomFor(fresh.count);
  const size_t n = shape().kvHeads, d = shape().headDim;
  for (const bool isKey : {true, false}) {
    for (size_t head = 0; head < n; head++) {
      SideTarget target;
      target.field[kF16Halves] = const_cast<uint8_t*>(freshView(isKey, static_cast<int>(head)).at(kF16Halves));
      for (int t = 0; t < fresh.count; t++) {
        const float* x = (isKey ? k : v) + ((tokens - fresh.count + t) * n + head) * d;
        kernels_->cold->writeRow(target, isKey, shape().headDim, fresh.room, t, x);
      }
    }
  }
}

const FreshRows* Cache::freshRows(int index) const {
  return fresh_.layer == index && fresh_.length == layers_[index].length ? &fresh_ : nullptr;
}

SideView Cache::freshView(bool isKey, int head) const {
  SideView view;
  const size_t tile = static_cast<size_t>(shape().headDim) * fresh_.room;
  view.field[kF16Halves] = reinterpret_cast<const uint8_t*>(fresh_.halves.data() + ((isKey ? 0 : shape().kvHeads) + head) * tile);
  return view;
}

void Cache::materialize(int index, int pageIndex, bool isKey, int head, float* rows, size_t stride, Scratch& scratch) const {
  const Layer& layer = layers_[index];
  const Page& page = layer.page(pageIndex);
  const SideShape side = sideShape(isKey);
  const size_t d = side.headDim;
  const int firstRow = pageIndex == 0 ? kSinkTokens : 0;
  if (page.kind == kResident) {
    const uint16_t* sinks = firstRow > 0 ? sinkRows(layer, isKey, head) : nullptr;
    return materializeHead(kernels_, page.side(isKey).view(side, head), isKey, side.headDim, firstRow, sinks, rows, stride,
                           scratch.workspace());
  }
  // Recomputed rows are contiguous, so another stride needs a copy.
  float* made = stride == d ? rows : scratch.keyRows.data();
  latentRows(layer, pageIndex, isKey, head, made, scratch.latent);
  for (int t = 0; made != rows && t < kPageTokens; t++) std::memcpy(rows + t * stride, made + t * d, sizeof(float) * d);
}

// Keeps the sketch transposed and scaled to the range of half, so that dotF16 can use it.
void Cache::setSketch(int index, const float* sketch) {
  Layer& layer = layers_[index];
  const size_t width = shape().queryElements();
  float largest = 0;
  for (size_t i = 0; i < width * kSketchRows; i++) largest = std::max(largest, std::fabs(sketch[i]));
  const float scale = largest > 0 ? largest / 1024.0f : 1.0f;
  auto turned = std::make_shared<std::vector<uint16_t>>(width * kSketchRows);
  float line[kSketchRows];
  for (size_t i = 0; i < width; i++) {
    for (int r = 0; r < kSketchRows; r++) line[r] = sketch[r * width + i] / scale;
    kernels_->toHalf(line, turned->data() + i * kSketchRows, kSketchRows);
  }
  layer.sketch = workers_->shared(std::move(turned));
  layer.sketchScale = scale;
}

std::shared_ptr<const std::vector<uint16_t>> Workers::shared(std::shared_ptr<const std::vector<uint16_t>> sketch) {
  sketches.erase(std::remove_if(sketches.begin(), sketches.end(), [](const auto& one) { return one.expired(); }), sketches.end());
  for (const auto& one : sketches) {
    const auto known = one.lock();
    if (known && *known == *sketch) return known;
  }
  sketches.push_back(sketch);
  return sketch;
}

// Clears what belongs to the tokens of the open page from `row` on: attention takes the largest scale of a page as the
// unit of all.
void Cache::forgetRows(Layer& layer, int row) {
  layer.openMass = 0;
  if (layer.sealed() == 0) layer.sinkMass = 0;
  for (const bool isKey : {true, false}) {
    for (int head = 0; head < shape().kvHeads && layer.open.room > 0; head++) {
      const SideTarget target = layer.open.side(isKey).target(openShape(isKey, layer.open.room), head);
      for (int i = 0; i < kFormats[options_.openFormat].fields; i++) {
        const size_t bytes = kFormats[options_.openFormat].field[i].tokenBytes;
        std::memset(target.field[i] + row * bytes, 0, (layer.open.room - row) * bytes);
      }
    }
  }
}

Status Cache::truncate(int tokens) {
  const int pages = tokens / kPageTokens;
  for (const Layer& layer : layers_) {
    if (tokens > layer.length) return kBadArgument;
    if (tokens >= layer.sealed() * kPageTokens) continue;
    if (tokens % kPageTokens != 0 || !moves_.empty()) return kUnsupported;
  }
  for (int layer = 0; layer < shape().layers; layer++) {
    if (seesFreed(layer, tokens, std::min(pages, layers_[layer].sealed()))) return kUnsupported;
  }
  for (Layer& layer : layers_) layer.ownKept();  // the last that can fail
  fresh_.layer = -1;
  for (Layer& layer : layers_) {
    if (tokens < layer.sealed() * kPageTokens) dropPages(layer, pages);
    else if (tokens < layer.length) forgetRows(layer, tokens - layer.sealed() * kPageTokens);
    layer.length = tokens;
    for (int& position : layer.kept->position) {
      if (position >= tokens) position = -1;
    }
  }
  return kOk;
}

// Lets go of the sealed pages from `pages` on, and of the open page; forks keep what they share. Sinks are part of page
// 0.
void Cache::dropPages(Layer& layer, int pages) {
  for (int page = pages; page < layer.sealed(); page++) endTrials(*workers_, layer.page(page));
  layer.pages.resize(pages);
  layer.mass.resize(pages);
  layer.openMass = 0;
  layer.open = OpenPage();
  if (pages > 0) return;
  layer.sinks = PartRef();
  layer.sinkMass = 0;
}

bool Cache::hasSketch(int index) const {
  const Layer& layer = layers_[index];
  if (!layer.sketch) return false;
  for (int slot = 0; slot < kTrialQueries; slot++) {
    if (layer.kept->position[slot] >= 0 && layer.kept->norm[slot] < 0) return false;
  }
  return true;
}

// Once page 0 is sealed, sinks do not change and are shared like sealed pages; open rows are copied.
std::unique_ptr<Cache> Cache::fork(Status* status) const {
  std::unique_ptr<Cache> twin(new Cache(account_, kernels_, options_));
  twin->workers_ = workers_;
  twin->latents_ = latents_;
  twin->rotary_ = rotary_;
  twin->layers_ = layers_;
  std::vector<Growth> growths;
  size_t needed = 0;
  for (Layer& layer : twin->layers_) {
    layer.ownKept();
    layer.open = OpenPage();
    if (layer.sealed() == 0) layer.sinks = PartRef();
    growths.push_back(layer.openRows() > 0 ? growthBy(layer, 0) : Growth{});
    needed += growths.back().added;
  }
  if (!account_->hasRoom(needed)) {
    *status = kBudgetExceeded;
    return nullptr;
  }
  for (size_t i = 0; i < layers_.size(); i++) {
    Layer& layer = twin->layers_[i];
    if (draftGrowth(layers_[i], growths[i], layer.open, layer.sinks)) continue;
    *status = kNoMemory;
    return nullptr;
  }
  account_->pool()->enter(twin.get());
  for (Layer& layer : twin->layers_) {
    countOpen(layer);
    account_->count(layer.sinks);
  }
  *status = kOk;
  return twin;
}

Status Cache::adopt(Cache& from, int pages) {
  if (&from == this || account_->pool() != from.account_->pool()) return kBadArgument;
  const CacheOptions &own = options_, &other = from.options_;
  const CacheShape &shape = own.shape, &others = other.shape;
  if (shape.layers != others.layers || shape.kvHeads != others.kvHeads || shape.headDim != others.headDim || shape.queryHeads != others.queryHeads) return kBadShape;
  if (own.windowFormat != other.windowFormat || own.openFormat != other.openFormat || own.window != other.window) return kBadArgument;
  for (int i = 0; i < shape.layers; i++) {
    const Layer& layer = from.layers_[i];
    if (layers_[i].length > 0 || layers_[i].latent || layer.latent) return kUnsupported;
    if (pages < 1 || pages > layer.sealed()) return kBadArgument;
    for (int page = 0; page < pages; page++) {
      if (layer.page(page).kind != kResident || layer.page(page).body->moving || layer.page(page).latent.isThere()) return kUnsupported;
    }
  }
  if (!account_->hasRoom(sinkBytes() * layers_.size())) return kBudgetExceeded;
  const std::shared_ptr<Account> common = PagePool::commonOf(account_->pool());
  std::vector<std::vector<std::shared_ptr<Page>>> held(layers_.size());
  std::vector<PartRef> sinks;
  for (size_t i = 0; i < layers_.size(); i++) {
    if (!sinks.emplace_back(account_->draft(sinkBytes()))) return kNoMemory;
    reservePages(layers_[i], pages);
    held[i].reserve(pages);
    for (int page = 0; page < pages; page++) held[i].push_back(std::make_shared<Page>());
  }
  // From here on nothing can fail.
  account_->mayHoldCommon = from.account_->mayHoldCommon = true;
  for (size_t i = 0; i < layers_.size(); i++) {
    Layer &layer = layers_[i], &source = from.layers_[i];
    std::memcpy(sinks[i].bytes(), source.sinks.bytes(), sinkBytes());
    layer.sinks = std::move(sinks[i]);
    account_->count(layer.sinks);
    for (int page = 0; page < pages; page++) {
      endTrials(*workers_, source.page(page));
      PageBody& body = *source.page(page).body;
      for (const PageSide* side : {&body.k, &body.v, &body.tried[0], &body.tried[1]}) side->moveTo(*common);
      body.account = common;
      held[i][page]->body = source.page(page).body;
      layer.pages.push_back(std::move(held[i][page]));
      layer.mass.push_back(0);
    }
    layer.length = pages * kPageTokens;
  }
  return kOk;
}

size_t Cache::commonBytes() const {
  size_t bytes = 0;
  if (!account_->mayHoldCommon) return bytes;
  for (const Layer& layer : layers_) {
    for (const std::shared_ptr<Page>& page : layer.pages) {
      if (!page->isCommon()) continue;
      bytes += page->sideBytes();
      for (const bool isKey : {true, false}) {
        const PageSide &original = page->original[isKey ? 0 : 1], &now = page->side(isKey);
        for (int part = 0; part < kPartsMax; part++) {
          const Part* kept = original.part[part].part();
          if (kept && kept->account == page->body->account.get() && kept != now.part[part].part()) bytes += kept->size;
        }
      }
    }
  }
  return bytes;
}

double Cache::peakBytes() {
  peakBytes_ = std::max(peakBytes_, countedBytes());
  return std::max(peakBytes_, static_cast<double>(account_->peakBytes()));
}

}  // namespace palimpsest
