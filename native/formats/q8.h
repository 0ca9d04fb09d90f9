// q8: symmetric int8 codes in the i8 tile, one f16 scale per row. The arithmetic is that of q8.ts.
#pragma once

struct Q8 {
  static constexpr int kMember = kQ8;
  static constexpr Basis kBasis = kPlain;

  static void encode(const SideTarget* targets, int, bool isKey, int d, int firstRow, const float* x, size_t stride) {
    withHeadDim(d, [&](auto dim) MEMBER { encodeRows<dim.value>(*targets, isKey, firstRow, x, stride); });
  }

  static void decode(const SideView& side, bool isKey, int d, int, float* x, size_t stride) {
    const int8_t* tile = side.at<int8_t>(kQ8Codes);
    const uint16_t* scales = side.at<uint16_t>(kQ8RowScales);
    if (isKey) {
      for (int first = 0; first < kPageTokens; first += kLanes) {
        alignas(64) int8_t rows[kLanes][kHeadDimMax];
        rowsOfTile(tile, d, first, rows[0], kHeadDimMax);
        for (int i = 0; i < kLanes; i++) {
          const float scale = halfToFloat(scales[first + i]);
          for (int c = 0; c < d; c += kLanes) store(x + (first + i) * stride + c, loadSigned(rows[i] + c) * scale);
        }
      }
      return;
    }
    for (int t = 0; t < kPageTokens; t += 4) {
      for (int step = 0; step < 4; step++) {
        const float scale = halfToFloat(scales[t + step]);
        for (int c = 0; c < d; c += kLanes) {
          const VecI code = (loadWords(tile + t * d + c * 4) << (24 - 8 * step)) >> 24;
          store(x + (t + step) * stride + c, __builtin_convertvector(code, VecF) * scale);
        }
      }
    }
  }

  // -128 is not a level, and kernels may differ in how they treat it.
  static bool isSound(const SideView& side, int d) {
    const int8_t* tile = side.at<int8_t>(kQ8Codes);
    bool isSound = true;
    for (int i = 0; i < kPageTokens * d; i++) isSound &= tile[i] != -128;
    return isSound;
  }

  static MEMBER const int8_t* levels(const SideView& side, int, int8_t*) { return side.at<int8_t>(kQ8Codes); }

  static MEMBER void prepareKeys(const SideView& k, const PageRows& rows, int head) {
    fromHalf(k.at<uint16_t>(kQ8RowScales), rows.keyScales + head * kPageTokens, kPageTokens);
    const int first = head * rows.perHead, end = first + rows.perHead;
    for (int r = first; r < end; r++) rows.factor[r] = rows.integers[kPlain][r].step;
    for (int r = first; r < end; r++) rows.offset[r] = 0.0f;
  }

  static MEMBER void prepareValues(const SideView& v, const PageRows& rows, int head) {
    float* scale = rows.valueScales + head * kPageTokens;
    fromHalf(v.at<uint16_t>(kQ8RowScales), scale, kPageTokens);
    rows.valueSteps[head] = scalesAsMultiples(scale);
  }

 private:
  template <int D>
  static void encodeRows(const SideTarget& to, bool isKey, int firstRow, const float* x, size_t stride) {
    alignas(64) uint8_t codes[(kPageTokens - 1) * D + wholeWords(D)];
    uint16_t* scales = to.at<uint16_t>(kQ8RowScales);
    for (int t = 0; t < kPageTokens; t++) {
      const float* row = x + t * stride;
      scales[t] = t < firstRow ? 0 : floatToHalf(largestLane(largestOf(row, D)) / 127.0f);
      const float scale = halfToFloat(scales[t]);
      for (int c = 0; c < D; c += kLanes) {
        storeLowBytes(codes + t * D + c, scale > 0.0f ? divideToCodes(load(row + c), scale) : VecI{});
      }
    }
    placeInTile<D>(isKey, codes, to.at(kQ8Codes));
  }
};
