#include "attend.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

namespace palimpsest {

namespace {

// Rows that share one unpacked page: enough to hide the unpacking, few enough for the second-level cache.
constexpr int kBlockRows = 64;
// Below this many multiplications waking a thread costs more than it saves. Chosen, not measured.
constexpr double kParallelWork = 1 << 20;

// How one call is cut: blocks of query tokens per KV head, and the history of each into ranges of pages.
struct Plan {
  int tokens;
  int blockTokens;
  int blocks;
  int ranges;
  int firstPosition;
  int pages;  // sealed pages plus the open one
  int items(int kvHeads) const { return kvHeads * blocks * ranges; }
};

Plan planCall(const Cache& cache, const Layer& layer, int tokens, int threads) {
  const CacheShape& shape = cache.shape();
  Plan plan;
  plan.tokens = tokens;
  plan.blockTokens = std::max(1, std::min(tokens, kBlockRows / shape.group()));
  plan.blocks = (tokens + plan.blockTokens - 1) / plan.blockTokens;
  plan.firstPosition = layer.length - tokens;
  plan.pages = layer.sealed() + 1;
  // Few items (decode): cut the history as well, so that every thread gets the same share.
  const int whole = shape.kvHeads * plan.blocks;
  plan.ranges = threads > 1 && whole < 4 * threads && whole % threads != 0 ? std::min(threads, plan.pages) : 1;
  if (threads > 1 && whole < threads) plan.ranges = std::min(threads, plan.pages);
  return plan;
}

// Result of one item when the history is cut: [rows] max, [rows] sum, [rows][d] mixed, then per row [pages] mass and [pages] max.
struct PartialShape {
  size_t rows;
  size_t d;
  size_t pages;  // rounded up to whole vectors
  size_t size() const { return rows * (2 + d + 2 * pages); }
};

class Call {
 public:
  Call(Cache& cache, Layer& layer, int index, const Plan& plan, const float* q, float* out, float* lse, bool observe)
      : cache_(cache), layer_(layer), plan_(plan), q_(q), out_(out), lse_(lse), observe_(observe), window_(cache.options().window[index]) {
    const CacheShape& shape = cache.shape();
    const size_t pages = (static_cast<size_t>(plan.pages) + 15) / 16 * 16;
    partial_ = {static_cast<size_t>(plan.blockTokens) * shape.group(), static_cast<size_t>(shape.headDim), pages};
  }

  // Everything that allocates, before any thread starts.
  void reserve() {
    const CacheShape& shape = cache_.shape();
    Workers& workers = cache_.workers();
    for (Scratch& scratch : workers.scratch) {
      scratch.query.reserve(cache_.kernels(), shape.headDim, static_cast<int>(partial_.rows));
      scratch.base.grow(2 * partial_.rows * partial_.pages);
      scratch.lines.grow(static_cast<size_t>(kPageTokens) * shape.headDim);
    }
    const size_t items = plan_.items(shape.kvHeads);
    if (plan_.ranges > 1) workers.partial.grow(partial_.size() * items);
    if (!observe_) return;
    workers.mass.grow(items * partial_.pages);
    std::fill_n(workers.mass.data(), items * partial_.pages, 0.0f);
  }

  void run(int item, int thread) {
    const int range = item % plan_.ranges;
    const int block = item / plan_.ranges % plan_.blocks;
    const int head = item / plan_.ranges / plan_.blocks;
    Scratch& scratch = cache_.workers().scratch[thread];
    QueryRows& rows = scratch.query;
    load(rows, head, block);
    const int from = plan_.pages * range / plan_.ranges;
    const int to = plan_.pages * (range + 1) / plan_.ranges;
    float* pageMass = scratch.base.data();
    float* pageMax = pageMass + partial_.rows * partial_.pages;
    if (observe_) {
      std::fill_n(pageMass, partial_.rows * partial_.pages, 0.0f);
      std::fill_n(pageMax, partial_.rows * partial_.pages, -std::numeric_limits<float>::infinity());
    }
    meet(rows, scratch, head, from, to, pageMass, pageMax);
    rows.finish();
    if (plan_.ranges == 1) {
      if (observe_) addMass(item, rows.rows, pageMass, pageMax, rows.max.data(), rows.sum.data());
      store(head, block, rows.rows, rows.max.data(), rows.sum.data(), rows.mixed.data());
      return;
    }
    float* part = &cache_.workers().partial[partial_.size() * item];
    const size_t n = partial_.rows;
    std::copy_n(rows.max.data(), rows.rows, part);
    std::copy_n(rows.sum.data(), rows.rows, part + n);
    std::copy_n(rows.mixed.data(), rows.rows * partial_.d, part + 2 * n);
    std::copy_n(pageMass, n * partial_.pages, part + n * (2 + partial_.d));
    std::copy_n(pageMax, n * partial_.pages, part + n * (2 + partial_.d + partial_.pages));
  }

  // Joins the ranges of every block in a fixed order.
  void merge() {
    if (plan_.ranges == 1) return;
    const Kernels* kernels = cache_.kernels();
    const size_t n = partial_.rows;
    for (int item = 0; item < plan_.items(cache_.shape().kvHeads); item += plan_.ranges) {
      const int block = item / plan_.ranges % plan_.blocks;
      const int head = item / plan_.ranges / plan_.blocks;
      const int rows = blockTokens(block) * cache_.shape().group();
      float* whole = &cache_.workers().partial[partial_.size() * item];
      for (int range = 1; range < plan_.ranges; range++) {
        const float* part = whole + partial_.size() * range;
        for (int r = 0; r < rows; r++) {
          const float max = std::max(whole[r], part[r]);
          const float mine = whole[n + r] > 0 ? std::exp2(whole[r] - max) : 0.0f;
          const float theirs = part[n + r] > 0 ? std::exp2(part[r] - max) : 0.0f;
          whole[r] = max;
          whole[n + r] = whole[n + r] * mine + part[n + r] * theirs;
          float* mixed = whole + 2 * n + r * partial_.d;
          kernels->scaleRow(mine, mixed, static_cast<int>(partial_.d));
          kernels->axpy(theirs, part + 2 * n + r * partial_.d, mixed, static_cast<int>(partial_.d));
        }
      }
      for (int range = 0; observe_ && range < plan_.ranges; range++) {
        const float* pageMass = whole + partial_.size() * range + n * (2 + partial_.d);
        addMass(item + range, rows, pageMass, pageMass + n * partial_.pages, whole, whole + n);
      }
      store(head, block, rows, whole, whole + n, whole + 2 * n);
    }
  }

  void countMass() {
    if (!observe_) return;
    for (int item = 0; item < plan_.items(cache_.shape().kvHeads); item++) {
      const float* line = &cache_.workers().mass[item * partial_.pages];
      for (int page = 0; page < layer_.sealed(); page++) layer_.pages[page].mass += line[page];
      layer_.openMass += line[layer_.sealed()];
    }
  }

 private:
  int blockTokens(int block) const { return std::min(plan_.blockTokens, plan_.tokens - block * plan_.blockTokens); }

  // Row t*g + j: query head j of the group at the block's token t.
  void load(QueryRows& rows, int head, int block) {
    const CacheShape& shape = cache_.shape();
    const int group = shape.group();
    const size_t d = shape.headDim;
    const int count = blockTokens(block);
    const float scale = cache_.options().scale * kLog2E;
    const std::vector<float>& slopes = cache_.options().slopes;
    rows.begin(count * group);
    rows.window = window_;
    rows.alibi = !slopes.empty();
    for (int t = 0; t < count; t++) {
      const int token = block * plan_.blockTokens + t;
      const float* from = q_ + static_cast<size_t>(token) * shape.queryElements() + static_cast<size_t>(head) * group * d;
      float* to = &rows.q[static_cast<size_t>(t) * group * d];
      for (size_t i = 0; i < group * d; i++) to[i] = from[i] * scale;
      for (int j = 0; j < group; j++) {
        rows.position[t * group + j] = plan_.firstPosition + token;
        if (rows.alibi) rows.slope[t * group + j] = slopes[head * group + j] * kLog2E;
      }
    }
  }

  void meet(QueryRows& rows, Scratch& scratch, int head, int from, int to, float* pageMass, float* pageMax) {
    const SideShape keys = cache_.sideShape(true);
    const SideShape values = cache_.sideShape(false);
    const int newest = rows.position[rows.rows - 1];
    const int oldest = window_ > 0 ? std::max(0, rows.position[0] - window_ + 1) : 0;
    from = std::max(from, oldest / kPageTokens);
    to = std::min(to, newest / kPageTokens + 1);
    for (int p = from; p < to; p++) {
      const int start = p * kPageTokens;
      // Two pages ahead: what is asked for now has the time of a page and a half to arrive.
      const int later = p + 2;
      SideView nextK, nextV;
      const bool ahead = later < to && later < layer_.sealed();
      if (ahead) {
        nextK = layer_.pages[later].k.view(keys, head);
        nextV = layer_.pages[later].v.view(values, head);
      }
      if (p == layer_.sealed()) {
        const bool seen = rows.page(cache_.openView(layer_, true, head), cache_.openView(layer_, false, head), start, 0, layer_.openRows());
        if (seen) noteMass(rows, p, pageMass, pageMax);
        continue;
      }
      const Page& page = layer_.pages[p];
      const SideView k = page.k.view(keys, head);
      const SideView v = page.v.view(values, head);
      int skip = 0;
      if (p == 0 && (isCoded(k.format) || isCoded(v.format))) {
        skip = kSinkTokens;
        float* exact = scratch.lines.data();
        cache_.restoreSinks(layer_, true, head, exact, keys.headDim);
        cache_.restoreSinks(layer_, false, head, exact + kSinkTokens * keys.headDim, keys.headDim);
        if (rows.sinks(exact, exact + kSinkTokens * keys.headDim, kSinkTokens)) noteMass(rows, p, pageMass, pageMax);
      }
      if (rows.page(k, v, start, skip, kPageTokens, ahead ? &nextK : nullptr, ahead ? &nextV : nullptr)) noteMass(rows, p, pageMass, pageMax);
    }
  }

  // Adds what the page (or the sinks) just received, relative to the maximum of now.
  void noteMass(const QueryRows& rows, int page, float* pageMass, float* pageMax) const {
    if (!observe_) return;
    for (int r = 0; r < rows.rows; r++) {
      if (rows.rowMass[r] == 0.0f) continue;
      float* mass = pageMass + partial_.pages * r + page;
      float* max = pageMax + partial_.pages * r + page;
      const float before = *mass > 0 ? *mass * std::exp2(*max - rows.max[r]) : 0.0f;
      *mass = before + rows.rowMass[r];
      *max = rows.max[r];
    }
  }

  // Probability that each page received, summed over rows, under the final maximum and sum.
  void addMass(int item, int rows, const float* pageMass, const float* pageMax, const float* max, const float* sum) {
    float* line = &cache_.workers().mass[item * partial_.pages];
    for (int r = 0; r < rows; r++) {
      const size_t at = partial_.pages * r;
      cache_.kernels()->addShares(pageMass + at, pageMax + at, max[r], 1.0f / sum[r], line, static_cast<int>(partial_.pages));
    }
  }

  void store(int head, int block, int rows, const float* max, const float* sum, const float* mixed) {
    const CacheShape& shape = cache_.shape();
    const int group = shape.group();
    const size_t d = shape.headDim;
    for (int r = 0; r < rows; r++) {
      const size_t at = (static_cast<size_t>(block) * plan_.blockTokens + r / group) * shape.queryHeads + head * group + r % group;
      const float inverse = 1.0f / sum[r];
      for (size_t c = 0; c < d; c++) out_[at * d + c] = mixed[r * d + c] * inverse;
      if (lse_) lse_[at] = (max[r] + std::log2(sum[r])) / kLog2E;
    }
  }

  Cache& cache_;
  Layer& layer_;
  const Plan plan_;
  const float* q_;
  float* out_;
  float* lse_;
  const bool observe_;
  const int window_;
  PartialShape partial_;
};

void keepQueries(const Cache& cache, Layer& layer, const float* q, const float* out, const float* lse, const float* xNorms, int tokens) {
  const size_t width = cache.shape().queryElements();
  const size_t heads = cache.shape().queryHeads;
  for (int t = std::max(0, tokens - kPageTokens); t < tokens; t++) {
    const int position = layer.length - tokens + t;
    if (position % kTrialStride != kTrialStride - 1) continue;
    const int slot = position / kTrialStride % kTrialQueries;
    KeptQueries& kept = layer.kept;
    cache.kernels()->toHalf(q + t * width, &kept.q[slot * width], width);
    cache.kernels()->toHalf(out + t * width, &kept.output[slot * width], width);
    std::copy_n(lse + t * heads, heads, &kept.lse[slot * heads]);
    kept.norm[slot] = xNorms ? xNorms[t] : -1.0f;
    kept.position[slot] = position;
  }
}

}  // namespace

Status attend(Cache& cache, int index, const float* q, int tokens, float* out, const float* xNorms, float* lse, bool observe) {
  Layer& layer = cache.layer(index);
  if (tokens <= 0 || tokens > layer.length) return kBadShape;
  if (!withinMagnitude(q, tokens * cache.shape().queryElements(), std::numeric_limits<float>::max())) return kBadValue;
  for (int t = 0; xNorms && t < tokens; t++) {
    if (!(xNorms[t] >= 0) || !std::isfinite(xNorms[t])) return kBadValue;
  }
  const CacheShape& shape = cache.shape();
  Threads& threads = cache.workers().threads;
  const double work = 2.0 * tokens * layer.length * static_cast<double>(shape.queryElements());
  const bool parallel = threads.count() > 1 && work >= kParallelWork;
  std::vector<float> ownLse;
  if (observe && !lse) {
    ownLse.resize(static_cast<size_t>(tokens) * shape.queryHeads);
    lse = ownLse.data();
  }
  Call call(cache, layer, index, planCall(cache, layer, tokens, parallel ? threads.count() : 1), q, out, lse, observe);
  const int items = planCall(cache, layer, tokens, parallel ? threads.count() : 1).items(shape.kvHeads);
  call.reserve();
  auto task = [&](int item, int thread) { call.run(item, thread); };
  if (parallel) {
    threads.each(items, task);
  } else {
    for (int item = 0; item < items; item++) task(item, 0);
  }
  call.merge();
  call.countMass();
  if (observe) keepQueries(cache, layer, q, out, lse, xNorms, tokens);
  return kOk;
}

}  // namespace palimpsest
