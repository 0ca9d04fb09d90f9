// q8: symmetric int8 codes in the i8 tile, one f16 scale per row. The arithmetic is that of q8.ts.
#pragma once

struct Q8 {
  static constexpr int kMember = kQ8;
  static constexpr Basis kBasis = kPlain;

  static void encode(const SideTarget* targets, int, bool isKey, int d, int firstRow, const float* x, size_t stride, Workspace space) {
    withHeadDim(d, [&](auto dim) MEMBER { encodeRows<dim.value>(*targets, isKey, firstRow, x, stride, space); });
  }

  static void writeRow(const SideTarget& to, bool isKey, int d, int room, int row, const float* x) {
    alignas(64) uint8_t codes[kHeadDimMax + kLanes * 4];
    const uint16_t scale = rowCodes(x, d, codes);
    to.at<uint16_t>(kQ8RowScales)[row] = scale;
    uint8_t* tile = to.at(kQ8Codes);
    // Keys: 64 bytes are 16 tokens x 4 channels; values: 16 channels x 4 tokens.
    if (isKey) {
      for (int c = 0; c < d; c += 4) __builtin_memcpy(tile + c * room + row * 4, codes + c, 4);
    } else {
      uint8_t* quad = tile + (row & ~3) * d + (row & 3);
      for (int c = 0; c < d; c++) quad[c * 4] = codes[c];
    }
  }

  static void decode(const SideView& side, bool isKey, int d, int, float* x, size_t stride, Workspace) {
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

  static void decodeRows(const SideView& side, bool isKey, int d, const uint8_t* tokens, int count, float* x, size_t stride, Workspace) {
    const int8_t* tile = side.at<int8_t>(kQ8Codes);
    alignas(64) int8_t rows[kLanes][kHeadDimMax];
    for (int i = 0; i < count; i++) {
      const int t = tokens[i];
      const float scale = halfToFloat(side.at<uint16_t>(kQ8RowScales)[t]);
      if (isKey) {
        rowsOfTile(tile, d, t / kLanes * kLanes, rows[0], kHeadDimMax);
        for (int c = 0; c < d; c += kLanes) store(x + i * stride + c, loadSigned(rows[t % kLanes] + c) * scale);
        continue;
      }
      for (int c = 0; c < d; c += kLanes) {
        const VecI code = (loadWords(tile + t / 4 * 4 * d + c * 4) << (24 - t % 4 * 8)) >> 24;
        store(x + i * stride + c, __builtin_convertvector(code, VecF) * scale);
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
    fromHalf(k.at<uint16_t>(kQ8RowScales), rows.keyScales + head * kPageTokens, rows.room);
    const int first = head * rows.perHead, end = first + rows.perHead;
    for (int r = first; r < end; r++) rows.factor[r] = rows.integers[kPlain][r].step;
    for (int r = first; r < end; r++) rows.offset[r] = 0.0f;
  }

  static MEMBER void prepareValues(const SideView& v, const PageRows& rows, int head) {
    float* scale = rows.valueScales + head * kPageTokens;
    fromHalf(v.at<uint16_t>(kQ8RowScales), scale, rows.room);
    for (int t = rows.room; t < kPageTokens; t++) scale[t] = 0.0f;
    rows.valueSteps[head] = scalesAsMultiples(scale);
  }

 private:
  // Writes the codes of one row. Returns its scale, half.
  static MEMBER uint16_t rowCodes(const float* x, int d, uint8_t* codes) {
    const uint16_t half = floatToHalf(largestLane(largestOf(x, d)) / 127.0f);
    const float scale = halfToFloat(half);
    for (int c = 0; c < d; c += kLanes) storeLowBytes(codes + c, scale > 0.0f ? divideToCodes(load(x + c), scale) : VecI{});
    return half;
  }

  template <int D>
  static void encodeRows(const SideTarget& to, bool isKey, int firstRow, const float* x, size_t stride, Workspace space) {
    uint8_t* codes = space.take<uint8_t>((kPageTokens - 1) * D + wholeWords(D));
    uint16_t* scales = to.at<uint16_t>(kQ8RowScales);
    for (int t = 0; t < kPageTokens; t++) {
      if (t >= firstRow) {
        scales[t] = rowCodes(x + t * stride, D, codes + t * D);
        continue;
      }
      scales[t] = 0;
      for (int c = 0; c < D; c += kLanes) storeLowBytes(codes + t * D + c, VecI{});
    }
    placeInTile<D>(isKey, codes, to.at(kQ8Codes));
  }
};
