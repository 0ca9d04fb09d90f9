// turbo4-prod, turbo3-prod, turbo2-prod (prod.ts): codes in bit planes, and the signs of a sketch of what they leave
// over. Attention decodes pages: the sketch would take a product of its own with the query rotated twice.
#pragma once
#include "../encode_turned.h"
#include "../sphere.h"

struct Prod {
  static constexpr int kMember = kTurbo4Prod;

  static void encode(const SideTarget* targets, int count, bool isKey, int d, int firstRow, const float* x, size_t stride, Workspace space) {
    withHeadDim(d, [&](auto dim) MEMBER {
      for (int i = 0; i < count; i++) encodeRows<dim.value>(targets[i], isKey, firstRow, x, stride, space);
    });
  }

  static void decode(const SideView& side, bool isKey, int d, int firstRow, float* x, size_t stride, Workspace space) {
    for (int t = 0; t < firstRow; t++) __builtin_memset(x + t * stride, 0, sizeof(float) * d);
    int8_t* tile = space.take<int8_t>(static_cast<size_t>(kPageTokens) * d);
    alignas(64) float factors[kPageTokens], none[kHeadDimMax] = {};
    const size_t elements = static_cast<size_t>(kPageTokens) * d;
    static constexpr int8_t kSigns[16] = {-1, 1};
    static constexpr LevelTables kSignTables(1, kSigns);
    unpackPlanes(1, kSignTables, nullptr, side.at(kProdSigns), elements, tile);
    factorsOf(side.at<uint16_t>(kProdNorms), signLevel(d), factors);
    withHeadDim(d, [&](auto dim) MEMBER { decodeTurned<dim.value>(isKey, firstRow, tile, factors, none, nullptr, x, stride); });
    const Codebook codebook = sphereOf(codeBits(side.format), d);
    unpackPlanes(codeBits(side.format), *codebook.levels, side.at(kProdHigh), side.at(kProdLow), elements, tile);
    factorsOf(side.at<uint16_t>(kProdScales), codebook.divisor, factors);
    for (int t = firstRow; t < kPageTokens; t++) {
      for (int c = 0; c < d; c++) {
        const int level = tile[isKey ? c / 4 * kPageTokens * 4 + t * 4 + c % 4 : t / 4 * d * 4 + c * 4 + t % 4];
        x[t * stride + c] = x[t * stride + c] + static_cast<float>(level) * factors[t];
      }
    }
    rotate(x + firstRow * stride, kPageTokens - firstRow, stride, d, true);
  }

 private:
  // Bits of the code alone.
  static int codeBits(int format) { return kFormats[format].codeBits - 1; }
  static float signLevel(int d) {
    const Codebook codebook = sphereOf(1, d);
    return static_cast<float>(codebook.levels->entries[0][1]) / codebook.divisor;
  }
  static void factorsOf(const uint16_t* halves, float divisor, float* factors) {
    fromHalf(halves, factors, kPageTokens);
    for (int t = 0; t < kPageTokens; t++) factors[t] = factors[t] / divisor;
  }

  template <int D>
  static COLD void encodeRows(const SideTarget& to, bool isKey, int firstRow, const float* x, size_t stride, Workspace space) {
    const int bits = codeBits(to.format);
    const Codebook codebook = sphereOf(bits, D);
    float* y = space.take<float>(kPageTokens * D);
    alignas(64) float rms[kPageTokens], factors[kPageTokens], level[16];
    uint8_t* codes = space.take<uint8_t>((kPageTokens - 1) * D + wholeWords(D));
    uint16_t* scales = to.at<uint16_t>(kProdScales);
    turnRows<D>(firstRow, x, stride, y, rms, scales);
    codeRows(y, rms, D, codebook.bounds, codes);
    packPlanes<D>(bits, isKey, codes, to.at(kProdHigh), to.at(kProdLow), space);
    factorsOf(scales, codebook.divisor, factors);
    for (int i = 0; i < 16; i++) level[i] = static_cast<float>(kSphereLevels[bits - 1][placeOf(D)][i]);
    for (int t = 0; t < kPageTokens; t++) {
      for (int c = 0; c < D; c++) y[t * D + c] = t < firstRow ? 0.0f : y[t * D + c] - level[codes[t * D + c]] * factors[t];
    }
    turnRows<D>(firstRow, y, D, y, rms, to.at<uint16_t>(kProdNorms));
    codeRows(y, rms, D, sphereOf(1, D).bounds, codes);
    packPlanes<D>(1, isKey, codes, nullptr, to.at(kProdSigns), space);
  }
};
