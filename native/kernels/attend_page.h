// Attention of query rows to one page: scores from the keys, one step of the online softmax, then the values mixed. The
// same functions serve every format of either side; they call what the format defines in its own file
// (native/formats/ops.h) and do the rest here. Every instruction set gives the same bits, except for f16 sides
// (dot_f16.h).
#pragma once

static void integerRow(const float* x, int d, IntegerRow* out) {
  alignas(64) int16_t integers[kContractionMax];
  out->step = quantizeI16(x, d, integers);
  splitRow(integers, d, *out);
}

template <class F>
constexpr bool kKeysAreIntegers = HasLevels<F> && PreparesKeys<F>;
template <class F>
constexpr bool kValuesAreIntegers = HasLevels<F> && PreparesValues<F>;

// Fills the integers of all rows, plain or rotated, when the first page needs them.
template <Basis B>
INLINE void makeIntegers(const PageRows& rows) {
  if (rows.ready[B]) return;
  rows.ready[B] = true;
  const float* x = rows.q;
  if constexpr (B == kTurned) {
    __builtin_memcpy(rows.spare, rows.q, sizeof(float) * rows.count * rows.d);
    rotate(rows.spare, rows.count, rows.d, rows.d, false);
    x = rows.spare;
  }
  for (int r = 0; r < rows.count; r++) integerRow(x + static_cast<size_t>(r) * rows.d, rows.d, rows.integers[B] + r);
}

// Fills the integers of one head's rows multiplied by the channel scales `worth` of this page.
[[maybe_unused]] static void foldRows(const PageRows& rows, int head, const float* worth) {
  alignas(64) float folded[kContractionMax];
  for (int r = head * rows.perHead; r < (head + 1) * rows.perHead; r++) {
    for (int c = 0; c < rows.d; c++) folded[c] = rows.q[static_cast<size_t>(r) * rows.d + c] * worth[c];
    integerRow(folded, rows.d, rows.integers[kFolded] + r);
  }
}

// Converts token scales to multiples of the returned step; the largest becomes 32512.
static float scalesAsMultiples(float* scale) {
  VecF top = splat(0.0f);
  for (int t = 0; t < kPageTokens; t += kLanes) top = larger(load(scale + t), top);
  const float max = largestLane(top);
  const bool vanish = !(max >= kLeastMaximum && max <= kLargestMaximum);
  const float inverse = vanish ? 0.0f : kIntegerMax / max;
  // No encoder writes a negative scale; if there is one, it counts as 0.
  for (int t = 0; t < kPageTokens; t += kLanes) store(scale + t, larger(load(scale + t) * inverse, splat(0.0f)));
  return vanish ? 0.0f : max / kIntegerMax;
}

#include "../formats/index.gen.h"

// ---- Keys

template <class F>
INLINE void prepareKeys(const SideView* k, const PageRows& rows) {
  if constexpr (kKeysAreIntegers<F>) {
    if constexpr (F::kBasis != kFolded) makeIntegers<F::kBasis>(rows);
    for (int h = 0; h < rows.heads; h++) F::prepareKeys(k[h], rows, h);
  }
}

template <class F>
INLINE void scoreKeys(const SideView& k, const PageRows& rows, int head, int visible, const SideView* next) {
  if constexpr (HasOwnProducts<F>) {
    F::score(k, rows, head, visible, next);
  } else if constexpr (kKeysAreIntegers<F>) {
    const size_t first = static_cast<size_t>(head) * rows.perHead;
    scoreCoded<F>(k, rows.tile, rows.room, rows.keyScales + head * kPageTokens, rows.d, rows.integers[F::kBasis] + first, rows.perHead, rows.factor + first,
                  rows.offset + first, rows.scores + first * kPageTokens, next);
    if constexpr (AddsToScores<F>) F::addToScores(k, rows, head);
  } else {
    const int d = rows.d;
    F::decode(k, true, d, 0, rows.decoded, d, Workspace(rows.tile, decodeSpace(d)));
    for (int r = head * rows.perHead; r < (head + 1) * rows.perHead; r++) {
      for (int t = 0; t < visible; t++) {
        rows.scores[static_cast<size_t>(r) * kPageTokens + t] = dot(rows.q + static_cast<size_t>(r) * d, rows.decoded + t * d, d);
      }
    }
  }
}

// ---- Values

template <class F>
INLINE void prepareValues(const SideView* v, const PageRows& rows) {
  if constexpr (kValuesAreIntegers<F>) {
    if constexpr (F::kBasis == kTurned) *rows.turnedBack = true;
    for (int h = 0; h < rows.heads; h++) F::prepareValues(v[h], rows, h);
  }
}

// Rows [first, first + n) of one head.
template <class F>
INLINE void mixValues(const SideView& v, const PageRows& rows, size_t first, int n, int visible, const SideView* next) {
  if constexpr (HasOwnProducts<F>) {
    F::mix(v, rows, first, n, visible, next);
  } else if constexpr (kValuesAreIntegers<F>) {
    float* target = (F::kBasis == kTurned ? rows.mixedTurned : rows.mixed) + first * rows.d;
    const IntegerRow* weights = rows.weights + first % kWeightRows;
    mixCoded<F>(v, rows.tile, rows.room, rows.d, weights, n, target, next);
  } else {
    const int d = rows.d;
    F::decode(v, false, d, 0, rows.decoded, d, Workspace(rows.tile, decodeSpace(d)));
    for (size_t r = first; r < first + n; r++) {
      for (int t = 0; t < visible; t++) axpy(rows.scores[r * kPageTokens + t] * rows.share[r], rows.decoded + t * d, rows.mixed + r * d, d);
    }
  }
}

// Whether the values of a head need not be read; if so, counts them as skipped. rowMass and sum already include this
// page.
//
// The error of skipping: a page in a format that may be skipped decodes to mean + x_t, so it adds mass * mean + sum_t
// p_t x_t to the output. The first term is always added (addToMix); skipping drops the second, whose norm is at most
// mass * V, V being the largest |x_t| of the skipped pages. A row that skips the pages P is therefore at most  V *
// sum_P mass_P / sum  away from its full output. skippedMass and `sum` are rescaled together when the maximum grows,
// and apart from that `sum` only grows: if  skippedMass + rowMass <= share * sum  holds whenever a page is skipped, it
// also holds at the end, so  |o' - o| <= share * V.  Each range of a history keeps this bound, and so do merged ranges.
template <class F>
INLINE bool skipValues(const PageRows& rows, int head) {
  if (!MaySkip<F> || rows.skipShare <= 0) return false;
  rows.skipped[0]++;
  const int first = head * rows.perHead, end = first + rows.perHead;
  for (int r = first; r < end; r++) {
    if (!(rows.skippedMass[r] + rows.rowMass[r] <= rows.skipShare * rows.sum[r])) return false;
  }
  for (int r = first; r < end; r++) rows.skippedMass[r] += rows.rowMass[r];
  rows.skipped[1]++;
  return true;
}

// Sets rows.weights[r - from] to probabilities times scales as integers, for the rows [from, to) of any heads.
INLINE void weighRows(const PageRows& rows, int from, int to, const bool* isSkipped) {
  for (int r = from, head = from / rows.perHead; r < to; r++) {
    if (r == (head + 1) * rows.perHead) head++;
    const float* probability = rows.scores + static_cast<size_t>(r) * kPageTokens;
    const float* scale = rows.valueScales + head * kPageTokens;
    IntegerRow& weights = rows.weights[r - from];
    weights.step = rows.share[r] * rows.valueSteps[head];
    if (!isSkipped[head]) weighRow(probability, scale, weights);
  }
}

// Mixes the values of all heads. Formats that need the probabilities as integers have them converted for up to
// kWeightRows rows at a time.
template <class F>
static __attribute__((noinline)) void mixHeads(const SideView* v, int ahead, const PageRows& rows, int visible) {
  // Rows of skipped heads keep their place in rows.weights, so that mixValues finds the weights of row `first`.
  bool isSkipped[kHeadsMax];
  int left = rows.heads;
  for (int h = 0; h < rows.heads; h++) {
    isSkipped[h] = skipValues<F>(rows, h);
    left -= isSkipped[h];
  }
  if constexpr (kValuesAreIntegers<F> && AddsToMix<F>) {
    for (int h = 0; h < rows.heads; h++) F::addToMix(v[h], rows, h);
  }
  if (left == 0) return;
  if constexpr (kValuesAreIntegers<F>) {
    for (int at = 0; at < rows.count; at += kWeightRows) {
      const int end = at + kWeightRows < rows.count ? at + kWeightRows : rows.count;
      weighRows(rows, at, end, isSkipped);
      for (int r = at; r < end;) {
        const int h = r / rows.perHead;
        const int stop = (h + 1) * rows.perHead < end ? (h + 1) * rows.perHead : end;
        if (!isSkipped[h]) mixValues<F>(v[h], rows, r, stop - r, visible, ahead > 0 && r == h * rows.perHead ? v + h + ahead : nullptr);
        r = stop;
      }
    }
  } else {
    for (int h = 0; h < rows.heads; h++) {
      if (!isSkipped[h]) mixValues<F>(v[h], rows, static_cast<size_t>(h) * rows.perHead, rows.perHead, visible, ahead > 0 ? v + h + ahead : nullptr);
    }
  }
}

static void mixPage(const SideView* values, const PageRows& rows, int visible) {
  withFormat(values->format, [&](auto format) MEMBER {
    prepareValues<decltype(format)>(values, rows);
    mixHeads<decltype(format)>(values, 0, rows, visible);
  });
  clearUpperHalves();
}

// ---- Pages

// One page. Each step runs for all heads before the next step begins, because the end of a step has to wait for its
// last results: this way that happens once per step and not once per head.
static __attribute__((noinline)) void meetPage(const SideView* sides, int ahead, const PageRows& rows, int start, int visible) {
  const int n = rows.count, d = rows.d;
  // Values that may be skipped are not prefetched: keys then prefetch only keys, of a later page.
  const bool mayTurnUp = rows.skipShare <= 0;
  const int keysAhead = mayTurnUp || ahead == 0 ? ahead : (ahead + 2 * rows.heads - 1) / (2 * rows.heads) * 2 * rows.heads;
  const SideView* values = sides + rows.heads;
  withFormat(sides->format, [&](auto format) MEMBER { prepareKeys<decltype(format)>(sides, rows); });
  withFormat(values->format, [&](auto format) MEMBER { prepareValues<decltype(format)>(values, rows); });
  for (int h = 0; h < rows.heads; h++) {
    // The next page starts by reading the scales of all heads.
    for (int side = 0; ahead > 0 && side < 2; side++) {
      const SideView& next = sides[h + (2 + side) * rows.heads];
      withFormat(next.format, [&](auto format) MEMBER { fetchScales<decltype(format)>(next, d); });
    }
    withFormat(sides->format, [&](auto format) MEMBER {
      scoreKeys<decltype(format)>(sides[h], rows, h, visible, keysAhead > 0 ? sides + h + keysAhead : nullptr);
    });
  }
  for (int r = 0; rows.cap > 0 && r < n; r++) capScores(rows.scores + static_cast<size_t>(r) * kPageTokens, visible, rows.cap);
  for (int r = 0; rows.slope != nullptr && r < n; r++) {
    float* score = rows.scores + static_cast<size_t>(r) * kPageTokens;
    for (int t = 0; t < visible; t++) score[t] = score[t] - rows.slope[r] * static_cast<float>(rows.position[r] - start - t);
  }
  softmaxPage(rows.scores, n, kPageTokens, rows.first, rows.last, rows.max, rows.sum, rows.rescale, rows.share, rows.rowMass);
  for (int r = 0; r < n; r++) {
    if (rows.rescale[r] == 1.0f) continue;
    rows.skippedMass[r] *= rows.rescale[r];
    scaleRow(rows.rescale[r], rows.mixed + static_cast<size_t>(r) * d, d);
    scaleRow(rows.rescale[r], rows.mixedTurned + static_cast<size_t>(r) * d, d);
  }
  withFormat(values->format, [&](auto format) MEMBER { mixHeads<decltype(format)>(values, mayTurnUp ? ahead : 0, rows, visible); });
}

static void attendPage(const SideView* sides, const PageRows& rows, int start, int visible) {
  meetPage(sides, 0, rows, start, visible);
  clearUpperHalves();
}

static void attendRun(const SideView* sides, int pages, int known, int start, const PageRows& rows, const PageNotes& notes) {
  for (int p = 0; p < pages; p++) {
    const SideView* at = sides + static_cast<size_t>(p) * 2 * rows.heads;
    const int ahead = sidesAhead(at, rows);
    meetPage(at, (known - p - 1) * 2 * rows.heads >= ahead ? ahead : 0, rows, start + p * kPageTokens, kPageTokens);
    for (int r = 0; notes.mass != nullptr && r < rows.count; r++) {
      if (rows.rowMass[r] == 0.0f) continue;
      notes.mass[r * notes.stride + p] = rows.rowMass[r];
      notes.max[r * notes.stride + p] = rows.max[r];
    }
  }
  clearUpperHalves();
}
