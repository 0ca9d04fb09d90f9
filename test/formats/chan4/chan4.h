// chan4 (chan4.ts): products of integers, with the scales of the channels folded into the query and the outliers added
// behind.
#pragma once

struct Chan4 {
  static constexpr int kMember = kChan4;
  static constexpr Basis kBasis = kFolded;

  static void encode(const SideTarget* targets, int, bool isKey, int d, int firstRow, const float* x, size_t stride, Workspace space) {
    withHeadDim(d, [&](auto dim) MEMBER { encodeRows<dim.value>(*targets, isKey, firstRow, x, stride, space); });
  }

  static void decode(const SideView& side, bool isKey, int d, int, float* x, size_t stride, Workspace space) {
    int8_t* tile = space.take<int8_t>(static_cast<size_t>(kPageTokens) * d);
    levels(side, d, tile);
    for (int t = 0; t < kPageTokens; t++) {
      for (int c = 0; c < d; c++) {
        const int contraction = isKey ? c : t, output = isKey ? t : c, outputs = isKey ? kPageTokens : d;
        const int8_t level = tile[contraction / 4 * outputs * 4 + output * 4 + contraction % 4];
        x[t * stride + c] = static_cast<float>(level) * scaleOf(side, t, c);
      }
    }
    for (int i = 0; i < kOutliers; i++) {
      const Outlier one = outlier(side, i);
      x[one.token * stride + one.channel] += one.value;
    }
  }

  // Outliers are written where they say.
  static bool isSound(const SideView& side, int d) {
    bool isSound = true;
    for (int i = 0; i < kOutliers; i++) isSound &= outlier(side, i).token < kPageTokens && outlier(side, i).channel < d;
    return isSound;
  }

  static const int8_t* levels(const SideView& side, int d, int8_t* tile) {
    const uint8_t* codes = side.at(kChan4Codes);
    for (int i = 0; i < kPageTokens * d / 2; i++) {
      tile[2 * i] = static_cast<int8_t>((codes[i] & 15) - 8);
      tile[2 * i + 1] = static_cast<int8_t>((codes[i] >> 4) - 8);
    }
    return tile;
  }

  static void prepareKeys(const SideView& k, const PageRows& rows, int head) {
    fromHalf(k.at<uint16_t>(kChan4TokenScales), rows.keyScales + head * kPageTokens, kPageTokens);
    alignas(64) float worth[kHeadDimMax];
    fromHalf(k.at<uint16_t>(kChan4ChannelScales), worth, rows.d);
    foldRows(rows, head, worth);
    for (int r = head * rows.perHead; r < (head + 1) * rows.perHead; r++) {
      rows.factor[r] = rows.integers[kFolded][r].step;
      rows.offset[r] = 0.0f;
    }
  }

  static void addToScores(const SideView& k, const PageRows& rows, int head) {
    for (int r = head * rows.perHead; r < (head + 1) * rows.perHead; r++) {
      for (int i = 0; i < kOutliers; i++) {
        const Outlier one = outlier(k, i);
        rows.scores[r * kPageTokens + one.token] += rows.q[static_cast<size_t>(r) * rows.d + one.channel] * one.value;
      }
    }
  }

  // Channels of values have no scales.
  static void prepareValues(const SideView& v, const PageRows& rows, int head) {
    float* scale = rows.valueScales + head * kPageTokens;
    fromHalf(v.at<uint16_t>(kChan4TokenScales), scale, kPageTokens);
    rows.valueSteps[head] = scalesAsMultiples(scale);
  }

  static void addToMix(const SideView& v, const PageRows& rows, int head) {
    for (int r = head * rows.perHead; r < (head + 1) * rows.perHead; r++) {
      for (int i = 0; i < kOutliers; i++) {
        const Outlier one = outlier(v, i);
        rows.mixed[static_cast<size_t>(r) * rows.d + one.channel] += rows.scores[r * kPageTokens + one.token] * rows.share[r] * one.value;
      }
    }
  }

 private:
  static constexpr int kOutliers = kFormats[kChan4].field[kChan4Outliers].headBytes / 4;
  static constexpr uint16_t kOne = 0x3c00;

  struct Outlier {
    int token;
    int channel;
    float value;
  };
  static Outlier outlier(const SideView& side, int i) {
    const uint8_t* at = side.at(kChan4Outliers) + 4 * i;
    return {at[0], at[1], halfToFloat(static_cast<uint16_t>(at[2] | at[3] << 8))};
  }

  static float scaleOf(const SideView& side, int t, int c) {
    return halfToFloat(side.at<uint16_t>(kChan4TokenScales)[t]) * halfToFloat(side.at<uint16_t>(kChan4ChannelScales)[c]);
  }

  template <int D>
  static void encodeRows(const SideTarget& to, bool isKey, int firstRow, const float* given, size_t stride, Workspace space) {
    float* x = space.take<float>(kPageTokens * D);
    for (int t = 0; t < kPageTokens; t++) __builtin_memcpy(x + t * D, given + t * stride, sizeof(float) * D);
    uint8_t* outliers = to.at(kChan4Outliers);
    for (int i = 0; i < kOutliers; i++) {
      int largest = firstRow * D;
      for (int at = largest; at < kPageTokens * D; at++) largest = __builtin_fabsf(x[at]) > __builtin_fabsf(x[largest]) ? at : largest;
      // Rows that another format gave back may be a little beyond the range of f16.
      const uint16_t half = floatToHalf(x[largest] > 65504.0f ? 65504.0f : x[largest] < -65504.0f ? -65504.0f : x[largest]);
      const uint8_t entry[4] = {static_cast<uint8_t>(largest / D), static_cast<uint8_t>(largest % D), static_cast<uint8_t>(half), static_cast<uint8_t>(half >> 8)};
      __builtin_memcpy(outliers + 4 * i, entry, sizeof entry);
      x[largest] = 0.0f;
    }
    uint16_t* tokens = to.at<uint16_t>(kChan4TokenScales);
    uint16_t* channels = to.at<uint16_t>(kChan4ChannelScales);
    for (int t = 0; t < kPageTokens; t++) {
      tokens[t] = t < firstRow ? 0 : isKey ? kOne : floatToHalf(largestLane(largestOf(x + t * D, D)) / 7.0f);
    }
    for (int c = 0; c < D; c++) {
      float max = 0.0f;
      for (int t = firstRow; t < kPageTokens; t++) max = __builtin_fabsf(x[t * D + c]) > max ? __builtin_fabsf(x[t * D + c]) : max;
      channels[c] = isKey ? floatToHalf(max / 7.0f) : kOne;
    }
    uint8_t* codes = space.take<uint8_t>((kPageTokens - 1) * D + wholeWords(D));
    uint8_t* tile = space.take<uint8_t>(kPageTokens * D);
    for (int t = 0; t < kPageTokens; t++) {
      for (int c = 0; c < D; c++) {
        const float scale = halfToFloat(tokens[t]) * halfToFloat(channels[c]);
        float code = scale > 0.0f ? x[t * D + c] / scale : 0.0f;
        code = code > 7.0f ? 7.0f : code < -7.0f ? -7.0f : code;
        codes[t * D + c] = static_cast<uint8_t>(static_cast<int>((code + kRoundMagic) - kRoundMagic) + 8);
      }
    }
    placeInTile<D>(isKey, codes, tile);
    for (int i = 0; i < kPageTokens * D / 2; i++) to.at(kChan4Codes)[i] = static_cast<uint8_t>(tile[2 * i] | tile[2 * i + 1] << 4);
  }
};
