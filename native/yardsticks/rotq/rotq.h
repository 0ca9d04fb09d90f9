// rotq4, rotq3, rotq2 (rotq.ts): the bytes of rot4, rot3 and rot2, read by the same kernels, with keys steered by
// queries.
#pragma once
#include "../encode_steered.h"
#include "../../formats/rot/rot.h"

struct Rotq : Rot {
  static constexpr int kMember = kRotq4;
  static_assert(static_cast<int>(kRotqHigh) == kRotHigh && static_cast<int>(kRotqReference) == kRotReference, "fields have the numbers of Rot");

  static void encode(const SideTarget* targets, int count, bool isKey, int d, int firstRow, const float* x, size_t stride, Workspace space) {
    for (int i = 0; i < count; i++) {
      const SideTarget& to = targets[i];
      RotTargets alone;
      addTarget(alone, to);
      encodeRotWidths(isKey, x, stride, d, firstRow, alone, space);
      if (!isKey || !to.steering) continue;
      alignas(64) float mean[kHeadDimMax];
      const float scale = halfToFloat(*alone.meanScale);
      for (int c = 0; c < d; c += kLanes) store(mean + c, loadSigned(alone.mean + c) * scale);
      steerRot(to, alone.hi, to.at(kRotLow), to.at<int8_t>(kRotExponents), mean, alone.fromZero, *alone.reference, d, firstRow, x, stride, space);
    }
  }
};
