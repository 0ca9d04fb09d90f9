// squat4, squat2 (squat.ts): the bytes of kivi4 and kivi2, read by the same kernels, with keys steered by queries.
#pragma once
#include "../encode_steered.h"
#include "../../formats/kivi/kivi.h"

struct Squat : Kivi {
  static constexpr int kMember = kSquat4;
  static_assert(static_cast<int>(kSquatCodes) == kKiviCodes && static_cast<int>(kSquatScales) == kKiviScales && static_cast<int>(kSquatLows) == kKiviLows,
                "fields have the numbers of Kivi");

  static void encode(const SideTarget* targets, int count, bool isKey, int d, int firstRow, const float* x, size_t stride, Workspace space) {
    for (int i = 0; i < count; i++) {
      if (isKey && targets[i].steering) encodeSteered(targets[i], d, firstRow, x, stride, space);
      else encodeNested(targets + i, 1, isKey, d, firstRow, x, stride, space);
    }
  }

 private:
  // Keys as they would be coded if channels took nothing back, less what they take back, are coded as any others.
  static COLD void encodeSteered(const SideTarget& to, int d, int firstRow, const float* x, size_t stride, Workspace space) {
    float* targets = space.take<float>(static_cast<size_t>(kPageTokens) * d);
    float* errors = space.take<float>(static_cast<size_t>(kPageTokens) * d);
    alignas(64) float own[kPageTokens], aimed[kPageTokens];
    const int bits = kFormats[to.format].codeBits, strideOfCode = bits == 4 ? 17 : 85;
    __builtin_memset(aimed, 0, sizeof aimed);
    for (int c = 0; c < d; c++) {
      for (int t = 0; t < kPageTokens; t++) own[t] = x[t * stride + c];
      for (int t = 0; t < kPageTokens; t += kLanes) {
        store(aimed + t, withShares<false>(load(own + t), to.steering->feedback + c * d, errors + t, c, kPageTokens));
      }
      for (int group = 0; group * kGroup < kPageTokens; group++) {
        const int begin = group * kGroup, from = begin < firstRow ? firstRow : begin;
        float least = clamped(aimed[from]), most = least;
        for (int t = from + 1; t < begin + kGroup; t++) {
          const float v = clamped(aimed[t]);
          least = v < least ? v : least;
          most = v > most ? v : most;
        }
        const float low = halfToFloat(halfBelow(least + 0.0f)), scale = halfToFloat(halfAbove((most - low + 0.0f) / 255.0f));
        uint8_t code[kGroup];
        for (int i = 0; i < kGroup; i += kLanes) storeLowBytes(code + i, stepsOf(load(aimed + begin + i), splat(scale), splat(low), 255.0f));
        for (int i = 0; i < kGroup; i++) {
          const int t = begin + i;
          const float decoded = static_cast<float>(narrowed(code[i], bits)) * (scale * static_cast<float>(strideOfCode)) + low;
          errors[c * kPageTokens + t] = t < firstRow ? 0.0f : decoded - own[t];
        }
      }
      for (int t = 0; t < kPageTokens; t++) targets[t * d + c] = aimed[t];
    }
    encodeNested(&to, 1, true, d, firstRow, targets, d, space);
  }
  static MEMBER float clamped(float x) { return x > 65504.0f ? 65504.0f : x < -65504.0f ? -65504.0f : x; }
};
