// rot4, rot3, rot2, rot1 (rot.ts): rotated rows (kernels/rotated.h) whose codes are in bit planes (kernels/planes.h).
#pragma once
#include "encode_rot.h"

struct Rot : Rotated<divisorOf> {
  static constexpr int kMember = kRot4;
  using Unpacker = PlaneRows;
  static_assert(isRotated(kRotHigh, kRotLow, kRotExponents, kRotMean, kRotFromZero, kRotMeanScale, kRotReference));

  static void encode(const SideTarget* targets, int count, bool isKey, int d, int firstRow, const float* x, size_t stride, Workspace space) {
    RotTargets all;
    for (int i = 0; i < count; i++) addTarget(all, targets[i]);
    encodeRotWidths(isKey, x, stride, d, firstRow, all, space);
  }

  static void demote(const SideView& from, bool isKey, int d, const SideTarget& to, Workspace space) {
    demoteRot(from.format, to.format, isKey, d, from.at(kRotHigh), from.at(kRotLow), from.at<int8_t>(kRotExponents), to.at(kRotLow),
              to.at<int8_t>(kRotExponents), space);
  }

  static void decode(const SideView& side, bool isKey, int d, int firstRow, float* x, size_t stride, Workspace space) {
    int8_t* tile = space.take<int8_t>(static_cast<size_t>(kPageTokens) * d);
    decodeRotated(isKey, d, firstRow, side, levels(side, d, tile), divisorOf(side.format), x, stride);
  }

  static void decodeRows(const SideView& side, bool isKey, int d, const uint8_t* tokens, int count, float* x, size_t stride, Workspace space) {
    int8_t* tile = space.take<int8_t>(static_cast<size_t>(kPageTokens) * d);
    decodeRotatedRows(isKey, d, tokens, count, side, levels(side, d, tile), divisorOf(side.format), x, stride);
  }

  static MEMBER const int8_t* levels(const SideView& side, int d, int8_t* tile) {
    unpackRot(side.format, side.at(kRotHigh), side.at(kRotLow), static_cast<size_t>(kPageTokens) * d, tile);
    return tile;
  }

 protected:  // yardsticks/rotq/rotq.h has the same bytes
  static MEMBER void addTarget(RotTargets& all, const SideTarget& to) {
    const int width = widthOf(to.format);
    all.exponents[width] = to.at<int8_t>(kRotExponents);
    if (width != widthOf(kRot2)) all.lo[width] = to.at(kRotLow);
    if (width != widthOf(kRot1)) all.hi = to.at(kRotHigh);
    if (all.mean) return;
    all.mean = to.at<int8_t>(kRotMean);
    all.fromZero = to.at(kRotFromZero);
    all.meanScale = to.at<uint16_t>(kRotMeanScale);
    all.reference = to.at<int8_t>(kRotReference);
  }
};
