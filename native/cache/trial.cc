#include "trial.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "carving.h"

namespace palimpsest {

namespace {

// Slots whose query comes after the page and sees the whole page.
std::vector<int> witnesses(const Cache& cache, const Layer& layer, int index, int page) {
  const int window = cache.options().window[index];
  const int start = page * kPageTokens;
  std::vector<int> slots;
  for (int slot = 0; slot < kTrialQueries; slot++) {
    const int position = layer.kept->position[slot];
    if (position < start + kPageTokens) continue;
    if (window > 0 && position - window + 1 > start) continue;
    slots.push_back(slot);
  }
  return slots;
}

// The smallest share of a kept query's mass that can be told from nothing, because query and output are kept as halves
// (an error of 2^-11 in each, and of more in a mass if scores are large). trial.h explains what a trial does below it.
constexpr float kKnownShare = 1.0f / 64;

int powersSize(int rows) { return (3 * rows + 15) / 16 * 16; }

// What has already been prepared for one side of one head.
struct Prepared {
  bool decoded = false;
  bool encoded[kFormatSlots] = {};
};

// One trial. It reads the cache's options and what it is given from the layer, none of which changes while the cache
// goes on.
class Trial {
 public:
  Trial(const Cache& cache, int index, int page, const TrialPage& now, const KeptQueries& kept, const TrialCandidate* candidates, int count)
      : cache_(cache), layer_(cache.layer(index)), pageIndex_(page), now_(now), kept_(kept), slots_(witnesses(cache, layer_, index, page)),
        sketch_(cache.hasSketch(index) ? layer_.sketch->data() : nullptr), sketchScale_(layer_.sketchScale), keySinks_(cache.sinkRows(layer_, true, 0)),
        valueSinks_(cache.sinkRows(layer_, false, 0)), candidates_(candidates), count_(count), carving_(cache.shape().headDim), latents_(now.latent) {
    // A held page is recomputed as it is, also for no candidates.
    if (now.kind == kLatent) latents_.add(now.latent.format);
    for (int i = 0; i < count; i++) {
      if (candidates[i].latent() >= 0) latents_.add(candidates[i].latent());
      if (!isFormat(candidates[i].format) || !(candidates[i].sides & kKeys)) continue;
      std::shared_ptr<const Steering>& steering = steering_[kFormats[candidates[i].format].steering];
      if (!steering) steering = Steering::of(cache.kernels(), kept, cache.shape(), true, candidates[i].format);
    }
  }

  int queries() const { return static_cast<int>(slots_.size()); }
  int heads() const { return cache_.shape().kvHeads; }
  // 0 if nothing is recomputed.
  int latentWidth() const { return latents_.width(); }

  // Prepares a thread's scratch for this trial, and allocates what is missing for `queries` queries.
  void reserve(Scratch& scratch, int queries) const {
    reserveForTrials(scratch, cache_.kernels(), cache_.shape().headDim, queries * cache_.shape().group(), latentWidth());
  }

  // Makes the lower latents that candidates need; run() follows for every head.
  void prepare(Scratch& scratch) { latents_.make(cache_.kernels(), firstRow(), scratch.latent); }

  // The number of floats that run() writes for all heads.
  size_t resultSize() const { return resultSize(queries()); }
  size_t resultSize(int queries) const { return static_cast<size_t>(cache_.shape().kvHeads) * count_ * queries * width(); }

  // Evaluates one KV head: the page as it is, then each candidate. results: [heads][candidates][queries][width()].
  void run(int head, Scratch& scratch, float* results) const {
    if (count_ == 1 && candidates_[0].format == kAsKeptRows) return runKept(head, scratch, results);
    if (count_ == 1 && candidates_[0].format == kAsGiven) return runGiven(head, scratch, results);
    QueryRows& rows = scratch.query;
    load(rows, head);
    SideView k, v;
    if (now_.kind == kLatent) {
      recompute(now_.latent.view(), head, scratch, 0, &k, &v);  // within f16, or the page would not be held as this
    } else {
      k = now_.k.view(cache_.sideShape(true), head);
      v = now_.v.view(cache_.sideShape(false), head);
    }
    meet(rows, k, v);
    const Base base = baseOf(rows, scratch);
    // Candidates for values come first, because they use the probabilities that the page as it is has just produced.
    // Candidates for both sides come last; the others need only one side encoded at a time.
    for (const Sides sides : {kValues, kKeys, kBothSides}) {
      Prepared prepared[2];
      for (int i = 0; i < count_; i++) {
        if (candidates_[i].sides != sides || candidates_[i].latent() >= 0) continue;
        const int format = candidates_[i].format;
        const SideView values = sides & kValues ? encode(scratch, v, false, format, sides, head, prepared[1]) : v;
        if (sides == kValues) {
          rows.remix(values);
          rows.finish();
        } else {
          rows.restart();
          meet(rows, encode(scratch, k, true, format, sides, head, prepared[0]), values);
        }
        compare(head, rows, base, resultsOf(results, head, i));
      }
    }
    for (int i = 0; i < count_; i++) {
      if (candidates_[i].latent() < 0) continue;
      rows.restart();
      if (recompute(latents_.view(candidates_[i].latent()), head, scratch, 1, &k, &v)) {
        meet(rows, k, v);
        compare(head, rows, base, resultsOf(results, head, i));
      } else {
        std::fill_n(resultsOf(results, head, i), queries() * width(), std::numeric_limits<float>::quiet_NaN());
      }
    }
  }

  // The number of floats that measure() needs as scratch.
  size_t measureSize() const { return kTrialQueries + std::max<size_t>(cache_.shape().queryElements(), width()); }

  // The mean over the queries of the norm of o' - o: sketched and relative to the residual stream, or relative to o.
  void measure(const float* results, float* room, double* errors) const {
    const int n = queries();
    float* against = room;
    float* whole = room + n;
    for (int r = 0; r < n; r++) {
      if (sketch_ != nullptr) {
        against[r] = kept_.norm[slots_[r]];
        continue;
      }
      const size_t elements = cache_.shape().queryElements();
      cache_.kernels()->fromHalf(&kept_.output[slots_[r] * elements], whole, elements);
      against[r] = norm(whole, elements);
    }
    for (int i = 0; i < count_; i++) {
      double total = 0;
      int counted = 0;
      for (int r = 0; r < n; r++) {
        if (against[r] == 0) continue;
        std::fill_n(whole, width(), 0.0f);
        for (int head = 0; head < cache_.shape().kvHeads; head++) {
          const float* part = results + ((static_cast<size_t>(head) * count_ + i) * n + r) * width();
          for (size_t c = 0; c < width(); c++) whole[c] += part[c];
        }
        const double error = sketch_ != nullptr ? static_cast<double>(norm(whole, width())) * sketchScale_ : std::sqrt(whole[0]);
        total += error / against[r];
        counted++;
      }
      errors[i] = counted > 0 ? total / counted : std::numeric_limits<double>::quiet_NaN();
    }
  }

 private:
  // The results for the page as it is, and room for the differences that a candidate makes.
  struct Base {
    float* max;
    float* sum;
    float* mixed;   // [rows][d]
    float* delta;   // [rows][d]
    float* powers;
  };

  // What the rows have met is the base of what they meet next.
  Base baseOf(const QueryRows& rows, Scratch& scratch) const {
    const size_t d = cache_.shape().headDim;
    Base base;
    base.max = scratch.base.data();
    base.sum = base.max + rows.rows;
    base.mixed = base.sum + rows.rows;
    base.delta = base.mixed + rows.rows * d;
    base.powers = base.delta + rows.rows * d;
    std::fill_n(base.powers, powersSize(rows.rows), 0.0f);
    std::copy_n(rows.max.data(), rows.rows, base.max);
    std::copy_n(rows.sum.data(), rows.rows, base.sum);
    std::copy_n(rows.mixed.data(), rows.rows * d, base.mixed);
    return base;
  }

  // The queries meet only the kept rows of one side: as they are, then as they were.
  void runKept(int head, Scratch& scratch, float* results) const {
    const bool isKey = candidates_[0].sides == kKeys;
    const KeptRows& kept = now_.rows[isKey ? 0 : 1];
    int first;
    const int count = kept.ofHead(head, &first);
    float* out = resultsOf(results, head, 0);
    if (count == 0) {
      std::fill_n(out, queries() * width(), 0.0f);
      return;
    }
    const int d = cache_.shape().headDim;
    float* rowsOf[2] = {scratch.keyRows.data(), scratch.valueRows.data()};
    int positions[kPageTokens];
    uint8_t tokens[kPageTokens];
    for (int i = 0; i < count; i++) {
      tokens[i] = static_cast<uint8_t>(kept.places()[first + i] % kPageTokens);
      positions[i] = pageIndex_ * kPageTokens + tokens[i];
    }
    for (const bool side : {true, false}) {
      const SideView view = (side ? now_.k : now_.v).view(cache_.sideShape(side), head);
      float* rows = rowsOf[side ? 0 : 1];
      if (cache_.kernels()->cold->decodeRows(view, side, d, tokens, count, rows, d, scratch.workspace())) continue;
      const uint16_t* sinks = (side ? keySinks_ : valueSinks_) + static_cast<size_t>(head) * kSinkTokens * d;
      materializeHead(cache_.kernels(), view, side, d, firstRow(), sinks, rows, d, scratch.workspace());
      // Tokens ascend, so each is at least its place.
      for (int i = 0; i < count; i++) {
        if (tokens[i] != i) std::copy_n(rows + static_cast<size_t>(tokens[i]) * d, d, rows + static_cast<size_t>(i) * d);
      }
    }
    QueryRows& rows = scratch.query;
    load(rows, head);
    rows.few(rowsOf[0], rowsOf[1], count, positions);
    const Base base = baseOf(rows, scratch);
    for (int i = 0; i < count; i++) kept.read(cache_.kernels(), first + i, rowsOf[isKey ? 0 : 1] + static_cast<size_t>(i) * d, d);
    rows.restart();
    rows.few(rowsOf[0], rowsOf[1], count, positions);
    compare(head, rows, base, out);
  }

  // The queries meet the rows of the page as they are, then with those that are given.
  void runGiven(int head, Scratch& scratch, float* results) const {
    const int d = cache_.shape().headDim, first = firstRow(), count = kPageTokens - first;
    float* rowsOf[2] = {scratch.keyRows.data(), scratch.valueRows.data()};
    int positions[kPageTokens];
    for (int i = 0; i < count; i++) positions[i] = pageIndex_ * kPageTokens + first + i;
    for (const bool side : {true, false}) {
      const uint16_t* sinks = (side ? keySinks_ : valueSinks_) + static_cast<size_t>(head) * kSinkTokens * d;
      materializeHead(cache_.kernels(), (side ? now_.k : now_.v).view(cache_.sideShape(side), head), side, d, first, sinks, rowsOf[side ? 0 : 1], d,
                      scratch.workspace());
    }
    const size_t skipped = static_cast<size_t>(first) * d;
    QueryRows& rows = scratch.query;
    load(rows, head);
    rows.few(rowsOf[0] + skipped, rowsOf[1] + skipped, count, positions);
    const Base base = baseOf(rows, scratch);
    for (int side = 0; side < 2; side++) {
      const float* given = side == 0 ? now_.given.k : now_.given.v;
      for (int t = first; given && t < kPageTokens; t++) std::copy_n(given + (static_cast<size_t>(t) * heads() + head) * d, d, rowsOf[side] + static_cast<size_t>(t) * d);
    }
    rows.restart();
    rows.few(rowsOf[0] + skipped, rowsOf[1] + skipped, count, positions);
    compare(head, rows, base, resultsOf(results, head, 0));
  }

  float* resultsOf(float* results, int head, int candidate) const {
    return results + (static_cast<size_t>(head) * count_ + candidate) * queries() * width();
  }

  // Keys and values of a head as attention reads them from a latent; `at` is 0 or 1.
  bool recompute(const LatentView& latent, int head, Scratch& scratch, int at, SideView* k, SideView* v) const {
    uint16_t* tiles = scratch.latentTiles.data() + static_cast<size_t>(2 * at) * kPageTokens * cache_.shape().headDim;
    return recomputeTiles(cache_.kernels(), now_.latent, latent, head, pageIndex_ * kPageTokens, scratch.keyRows.data(), tiles, scratch.latent, k, v);
  }

  // The number of floats kept of o' - o for each query and head: its sketch, or the sum of its squares.
  size_t width() const { return sketch_ != nullptr ? kSketchRows : 1; }

  float norm(const float* x, size_t count) const { return std::sqrt(cache_.kernels()->dot(x, x, static_cast<int>(count))); }

  void load(QueryRows& rows, int head) const {
    const CacheShape& shape = cache_.shape();
    const int group = shape.group();
    const size_t d = shape.headDim;
    const float scale = cache_.options().scale * kLog2E;
    const std::vector<float>& slopes = cache_.options().slopes;
    rows.begin(queries() * group, 1);
    rows.window = 0;  // the page is whole inside the window of every query
    rows.alibi = !slopes.empty();
    rows.cap = cache_.options().scoreCap * kLog2E;
    for (int r = 0; r < queries(); r++) {
      const int slot = slots_[r];
      float* to = &rows.q[static_cast<size_t>(r) * group * d];
      cache_.kernels()->fromHalf(&kept_.q[slot * shape.queryElements() + static_cast<size_t>(head) * group * d], to, group * d);
      for (size_t i = 0; i < group * d; i++) to[i] *= scale;
      for (int j = 0; j < group; j++) {
        rows.position[r * group + j] = kept_.position[slot];
        if (rows.alibi) rows.slope[r * group + j] = slopes[head * group + j] * kLog2E;
      }
    }
  }

  // Sinks are exact before and after, so both sides of the difference leave them out.
  void meet(QueryRows& rows, const SideView& k, const SideView& v) const {
    const SideView sides[] = {k, v};
    rows.page(sides, pageIndex_ * kPageTokens, firstRow(), kPageTokens);
    rows.finish();
  }

  int firstRow() const { return pageIndex_ == 0 ? kSinkTokens : 0; }

  // One side in another format. `sides`: the candidates being tried are those for these sides; their formats of one
  // family are encoded together.
  SideView encode(Scratch& scratch, const SideView& now, bool isKey, int format, Sides sides, int head, Prepared& prepared) const {
    if (format == kAsOriginal) return now_.originals[isKey ? 0 : 1].view(cache_.sideShape(isKey), head);
    if (format == now.format) return now;
    const PageSide& tried = now_.tried[isKey ? 0 : 1];
    if (tried.format == format && tried.isThere()) return tried.view(cache_.sideShape(isKey), head);
    const int d = cache_.shape().headDim;
    const bool second = sides == kBothSides && !isKey;
    const SideTarget target = carving_.target(scratch.codes, format, second);
    SideView view;
    view.format = format;
    for (int i = 0; i < kFormats[format].fields; i++) view.field[i] = target.field[i];
    if (isDemotion(now.format, format)) {
      cache_.kernels()->cold->demote(now, isKey, d, target, scratch.workspace());
      for (int i = 0; i < kFormats[format].fields; i++) {
        if (kFormats[format].field[i].isKept) view.field[i] = now.field[i];
      }
      return view;
    }
    if (prepared.encoded[format]) return view;
    float* rows = isKey ? scratch.keyRows.data() : scratch.valueRows.data();
    if (!prepared.decoded) {
      const uint16_t* sinks = (isKey ? keySinks_ : valueSinks_) + static_cast<size_t>(head) * kSinkTokens * d;
      materializeHead(cache_.kernels(), now, isKey, d, firstRow(), sinks, rows, d, scratch.workspace());
      prepared.decoded = true;
    }
    SideTarget targets[kFormatSlots];
    int count = 0;
    for (int i = 0; i < count_; i++) {
      const int other = candidates_[i].format;
      if (!isFormat(other) || candidates_[i].sides != sides || kFormats[other].family != kFormats[format].family || prepared.encoded[other]) continue;
      if (tried.format == other && tried.isThere()) continue;
      prepared.encoded[other] = true;
      targets[count] = carving_.target(scratch.codes, other, second);
      targets[count++].steering = headOf(steering_[kFormats[other].steering], head);
    }
    cache_.kernels()->cold->encode(targets, count, isKey, d, firstRow(), rows, d, scratch.workspace());
    for (int i = 0; i < count && sides != kBothSides; i++) keep(targets[i], isKey, head);
    return view;
  }

  // Copies codes that have just been made, where they are to be kept.
  void keep(const SideTarget& made, bool isKey, int head) const {
    const PageSide& fresh = now_.fresh[isKey ? 0 : 1];
    if (fresh.format != made.format || !fresh.isThere()) return;
    const SideShape side = cache_.sideShape(isKey);
    const SideTarget to = fresh.target(side, head);
    for (int i = 0; i < kFormats[made.format].fields; i++) {
      const size_t bytes = side.places[made.format].field[i].headBytes;
      if (bytes > 0) std::memcpy(to.field[i], made.field[i], bytes);
    }
  }

  // Writes o' - o of every row, when what the rows met last replaces the page as it is. out: [queries][width()]
  void compare(int head, const QueryRows& rows, const Base& base, float* out) const {
    const CacheShape& shape = cache_.shape();
    const Kernels* kernels = cache_.kernels();
    const int group = shape.group();
    const size_t d = shape.headDim;
    const int n = rows.rows;
    // The whole mass, that of the page before and that of the page after, relative to the largest of the three.
    float* all = base.powers;
    float* before = all + n;
    float* after = all + 2 * n;
    for (int r = 0; r < n; r++) {
      const size_t column = static_cast<size_t>(head) * group + r % group;
      const float lse = kept_.lse[slots_[r / group] * shape.queryHeads + column] * kLog2E;
      const float top = std::max(lse, std::max(base.max[r], rows.max[r]));
      all[r] = lse - top;
      before[r] = base.max[r] - top;
      after[r] = rows.max[r] - top;
    }
    kernels->powers(base.powers, powersSize(n));
    for (int r = 0; r < n; r++) {
      const size_t column = static_cast<size_t>(head) * group + r % group;
      const float now = base.sum[r] * before[r];
      const float then = rows.sum[r] * after[r];
      const float left = std::max(0.0f, all[r] - now) + then;
      const uint16_t* output = &kept_.output[slots_[r / group] * shape.queryElements() + column * d];
      float* delta = base.delta + r * d;
      // The page may hold more than the whole mass: the rounding of a large log-sum-exp can exceed its distance to the
      // largest score.
      if (left < kKnownShare * std::max(all[r], now)) {
        kernels->blendRow(1.0f / rows.sum[r], &rows.mixed[r * d], 0.0f, base.mixed + r * d, -1.0f, output, delta, static_cast<int>(d));
        continue;
      }
      const float inverse = 1.0f / left;
      kernels->blendRow(after[r] * inverse, &rows.mixed[r * d], -before[r] * inverse, base.mixed + r * d, (now - then) * inverse, output, delta,
                        static_cast<int>(d));
    }
    // Reduce head by head, while the differences are in the cache; measure() adds up the heads.
    const size_t wide = group * d;
    if (sketch_ != nullptr) {
      kernels->dotF16(sketch_ + head * wide * kSketchRows, static_cast<int>(wide), kSketchRows, kSketchRows, base.delta, queries(), wide, out,
                      kSketchRows);
      return;
    }
    for (int r = 0; r < queries(); r++) out[r] = kernels->dot(base.delta + r * wide, base.delta + r * wide, static_cast<int>(wide));
  }

  const Cache& cache_;
  const Layer& layer_;
  const int pageIndex_;
  const TrialPage now_;
  const KeptQueries& kept_;
  const std::vector<int> slots_;
  const uint16_t* sketch_;  // null if there is none
  const float sketchScale_;
  const uint16_t* keySinks_;
  const uint16_t* valueSinks_;
  const TrialCandidate* candidates_;
  const int count_;
  std::shared_ptr<const Steering> steering_[kSteeredKinds];  // of candidates for keys, by Steered
  const Carving carving_;
  LowerLatents latents_;
};

Status checkTrial(Cache& cache, int index, int page, const TrialCandidate* candidates, int count) {
  const Page& now = cache.layer(index).page(page);
  if (now.isGone()) return kUnsupported;
  for (int i = 0; i < count; i++) {
    const int to = candidates[i].format, latent = candidates[i].latent();
    if (latent >= 0) {
      if (candidates[i].sides != kBothSides || !now.latent.isThere() || latent < now.latent.format) return kUnsupported;
      continue;
    }
    if (now.kind != kResident) return kUnsupported;
    if (to == kAsGiven) continue;
    if (to == kAsKeptRows) {
      if (count != 1 || candidates[i].sides == kBothSides || !now.rows[candidates[i].sides == kKeys ? 0 : 1].isThere()) return kUnsupported;
      continue;
    }
    if (to != kAsOriginal && !servesHeadDim(to, cache.shape().headDim)) return kUnsupported;
    for (const bool isKey : {true, false}) {
      if (to == kAsOriginal) {
        if ((candidates[i].sides & sideBit(isKey)) && !now.original[isKey ? 0 : 1].isThere()) return kUnsupported;
      } else if ((candidates[i].sides & sideBit(isKey)) && !isMove(now.side(isKey).format, to)) return kUnsupported;
    }
  }
  return kOk;
}

// The format whose codes a trial leaves to its page, of those that it tries a side in, or -1: the second lowest, which
// sessions try again. Codes that are made from lower ones are soon made again, and steered ones depend on the queries.
int formatToKeep(const Page& page, const TrialCandidate* candidates, int count, bool isKey) {
  int formats[2] = {-1, -1};
  for (int i = 0; i < count; i++) {
    if (candidates[i].sides != sideBit(isKey) || !isFormat(candidates[i].format)) continue;
    formats[0] = formats[1];
    formats[1] = candidates[i].format;
  }
  const int format = formats[0] < 0 ? formats[1] : formats[0];
  const PageSide& now = page.side(isKey);
  const PageSide& tried = page.body->tried[isKey ? 0 : 1];
  if (format < 0 || format == now.format || isDemotion(now.format, format) || kFormats[format].steering != kNoSteering) return -1;
  return tried.format == format && tried.isThere() ? -1 : format;
}

bool keepsTried(const Layer& layer, int page) { return layer.sealed() - page <= kTriedPages; }

// Drafts what a trial leaves to its page. Without memory it leaves nothing.
void draftKept(Cache& cache, int index, int pageIndex, const TrialCandidate* candidates, int count, PageSide* fresh) {
  const Layer& layer = cache.layer(index);
  const Page& page = layer.page(pageIndex);
  if (page.kind != kResident || !keepsTried(layer, pageIndex)) return;
  for (const bool isKey : {true, false}) {
    const int format = formatToKeep(page, candidates, count, isKey);
    PageSide& side = fresh[isKey ? 0 : 1];
    if (format >= 0 && !side.draft(cache.account(), format, cache.sideShape(isKey))) side = PageSide();
  }
}

// Leaves to a page what was made of its sides. Those that are gone by now were not made.
void leaveKept(Page& page, PageSide* fresh) {
  for (int i = 0; i < 2; i++) {
    if (fresh[i].isThere() && page.isCommon()) fresh[i].moveTo(*page.body->account);
    if (fresh[i].isThere()) page.body->tried[i] = std::move(fresh[i]);
    fresh[i] = PageSide();
  }
}

// A started trial, which owns what it reads.
struct OwnTrial : StartedTrial {
  std::shared_ptr<const std::vector<uint16_t>> sketch;
  std::vector<TrialCandidate> candidates;
  std::unique_ptr<Trial> trial;

  void run(Scratch& scratch) override {
    trial->reserve(scratch, trial->queries());  // allocates nothing (startTrial did), but other tasks use this scratch too
    trial->prepare(scratch);
    float* results = scratch.results.data();
    for (int head = 0; head < trial->heads(); head++) trial->run(head, scratch, results);
    trial->measure(results, results + trial->resultSize(), errors.data());
  }
};

}  // namespace

void reserveForTrials(Scratch& scratch, const Kernels* kernels, int headDim, int rows, int width) {
  scratch.query.reserve(kernels, headDim, rows, 1);
  scratch.codes.grow(2 * Carving(headDim).bytes());
  for (Buffer<float>* buffer : {&scratch.keyRows, &scratch.valueRows}) buffer->grow(static_cast<size_t>(kPageTokens) * headDim);
  scratch.space.grow(encodeSpace(headDim));
  scratch.base.grow(2 * rows * (1 + static_cast<size_t>(headDim)) + powersSize(rows));
  if (width == 0) return;
  scratch.latentTiles.grow(4 * static_cast<size_t>(kPageTokens) * headDim);
  scratch.latent.reserve(width, headDim);
  scratch.latent.reserveToLower(kXq8, kXq3, width);
}

namespace {

Status trialNow(Cache& cache, int index, int page, const TrialCandidate* candidates, int count, const GivenRows& given, double* errors) {
  const Status status = checkTrial(cache, index, page, candidates, count);
  if (status != kOk) return status;
  Layer& layer = cache.layer(index);
  Page& now = layer.page(page);
  PageSide fresh[2];
  Trial trial(cache, index, page, {now.body->k, now.body->v, now.original, now.rows, now.body->tried, fresh, now.latent, now.kind, given}, *layer.kept, candidates, count);
  if (trial.queries() == 0) {
    std::fill_n(errors, count, std::numeric_limits<double>::quiet_NaN());
    return kOk;
  }
  draftKept(cache, index, page, candidates, count, fresh);
  Workers& workers = cache.workers();
  const int threads = cache.options().threads;
  for (int thread = 0; thread < threads; thread++) trial.reserve(workers.scratch[thread], trial.queries());
  workers.delta.grow(trial.resultSize() + trial.measureSize());
  float* results = workers.delta.data();
  trial.prepare(workers.scratch[0]);
  auto task = [&](int head, int thread) { trial.run(head, workers.scratch[thread], results); };
  workers.threads->each(trial.heads(), task, threads);
  trial.measure(results, results + trial.resultSize(), errors);
  leaveKept(now, fresh);
  return kOk;
}

}  // namespace

Status trial(Cache& cache, int index, int page, const TrialCandidate* candidates, int count, double* errors) {
  return trialNow(cache, index, page, candidates, count, {}, errors);
}

Status trialGiven(Cache& cache, int index, int page, const GivenRows& given, double* error) {
  const size_t elements = kPageTokens * cache.shape().rowElements();
  for (const float* rows : {given.k, given.v}) {
    if (rows && !withinMagnitude(rows, elements, kHalfMax)) return kBadValue;
  }
  const TrialCandidate candidate{static_cast<Sides>((given.k ? kKeys : 0) | (given.v ? kValues : 0)), kAsGiven};
  return trialNow(cache, index, page, &candidate, 1, given, error);
}

Status startTrial(Cache& cache, int index, int page, const TrialCandidate* candidates, int count) {
  const Status status = checkTrial(cache, index, page, candidates, count);
  if (status != kOk) return status;
  Layer& layer = cache.layer(index);
  Workers& workers = cache.workers();
  Mover& mover = workers.mover;
  std::unique_ptr<OwnTrial> own;
  if (mover.spareTrials.empty()) {
    own = std::make_unique<OwnTrial>();
  } else {
    own.reset(static_cast<OwnTrial*>(mover.spareTrials.back().release()));
    mover.spareTrials.pop_back();
    own->done.store(false);
    own->next = nullptr;
  }
  own->owner = &cache;
  own->page = &layer.page(page);
  own->layer = &layer;
  own->pageIndex = page;
  own->k = own->page->body->k;
  own->v = own->page->body->v;
  for (int i = 0; i < 2; i++) own->tried[i] = own->page->body->tried[i];
  own->latent = own->page->latent;
  own->sinks = layer.sinks;
  own->kept = layer.kept;
  own->sketch = layer.sketch;
  own->candidates.assign(candidates, candidates + count);
  own->errors.assign(count, std::numeric_limits<double>::quiet_NaN());
  const TrialPage now{own->k, own->v, nullptr, nullptr, own->tried, own->fresh, own->latent, own->page->kind};
  own->trial = std::make_unique<Trial>(cache, index, page, now, *own->kept, own->candidates.data(), count);
  if (own->trial->queries() > 0) draftKept(cache, index, page, candidates, count, own->fresh);
  // Allocate for the largest number of queries, on both sides: the background thread or the caller may have to run the
  // trial.
  const size_t results = own->trial->resultSize(kTrialQueries) + own->trial->measureSize();
  mover.open(cache.kernels(), cache.shape().headDim, kTrialQueries * cache.shape().group(), own->trial->latentWidth(), results);
  own->trial->reserve(workers.scratch[0], kTrialQueries);
  workers.scratch[0].results.grow(results);
  mover.trials.reserve(mover.trials.size() + 1);
  mover.spareTrials.reserve(mover.trials.size() + mover.spareTrials.size() + 1);
  // From here on nothing can fail.
  OwnTrial* started = own.get();
  mover.trials.push_back(std::move(own));
  if (started->trial->queries() == 0) started->done.store(true);
  else mover.add(started);
  return kOk;
}

size_t startedErrors(const Cache& cache) {
  size_t count = 0;
  for (const std::unique_ptr<StartedTrial>& trial : const_cast<Cache&>(cache).workers().mover.trials) {
    if (trial->owner == &cache) count += trial->errors.size();
  }
  return count;
}

namespace {

// The caller runs a trial that has not begun, as finishMoves does with moves.
void bringToEnd(Workers& workers, StartedTrial& trial) {
  if (trial.done.load()) return;
  if (workers.mover.take(&trial)) trial.run(workers.scratch[0]);
  trial.done.store(true);
}

}  // namespace

void StartedTrial::release() {
  // Pages may have come in the meantime, behind which this one is old.
  if (page != nullptr && keepsTried(*layer, pageIndex)) leaveKept(*page, fresh);
  page = nullptr;
  k = v = tried[0] = tried[1] = fresh[0] = fresh[1] = PageSide();
  latent = PageLatent();
  sinks = PartRef();
  kept.reset();
}

void endTrials(Workers& workers, Page& page) {
  for (const std::unique_ptr<StartedTrial>& trial : workers.mover.trials) {
    if (trial->page == nullptr || trial->page->body != page.body) continue;
    bringToEnd(workers, *trial);
    trial->release();
  }
}

size_t finishTrials(Cache& cache, bool wait, double* errors) {
  Workers& workers = cache.workers();
  Mover& mover = workers.mover;
  size_t count = 0;
  // The thread begins with the first and goes from each to the next at once, so that whoever waits for them in that
  // order waits for all. The caller begins with the last.
  for (size_t i = mover.trials.size(); wait && i-- > 0;) {
    StartedTrial& trial = *mover.trials[i];
    if (trial.owner != &cache || trial.done.load() || !mover.takeWaiting(&trial)) continue;
    trial.run(workers.scratch[0]);
    trial.done.store(true);
  }
  for (std::unique_ptr<StartedTrial>& trial : mover.trials) {
    if (trial->owner != &cache) continue;
    if (!wait && !trial->done.load()) break;
    bringToEnd(workers, *trial);
    errors = std::copy(trial->errors.begin(), trial->errors.end(), errors);
    trial->release();
    // The next trial reuses its memory.
    mover.spareTrials.push_back(std::move(trial));
    count++;
  }
  mover.trials.erase(std::remove(mover.trials.begin(), mover.trials.end(), nullptr), mover.trials.end());
  return count;
}

}  // namespace palimpsest
