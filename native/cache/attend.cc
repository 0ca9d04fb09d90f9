#include "attend.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <functional>
#include <limits>

#include "powers.h"

namespace palimpsest {

namespace {

// Rows that share one unpacked page: enough to hide the unpacking, few enough for the second-level cache.
constexpr int kBlockRows = 64;
// Up to this many rows per head, a call applies each page to all heads before it goes on to the next.
constexpr int kDecodeRows = 8;
// Pages after the current group whose memory may be prefetched.
constexpr int kPagesAhead = 8;
constexpr int kPagesAtOnce = 16;
// A call with fewer items than this, a decode step above all, also divides the history, into ranges of so many pages.
constexpr int kFewItems = 16;
constexpr int kRangePages = 64;
// From so many pages on there are two ranges.
constexpr int kTwoRanges = 48;

// How one call is divided: by blocks of query tokens, by KV heads, and by ranges of pages of the history. Every range
// has a softmax of its own, so where it begins decides about bits. It therefore depends on the call alone, and not on
// who computes: any number of threads gives the same bits. A decode step applies a page to all heads before it goes on
// to the next, so that memory is read in the order of its addresses. A prompt goes head by head, because the rows of
// one head alone fill the second-level cache.
struct Plan {
  int tokens;
  int blockTokens;
  int blocks;
  int ranges;
  int headsAtOnce;
  int firstPosition;
  int pages;      // sealed pages plus the open one
  int firstPage;  // of the first range
  int items(int kvHeads) const { return kvHeads / headsAtOnce * blocks * ranges; }
  int rangeStart(int range) const { return firstPage + static_cast<int>(static_cast<int64_t>(pages - firstPage) * range / ranges); }
  int rangeEnd(int range) const { return rangeStart(range + 1); }
  int rangePages() const { return (pages - firstPage + ranges - 1) / ranges; }
  // The number of results, one for every head and block.
  size_t lines(int kvHeads) const { return static_cast<size_t>(kvHeads) * blocks; }
  size_t line(int head, int block) const { return static_cast<size_t>(head) * blocks + block; }
};

// items: how many are wanted, so that all threads have something to do.
Plan planCall(const Cache& cache, const Layer& layer, int tokens, int window, int items) {
  const CacheShape& shape = cache.shape();
  Plan plan;
  plan.tokens = tokens;
  plan.blockTokens = std::max(1, std::min(tokens, kBlockRows / shape.group()));
  plan.blocks = (tokens + plan.blockTokens - 1) / plan.blockTokens;
  plan.firstPosition = layer.length - tokens;
  plan.pages = layer.sealed() + 1;
  plan.firstPage = window > 0 ? std::max(0, plan.firstPosition - window + 1) / kPageTokens : 0;
  plan.headsAtOnce = plan.blockTokens * shape.group() <= kDecodeRows ? shape.kvHeads : 1;
  plan.ranges = 1;
  const int seen = plan.pages - plan.firstPage;
  if (plan.items(shape.kvHeads) < kFewItems) plan.ranges = std::max(seen >= kTwoRanges ? 2 : 1, seen / kRangePages);
  // Heads do not depend on each other, so how many of them an item has may follow from the threads and from the
  // company.
  while (plan.items(shape.kvHeads) < items && plan.headsAtOnce > 1) {
    do plan.headsAtOnce--;
    while (shape.kvHeads % plan.headsAtOnce != 0);
  }
  return plan;
}

// The masses that a row notes of a range: what the sinks received (which the first page's has as well), then of every
// page. Where ranges are put together, the first note of one is the last of the one before, to which it adds nothing.
constexpr int kSinkNote = 0, kFirstNote = 1;

// Result of one range of a line when the history is divided: [rows] max, [rows] sum, [rows][d] mixed, [rows][notes]
// mass, [rows][notes] max.
struct PartialShape {
  size_t rows;   // of one head
  size_t d;
  size_t notes;  // of a range, rounded up to whole vectors
  size_t size() const { return rows * (2 + d + 2 * notes); }
};

// The slot in which the query of a position is kept; negative when it is not kept.
int keptSlot(int position) { return position % kTrialStride == kTrialStride - 1 ? position / kTrialStride % kTrialQueries : -1; }

// Makes room for the kept queries of the last `tokens` positions. Slots are added as they are needed, so that a short
// cache has few.
void reserveKept(KeptQueries& kept, const CacheShape& shape, int length, int tokens) {
  size_t slots = kept.lse.size() / shape.queryHeads;
  for (int position = std::max(length - tokens, length - kPageTokens); position < length; position++) {
    while (static_cast<int>(slots) <= keptSlot(position)) slots = std::max<size_t>(1, 2 * slots);
  }
  kept.q.resize(slots * shape.queryElements());
  kept.output.resize(slots * shape.queryElements());
  kept.lse.resize(slots * shape.queryHeads);
}

// Where the parts of a call begin in what the threads of a pool share, and after the last of them, their sizes.
struct Places {
  size_t items = 0;
  size_t partial = 0;
  size_t mass = 0;
};

// What a call reads and writes, of its own tokens.
struct Rows {
  const float* q;
  float* out;
  const float* xNorms;  // or null
  float* lse;           // or null
  size_t elements;      // of q and of out
  Beside beside;
};

// The attention of one cache. Other calls may be in the same round of the threads: nothing here depends on them.
class Call {
 public:
  Call(Cache& cache, int index, const Plan& plan, const Rows& rows, bool observe)
      : cache_(cache), layer_(cache.layer(index)), index_(index), plan_(plan), its_(rows), observe_(observe), window_(cache.options().window[index]) {
    const CacheShape& shape = cache.shape();
    const size_t notes = (static_cast<size_t>(plan.rangePages()) + kFirstNote + 15) / 16 * 16;
    partial_ = {static_cast<size_t>(plan.blockTokens) * shape.group(), static_cast<size_t>(shape.headDim), notes};
    lineNotes_ = plan.rangeStart(plan.ranges - 1) - plan.firstPage + notes;
  }

  // Does everything that allocates for this call alone, before any thread starts, and takes its places in what is
  // shared.
  void reserve(Places& next) {
    const CacheShape& shape = cache_.shape();
    Workers& workers = cache_.workers();
    const size_t heads = plan_.headsAtOnce;
    for (int thread = 0; thread < cache_.options().threads; thread++) {
      Scratch& scratch = workers.scratch[thread];
      scratch.loaded = -1;
      scratch.query.reserve(cache_.kernels(), shape.headDim, static_cast<int>(partial_.rows * heads), plan_.headsAtOnce);
      scratch.sides.resize(std::max(scratch.sides.size(), (kPagesAtOnce + kPagesAhead) * 2 * heads));
      scratch.base.grow(std::max(2 * partial_.rows * partial_.notes * heads, static_cast<size_t>(sharesSize())));
      scratch.lines.grow(2 * kSinkTokens * heads * shape.headDim);
    }
    cache_.prepareLatents(index_, plan_.firstPage, plan_.pages);
    if (observe_) {
      layer_.ownKept();
      reserveKept(*layer_.kept, shape, layer_.length, plan_.tokens);
    }
    const size_t lines = plan_.lines(shape.kvHeads);
    at_ = next;
    next.items += items();
    if (plan_.ranges > 1) next.partial += partial_.size() * lines * plan_.ranges;
    if (observe_) next.mass += lines * lineNotes_;
  }

  int items() const { return plan_.items(cache_.shape().kvHeads); }
  int firstItem() const { return static_cast<int>(at_.items); }

  void run(int item, int thread) {
    const int range = item % plan_.ranges;
    const int whole = item / plan_.ranges;
    const int block = whole % plan_.blocks;
    const int firstHead = whole / plan_.blocks * plan_.headsAtOnce;
    Scratch& scratch = cache_.workers().scratch[thread];
    QueryRows& rows = scratch.query;
    // The rows of the range before are there already. Two calls have no item in common, so they load none in common.
    if (scratch.loaded == firstItem() + whole) rows.restart();
    else load(rows, firstHead, block);
    scratch.loaded = firstItem() + whole;
    const size_t cells = static_cast<size_t>(rows.rows) * partial_.notes;
    float* pageMass = scratch.base.data();
    float* pageMax = pageMass + cells;
    if (observe_) {
      std::fill_n(pageMass, cells, 0.0f);
      std::fill_n(pageMax, cells, -std::numeric_limits<float>::infinity());
    }
    meet(scratch, firstHead, plan_.rangeStart(range), plan_.rangeEnd(range));
    rows.finish();
    std::copy_n(rows.skipped, 2, skippedLine(item));
    const int perHead = rows.rows / plan_.headsAtOnce;
    for (int h = 0; h < plan_.headsAtOnce; h++) {
      const size_t first = static_cast<size_t>(h) * perHead;
      float* max = &rows.max[first];
      float* sum = &rows.sum[first];
      float* mixed = &rows.mixed[first * partial_.d];
      const float* mass = pageMass + first * partial_.notes;
      const float* then = pageMax + first * partial_.notes;
      const size_t line = plan_.line(firstHead + h, block);
      if (plan_.ranges == 1) {
        addBeside(firstHead + h, block, perHead, max, sum, mixed);
        if (observe_) addMass(massLine(line), perHead, mass, then, max, sum);
        store(firstHead + h, block, perHead, max, sum, mixed);
        continue;
      }
      float* part = partOf(line, range);
      const size_t n = partial_.rows;
      std::copy_n(max, perHead, part);
      std::copy_n(sum, perHead, part + n);
      std::copy_n(mixed, perHead * partial_.d, part + 2 * n);
      if (!observe_) continue;
      std::copy_n(mass, perHead * partial_.notes, part + n * (2 + partial_.d));
      std::copy_n(then, perHead * partial_.notes, part + n * (2 + partial_.d + partial_.notes));
    }
  }

  // Merges the ranges of every line in the order of their pages, into the first.
  void merge() {
    if (plan_.ranges == 1) return;
    const Kernels* kernels = cache_.kernels();
    const size_t n = partial_.rows, d = partial_.d;
    float* shares = cache_.workers().scratch[0].base.data();
    std::fill_n(shares, sharesSize(), 0.0f);
    for (size_t line = 0; line < plan_.lines(cache_.shape().kvHeads); line++) {
      const int block = static_cast<int>(line % plan_.blocks);
      const int head = static_cast<int>(line / plan_.blocks);
      const int rows = blockTokens(block) * cache_.shape().group();
      float* whole = partOf(line, 0);
      for (int r = 0; r < rows; r++) {
        float max = whole[r];
        for (int range = 1; range < plan_.ranges; range++) max = std::max(max, partOf(line, range)[r]);
        // A range of which the row sees nothing has -infinity, and no share.
        for (int range = 0; range < plan_.ranges; range++) shares[range] = partOf(line, range)[r] - max;
        kernels->powers(shares, sharesSize());
        float sum = 0;
        for (int range = 0; range < plan_.ranges; range++) {
          const float* part = partOf(line, range);
          sum += part[n + r] * shares[range];
          if (range == 0) kernels->scaleRow(shares[range], whole + 2 * n + r * d, static_cast<int>(d));
          else if (shares[range] > 0) kernels->axpy(shares[range], part + 2 * n + r * d, whole + 2 * n + r * d, static_cast<int>(d));
        }
        whole[r] = max;
        whole[n + r] = sum;
      }
      addBeside(head, block, rows, whole, whole + n, whole + 2 * n);
      for (int range = 0; observe_ && range < plan_.ranges; range++) {
        const float* pageMass = partOf(line, range) + n * (2 + d);
        addMass(massLine(line) + plan_.rangeStart(range) - plan_.firstPage, rows, pageMass, pageMass + n * partial_.notes, whole, whole + n);
      }
      store(head, block, rows, whole, whole + n, whole + 2 * n);
    }
  }

  void countMass() {
    for (int item = 0; item < items(); item++) {
      for (int i = 0; i < 2; i++) layer_.skipped[i] += skippedLine(item)[i];
    }
    if (!observe_) return;
    for (size_t i = 0; i < plan_.lines(cache_.shape().kvHeads); i++) {
      const float* line = massLine(i);
      const float* pages = line + kFirstNote;
      layer_.sinkMass += line[kSinkNote];
      for (int page = plan_.firstPage; page < layer_.sealed(); page++) layer_.mass[page] += pages[page - plan_.firstPage];
      layer_.openMass += pages[layer_.sealed() - plan_.firstPage];
    }
    keepQueries();
  }

 private:
  void keepQueries() {
    const size_t width = cache_.shape().queryElements();
    const size_t heads = cache_.shape().queryHeads;
    for (int t = std::max(0, plan_.tokens - kPageTokens); t < plan_.tokens; t++) {
      const int position = plan_.firstPosition + t;
      const int slot = keptSlot(position);
      if (slot < 0) continue;
      KeptQueries& kept = *layer_.kept;
      cache_.kernels()->toHalf(its_.q + t * width, &kept.q[slot * width], width);
      halvesOf(cache_.kernels(), its_.out + t * width, &kept.output[slot * width], width);
      std::copy_n(its_.lse + t * heads, heads, &kept.lse[slot * heads]);
      kept.norm[slot] = its_.xNorms ? its_.xNorms[t] : -1.0f;
      kept.position[slot] = position;
    }
  }

  uint64_t* skippedLine(int item) { return &cache_.workers().skipped[2 * (at_.items + item)]; }

  float* partOf(size_t line, int range) { return &cache_.workers().partial[at_.partial + partial_.size() * (line * plan_.ranges + range)]; }
  // The shares of the ranges of a row, in whole vectors.
  int sharesSize() const { return (plan_.ranges + 15) / 16 * 16; }
  // The notes of a line from the first range on.
  float* massLine(size_t line) { return &cache_.workers().mass[at_.mass + lineNotes_ * line]; }

  int blockTokens(int block) const { return std::min(plan_.blockTokens, plan_.tokens - block * plan_.blockTokens); }

  // Row (h*T + t)*g + j: query head j of the group of KV head firstHead + h, at the block's token t.
  void load(QueryRows& rows, int firstHead, int block) {
    const CacheShape& shape = cache_.shape();
    const int group = shape.group();
    const size_t d = shape.headDim;
    const int count = blockTokens(block);
    const float scale = cache_.options().scale * kLog2E;
    const std::vector<float>& slopes = cache_.options().slopes;
    rows.begin(count * group * plan_.headsAtOnce, plan_.headsAtOnce);
    rows.window = window_;
    rows.alibi = !slopes.empty();
    rows.cap = cache_.options().scoreCap * kLog2E;
    rows.skipShare = cache_.options().skipShare;
    for (int h = 0; h < plan_.headsAtOnce; h++) {
      const size_t head = firstHead + h;
      for (int t = 0; t < count; t++) {
        const int token = block * plan_.blockTokens + t;
        const float* from = its_.q + token * shape.queryElements() + head * group * d;
        const size_t row = (static_cast<size_t>(h) * count + t) * group;
        for (size_t i = 0; i < group * d; i++) rows.q[row * d + i] = from[i] * scale;
        for (int j = 0; j < group; j++) {
          rows.position[row + j] = plan_.firstPosition + token;
          if (rows.alibi) rows.slope[row + j] = slopes[head * group + j] * kLog2E;
        }
      }
    }
  }

  // All heads of the item meet the pages [from, to) that any of their rows sees.
  void meet(Scratch& scratch, int firstHead, int from, int to) {
    const SideShape keys = cache_.sideShape(true);
    const SideShape values = cache_.sideShape(false);
    const int heads = plan_.headsAtOnce;
    const int base = from;  // where the notes of masses begin
    QueryRows& rows = scratch.query;
    SideView* sides = scratch.sides.data();
    const int newest = rows.position[rows.rows - 1];
    const int oldest = window_ > 0 ? std::max(0, rows.position[0] - window_ + 1) : 0;
    from = std::max(from, oldest / kPageTokens);
    to = std::min(to, newest / kPageTokens + 1);
    const int sealed = std::min(to, layer_.sealed());
    // Whoever reads the next range finds its beginning prefetched.
    const int reach = std::min(newest / kPageTokens + 1, layer_.sealed());
    // Take a group of pages at a time: list their sides in reading order, followed by those of the next pages, which
    // can then be prefetched.
    int known = from;
    for (int first = from; first < sealed; first += kPagesAtOnce) {
      const int end = std::min(sealed, first + kPagesAtOnce);
      if (known > first) std::memmove(static_cast<void*>(sides), sides + static_cast<size_t>(kPagesAtOnce) * 2 * heads, sizeof(SideView) * (known - first) * 2 * heads);
      for (const int last = std::min(reach, end + kPagesAhead); known < last; known++) {
        SideView* at = sides + static_cast<size_t>(known - first) * 2 * heads;
        // Page objects are allocated one by one, so prefetch those needed a little later.
        __builtin_prefetch(layer_.pages[std::min(known + kPagesAhead, reach - 1)].get());
        const Page& page = layer_.page(known);
        if (page.isSkipped()) {
          // It is not read, but what is listed may be prefetched.
          SideView view;
          std::fill_n(view.field, kFieldsMax, layer_.sinks.bytes());
          std::fill_n(at, 2 * heads, view);
          continue;
        }
        if (page.kind == kLatent) {
          for (int h = 0; h < heads; h++) cache_.latentViews(index_, known, firstHead + h, scratch, at + h, at + heads + h);
          continue;
        }
        page.body->k.views(keys, firstHead, heads, at);
        page.body->v.views(values, firstHead, heads, at + heads);
      }
      for (int p = first; p < end;) {
        const SideView* at = sides + static_cast<size_t>(p - first) * 2 * heads;
        int next = p;
        while (next < end && isPlain(rows, next)) next++;
        if (next > p) {
          rows.run(at, next - p, known - p, p * kPageTokens, notesFrom(scratch, noteOf(p, base)));
          p = next;
          continue;
        }
        const Page& page = layer_.page(p);
        if (page.kind == kLatent) cache_.fillLatent(index_, p, firstHead, heads, scratch);
        int skip = 0;
        const bool isSkipped = page.isSkipped();
        if (p == 0 && (isSkipped || isCoded(page.body->k.format) || isCoded(page.body->v.format))) {
          skip = kSinkTokens;
          meetSinks(scratch, firstHead, noteOf(p, base));
        }
        if (!isSkipped && rows.page(at, p * kPageTokens, skip, kPageTokens)) noteMass(scratch, noteOf(p, base));
        p++;
      }
    }
    if (to > layer_.sealed()) meetOpen(scratch, firstHead, base);
  }

  // The open page, behind all others, and rows that are appended while they attend. base: where the notes of masses
  // begin.
  void meetOpen(Scratch& scratch, int firstHead, int base) {
    const int heads = plan_.headsAtOnce;
    QueryRows& rows = scratch.query;
    SideView* sides = scratch.sides.data();
    const OpenPage& open = layer_.open;
    open.k.views(cache_.openShape(true, open.room), firstHead, heads, sides);
    open.v.views(cache_.openShape(false, open.room), firstHead, heads, sides + heads);
    const bool hasSinks = layer_.sealed() == 0 && cache_.codesOpenRows();
    const int note = noteOf(layer_.sealed(), base);
    if (hasSinks) meetSinks(scratch, firstHead, note);
    const FreshRows* fresh = cache_.freshRows(index_);
    const int start = layer_.sealed() * kPageTokens;
    rows.room = open.room;
    if (rows.page(sides, start, hasSinks ? kSinkTokens : 0, fresh ? fresh->first : layer_.openRows())) noteMass(scratch, note);
    if (!fresh) return;
    for (int h = 0; h < heads; h++) {
      sides[h] = cache_.freshView(true, firstHead + h);
      sides[heads + h] = cache_.freshView(false, firstHead + h);
    }
    rows.room = fresh->room;
    if (rows.page(sides, start + fresh->first, 0, fresh->count)) noteMass(scratch, note);
  }

  // Whether a page can be met in a run: it has no sinks, is not a latent, and nothing of it is masked.
  bool isPlain(const QueryRows& rows, int page) const {
    return page > 0 && layer_.page(page).kind == kResident && rows.seesAll(page * kPageTokens, (page + 1) * kPageTokens);
  }

  // Where a page is noted, in a range whose first page is `base`.
  static int noteOf(int page, int base) { return kFirstNote + page - base; }

  PageNotes notesFrom(Scratch& scratch, int note) const {
    if (!observe_) return {};
    float* mass = scratch.base.data() + note;
    return {mass, mass + static_cast<size_t>(scratch.query.rows) * partial_.notes, partial_.notes};
  }

  // What they receive is noted as theirs, and as that of their page.
  void meetSinks(Scratch& scratch, int firstHead, int note) {
    const size_t d = partial_.d;
    float* exactK = scratch.lines.data();
    float* exactV = exactK + plan_.headsAtOnce * kSinkTokens * d;
    for (int h = 0; h < plan_.headsAtOnce; h++) {
      cache_.restoreSinks(layer_, true, firstHead + h, exactK + h * kSinkTokens * d, d);
      cache_.restoreSinks(layer_, false, firstHead + h, exactV + h * kSinkTokens * d, d);
    }
    if (!scratch.query.sinks(exactK, exactV)) return;
    noteMass(scratch, kSinkNote);
    noteMass(scratch, note);
  }

  // Adds the mass that the page (or the sinks) just received, relative to the present maximum.
  void noteMass(Scratch& scratch, int note) const {
    if (!observe_) return;
    const QueryRows& rows = scratch.query;
    float* pageMass = scratch.base.data();
    float* pageMax = pageMass + static_cast<size_t>(rows.rows) * partial_.notes;
    for (int r = 0; r < rows.rows; r++) {
      if (rows.rowMass[r] == 0.0f) continue;
      float* mass = pageMass + partial_.notes * r + note;
      float* max = pageMax + partial_.notes * r + note;
      const float before = *mass > 0 ? *mass * powerOfTwo(*max - rows.max[r]) : 0.0f;
      *mass = before + rows.rowMass[r];
      *max = rows.max[r];
    }
  }

  // Adds the probability that each page of a range received, summed over rows, given the final maximum and sum.
  void addMass(float* line, int rows, const float* pageMass, const float* pageMax, const float* max, const float* sum) {
    for (int r = 0; r < rows; r++) {
      const size_t at = partial_.notes * r;
      cache_.kernels()->addShares(pageMass + at, pageMax + at, max[r], 1.0f / sum[r], line, static_cast<int>(partial_.notes));
    }
  }

  // The row of the call that row r of a head and block is, over all query heads.
  size_t rowOf(int head, int block, int r) const {
    const CacheShape& shape = cache_.shape();
    const int group = shape.group();
    return (static_cast<size_t>(block) * plan_.blockTokens + r / group) * shape.queryHeads + head * group + r % group;
  }

  // Merges what the caller has of pages that are met elsewhere, as if it were one more range.
  void addBeside(int head, int block, int rows, float* max, float* sum, float* mixed) const {
    if (!its_.beside.lse) return;
    const size_t d = partial_.d;
    for (int r = 0; r < rows; r++) {
      const size_t at = rowOf(head, block, r);
      const float theirs = its_.beside.lse[at] * kLog2E;
      if (!(theirs >= -std::numeric_limits<float>::max())) continue;
      const float top = std::max(max[r], theirs);
      const float own = powerOfTwo(max[r] - top), share = powerOfTwo(theirs - top);
      sum[r] = sum[r] * own + share;
      for (size_t c = 0; c < d; c++) mixed[r * d + c] = mixed[r * d + c] * own + its_.beside.out[at * d + c] * share;
      max[r] = top;
    }
  }

  void store(int head, int block, int rows, const float* max, const float* sum, const float* mixed) {
    const size_t d = partial_.d;
    for (int r = 0; r < rows; r++) {
      const size_t at = rowOf(head, block, r);
      const float inverse = 1.0f / sum[r];
      for (size_t c = 0; c < d; c++) its_.out[at * d + c] = mixed[r * d + c] * inverse;
      if (its_.lse) its_.lse[at] = (max[r] + logOfTwo(sum[r])) / kLog2E;
    }
  }

  Cache& cache_;
  Layer& layer_;
  const int index_;
  const Plan plan_;
  const Rows its_;
  const bool observe_;
  const int window_;
  PartialShape partial_;
  size_t lineNotes_;  // of all ranges of a line
  Places at_;
};

// Rows of a page are halves, or exceed them by the rounding of a code. A logarithm of this size leaves a row finite.
constexpr float kLargestBeside = 2 * kHalfMax;
constexpr float kLargestBesideLse = 1e30f;

Status check(const Cache& cache, int index, int tokens, const Rows& rows) {
  const Layer& layer = cache.layer(index);
  if (tokens <= 0 || tokens > layer.length) return kBadShape;
  // Queries are kept as f16. Since scale and slopes are bounded as well (kLargestFactor), every score is then finite.
  if (!withinMagnitude(rows.q, rows.elements, kHalfMax)) return kBadValue;
  // What is beside must be a mean of values and a logarithm, or (minus infinity) nothing.
  if (rows.beside.lse && !withinMagnitude(rows.beside.out, rows.elements, kLargestBeside)) return kBadValue;
  for (size_t i = 0; rows.beside.lse && i < tokens * static_cast<size_t>(cache.shape().queryHeads); i++) {
    const float lse = rows.beside.lse[i];
    if (!(std::abs(lse) <= kLargestBesideLse) && lse != -std::numeric_limits<float>::infinity()) return kBadValue;
  }
  if (cache.seesFreed(index, layer.length - tokens, layer.sealed()) || cache.isEvictedFrom(index, layer.length - tokens)) return kUnsupported;
  for (int t = 0; rows.xNorms && t < tokens; t++) {
    if (!(rows.xNorms[t] >= 0) || !std::isfinite(rows.xNorms[t])) return kBadValue;
  }
  return kOk;
}

// Multiplications of a member.
double workOf(const Member& member, int index) {
  return 2.0 * member.tokens * member.cache->layer(index).length * static_cast<double>(member.cache->shape().queryElements());
}

// The calls of all members, those with most work first, so that nobody begins a long one when the others are done.
class Round {
 public:
  Round(std::span<const Member> members, int index, const std::vector<Rows>& rows, bool observe) : workers_(members[0].cache->workers()) {
    double sum = 0;
    std::vector<std::pair<double, size_t>> order;
    order.reserve(members.size());
    int threads = kThreadsMax;
    for (size_t i = 0; i < members.size(); i++) {
      const double work = workOf(members[i], index);
      order.emplace_back(work, i);
      sum += work;
      threads = std::min(threads, members[i].cache->options().threads);
    }
    threads_ = workers_.threads->worthSharing(threads, sum) ? threads : 1;
    std::sort(order.begin(), order.end(), std::greater());
    calls_.reserve(members.size());
    // Those of several are cut finer, so that they can be dealt evenly.
    const double wanted = threads_ == 1 ? 1 : members.size() == 1 ? threads_ : threads_ * kItemsAThread;
    for (const auto& [work, i] : order) {
      Cache& cache = *members[i].cache;
      const int items = static_cast<int>(std::ceil(wanted * work / sum));
      calls_.emplace_back(cache, index, planCall(cache, cache.layer(index), members[i].tokens, cache.options().window[index], items), rows[i], observe);
    }
    Places end;
    for (Call& call : calls_) call.reserve(end);
    items_ = static_cast<int>(end.items);
    workers_.skipped.grow(2 * end.items);
    workers_.partial.grow(end.partial);
    workers_.mass.grow(end.mass);
    std::fill_n(workers_.mass.data(), end.mass, 0.0f);
  }

  void run() {
    auto task = [&](int item, int thread) {
      const auto after = std::upper_bound(calls_.begin(), calls_.end(), item, [](int number, const Call& call) { return number < call.firstItem(); });
      Call& call = after[-1];
      call.run(item - call.firstItem(), thread);
    };
    workers_.threads->each(items_, task, threads_);
    for (Call& call : calls_) call.merge();
  }

  void count() {
    for (Call& call : calls_) call.countMass();
  }

 private:
  Workers& workers_;
  std::vector<Call> calls_;
  int threads_;
  int items_;
};

}  // namespace

Status attend(std::span<const Member> members, int index, const float* q, float* out, const float* xNorms, float* lse, bool observe, size_t* refused, const Beside& beside) {
  const CacheShape& shape = members[0].cache->shape();
  size_t tokens = 0;
  for (const Member& member : members) tokens += member.tokens;
  std::vector<float> ownLse;
  if (observe && !lse) {
    ownLse.resize(tokens * shape.queryHeads);
    lse = ownLse.data();
  }
  std::vector<Rows> rows;
  rows.reserve(members.size());
  size_t at = 0;
  for (const Member& member : members) {
    const size_t from = at * shape.queryElements();
    rows.push_back({q + from, out + from, xNorms ? xNorms + at : nullptr, lse ? lse + at * shape.queryHeads : nullptr, member.tokens * shape.queryElements(),
                    beside.lse ? Beside{beside.lse + at * shape.queryHeads, beside.out + from} : Beside{}});
    const Status status = check(*member.cache, index, member.tokens, rows.back());
    if (status != kOk) return *refused = rows.size() - 1, status;
    at += member.tokens;
  }
  Round round(members, index, rows, observe);
  round.run();
  for (size_t i = 0; i < rows.size(); i++) {
    // Every page was checked for finite rows. Should an output not be finite all the same, keep it out of the masses
    // and kept queries.
    if (!withinMagnitude(rows[i].out, rows[i].elements, std::numeric_limits<float>::max())) return *refused = i, kBadValue;
  }
  round.count();
  return kOk;
}

Status attend(Cache& cache, int index, const float* q, int tokens, float* out, const float* xNorms, float* lse, bool observe, const Beside& beside) {
  const Member member{&cache, tokens};
  size_t refused;
  return attend(std::span(&member, 1), index, q, out, xNorms, lse, observe, &refused, beside);
}

}  // namespace palimpsest
