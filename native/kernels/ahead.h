// Lines of a page side that will be read soon, asked for bit by bit while another one is computed: memory answers in the order of
// addresses and never in a burst that would hold up the loads of now.
#pragma once

struct Ahead {
  const uint8_t* codes = nullptr;
  const uint8_t* low = nullptr;
  size_t codesStep = 0;  // bytes a step
  size_t lowStep = 0;
};

// The side cut into `steps` steps; nothing for null.
INLINE Ahead aheadOf(const SideView* side, int d, int steps) {
  Ahead ahead;
  if (side == nullptr) return ahead;
  const size_t elements = static_cast<size_t>(kPageTokens) * d;
  switch (side->format) {
    case kF16: ahead.codes = reinterpret_cast<const uint8_t*>(side->half); ahead.codesStep = elements * 2 / steps; break;
    case kQ8: ahead.codes = reinterpret_cast<const uint8_t*>(side->tile); ahead.codesStep = elements / steps; break;
    default:
      ahead.codes = side->hi;
      ahead.codesStep = elements / 4 / steps;
      ahead.low = side->lo;
      ahead.lowStep = side->format == kRot4 ? elements / 4 / steps : side->format == kRot3 ? elements / 8 / steps : 0;
  }
  return ahead;
}

INLINE void fetch(const Ahead& ahead, size_t step) {
  for (size_t at = 0; at < ahead.codesStep; at += 64) __builtin_prefetch(ahead.codes + step * ahead.codesStep + at);
  if (ahead.lowStep > 0) __builtin_prefetch(ahead.low + step * ahead.lowStep);
}

// Scales and means are few lines: asked for at once.
INLINE void fetchScales(const SideView* side, int d) {
  if (side == nullptr || side->format == kF16) return;
  if (side->format == kQ8) {
    for (int at = 0; at < kPageTokens * 2; at += 64) __builtin_prefetch(reinterpret_cast<const uint8_t*>(side->rowScales) + at);
    return;
  }
  for (int at = 0; at < kPageTokens; at += 64) __builtin_prefetch(side->k + at);
  for (int at = 0; at < d; at += 64) __builtin_prefetch(side->mean + at);
}
