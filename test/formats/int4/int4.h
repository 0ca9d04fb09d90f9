// int4 (int4.ts): only what a format must define. Attention decodes its pages.
#pragma once

struct Int4 {
  static constexpr int kMember = kInt4;

  static void encode(const SideTarget* targets, int, bool, int d, int firstRow, const float* x, size_t stride, Workspace) {
    uint8_t* codes = targets->at(kInt4Codes);
    uint16_t* scales = targets->at<uint16_t>(kInt4Scales);
    for (int t = 0; t < kPageTokens; t++) {
      const float* row = x + t * stride;
      scales[t] = t < firstRow ? 0 : floatToHalf(largestLane(largestOf(row, d)) / 7.0f);
      const float scale = halfToFloat(scales[t]);
      for (int c = 0; c < d; c += 2) codes[(t * d + c) / 2] = static_cast<uint8_t>(codeOf(row[c], scale) | codeOf(row[c + 1], scale) << 4);
    }
  }

  static void decode(const SideView& side, bool, int d, int, float* x, size_t stride, Workspace) {
    const uint8_t* codes = side.at(kInt4Codes);
    for (int t = 0; t < kPageTokens; t++) {
      const float scale = halfToFloat(side.at<uint16_t>(kInt4Scales)[t]);
      for (int c = 0; c < d; c++) x[t * stride + c] = static_cast<float>((codes[(t * d + c) / 2] >> c % 2 * 4 & 15) - 8) * scale;
    }
  }

 private:
  static int codeOf(float x, float scale) {
    if (!(scale > 0.0f)) return 8;
    float code = x / scale;
    code = code > 7.0f ? 7.0f : code < -7.0f ? -7.0f : code;
    return static_cast<int>((code + kRoundMagic) - kRoundMagic) + 8;
  }
};
