#include "layer.h"

#include <algorithm>
#include <cmath>
#include <cstring>

namespace palimpsest {

bool withinMagnitude(const float* x, size_t count, float largest) {
  // Count instead of leaving early, and in 32 bits, so that the loop vectorizes.
  for (size_t done = 0; done < count;) {
    const uint32_t chunk = static_cast<uint32_t>(std::min<size_t>(count - done, 1 << 20));
    uint32_t good = 0;
    for (uint32_t i = 0; i < chunk; i++) good += std::fabs(x[done + i]) <= largest ? 1u : 0u;
    if (good != chunk) return false;
    done += chunk;
  }
  return true;
}

void halvesOf(const Kernels* kernels, const float* x, uint16_t* halves, size_t count) {
  float line[256];
  for (size_t done = 0; done < count; done += 256) {
    const size_t some = std::min<size_t>(256, count - done);
    for (size_t i = 0; i < some; i++) line[i] = std::min(kHalfMax, std::max(-kHalfMax, x[done + i]));
    kernels->toHalf(line, halves + done, some);
  }
}

size_t Scratch::bytes() const {
  return query.bytes() + sides.capacity() * sizeof(SideView) + keyRows.bytes() + valueRows.bytes() + lines.bytes() + base.bytes() + codes.bytes() +
         latent.bytes() + latentTiles.bytes();
}

size_t Workers::bytes() const {
  size_t total = partial.bytes() + delta.bytes() + mass.bytes() + skipped.bytes() + mover.bytes();
  for (const Scratch& one : scratch) total += one.bytes();
  return total;
}

std::unique_ptr<Cache> Cache::open(std::shared_ptr<Account> account, const Kernels* kernels, CacheOptions options) {
  std::unique_ptr<Cache> cache(new Cache(std::move(account), kernels, std::move(options)));
  cache->layers_.resize(cache->shape().layers);
  cache->latents_ = std::make_shared<LatentBlocks>();
  std::weak_ptr<Workers>& workers = cache->account_->pool()->workers;
  cache->workers_ = workers.lock();
  if (!cache->workers_) workers = cache->workers_ = std::make_shared<Workers>();
  cache->workers_->grow(cache->options_.threads);
  Scratch& scratch = cache->workers_->scratch[0];
  scratch.keyRows.grow(static_cast<size_t>(kPageTokens) * cache->shape().headDim);
  cache->account_->pool()->enter(cache.get());
  return cache;
}

Cache::Cache(std::shared_ptr<Account> account, const Kernels* kernels, CacheOptions options)
    : account_(std::move(account)), kernels_(kernels), options_(std::move(options)) {
  for (int format = 0; format < kFormatSlots; format++) places_[format] = sidePlaces(format, shape().kvHeads, shape().headDim);
}

Cache::~Cache() {
  dropMoves();
  account_->pool()->leave(this);
}

void Cache::visitParts(uint32_t walk, const std::function<void(PartRef&)>& visit) {
  for (Layer& layer : layers_) {
    visit(layer.open);
    visit(layer.sinks);
    for (const std::shared_ptr<Page>& page : layer.pages) {
      if (page->walk == walk) continue;  // a fork has shown it
      page->walk = walk;
      for (PageSide* side : {&page->k, &page->v}) {
        for (PartRef& part : side->part) visit(part);
      }
      visit(page->latent.bytes);
    }
  }
}

SideView Cache::openView(const Layer& layer, bool isKey, int head) const {
  const size_t elements = static_cast<size_t>(shape().headDim) * openRoom(layer);
  SideView view;
  view.field[kF16Halves] = layer.open.bytes() + ((isKey ? 0 : shape().kvHeads) + head) * elements * sizeof(uint16_t);
  return view;
}

Cache::Growth Cache::growthBy(const Layer& layer, int tokens) const {
  const int seals = (layer.length + tokens - 1) / kPageTokens - layer.sealed();
  const int rows = seals > 0 ? kPageTokens : layer.openRows() + tokens;
  Growth growth{seals, 0, sealBytes() * seals, 0};
  if (rows <= openRoom(layer)) return growth;
  for (growth.room = kOpenRowsLeast; growth.room < rows;) growth.room *= 2;
  growth.added += openBytes(growth.room);
  growth.freed = layer.open.size();
  if (growth.room == kPageTokens && !layer.sinks) growth.added += sinkBytes();
  return growth;
}

bool Cache::draftGrowth(const Layer& from, const Growth& growth, PartRef& open, PartRef& sinks) const {
  if (growth.room == 0) return true;
  open = account_->draft(openBytes(growth.room));
  if (!sinks && growth.room == kPageTokens) sinks = account_->draft(sinkBytes());
  if (!open || (!sinks && growth.room == kPageTokens)) return false;
  std::memset(open.bytes(), 0, open.size());
  if (from.openRows() == 0) return true;
  // Keys are stored channel by channel, values token by token.
  const size_t channels = shape().rowElements(), d = shape().headDim, room = growth.room, rows = from.openRows(), roomBefore = openRoom(from);
  uint16_t* to = reinterpret_cast<uint16_t*>(open.bytes());
  const uint16_t* old = reinterpret_cast<const uint16_t*>(from.open.bytes());
  for (size_t c = 0; c < channels; c++) std::memcpy(to + c * room, old + c * roomBefore, rows * sizeof(uint16_t));
  to += channels * room;
  old += channels * roomBefore;
  for (int head = 0; head < shape().kvHeads; head++) std::memcpy(to + head * room * d, old + head * roomBefore * d, rows * d * sizeof(uint16_t));
  return true;
}

size_t Cache::appendBytes(int index, int tokens) const {
  const Growth growth = growthBy(layers_[index], tokens);
  return growth.added - growth.freed;
}

const uint16_t* Cache::sinkRows(const Layer& layer, bool isKey, int head) const {
  const size_t elements = static_cast<size_t>(shape().headDim) * kSinkTokens;
  return reinterpret_cast<const uint16_t*>(layer.sinks.bytes()) + (isKey ? 0 : shape().kvHeads * elements) + head * elements;
}

void Cache::restoreSinks(const Layer& layer, bool isKey, int head, float* rows, size_t stride) const {
  const uint16_t* sinks = sinkRows(layer, isKey, head);
  for (int t = 0; t < kSinkTokens; t++) kernels_->fromHalf(sinks + static_cast<size_t>(t) * shape().headDim, rows + t * stride, shape().headDim);
}

size_t Cache::sealBytes() const {
  return 2 * sideBytes(options_.windowFormat, shape().kvHeads, shape().headDim);
}

// Rounds `count` tokens to f16 and writes them to the open page from row `row` on.
void Cache::write(Layer& layer, const float* k, const float* v, int row, int count) {
  const size_t n = shape().kvHeads;
  const size_t d = shape().headDim;
  const size_t room = openRoom(layer);
  uint16_t line[256];
  for (size_t head = 0; head < n; head++) {
    uint16_t* keys = const_cast<uint16_t*>(openView(layer, true, static_cast<int>(head)).at<uint16_t>(kF16Halves));
    uint16_t* values = const_cast<uint16_t*>(openView(layer, false, static_cast<int>(head)).at<uint16_t>(kF16Halves));
    for (int t = 0; t < count; t++) {
      const size_t from = (t * n + head) * d;
      kernels_->toHalf(k + from, line, d);
      for (size_t c = 0; c < d; c++) keys[c * room + row + t] = line[c];
      kernels_->toHalf(v + from, values + (row + t) * d, d);
    }
  }
}

std::shared_ptr<Page> Cache::draftPage() {
  auto page = std::make_shared<Page>();
  for (const bool isKey : {true, false}) {
    if (!page->side(isKey).draft(*account_, options_.windowFormat, sideShape(isKey))) return nullptr;
  }
  return page;
}

// Moves the full open page into `page` (already drafted) and empties it.
void Cache::seal(Layer& layer, std::shared_ptr<Page> page) {
  const int d = shape().headDim;
  const int firstRow = layer.pages.empty() ? kSinkTokens : 0;
  Scratch& scratch = workers_->scratch[0];
  for (const bool isKey : {true, false}) {
    const SideShape side = sideShape(isKey);
    for (int head = 0; head < side.kvHeads; head++) {
      const SideView open = openView(layer, isKey, head);
      const SideTarget target = page->side(isKey).target(side, head);
      if (options_.windowFormat == kF16 && firstRow == 0) {
        std::memcpy(target.field[kF16Halves], open.field[kF16Halves], sizeof(uint16_t) * d * kPageTokens);
        continue;
      }
      float* rows = scratch.keyRows.data();
      kernels_->decode(open, isKey, d, firstRow, rows, d);
      if (firstRow > 0) kernels_->toHalf(rows, const_cast<uint16_t*>(sinkRows(layer, isKey, head)), static_cast<size_t>(kSinkTokens) * d);
      kernels_->encode(&target, 1, isKey, d, firstRow, rows, d);
    }
    page->side(isKey).count(*account_);
  }
  layer.mass.push_back(layer.openMass);
  layer.openMass = 0;
  layer.pages.push_back(std::move(page));
}

// Reserves room for `more` pages, so that adding them cannot fail.
void Cache::reservePages(Layer& layer, int more) {
  const size_t pages = layer.pages.size() + more;
  if (layer.pages.capacity() < pages) layer.pages.reserve(std::max(pages, 2 * layer.pages.capacity()));
  if (layer.mass.capacity() < pages) layer.mass.reserve(layer.pages.capacity());
}

Status Cache::append(int index, const float* k, const float* v, int tokens) {
  Layer& layer = layers_[index];
  const size_t row = shape().rowElements();
  if (tokens <= 0 || tokens > (1 << 30) - layer.length) return kBadArgument;
  if (!withinMagnitude(k, row * tokens, kHalfMax) || !withinMagnitude(v, row * tokens, kHalfMax)) return kBadValue;
  const Growth growth = growthBy(layer, tokens);
  if (growth.added > 0 && !account_->hasRoom(growth.added, growth.freed)) return kBudgetExceeded;
  std::vector<std::shared_ptr<Page>> fresh(growth.seals);
  for (std::shared_ptr<Page>& page : fresh) {
    page = draftPage();
    if (!page) return kNoMemory;
  }
  reservePages(layer, growth.seals);
  PartRef open = layer.open, sinks = layer.sinks;
  if (!draftGrowth(layer, growth, open, sinks)) return kNoMemory;
  // From here on nothing can fail.
  layer.open = std::move(open);
  layer.sinks = std::move(sinks);
  account_->count(layer.open);
  account_->count(layer.sinks);
  int sealed = 0;
  for (int done = 0; done < tokens;) {
    if (layer.openRows() == kPageTokens) seal(layer, std::move(fresh[sealed++]));
    const int count = std::min(tokens - done, kPageTokens - layer.openRows());
    write(layer, k + done * row, v + done * row, layer.openRows(), count);
    layer.length += count;
    done += count;
  }
  return kOk;
}

void Cache::materialize(int index, int pageIndex, bool isKey, int head, float* rows, size_t stride, Scratch& scratch) const {
  const Layer& layer = layers_[index];
  const Page& page = layer.page(pageIndex);
  const SideShape side = sideShape(isKey);
  const size_t d = side.headDim;
  const int firstRow = pageIndex == 0 ? kSinkTokens : 0;
  if (page.kind == kResident) {
    const uint16_t* sinks = firstRow > 0 ? sinkRows(layer, isKey, head) : nullptr;
    return materializeHead(kernels_, page.side(isKey).view(side, head), isKey, side.headDim, firstRow, sinks, rows, stride);
  }
  // Recomputed rows are contiguous, so another stride needs a copy.
  float* made = stride == d ? rows : scratch.keyRows.data();
  latentRows(layer, pageIndex, isKey, head, made, scratch.latent);
  for (int t = 0; made != rows && t < kPageTokens; t++) std::memcpy(rows + t * stride, made + t * d, sizeof(float) * d);
}

void Cache::decode(int index, int pageIndex, bool isKey, float* out) {
  const Layer& layer = layers_[index];
  const size_t d = shape().headDim, stride = shape().rowElements();
  const bool isOpen = pageIndex == layer.sealed();
  for (int head = 0; head < shape().kvHeads; head++) {
    float* to = out + head * d;
    if (!isOpen) {
      materialize(index, pageIndex, isKey, head, to, stride, workers_->scratch[0]);
      continue;
    }
    const uint16_t* open = openView(layer, isKey, head).at<uint16_t>(kF16Halves);
    const size_t room = openRoom(layer);
    uint16_t line[kHeadDimMax];
    for (size_t t = 0; t < static_cast<size_t>(layer.openRows()); t++) {
      for (size_t c = 0; isKey && c < d; c++) line[c] = open[c * room + t];
      kernels_->fromHalf(isKey ? line : open + t * d, to + t * stride, d);
    }
  }
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
  layer.sketch = std::move(turned);
  layer.sketchScale = scale;
}

Status Cache::truncate(int tokens) {
  for (const Layer& layer : layers_) {
    if (tokens > layer.length) return kBadArgument;
    if (tokens < layer.sealed() * kPageTokens) return kUnsupported;
  }
  for (Layer& layer : layers_) {
    if (tokens < layer.length) layer.openMass = 0;
    layer.length = tokens;
    for (int& position : layer.kept.position) {
      if (position >= tokens) position = -1;
    }
  }
  return kOk;
}

bool Cache::hasSketch(int index) const {
  const Layer& layer = layers_[index];
  if (!layer.sketch) return false;
  for (int slot = 0; slot < kTrialQueries; slot++) {
    if (layer.kept.position[slot] >= 0 && layer.kept.norm[slot] < 0) return false;
  }
  return true;
}

CacheMemory Cache::memory() const {
  CacheMemory memory{0, 0, 0, workers_->bytes() + latents_->bytes()};
  for (const auto& move : moves_) memory.scratch += move->added;
  for (const Layer& layer : layers_) {
    memory.open += layer.open.size();
    memory.sinks += layer.sinks.size();
    for (const std::shared_ptr<Page>& page : layer.pages) memory.pages += page->bytes();
    if (layer.latent) memory.scratch += layer.latent->bytes();
    const KeptQueries& kept = layer.kept;
    memory.scratch += (kept.q.capacity() + kept.output.capacity()) * sizeof(uint16_t) + (kept.lse.capacity() + kept.norm.size()) * sizeof(float) +
                      kept.position.size() * sizeof(int) + (layer.sketch ? layer.sketch->size() * sizeof(uint16_t) : 0);
  }
  return memory;
}

// Sinks are written once, when page 0 is sealed, and shared like sealed pages from then on; open rows are copied.
std::unique_ptr<Cache> Cache::fork(Status* status) const {
  std::unique_ptr<Cache> twin(new Cache(account_, kernels_, options_));
  twin->workers_ = workers_;
  twin->latents_ = latents_;
  twin->rotary_ = rotary_;
  twin->layers_ = layers_;
  std::vector<Growth> growths;
  size_t needed = 0;
  for (Layer& layer : twin->layers_) {
    layer.open = PartRef();
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
    account_->count(layer.open);
    account_->count(layer.sinks);
  }
  *status = kOk;
  return twin;
}

}  // namespace palimpsest
