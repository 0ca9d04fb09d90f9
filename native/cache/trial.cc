#include "trial.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

namespace palimpsest {

namespace {

// Slots whose query comes after the page and sees all of it.
std::vector<int> witnesses(const Cache& cache, const Layer& layer, int index, int page) {
  const int window = cache.options().window[index];
  const int start = page * kPageTokens;
  std::vector<int> slots;
  for (int slot = 0; slot < kTrialQueries; slot++) {
    const int position = layer.kept.position[slot];
    if (position < start + kPageTokens) continue;
    if (window > 0 && position - window + 1 > start) continue;
    slots.push_back(slot);
  }
  return slots;
}

// Room for one head of a side in any format, 64-byte aligned inside scratch.codes.
SideTarget carve(Buffer<uint8_t>& buffer, int headDim) {
  const size_t elements = static_cast<size_t>(kPageTokens) * headDim;
  uint8_t* at = reinterpret_cast<uint8_t*>(alignedPart(reinterpret_cast<uintptr_t>(buffer.data())));
  const auto take = [&](size_t bytes) {
    uint8_t* mine = at;
    at += alignedPart(bytes);
    return mine;
  };
  SideTarget target;
  target.half = reinterpret_cast<uint16_t*>(take(elements * 2));
  target.tile = reinterpret_cast<int8_t*>(target.half);
  target.rowScales = reinterpret_cast<uint16_t*>(take(kPageTokens * 2));
  target.hi = take(elements / 4);
  target.lo = take(elements / 4);
  take(elements / 8);  // the low plane of rot3, kept beside that of rot4
  target.k = reinterpret_cast<int8_t*>(take(3 * kPageTokens));
  target.mean = reinterpret_cast<int8_t*>(take(headDim));
  target.meanScale = reinterpret_cast<uint16_t*>(take(2));
  return target;
}

size_t carvedBytes(int headDim) { return static_cast<size_t>(kPageTokens) * headDim * 21 / 8 + 1024 + 9 * kPartAlign + headDim; }

// What has been done for one side of one head.
struct Prepared {
  bool decoded = false;
  bool family = false;
};

class Trial {
 public:
  Trial(Cache& cache, int index, int page, const TrialCandidate* candidates, int count)
      : cache_(cache), layer_(cache.layer(index)), pageIndex_(page), page_(layer_.pages[page]), candidates_(candidates), count_(count),
        slots_(witnesses(cache, layer_, index, page)) {}

  int queries() const { return static_cast<int>(slots_.size()); }

  void reserve() {
    const CacheShape& shape = cache_.shape();
    const int rows = queries() * shape.group();
    for (Scratch& scratch : cache_.workers().scratch) {
      scratch.query.reserve(cache_.kernels(), shape.headDim, rows, 1);
      scratch.codes.grow(carvedBytes(shape.headDim));
      scratch.base.grow(rows * (2 + static_cast<size_t>(shape.headDim)) + powersSize(rows));
    }
    cache_.workers().delta.grow(static_cast<size_t>(count_) * queries() * shape.queryElements());
  }

  // One KV head: the page as it is, then each candidate.
  void run(int head, int thread) {
    Scratch& scratch = cache_.workers().scratch[thread];
    QueryRows& rows = scratch.query;
    load(rows, head);
    const SideView k = page_.k.view(cache_.sideShape(true), head);
    const SideView v = page_.v.view(cache_.sideShape(false), head);
    const size_t d = cache_.shape().headDim;
    meet(rows, k, v);
    float* max = scratch.base.data();
    float* sum = max + rows.rows;
    float* mixed = sum + rows.rows;
    float* powers = mixed + rows.rows * d;
    std::fill_n(powers, powersSize(rows.rows), 0.0f);
    std::copy_n(rows.max.data(), rows.rows, max);
    std::copy_n(rows.sum.data(), rows.rows, sum);
    std::copy_n(rows.mixed.data(), rows.rows * d, mixed);
    // Values first: they are mixed by the probabilities that the page as it is has just left.
    for (const bool isKey : {false, true}) {
      Prepared prepared;
      for (int i = 0; i < count_; i++) {
        if (candidates_[i].isKey != isKey) continue;
        const SideView side = encode(scratch, isKey ? k : v, candidates_[i], head, prepared);
        if (isKey) {
          rows.restart();
          meet(rows, side, v);
        } else {
          rows.remix(side);
          rows.finish();
        }
        compare(i, head, rows, max, sum, mixed, powers);
      }
    }
  }

  // Mean over the queries of the norm of o' - o: through the sketch and against the residual stream, or against o.
  void measure(bool sketched, double* errors) {
    const Kernels* kernels = cache_.kernels();
    const size_t width = cache_.shape().queryElements();
    const int n = queries();
    const float* deltas = cache_.workers().delta.data();
    std::vector<float> seen(sketched ? static_cast<size_t>(count_) * n * kSketchRows : 0);
    std::vector<float> against(n);
    std::vector<float> output(width);
    for (int r = 0; r < n; r++) {
      if (sketched) {
        against[r] = layer_.kept.norm[slots_[r]];
        continue;
      }
      kernels->fromHalf(&layer_.kept.output[slots_[r] * width], output.data(), width);
      against[r] = norm(output.data(), width);
    }
    if (sketched) {
      kernels->dotF16(layer_.sketch->data(), static_cast<int>(width), kSketchRows, kSketchRows, deltas, count_ * n, width, seen.data(), kSketchRows);
    }
    for (int i = 0; i < count_; i++) {
      double total = 0;
      int counted = 0;
      for (int r = 0; r < n; r++) {
        if (against[r] == 0) continue;
        const size_t row = static_cast<size_t>(i) * n + r;
        const float error = sketched ? norm(&seen[row * kSketchRows], kSketchRows) * layer_.sketchScale : norm(deltas + row * width, width);
        total += static_cast<double>(error) / against[r];
        counted++;
      }
      errors[i] = counted > 0 ? total / counted : std::numeric_limits<double>::quiet_NaN();
    }
  }

 private:
  float norm(const float* x, size_t count) const { return std::sqrt(cache_.kernels()->dot(x, x, static_cast<int>(count))); }

  void load(QueryRows& rows, int head) {
    const CacheShape& shape = cache_.shape();
    const int group = shape.group();
    const size_t d = shape.headDim;
    const float scale = cache_.options().scale * kLog2E;
    const std::vector<float>& slopes = cache_.options().slopes;
    rows.begin(queries() * group, 1);
    rows.window = 0;  // the page is whole inside the window of every query
    rows.alibi = !slopes.empty();
    for (int r = 0; r < queries(); r++) {
      const int slot = slots_[r];
      float* to = &rows.q[static_cast<size_t>(r) * group * d];
      cache_.kernels()->fromHalf(&layer_.kept.q[slot * shape.queryElements() + static_cast<size_t>(head) * group * d], to, group * d);
      for (size_t i = 0; i < group * d; i++) to[i] *= scale;
      for (int j = 0; j < group; j++) {
        rows.position[r * group + j] = layer_.kept.position[slot];
        if (rows.alibi) rows.slope[r * group + j] = slopes[head * group + j] * kLog2E;
      }
    }
  }

  // Sinks are exact before and after, so they are left out of both sides of the difference.
  void meet(QueryRows& rows, const SideView& k, const SideView& v) {
    const SideView sides[] = {k, v};
    rows.page(sides, pageIndex_ * kPageTokens, firstRow(), kPageTokens);
    rows.finish();
  }

  int firstRow() const { return pageIndex_ == 0 ? kSinkTokens : 0; }

  SideView encode(Scratch& scratch, const SideView& now, const TrialCandidate& candidate, int head, Prepared& prepared) {
    if (candidate.format == now.format) return now;
    const int d = cache_.shape().headDim;
    SideTarget target = carve(scratch.codes, d);
    if (isRot(now.format) && isRot(candidate.format)) {
      demoteHead(cache_.kernels(), candidate.format, candidate.isKey, d, now, target);
      SideView view = target.view(candidate.format);
      view.hi = now.hi;
      view.mean = now.mean;
      view.meanScale = now.meanScale;
      return view;
    }
    float* rows = candidate.isKey ? scratch.keyRows.data() : scratch.valueRows.data();
    if (!prepared.decoded) {
      decodeHead(cache_.kernels(), candidate.isKey, d, firstRow(), now, rows, scratch.lines.data());
      if (firstRow() > 0) cache_.restoreSinks(layer_, candidate.isKey, head, rows, d);
      prepared.decoded = true;
    }
    if (isRot(candidate.format)) {
      if (!prepared.family) encodeFamily(candidate.isKey, rows, target);
      prepared.family = true;
      return familyMember(candidate.format, target);
    }
    encodeHead(cache_.kernels(), candidate.format, candidate.isKey, d, firstRow(), rows, target);
    return target.view(candidate.format);
  }

  // Every width of the rot family that is a candidate for this side, in one pass.
  void encodeFamily(bool isKey, const float* rows, const SideTarget& target) {
    const int d = cache_.shape().headDim;
    RotTargets targets;
    targets.hi = target.hi;
    targets.mean = target.mean;
    targets.meanScale = target.meanScale;
    for (int i = 0; i < count_; i++) {
      const int format = candidates_[i].format;
      if (candidates_[i].isKey != isKey || !isRot(format)) continue;
      const SideView view = familyMember(format, target);
      targets.k[format - kRot4] = const_cast<int8_t*>(view.k);
      if (format != kRot2) targets.lo[format - kRot4] = const_cast<uint8_t*>(view.lo);
    }
    cache_.kernels()->encodeRotWidths(isKey, rows, d, d, firstRow(), targets);
  }

  SideView familyMember(int format, const SideTarget& target) const {
    SideView view = target.view(format);
    view.k = target.k + (format - kRot4) * kPageTokens;
    if (format == kRot3) view.lo = target.lo + alignedPart(static_cast<size_t>(kPageTokens) * cache_.shape().headDim / 4);
    return view;
  }

  // o' - o of every row, when the page as it is (max, sum, mixed) gives way to what rows met last.
  void compare(int candidate, int head, const QueryRows& rows, const float* max, const float* sum, const float* mixed, float* powers) {
    const CacheShape& shape = cache_.shape();
    const int group = shape.group();
    const size_t d = shape.headDim;
    const int n = rows.rows;
    // All mass, that of the page before and after, relative to the largest of the three.
    float* all = powers;
    float* before = powers + n;
    float* after = powers + 2 * n;
    for (int r = 0; r < n; r++) {
      const size_t column = static_cast<size_t>(head) * group + r % group;
      const float lse = layer_.kept.lse[slots_[r / group] * shape.queryHeads + column] * kLog2E;
      const float top = std::max(lse, std::max(max[r], rows.max[r]));
      all[r] = lse - top;
      before[r] = max[r] - top;
      after[r] = rows.max[r] - top;
    }
    cache_.kernels()->powers(powers, powersSize(n));
    for (int r = 0; r < n; r++) {
      const int query = r / group;
      const size_t column = static_cast<size_t>(head) * group + r % group;
      const float now = sum[r] * before[r];
      const float then = rows.sum[r] * after[r];
      const float inverse = 1.0f / (std::max(0.0f, all[r] - now) + then);
      float* delta = &cache_.workers().delta[(static_cast<size_t>(candidate) * queries() + query) * shape.queryElements() + column * d];
      cache_.kernels()->blendRow(after[r] * inverse, &rows.mixed[r * d], -before[r] * inverse, mixed + r * d, (now - then) * inverse,
                                 &layer_.kept.output[slots_[query] * shape.queryElements() + column * d], delta, static_cast<int>(d));
    }
  }

  static int powersSize(int rows) { return (3 * rows + 15) / 16 * 16; }

  Cache& cache_;
  const Layer& layer_;
  const int pageIndex_;
  const Page& page_;
  const TrialCandidate* candidates_;
  const int count_;
  const std::vector<int> slots_;
};

}  // namespace

Status trial(Cache& cache, int index, int page, const TrialCandidate* candidates, int count, double* errors) {
  const Page& now = cache.layer(index).pages[page];
  if (now.latent) return kUnsupported;
  for (int i = 0; i < count; i++) {
    const int from = now.side(candidates[i].isKey).format;
    const int to = candidates[i].format;
    if (!Cache::legalMove(from, to) || (isCoded(to) && !hasCodes(cache.shape().headDim))) return kUnsupported;
  }
  Trial run(cache, index, page, candidates, count);
  if (run.queries() == 0) {
    std::fill_n(errors, count, std::numeric_limits<double>::quiet_NaN());
    return kOk;
  }
  run.reserve();
  auto task = [&](int head, int thread) { run.run(head, thread); };
  cache.workers().threads.each(cache.shape().kvHeads, task);
  run.measure(cache.hasSketch(index), errors);
  return kOk;
}

}  // namespace palimpsest
