// int3 (int3.ts): products of integers; what a row's low adds is put in afterwards.
#pragma once
#include "../encode_turned.h"

struct Int3 {
  static constexpr int kMember = kInt3;
  static constexpr Basis kBasis = kPlain;

  static void encode(const SideTarget* targets, int, bool isKey, int d, int firstRow, const float* x, size_t stride, Workspace space) {
    withHeadDim(d, [&](auto dim) MEMBER { encodeRows<dim.value>(*targets, isKey, firstRow, x, stride, space); });
  }

  static void decode(const SideView& side, bool isKey, int d, int, float* x, size_t stride, Workspace space) {
    int8_t* tile = space.take<int8_t>(static_cast<size_t>(kPageTokens) * d);
    levels(side, d, tile);
    for (int t = 0; t < kPageTokens; t++) {
      const float scale = halfToFloat(side.at<uint16_t>(kInt3Scales)[t]), low = halfToFloat(side.at<uint16_t>(kInt3Lows)[t]);
      for (int c = 0; c < d; c++) {
        const int level = isKey ? tile[c / 4 * kPageTokens * 4 + t * 4 + c % 4] : tile[t / 4 * d * 4 + c * 4 + t % 4];
        x[t * stride + c] = static_cast<float>((level + 7) >> 1) * scale + low;
      }
    }
  }

  static MEMBER const int8_t* levels(const SideView& side, int d, int8_t* tile) {
    static constexpr int8_t kLevels[8] = {-7, -5, -3, -1, 1, 3, 5, 7};
    static constexpr LevelTables kTables(3, kLevels);
    unpackPlanes(3, kTables, side.at(kInt3High), side.at(kInt3Low), static_cast<size_t>(kPageTokens) * d, tile);
    return tile;
  }

  static MEMBER void prepareKeys(const SideView& k, const PageRows& rows, int head) {
    fromHalf(k.at<uint16_t>(kInt3Scales), rows.keyScales + head * kPageTokens, kPageTokens);
    for (int r = head * rows.perHead; r < (head + 1) * rows.perHead; r++) {
      rows.factor[r] = rows.integers[kPlain][r].step * 0.5f;
      rows.offset[r] = 0.0f;
    }
  }

  static MEMBER void addToScores(const SideView& k, const PageRows& rows, int head) {
    alignas(64) float middle[kPageTokens], one[kContractionMax];
    middles(k, middle);
    for (int c = 0; c < rows.d; c++) one[c] = 1.0f;
    for (int r = head * rows.perHead; r < (head + 1) * rows.perHead; r++) {
      axpy(dot(rows.q + static_cast<size_t>(r) * rows.d, one, rows.d), middle, rows.scores + static_cast<size_t>(r) * kPageTokens, kPageTokens);
    }
  }

  static MEMBER void prepareValues(const SideView& v, const PageRows& rows, int head) {
    float* scale = rows.valueScales + head * kPageTokens;
    fromHalf(v.at<uint16_t>(kInt3Scales), scale, kPageTokens);
    rows.valueSteps[head] = scalesAsMultiples(scale) * 0.5f;
  }

  static MEMBER void addToMix(const SideView& v, const PageRows& rows, int head) {
    alignas(64) float middle[kPageTokens];
    middles(v, middle);
    for (int r = head * rows.perHead; r < (head + 1) * rows.perHead; r++) {
      const float lift = dot(rows.scores + static_cast<size_t>(r) * kPageTokens, middle, kPageTokens) * rows.share[r];
      float* mixed = rows.mixed + static_cast<size_t>(r) * rows.d;
      for (int c = 0; c < rows.d; c++) mixed[c] = mixed[c] + lift;
    }
  }

 private:
  // low + 3.5 scale of every row: where the levels have their zero.
  static MEMBER void middles(const SideView& side, float* middle) {
    alignas(64) float scale[kPageTokens];
    fromHalf(side.at<uint16_t>(kInt3Scales), scale, kPageTokens);
    fromHalf(side.at<uint16_t>(kInt3Lows), middle, kPageTokens);
    axpy(3.5f, scale, middle, kPageTokens);
  }

  template <int D>
  static void encodeRows(const SideTarget& to, bool isKey, int firstRow, const float* x, size_t stride, Workspace space) {
    uint8_t* codes = space.take<uint8_t>((kPageTokens - 1) * D + wholeWords(D));
    uint16_t* scales = to.at<uint16_t>(kInt3Scales);
    uint16_t* lows = to.at<uint16_t>(kInt3Lows);
    for (int t = 0; t < kPageTokens; t++) {
      const float* row = x + t * stride;
      lows[t] = scales[t] = 0;
      if (t >= firstRow) {
        const Range range = rangeOf(row, D);
        lows[t] = halfBelow(range.least);
        scales[t] = halfAbove((range.most - halfToFloat(lows[t]) + 0.0f) / 7.0f);
      }
      const VecF scale = splat(halfToFloat(scales[t])), low = splat(halfToFloat(lows[t]));
      for (int c = 0; c < D; c += kLanes) storeLowBytes(codes + t * D + c, t < firstRow ? VecI{} : stepsOf(load(row + c), scale, low, 7.0f));
    }
    packPlanes<D>(3, isKey, codes, to.at(kInt3High), to.at(kInt3Low), space);
  }
};
