// kivi4, kivi2 and, in a build with yardsticks, kivi8 (kivi.ts): scores and mixed values are products of integers, a
// group of 32 outputs at a time, with the scales folded into the query or the probabilities. At every width the levels
// are those of the 8-bit grid less 128, so the arithmetic is that of one format.
#pragma once

struct Kivi {
  static constexpr int kMember = kKivi4;

  static void encode(const SideTarget* targets, int count, bool isKey, int d, int firstRow, const float* x, size_t stride, Workspace space) {
    encodeNested(targets, count, isKey, d, firstRow, x, stride, space);
  }

  static void demote(const SideView& from, bool, int d, const SideTarget& to, Workspace space) {
    const int elements = kPageTokens * d, bits = kFormats[to.format].codeBits;
    uint8_t* codes = space.take<uint8_t>(elements);
    unpack(from.format, from.at(kKiviCodes), elements, reinterpret_cast<int8_t*>(codes));
    for (int i = 0; i < elements; i++) codes[i] = narrowed(codes[i] ^ 128, bits);
    packCodes(bits, codes, elements, to.at(kKiviCodes));
  }

  static void decode(const SideView& side, bool isKey, int d, int firstRow, float* x, size_t stride, Workspace space) {
    int8_t* levels = space.take<int8_t>(static_cast<size_t>(kPageTokens) * d);
    unpack(side.format, side.at(kKiviCodes), kPageTokens * d, levels);
    for (int group = 0; group < groupsOf(isKey, d); group++) {
      const Span span = spanOf(isKey, d, group);
      const uint16_t* scales = side.at<uint16_t>(kKiviScales) + group * span.steps;
      const uint16_t* lows = side.at<uint16_t>(kKiviLows) + group * span.steps;
      alignas(64) float scale[kHeadDimMax], low[kHeadDimMax];
      fromHalf(scales, scale, span.steps);
      fromHalf(lows, low, span.steps);
      const int8_t* tile = levels + span.first * span.steps;
      for (int i = 0; i < span.steps; i++) {
        for (int o = 0; o < span.width; o++) {
          const int t = isKey ? span.first + o : i, c = isKey ? i : span.first + o;
          const int level = tile[i / 4 * span.width * 4 + o * 4 + i % 4] + 128;
          x[t * stride + c] = static_cast<float>(level) * scale[i] + low[i];
        }
      }
    }
    for (int t = 0; t < firstRow; t++) __builtin_memset(x + t * stride, 0, sizeof(float) * d);
  }

  static void score(const SideView& k, const PageRows& rows, int head, int visible, const SideView*) {
    const int d = rows.d, n = rows.perHead, begin = head * n;
    alignas(64) float worth[kHeadDimMax], low[kHeadDimMax];
    for (int group = 0; group * kGroup < visible; group++) {
      fromHalf(k.at<uint16_t>(kKiviScales) + group * d, worth, d);
      fromHalf(k.at<uint16_t>(kKiviLows) + group * d, low, d);
      axpy(128.0f, worth, low, d);
      foldRows(rows, head, worth);
      for (int r = begin; r < begin + n; r++) rows.offset[r] = dot(rows.q + static_cast<size_t>(r) * d, low, d);
      unpackGroup(k, spanOf(true, d, group), rows.tile);
      eachBlock(n, [&](auto r, int i) MEMBER {
        scoreRows<r.value>(rows.tile, d, rows.integers[kFolded] + begin + i, rows.offset + begin + i,
                           rows.scores + static_cast<size_t>(begin + i) * kPageTokens + group * kGroup);
      });
    }
  }

  static void mix(const SideView& v, const PageRows& rows, size_t first, int n, int, const SideView*) {
    const int d = rows.d;
    alignas(64) float scale[kPageTokens], low[kPageTokens];
    for (int group = 0; group < groupsOf(false, d); group++) {
      const Span span = spanOf(false, d, group);
      fromHalf(v.at<uint16_t>(kKiviScales) + group * kPageTokens, scale, kPageTokens);
      fromHalf(v.at<uint16_t>(kKiviLows) + group * kPageTokens, low, kPageTokens);
      axpy(128.0f, scale, low, kPageTokens);
      const float step = scalesAsMultiples(scale);
      unpackGroup(v, span, rows.tile);
      for (int at = 0; at < n; at += kWeightRows) {
        const int count = n - at < kWeightRows ? n - at : kWeightRows;
        float* mixed = rows.mixed + (first + at) * d + span.first;
        for (int i = 0; i < count; i++) {
          const size_t r = first + at + i;
          weighRow(rows.scores + r * kPageTokens, scale, rows.weights[i]);
          rows.weights[i].step = rows.share[r] * step;
          rows.spare[i] = dot(rows.scores + r * kPageTokens, low, kPageTokens) * rows.share[r];
        }
        eachBlock(count, [&](auto r, int i) MEMBER {
          mixRows<r.value>(rows.tile, span.width, d, rows.weights + i, rows.spare + i, mixed + static_cast<size_t>(i) * d);
        });
      }
    }
  }

 protected:  // yardsticks/squat/squat.h has the same bytes
  static constexpr int kGroup = 32, kGroupsMax = kHeadDimMax;

  static COLD void encodeNested(const SideTarget* targets, int count, bool isKey, int d, int firstRow, const float* x, size_t stride, Workspace space) {
    uint8_t* codes = space.take<uint8_t>(static_cast<size_t>(kPageTokens) * d);
    uint8_t* levels = space.take<uint8_t>(static_cast<size_t>(kPageTokens) * d);
    alignas(64) float scale[kGroupsMax], low[kGroupsMax];
    const int groups = groupsOf(isKey, d);
    uint16_t* scales = targets->at<uint16_t>(kKiviScales);
    uint16_t* lows = targets->at<uint16_t>(kKiviLows);
    __builtin_memset(scales, 0, static_cast<size_t>(d) * 8);
    __builtin_memset(lows, 0, static_cast<size_t>(d) * 8);
    for (int group = 0; group < groups; group++) {
      if (isKey) keyRanges(x, stride, d, group, firstRow, scale, low);
      else valueRanges(x, stride, d, group, firstRow, scale, low);
      const int steps = isKey ? d : kPageTokens;
      for (int i = 0; i < steps; i++) {
        lows[group * steps + i] = halfBelow(low[i]);
        low[i] = halfToFloat(lows[group * steps + i]);
        scales[group * steps + i] = halfAbove((scale[i] - low[i] + 0.0f) / 255.0f);  // never -0
        scale[i] = halfToFloat(scales[group * steps + i]);
      }
      if (isKey) keyCodes(x, stride, d, group, firstRow, scale, low, codes);
      else valueCodes(x, stride, d, group, firstRow, scale, low, codes);
      placeGroup(isKey, d, group, codes, levels);
    }
    const int elements = kPageTokens * d;
    for (int i = 0; i < count; i++) {
      const int bits = kFormats[targets[i].format].codeBits;
      if (bits == 8) {
        __builtin_memcpy(targets[i].at(kKiviCodes), levels, elements);
        continue;
      }
      for (int at = 0; at < elements; at++) codes[at] = narrowed(levels[at], bits);
      packCodes(bits, codes, elements, targets[i].at(kKiviCodes));
    }
  }

  // The outputs [first, first + width) of one group of a side, and how many steps are contracted.
  struct Span {
    int first, width, steps;
  };
  static MEMBER int groupsOf(bool isKey, int d) { return (isKey ? kPageTokens : d) / kGroup; }
  static MEMBER Span spanOf(bool isKey, int d, int group) {
    const int outputs = isKey ? kPageTokens : d, first = group * kGroup;
    return {first, group == groupsOf(isKey, d) - 1 ? outputs - first : kGroup, isKey ? d : kPageTokens};
  }

  // A code of the 8-bit grid in fewer bits.
  static MEMBER uint8_t narrowed(int code, int bits) {
    if (bits == 8) return static_cast<uint8_t>(code);
    const int four = (code + 8) / 17;
    return static_cast<uint8_t>(bits == 4 ? four : (four + 2) / 5);
  }

  // Levels of the 8-bit grid, less 128.
  static MEMBER void unpack(int format, const uint8_t* codes, int elements, int8_t* levels) {
    static constexpr int8_t kFour[16] = {-128, -111, -94, -77, -60, -43, -26, -9, 8, 25, 42, 59, 76, 93, 110, 127};
    static constexpr int8_t kTwo[16] = {-128, -43, 42, 127};
    unpackCodes(kFormats[format].codeBits, codes, elements, kFormats[format].codeBits == 4 ? kFour : kTwo, levels);
  }
  static MEMBER void unpackGroup(const SideView& side, const Span& span, int8_t* tile) {
    unpack(side.format, side.at(kKiviCodes) + span.first * span.steps * kFormats[side.format].codeBits / 8, span.width * span.steps, tile);
  }

  // Sets low to the least and scale to the largest number of each channel or token of a group.
  static MEMBER void keyRanges(const float* x, size_t stride, int d, int group, int firstRow, float* most, float* least) {
    const int from = group * kGroup < firstRow ? firstRow : group * kGroup;
    for (int c = 0; c < d; c += kLanes) {
      VecF top = withinHalf(load(x + from * stride + c)), bottom = -top;
      for (int t = from + 1; t < (group + 1) * kGroup; t++) {
        const VecF v = withinHalf(load(x + t * stride + c));
        top = larger(v, top);
        bottom = larger(-v, bottom);
      }
      store(most + c, top);
      store(least + c, splat(0.0f) - bottom);  // never -0
    }
  }
  static MEMBER void valueRanges(const float* x, size_t stride, int d, int group, int firstRow, float* most, float* least) {
    const Span span = spanOf(false, d, group);
    for (int t = 0; t < kPageTokens; t++) {
      const Range range = t < firstRow ? Range{0.0f, 0.0f} : rangeOf(x + t * stride + span.first, span.width);
      most[t] = range.most;
      least[t] = range.least;
    }
  }

  // Codes are written to rows of d bytes.
  static MEMBER void keyCodes(const float* x, size_t stride, int d, int group, int firstRow, const float* scale, const float* low, uint8_t* codes) {
    for (int t = group * kGroup; t < (group + 1) * kGroup; t++) {
      for (int c = 0; c < d; c += kLanes) {
        storeLowBytes(codes + t * d + c, t < firstRow ? VecI{} : stepsOf(load(x + t * stride + c), load(scale + c), load(low + c), 255.0f));
      }
    }
  }
  static MEMBER void valueCodes(const float* x, size_t stride, int d, int group, int firstRow, const float* scale, const float* low, uint8_t* codes) {
    const Span span = spanOf(false, d, group);
    for (int t = 0; t < kPageTokens; t++) {
      for (int c = span.first; c < span.first + span.width; c += kLanes) {
        storeLowBytes(codes + t * d + c, t < firstRow ? VecI{} : stepsOf(load(x + t * stride + c), splat(scale[t]), splat(low[t]), 255.0f));
      }
    }
  }

  // Moves the codes of a group from rows to the order in which they are stored.
  static MEMBER void placeGroup(bool isKey, int d, int group, const uint8_t* codes, uint8_t* levels) {
    const Span span = spanOf(isKey, d, group);
    uint8_t* tile = levels + span.first * span.steps;
    for (int i = 0; i < span.steps; i += 4) {
      for (int o = 0; o < span.width; o++) {
        for (int step = 0; step < 4; step++) {
          const int t = isKey ? span.first + o : i + step, c = isKey ? i + step : span.first + o;
          tile[i * span.width + o * 4 + step] = codes[t * d + c];
        }
      }
    }
  }

  template <int R>
  static __attribute__((noinline)) void scoreRows(const int8_t* tile, int d, const IntegerRow* x, const float* offset, float* y) {
    const Ahead nothing = {reinterpret_cast<const uint8_t*>(tile), reinterpret_cast<const uint8_t*>(tile), 0, 0, false};
    sumTile<kQueries, R>(tile, 0, d / 4, kGroup, x, nothing, [&](int r, int o, VecI sum) MEMBER {
      store(y + r * kPageTokens + o, __builtin_convertvector(sum, VecF) * x[r].step + offset[r]);
    });
  }
  template <int R>
  static __attribute__((noinline)) void mixRows(const int8_t* tile, int width, int d, const IntegerRow* weights, const float* offset, float* y) {
    const Ahead nothing = {reinterpret_cast<const uint8_t*>(tile), reinterpret_cast<const uint8_t*>(tile), 0, 0, false};
    sumTile<kWeights, R>(tile, 0, kPageTokens / 4, width, weights, nothing, [&](int r, int o, VecI sum) MEMBER {
      float* to = y + r * d + o;
      store(to, load(to) + (__builtin_convertvector(sum, VecF) * weights[r].step + offset[r]));
    });
  }
};
