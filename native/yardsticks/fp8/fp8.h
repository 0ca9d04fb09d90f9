// fp8 (fp8.ts): E4M3 with one scale for each page and head. Attention decodes its pages.
#pragma once

struct Fp8 {
  static constexpr int kMember = kFp8;

  static void encode(const SideTarget* targets, int, bool, int d, int firstRow, const float* x, size_t stride, Workspace) {
    uint8_t* codes = targets->at(kFp8Codes);
    VecF top = splat(0.0f);
    for (int t = firstRow; t < kPageTokens; t++) top = larger(largestOf(x + t * stride, d), top);
    const float most = largestLane(top);
    const uint16_t half = halfAbove((most > 65504.0f ? 65504.0f : most) / kLargest);
    *targets->at<uint16_t>(kFp8Scale) = half;
    const float scale = halfToFloat(half);
    for (int t = 0; t < kPageTokens; t++) {
      const bool isZero = t < firstRow || !(scale > 0.0f);
      for (int c = 0; c < d; c += kLanes) storeLowBytes(codes + t * d + c, isZero ? VecI{} : codesOf(load(x + t * stride + c) / splat(scale)));
    }
  }

  static void decode(const SideView& side, bool, int d, int, float* x, size_t stride, Workspace) {
    const uint8_t* codes = side.at(kFp8Codes);
    const VecF scale = splat(halfToFloat(*side.at<uint16_t>(kFp8Scale)));
    for (int t = 0; t < kPageTokens; t++) {
      for (int c = 0; c < d; c += kLanes) {
        const VecI code = loadUnsigned(codes + t * d + c);
        // Exponent and mantissa are moved into place, then a product with 2^120 corrects the bias, also of subnormals.
        const VecF size = fromBits((code & 127) << 20) * 0x1p120f;
        store(x + t * stride + c, fromBits(bits(size) | (code & 128) << 24) * scale);
      }
    }
  }

 private:
  static constexpr float kLargest = 448.0f;

  static MEMBER VecI codesOf(VecF x) {
    const VecF most = splat(kLargest);
    VecF size = magnitude(x);
    size = size > most ? most : size;
    const VecI v = bits(size);
    // Below 2^-6 the grid is 2^-9: adding 2^14 makes the float addition round to it.
    const VecI small = bits(size + 16384.0f) - 0x46800000;
    const VecI large = (v + 0x7ffff + (v >> 20 & 1) - 0x3c000000) >> 20;
    const VecI isLarge = size >= splat(0x1p-6f);
    const VecI isBelow = x < splat(0.0f);
    return (isLarge & large) | (~isLarge & small) | (isBelow & 128);
  }
};
