// turbo4, turbo3, turbo2 (turbo.ts): codes in bit planes (kernels/planes.h) and one f16 scale per row, over the
// rotation of the rot family.
#pragma once
#include "../encode_turned.h"
#include "../sphere.h"

struct Turbo {
  static constexpr int kMember = kTurbo4;
  static constexpr Basis kBasis = kTurned;
  using Unpacker = SphereRows;

  static void encode(const SideTarget* targets, int count, bool isKey, int d, int firstRow, const float* x, size_t stride, Workspace space) {
    withHeadDim(d, [&](auto dim) MEMBER {
      for (int i = 0; i < count; i++) encodeRows<dim.value>(targets[i], isKey, firstRow, x, stride, space);
    });
  }

  static void decode(const SideView& side, bool isKey, int d, int firstRow, float* x, size_t stride, Workspace space) {
    for (int t = 0; t < firstRow; t++) __builtin_memset(x + t * stride, 0, sizeof(float) * d);
    int8_t* tile = space.take<int8_t>(static_cast<size_t>(kPageTokens) * d);
    alignas(64) float factors[kPageTokens], none[kHeadDimMax] = {};
    fromHalf(side.at<uint16_t>(kTurboScales), factors, kPageTokens);
    const float divisor = codebookOf(side, d).divisor;
    for (int t = 0; t < kPageTokens; t += kLanes) store(factors + t, load(factors + t) / splat(divisor));
    levels(side, d, tile);
    withHeadDim(d, [&](auto dim) MEMBER { decodeTurned<dim.value>(isKey, firstRow, tile, factors, none, nullptr, x, stride); });
  }

  static MEMBER const int8_t* levels(const SideView& side, int d, int8_t* tile) {
    unpackPlanes(kFormats[side.format].codeBits, *codebookOf(side, d).levels, side.at(kTurboHigh), side.at(kTurboLow), static_cast<size_t>(kPageTokens) * d, tile);
    return tile;
  }

  static MEMBER void prepareKeys(const SideView& k, const PageRows& rows, int head) {
    fromHalf(k.at<uint16_t>(kTurboScales), rows.keyScales + head * kPageTokens, kPageTokens);
    const float divisor = codebookOf(k, rows.d).divisor;
    const int first = head * rows.perHead, end = first + rows.perHead;
    for (int r = first; r < end; r++) rows.factor[r] = rows.integers[kTurned][r].step / divisor;
    for (int r = first; r < end; r++) rows.offset[r] = 0.0f;
  }

  static MEMBER void prepareValues(const SideView& v, const PageRows& rows, int head) {
    float* scale = rows.valueScales + head * kPageTokens;
    fromHalf(v.at<uint16_t>(kTurboScales), scale, kPageTokens);
    rows.valueSteps[head] = scalesAsMultiples(scale) / codebookOf(v, rows.d).divisor;
  }

 private:
  static MEMBER Codebook codebookOf(const SideView& side, int d) { return sphereOf(kFormats[side.format].codeBits, d); }

  template <int D>
  static COLD void encodeRows(const SideTarget& to, bool isKey, int firstRow, const float* x, size_t stride, Workspace space) {
    const int bits = kFormats[to.format].codeBits;
    float* y = space.take<float>(kPageTokens * D);
    alignas(64) float rms[kPageTokens];
    uint8_t* codes = space.take<uint8_t>((kPageTokens - 1) * D + wholeWords(D));
    turnRows<D>(firstRow, x, stride, y, rms, to.at<uint16_t>(kTurboScales));
    codeRows(y, rms, D, sphereOf(bits, D).bounds, codes);
    packPlanes<D>(bits, isKey, codes, to.at(kTurboHigh), to.at(kTurboLow), space);
  }
};
