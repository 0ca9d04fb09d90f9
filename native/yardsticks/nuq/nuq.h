// nuq4, nuq3, nuq2 (nuq.ts): products of integers, with the scales of channels folded into the query and what was kept
// apart added behind.
#pragma once
#include "../encode_turned.h"

struct Nuq {
  static constexpr int kMember = kNuq4;
  static constexpr Basis kBasis = kFolded;

  static void encode(const SideTarget* targets, int count, bool isKey, int d, int firstRow, const float* x, size_t stride, Workspace space) {
    withHeadDim(d, [&](auto dim) MEMBER { encodeRows<dim.value>(targets, count, isKey, firstRow, x, stride, space); });
  }

  static void decode(const SideView& side, bool isKey, int d, int firstRow, float* x, size_t stride, Workspace space) {
    decodeDense(side, isKey, d, firstRow, x, stride, space);
    for (int i = 0; i < outlierCount(d); i++) {
      const Outlier one = outlier(side, i);
      x[one.token * stride + one.channel] += one.value;
    }
  }

  // Outliers are written where they say.
  static bool isSound(const SideView& side, int d) {
    bool isSound = true;
    for (int i = 0; i < outlierCount(d); i++) isSound &= outlier(side, i).token < kPageTokens && outlier(side, i).channel < d;
    return isSound;
  }

  static MEMBER void prepareKeys(const SideView& k, const PageRows& rows, int head) {
    const int d = rows.d;
    for (int t = 0; t < kPageTokens; t++) rows.keyScales[head * kPageTokens + t] = 1.0f;
    alignas(64) float worth[kHeadDimMax], offset[kHeadDimMax];
    fromHalf(k.at<uint16_t>(kNuqScales), worth, d);
    fromHalf(k.at<uint16_t>(kNuqScales) + d, offset, d);
    foldRows(rows, head, worth);
    for (int r = head * rows.perHead; r < (head + 1) * rows.perHead; r++) {
      rows.factor[r] = rows.integers[kFolded][r].step;
      rows.offset[r] = dot(rows.q + static_cast<size_t>(r) * d, offset, d);
    }
  }

  static MEMBER void prepareValues(const SideView& v, const PageRows& rows, int head) {
    float* scale = rows.valueScales + head * kPageTokens;
    fromHalf(v.at<uint16_t>(kNuqScales), scale, kPageTokens);
    rows.valueSteps[head] = scalesAsMultiples(scale);
  }

  static void addToScores(const SideView& k, const PageRows& rows, int head) {
    for (int r = head * rows.perHead; r < (head + 1) * rows.perHead; r++) {
      for (int i = 0; i < outlierCount(rows.d); i++) {
        const Outlier one = outlier(k, i);
        rows.scores[static_cast<size_t>(r) * kPageTokens + one.token] += rows.q[static_cast<size_t>(r) * rows.d + one.channel] * one.value;
      }
    }
  }

  static void addToMix(const SideView& v, const PageRows& rows, int head) {
    for (int r = head * rows.perHead; r < (head + 1) * rows.perHead; r++) {
      for (int i = 0; i < outlierCount(rows.d); i++) {
        const Outlier one = outlier(v, i);
        rows.mixed[static_cast<size_t>(r) * rows.d + one.channel] += rows.scores[static_cast<size_t>(r) * kPageTokens + one.token] * rows.share[r] * one.value;
      }
    }
  }

  static MEMBER const int8_t* levels(const SideView& side, int d, int8_t* tile) {
    static constexpr LevelTables kTables[2] = {{3, kLevels[1]}, {2, kLevels[2]}};
    const int bits = bitsOf(side.format);
    if (bits == 4) unpackCodes(bits, side.at(kNuqHigh), kPageTokens * d, kLevels[0], tile);
    else unpackPlanes(bits, kTables[3 - bits], side.at(kNuqHigh), side.at(kNuqLow), static_cast<size_t>(kPageTokens) * d, tile);
    return tile;
  }

 private:
  // Written by scripts/fit-nuq.ts; nuq.ts has the same.
  static constexpr int8_t kLevels[3][16] = {{-120, -96, -78, -61, -46, -32, -19, -7, 6, 18, 31, 45, 60, 77, 96, 119}, {-107, -70, -40, -13, 12, 39, 69, 106}, {-82, -26, 25, 81}};

  struct Outlier {
    int token;
    int channel;
    float value;
  };
  static MEMBER int bitsOf(int format) { return kFormats[format].codeBits; }
  static constexpr MEMBER int outlierCount(int d) { return d * 5 / 4; }
  static MEMBER Outlier outlier(const SideView& side, int i) {
    const uint8_t* at = side.at(kNuqOutliers) + 4 * i;
    return {at[0], at[1], halfToFloat(static_cast<uint16_t>(at[2] | at[3] << 8))};
  }
  static MEMBER float clamped(float x) { return x > 65504.0f ? 65504.0f : x < -65504.0f ? -65504.0f : x; }

  // Everything but what was kept apart.
  static COLD void decodeDense(const SideView& side, bool isKey, int d, int firstRow, float* x, size_t stride, Workspace space) {
    int8_t* tile = space.take<int8_t>(static_cast<size_t>(kPageTokens) * d);
    alignas(64) float scale[kHeadDimMax], offset[kHeadDimMax] = {};
    levels(side, d, tile);
    fromHalf(side.at<uint16_t>(kNuqScales), scale, isKey ? d : kPageTokens);
    if (isKey) fromHalf(side.at<uint16_t>(kNuqScales) + d, offset, d);
    for (int t = 0; t < kPageTokens; t++) {
      for (int c = 0; c < d; c++) {
        const int level = isKey ? tile[c / 4 * kPageTokens * 4 + t * 4 + c % 4] : tile[t / 4 * d * 4 + c * 4 + t % 4];
        const int v = isKey ? c : t;
        x[t * stride + c] = t < firstRow ? 0.0f : static_cast<float>(level) * scale[v] + (isKey ? offset[v] : 0.0f);
      }
    }
  }

  // |x - mean| of every element over the deviation of its vector, a channel of keys or a token of values; -1 in sinks.
  template <int D>
  static COLD void strangeness(bool isKey, int firstRow, const float* x, float* out) {
    const int vectors = isKey ? D : kPageTokens, length = isKey ? kPageTokens : D;
    alignas(64) float away[kHeadDimMax], sum[kHeadDimMax];
    for (int i = 0; i < firstRow * D; i++) out[i] = -1.0f;
    for (int v = isKey ? 0 : firstRow; v < vectors; v++) {
      const int from = isKey ? firstRow : 0, step = isKey ? D : 1, base = isKey ? v : v * D;
      const float count = static_cast<float>(length - from);
      for (int i = 0; i < length; i++) sum[i] = i < from ? 0.0f : x[base + i * step];
      const float mean = treeTotal(sum, length) / count;
      for (int i = 0; i < length; i++) sum[i] = away[i] = i < from ? 0.0f : __builtin_fabsf(x[base + i * step] - mean);
      const float deviation = treeTotal(sum, length) / count;
      for (int i = from; i < length; i++) out[base + i * step] = deviation > 0.0f ? away[i] / deviation : 0.0f;
    }
  }

  // The places of the strangest elements, the earliest of equals first; they become -1.
  template <int D>
  static COLD void findOutliers(float* strange, int* places) {
    float most[kPageTokens];
    const auto largest = [&](int t) MEMBER { most[t] = largestLane(rowTop<D>(strange + t * D)); };
    for (int t = 0; t < kPageTokens; t++) largest(t);
    for (int i = 0; i < outlierCount(D); i++) {
      int token = 0;
      for (int t = 1; t < kPageTokens; t++) token = most[t] > most[token] ? t : token;
      int at = token * D;
      while (strange[at] != most[token]) at++;
      places[i] = at;
      strange[at] = -1.0f;
      largest(token);
    }
  }
  template <int D>
  static MEMBER VecF rowTop(const float* row) {
    VecF top = load(row);
    for (int c = kLanes; c < D; c += kLanes) top = larger(load(row + c), top);
    return top;
  }

  // strange: -1 in sinks and outliers, which stay out.
  template <int D>
  static COLD void fitScales(bool isKey, const float* x, const float* strange, uint16_t* scales) {
    const int vectors = isKey ? D : kPageTokens, length = isKey ? kPageTokens : D;
    for (int i = 0; i < 2 * D; i++) scales[i] = 0;
    for (int v = 0; v < vectors; v++) {
      const int step = isKey ? D : 1, base = isKey ? v : v * D;
      float least = 0.0f, most = 0.0f;
      bool isFirst = true;
      for (int i = 0; i < length; i++) {
        const float value = x[base + i * step];
        if (strange[base + i * step] < 0.0f) continue;
        least = isFirst || value < least ? value : least;
        most = isFirst || value > most ? value : most;
        isFirst = false;
      }
      if (isFirst) continue;
      if (isKey) scales[D + v] = floatToHalf((least * 0.5f + most * 0.5f) + 0.0f);
      const float offset = isKey ? halfToFloat(scales[D + v]) : 0.0f, above = most - offset, below = offset - least;
      scales[v] = halfAbove(((above > below ? above : below) + 0.0f) / 127.0f);
    }
  }

  template <int D>
  static COLD void encodeRows(const SideTarget* targets, int count, bool isKey, int firstRow, const float* given, size_t stride, Workspace space) {
    float* x = space.take<float>(kPageTokens * D);
    float* strange = space.take<float>(kPageTokens * D);
    float* dense = space.take<float>(kPageTokens * D);
    for (int t = 0; t < kPageTokens; t++) {
      for (int c = 0; c < D; c++) x[t * D + c] = clamped(given[t * stride + c]);
    }
    int places[outlierCount(D)];
    strangeness<D>(isKey, firstRow, x, strange);
    findOutliers<D>(strange, places);
    for (int i = 0; i < count; i++) {
      const SideTarget& to = targets[i];
      fitScales<D>(isKey, x, strange, to.at<uint16_t>(kNuqScales));
      writeCodes<D>(to, isKey, firstRow, x, space);
      // What the codes lack.
      SideView made;
      made.format = to.format;
      for (int f = 0; f < kFormats[to.format].fields; f++) made.field[f] = to.field[f];
      decodeDense(made, isKey, D, firstRow, dense, D, space);
      uint8_t* outliers = to.at(kNuqOutliers);
      for (int at = 0; at < outlierCount(D); at++) {
        const int place = places[at];
        const uint16_t half = floatToHalf(clamped(x[place] - dense[place]));
        const uint8_t entry[4] = {static_cast<uint8_t>(place / D), static_cast<uint8_t>(place % D), static_cast<uint8_t>(half), static_cast<uint8_t>(half >> 8)};
        __builtin_memcpy(outliers + 4 * at, entry, sizeof entry);
      }
    }
  }

  template <int D>
  static COLD void writeCodes(const SideTarget& to, bool isKey, int firstRow, const float* x, Workspace space) {
    uint8_t* codes = space.take<uint8_t>((kPageTokens - 1) * D + wholeWords(D));
    alignas(64) float bound[16];
    const int width = bitsOf(to.format);
    const int8_t* level = kLevels[4 - width];
    // No number is above the bounds that a narrow width lacks.
    for (int i = 0; i < 16; i++) bound[i] = i < (1 << width) - 1 ? static_cast<float>(level[i] + level[i + 1]) * 0.5f : 0x1p100f;
    const Sixteen bounds = loadSixteen(bound);
    const uint16_t* scales = to.at<uint16_t>(kNuqScales);
    alignas(64) float scale[kHeadDimMax], offset[kHeadDimMax] = {};
    fromHalf(scales, scale, isKey ? D : kPageTokens);
    if (isKey) fromHalf(scales + D, offset, D);
    for (int t = 0; t < kPageTokens; t++) {
      for (int c = 0; c < D; c += kLanes) {
        const VecF s = isKey ? load(scale + c) : splat(scale[t]), o = isKey ? load(offset + c) : splat(0.0f);
        const VecF steps = fromBits(bits((load(x + t * D + c) - o) / s) & (s > splat(0.0f)));
        storeLowBytes(codes + t * D + c, countBelow(bounds, t < firstRow ? splat(0.0f) : steps));
      }
    }
    if (width < 4) return packPlanes<D>(width, isKey, codes, to.at(kNuqHigh), to.at(kNuqLow), space);
    uint8_t* tile = space.take<uint8_t>(kPageTokens * D);
    placeInTile<D>(isKey, codes, tile);
    packCodes(width, tile, kPageTokens * D, to.at(kNuqHigh));
  }
};
