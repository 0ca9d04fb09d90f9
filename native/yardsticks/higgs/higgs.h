// higgs4, higgs3, higgs2 (higgs.ts): codes of pairs of rotated channels, row by row, and one f16 scale per row.
// Attention decodes pages.
#pragma once
#include "../encode_turned.h"

struct Higgs {
  static constexpr int kMember = kHiggs4;

  static void encode(const SideTarget* targets, int count, bool, int d, int firstRow, const float* x, size_t stride, Workspace space) {
    withHeadDim(d, [&](auto dim) MEMBER {
      for (int i = 0; i < count; i++) encodeRows<dim.value>(targets[i], firstRow, x, stride, space);
    });
  }

  static void decode(const SideView& side, bool, int d, int firstRow, float* x, size_t stride, Workspace) {
    const Grid grid = gridOf(side.format);
    alignas(64) float factors[kPageTokens];
    fromHalf(side.at<uint16_t>(kHiggsScales), factors, kPageTokens);
    for (int t = 0; t < kPageTokens; t++) {
      const float factor = t < firstRow ? 0.0f : factors[t] / grid.divisor;
      for (int c = 0; c < d; c += 2) {
        const int8_t* point = grid.points[codeAt(side, (t * d + c) / 2)];
        x[t * stride + c] = static_cast<float>(point[0]) * factor;
        x[t * stride + c + 1] = static_cast<float>(point[1]) * factor;
      }
    }
    rotate(x, kPageTokens, stride, d, true);
    // Negative zeros become positive ones.
    for (int t = 0; t < kPageTokens; t++) {
      for (int c = 0; c < d; c += kLanes) store(x + t * stride + c, load(x + t * stride + c) + splat(0.0f));
    }
  }

 private:
  struct Grid {
    const int8_t (*points)[2];
    int count;
    float divisor;
    int lowBits;  // of a code, in the second field
  };
  static MEMBER Grid gridOf(int format) {
    if (format == kHiggs4) return {kGrid256, 256, static_cast<float>(kGrid256Divisor), 4};
    if (format == kHiggs3) return {kGrid64, 64, static_cast<float>(kGrid64Divisor), 2};
    return {kGrid16, 16, static_cast<float>(kGrid16Divisor), 0};
  }
  static MEMBER int codeAt(const SideView& side, int pair) {
    const int high = side.at(kHiggsHigh)[pair / 2] >> pair % 2 * 4 & 15;
    if (side.format == kHiggs4) return high << 4 | (side.at(kHiggsLow)[pair / 2] >> pair % 2 * 4 & 15);
    if (side.format == kHiggs3) return high << 2 | (side.at(kHiggsLow)[pair / 4] >> pair % 4 * 2 & 3);
    return high;
  }

  // codes[i]: the point nearest to (a[i], b[i]), the first of equals. count: a multiple of kLanes.
  static COLD void nearest(const Grid& grid, const float* a, const float* b, int count, uint8_t* codes) {
    alignas(64) float half[256];
    for (int k = 0; k < grid.count; k++) {
      const int x = grid.points[k][0], y = grid.points[k][1];
      half[k] = static_cast<float>(x * x + y * y) / (2.0f * grid.divisor);
    }
    for (int i = 0; i < count; i += kLanes) {
      const VecF x = load(a + i), y = load(b + i);
      VecF most = splat(-__builtin_inff());
      VecI code{};
      for (int k = 0; k < grid.count; k++) {
        const VecF score = (x * static_cast<float>(grid.points[k][0]) + y * static_cast<float>(grid.points[k][1])) - splat(half[k]);
        const VecI isMore = score > most;
        most = isMore ? score : most;
        code = isMore ? splatI(k) : code;
      }
      storeLowBytes(codes + i, code);
    }
  }

  template <int D>
  static COLD void encodeRows(const SideTarget& to, int firstRow, const float* x, size_t stride, Workspace space) {
    constexpr int kPairs = kPageTokens * D / 2;
    const Grid grid = gridOf(to.format);
    float* y = space.take<float>(kPageTokens * D);
    float* a = space.take<float>(kPairs);
    float* b = space.take<float>(kPairs);
    uint8_t* codes = space.take<uint8_t>(kPairs);
    alignas(64) float rms[kPageTokens];
    turnRows<D>(firstRow, x, stride, y, rms, to.at<uint16_t>(kHiggsScales));
    for (int i = 0; i < kPairs; i++) {
      a[i] = y[2 * i] / rms[2 * i / D];
      b[i] = y[2 * i + 1] / rms[2 * i / D];
    }
    nearest(grid, a, b, kPairs, codes);
    uint8_t* high = to.at(kHiggsHigh);
    for (int i = 0; i < kPairs; i += 2) high[i / 2] = static_cast<uint8_t>(codes[i] >> grid.lowBits | codes[i + 1] >> grid.lowBits << 4);
    uint8_t* low = to.at(kHiggsLow);
    for (int i = 0; grid.lowBits == 4 && i < kPairs; i += 2) low[i / 2] = static_cast<uint8_t>((codes[i] & 15) | codes[i + 1] << 4);
    for (int i = 0; grid.lowBits == 2 && i < kPairs; i += 4) {
      low[i / 4] = static_cast<uint8_t>((codes[i] & 3) | (codes[i + 1] & 3) << 2 | (codes[i + 2] & 3) << 4 | (codes[i + 3] & 3) << 6);
    }
  }
};
