// Prefetches the lines of a page side that will be read soon, step by step while another side is computed. Memory is
// then read in the order of addresses, without bursts that would delay the loads needed now.
#pragma once

// Two streams to prefetch. With nothing to prefetch, both stay at a line that is being read anyway, so the loops need
// no branch.
struct Ahead {
  const uint8_t* codes;
  const uint8_t* low;
  size_t codesStep;  // bytes per step
  size_t lowStep;
  bool wide;         // whether codesStep is more than one line
};

// Elements per step where codes are unpacked in registers: 64 bytes of a 2-bit plane.
constexpr size_t kElementsAStep = 256;

// Prefetches `side` in steps of `elements` elements; with null it stays at `now`. The codes of a format are its first
// field or first two.
INLINE Ahead aheadOf(const SideView* side, const SideView& now, size_t elements) {
  const SideView& at = side == nullptr ? now : *side;
  Ahead ahead = {at.field[0], at.field[0], 0, 0, false};
  if (side == nullptr) return ahead;
  const FieldLayout* field = kFormats[at.format].field;
  ahead.codesStep = elements * field[0].elementBits / 8;
  if (kFieldsMax > 1 && field[1].elementBits > 0) {
    ahead.low = at.field[1];
    ahead.lowStep = elements * field[1].elementBits / 8;
  }
  ahead.wide = ahead.codesStep > 64;
  return ahead;
}

// The equal part that loop i of `loops` loops prefetches, each loop having `steps` steps.
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

// Scales and means take few lines, so they are prefetched all at once, one page before they are needed.
template <class F>
INLINE void fetchScales(const SideView& side, int d) {
  repeat<kFormats[F::kMember].fields>([&](auto i) MEMBER {
    constexpr FieldLayout kField = kFormats[F::kMember].field[i.value];
    if constexpr (kField.elementBits == 0) {
      const size_t bytes = static_cast<size_t>(kPageTokens) * kField.tokenBytes + static_cast<size_t>(d) * kField.channelBytes + kField.headBytes;
      for (size_t at = 0; at < bytes; at += 64) __builtin_prefetch(side.field[i.value] + at);
    }
  });
}

// How far ahead memory is prefetched.
constexpr int kAheadBytes = 16384;
constexpr int kSidesAheadMax = 8;

// How many sides ahead of the one that is read to prefetch.
INLINE int sidesAhead(const SideView* page, const PageRows& rows) {
  const int bytes = (kFormats[page[0].format].codeBits + kFormats[page[rows.heads].format].codeBits) * kPageTokens / 16 * rows.d;
  const int sides = kAheadBytes / bytes;
  return sides < 1 ? 1 : sides > kSidesAheadMax ? kSidesAheadMax : sides;
}
