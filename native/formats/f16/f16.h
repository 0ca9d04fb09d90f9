// f16: the rows in an f16 tile (kernels.h), sinks included. Values beyond the largest half saturate to it.
#pragma once

struct F16 {
  static constexpr int kMember = kF16;

  static void encode(const SideTarget* targets, int, bool isKey, int d, int, const float* x, size_t stride, Workspace) {
    uint16_t* half = targets->at<uint16_t>(kF16Halves);
    float row[kHeadDimMax];
    uint16_t line[kHeadDimMax];
    for (int t = 0; t < kPageTokens; t++) {
      for (int c = 0; c < d; c++) {
        const float value = x[t * stride + c];
        row[c] = value > kLargestHalf ? kLargestHalf : value < -kLargestHalf ? -kLargestHalf : value;
      }
      toHalf(row, isKey ? line : half + t * d, d);
      for (int c = 0; isKey && c < d; c++) half[c * kPageTokens + t] = line[c];
    }
  }

  static void writeRow(const SideTarget& to, bool isKey, int d, int room, int row, const float* x) {
    uint16_t* half = to.at<uint16_t>(kF16Halves);
    if (!isKey) return toHalf(x, half + row * d, d);
    uint16_t line[kHeadDimMax];
    toHalf(x, line, d);
    for (int c = 0; c < d; c++) half[c * room + row] = line[c];
  }

  static void decode(const SideView& side, bool isKey, int d, int, float* x, size_t stride, Workspace) {
    const uint16_t* half = side.at<uint16_t>(kF16Halves);
    if (!isKey) {
      for (int t = 0; t < kPageTokens; t++) fromHalf(half + t * d, x + t * stride, d);
      return;
    }
    // Transposes square blocks, so that both the tile and the rows are accessed in whole vectors.
    int c = 0;
    for (; c + kLanes <= d; c += kLanes) {
      for (int t = 0; t < kPageTokens; t += kLanes) {
        VecI v[kLanes];
#pragma GCC unroll 16
        for (int i = 0; i < kLanes; i++) v[i] = bits(loadHalf(half + (c + i) * kPageTokens + t));
        transpose(v);
#pragma GCC unroll 16
        for (int i = 0; i < kLanes; i++) store(x + (t + i) * stride + c, fromBits(v[i]));
      }
    }
    for (; c < d; c++) {
      for (int t = 0; t < kPageTokens; t++) x[t * stride + c] = halfToFloat(half[c * kPageTokens + t]);
    }
  }

  static MEMBER void score(const SideView& k, const PageRows& rows, int head, int visible, const SideView* next) {
    const int n = rows.perHead, d = rows.d;
    const size_t first = static_cast<size_t>(head) * n;
    const Ahead ahead = aheadOf(next, k, kPageTokens);
    dotHalf(k.at<uint16_t>(kF16Halves), d, (visible + 7) / 8 * 8, rows.room, rows.q + first * d, n, d, rows.scores + first * kPageTokens, kPageTokens,
            next != nullptr ? &ahead : nullptr);
  }

  static MEMBER void mix(const SideView& v, const PageRows& rows, size_t first, int n, int visible, const SideView* next) {
    const int d = rows.d;
    const Ahead ahead = aheadOf(next, v, d);
    dotHalf(v.at<uint16_t>(kF16Halves), visible, d, d, rows.scores + first * kPageTokens, n, kPageTokens, rows.spare, d, next != nullptr ? &ahead : nullptr);
    for (int i = 0; i < n; i++) axpy(rows.share[first + i], rows.spare + static_cast<size_t>(i) * d, rows.mixed + (first + i) * d, d);
  }

 private:
  static constexpr float kLargestHalf = 65504.0f;
};
