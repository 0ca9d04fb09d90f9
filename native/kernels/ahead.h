// Lines of a page side that will be read soon, asked for step by step while another one is computed: memory answers in the order of
// addresses and never in a burst that would hold up the loads of now.
#pragma once

// Two streams. With nothing to ask for both stand still at a line that is being read anyway: no branch in the loops that ask.
struct Ahead {
  const uint8_t* codes;
  const uint8_t* low;
  size_t codesStep;  // bytes a step
  size_t lowStep;
  bool wide;         // more than a line a step
};

// Elements to a step where codes are met in registers: 64 bytes of a plane of two bits.
constexpr size_t kElementsAStep = 256;

// `side` cut into steps of so many of its elements; null: nothing, standing still at `now`.
INLINE Ahead aheadOf(const SideView* side, const SideView& now, size_t elements) {
  const SideView& at = side == nullptr ? now : *side;
  const uint8_t* first = at.format == kF16 ? reinterpret_cast<const uint8_t*>(at.half) : at.format == kQ8 ? reinterpret_cast<const uint8_t*>(at.tile) : at.hi;
  Ahead ahead = {first, first, 0, 0, false};
  if (side == nullptr) return ahead;
  switch (at.format) {
    case kF16: ahead.codesStep = elements * 2; break;
    case kQ8: ahead.codesStep = elements; break;
    default:
      ahead.codesStep = elements / 4;
      if (at.format == kRot2) break;
      ahead.low = at.lo;
      ahead.lowStep = at.format == kRot4 ? elements / 4 : elements / 8;
  }
  ahead.wide = ahead.codesStep > 64;
  return ahead;
}

// What loop i of `loops` asks for, each of as many steps: an equal part, whole lines where the parts are long enough.
INLINE Ahead partOf(const Ahead& ahead, size_t steps, int i, int loops) {
  Ahead part = ahead;
  part.codesStep = ahead.codesStep / loops;
  part.lowStep = ahead.lowStep / loops;
  part.codes += i * steps * part.codesStep;
  part.low += i * steps * part.lowStep;
  part.wide = part.codesStep > 64;
  return part;
}

INLINE void fetch(const Ahead& ahead, size_t step) {
  const uint8_t* codes = ahead.codes + step * ahead.codesStep;
  __builtin_prefetch(codes);
  __builtin_prefetch(ahead.low + step * ahead.lowStep);
  if (ahead.wide) {
    for (size_t at = 64; at < ahead.codesStep; at += 64) __builtin_prefetch(codes + at);
  }
}

// Scales and means are few lines, asked for at once, one page before they are needed.
INLINE void fetchScales(const SideView& side, int d) {
  if (side.format == kF16) return;
  if (side.format == kQ8) {
    for (int at = 0; at < kPageTokens * 2; at += 64) __builtin_prefetch(reinterpret_cast<const uint8_t*>(side.rowScales) + at);
    return;
  }
  for (int at = 0; at < kPageTokens; at += 64) __builtin_prefetch(side.k + at);
  for (int at = 0; at < d; at += 64) __builtin_prefetch(side.mean + at);
  __builtin_prefetch(side.meanScale);
}

// How far ahead of its use memory is asked for.
constexpr int kAheadBytes = 16384;
constexpr int kSidesAheadMax = 8;

INLINE int codeBits(int format) { return format == kF16 ? 16 : format == kQ8 ? 8 : format == kRot4 ? 4 : format == kRot3 ? 3 : 2; }

// Sides between the one that is read and the one that is asked for meanwhile.
INLINE int sidesAhead(const SideView* page, const PageRows& rows) {
  const int bytes = (codeBits(page[0].format) + codeBits(page[rows.heads].format)) * kPageTokens / 16 * rows.d;
  const int sides = kAheadBytes / bytes;
  return sides < 1 ? 1 : sides > kSidesAheadMax ? kSidesAheadMax : sides;
}
