// trellis4, trellis3, trellis2, trellis1 (trellis.ts): rotated rows (kernels/rotated.h) with trellis codes. Rows of
// levels and the search for codes: sequences.h.
#pragma once
#include "sequences.h"

INLINE int trellisDivisor(int) { return kTrellisDivisor; }

struct TrellisUnpacker {
  // More rows are worth a tile. With sanitizers every kind of code takes the compiler minutes.
#if defined(PALIMPSEST_DEBUG)
  static constexpr int kUnpackedRows = 2;
#else
  static constexpr int kUnpackedRows = 5;
#endif

  template <int Least, class Done>
  static MEMBER void withRows(const SideView& side, int, int bias, const Done& f) {
    withTrellis<Least>(kFormats[side.format].codeBits, side.at(kTrellisHigh), side.at(kTrellisLow), bias, f);
  }
};

struct Trellis : Rotated<trellisDivisor> {
  static constexpr int kMember = kTrellis4;
  using Unpacker = TrellisUnpacker;
  static_assert(isRotated(kTrellisHigh, kTrellisLow, kTrellisExponents, kTrellisMean, kTrellisFromZero, kTrellisMeanScale, kTrellisReference));

  static void encode(const SideTarget* targets, int count, bool isKey, int d, int firstRow, const float* x, size_t stride, Workspace space) {
    withHeadDim(d, [&](auto dim) MEMBER { encodeOf<dim.value>(targets, count, isKey, firstRow, x, stride, space); });
  }

  static void decode(const SideView& side, bool isKey, int d, int firstRow, float* x, size_t stride, Workspace space) {
    int8_t* tile = space.take<int8_t>(static_cast<size_t>(kPageTokens) * d);
    decodeRotated(isKey, d, firstRow, side, levels(side, d, tile), kTrellisDivisor, x, stride);
  }

  static void decodeRows(const SideView& side, bool isKey, int d, const uint8_t* tokens, int count, float* x, size_t stride, Workspace space) {
    int8_t* tile = space.take<int8_t>(static_cast<size_t>(kPageTokens) * d);
    decodeRotatedRows(isKey, d, tokens, count, side, levels(side, d, tile), kTrellisDivisor, x, stride);
  }

  // trellis2 keeps the first codes of trellis3 and trellis4; other codes are found anew, from levels.
  static void demote(const SideView& from, bool isKey, int d, const SideTarget& to, Workspace space) {
    const int elements = kPageTokens * d, bits = kFormats[to.format].codeBits;
    int8_t* fine = space.take<int8_t>(elements);
    int8_t* coarse = space.take<int8_t>(elements);
    levels(from, d, fine);
    if (bits != 2) searchLower(bits, from.at(kTrellisHigh), fine, elements, to.at(kTrellisLow), space);
    unpack(bits, from.at(kTrellisHigh), to.at(kTrellisLow), elements, coarse);
    demoteExponents(isKey, d, fine, kTrellisDivisor, coarse, kTrellisDivisor, from.at<int8_t>(kTrellisExponents), to.at<int8_t>(kTrellisExponents));
  }

  static MEMBER const int8_t* levels(const SideView& side, int d, int8_t* tile) {
    unpack(kFormats[side.format].codeBits, side.at(kTrellisHigh), side.at(kTrellisLow), static_cast<size_t>(kPageTokens) * d, tile);
    return tile;
  }

 private:
  // The codes of one bit, of all of the levels or of what those of trellis2 leave of them.
  static __attribute__((noinline)) void searchLower(int bits, const uint8_t* hi, const int8_t* levels, int elements, uint8_t* lo, Workspace space) {
    int8_t* high = space.take<int8_t>(elements);
    int16_t* left = space.take<int16_t>(elements);
    uint8_t* codes = space.take<uint8_t>(elements);
    if (bits == 1) __builtin_memset(high, 0, elements);
    else unpack(2, hi, nullptr, elements, high);
    for (int i = 0; i < elements; i++) left[i] = static_cast<int16_t>((levels[i] - high[i]) * kTrellisLevelOne);
    searchOf(bits == 1 ? kSingleBits : kLowBits, left, elements / kTrellisSequences, codes, space);
    packBits<0>(codes, elements, lo);
  }

  static __attribute__((noinline)) void unpack(int bits, const uint8_t* hi, const uint8_t* lo, size_t elements, int8_t* tile) {
    withTrellis(bits, hi, lo, 0, [&](const auto& rows) MEMBER { unpackRows(rows, elements, tile); });
  }

  // Writes the mean and which rows are coded from zero, and turns the rows: y [128][D], their squares [128].
  template <int D>
  static Octaves turn(const Origins& head, int firstRow, const float* x, size_t stride, float* y, float* squares, Workspace space) {
    constexpr int kCount = D / kLanes;
    alignas(64) float mean[D], zero[D] = {};
    encodeOrigins<D>(x, stride, firstRow, head, mean, space);
    VecI largest = splatI(kNoOctave), smallest = splatI(-kNoOctave);
    for (int first = 0; first < kPageTokens; first += kLanes) {
      VecF v[kCount], partial[kLanes];
      for (int row = 0; row < kLanes; row++) {
        const int t = first + row;
        if (t >= firstRow) {
          rotateRow<D>(x + t * stride, isFromZero(head.fromZero, t) ? zero : mean, v);
        } else {
#pragma GCC unroll 16
          for (int i = 0; i < kCount; i++) v[i] = splat(0.0f);
        }
#pragma GCC unroll 16
        for (int i = 0; i < kCount; i++) {
          store(y + t * D + i * kLanes, v[i]);
          v[i] = v[i] * v[i];
        }
        partial[row] = treeSum<D>(v);
      }
      const VecF yy = sumsOfLanes(partial);
      store(squares + first, yy);
      const VecI some = yy > splat(0.0f);
      const VecI octave = ((bits(yy / static_cast<float>(D)) >> 23) - 127) >> 1;
      largest = (some & (octave > largest)) ? octave : largest;
      smallest = (some & (octave < smallest)) ? octave : smallest;
    }
    Octaves octaves = {kNoOctave, -kNoOctave};
    for (int i = 0; i < kLanes; i++) {
      octaves.largest = largest[i] > octaves.largest ? largest[i] : octaves.largest;
      octaves.smallest = smallest[i] < octaves.smallest ? smallest[i] : octaves.smallest;
    }
    return octaves;
  }

  // Four channels of one row after the other: out[4 * c + row] = rows[row][c].
  template <int D>
  static MEMBER void interleave(const int16_t (&rows)[4][D], int16_t* out) {
    typedef uint16_t Shorts __attribute__((vector_size(kLanes * 2)));
    typedef uint64_t Fours __attribute__((vector_size(kLanes * 8)));
    for (int c = 0; c < D; c += kLanes) {
      Fours fours{};
      for (int row = 0; row < 4; row++) {
        Shorts shorts;
        __builtin_memcpy(&shorts, rows[row] + c, sizeof shorts);
        fours |= __builtin_convertvector(shorts, Fours) << (16 * row);
      }
      __builtin_memcpy(out + 4 * c, &fours, sizeof fours);
    }
  }

  // What levels leave of targets.
  static MEMBER void subtractLevels(const int16_t* aims, const int8_t* levels, int elements, int16_t* left) {
    typedef int8_t Levels __attribute__((vector_size(kLanes * 2)));
    typedef int16_t Shorts __attribute__((vector_size(kLanes * 4)));
    for (int e = 0; e < elements; e += 2 * kLanes) {
      Levels level;
      Shorts aim;
      __builtin_memcpy(&level, levels + e, sizeof level);
      __builtin_memcpy(&aim, aims + e, sizeof aim);
      aim -= __builtin_convertvector(level, Shorts) * static_cast<int16_t>(kTrellisLevelOne);
      __builtin_memcpy(left + e, &aim, sizeof aim);
    }
  }

  // Rows over their root mean square as targets in tile order.
  template <int D>
  static void aim(bool isKey, const float* y, const float* squares, int16_t* targets) {
    const VecF most = splat(static_cast<float>(kTargetMost));
    alignas(64) int16_t rows[4][D];
    for (int t = 0; t < kPageTokens; t++) {
      const bool isZero = !(squares[t] > 0.0f);
      const float rms = __builtin_sqrtf(squares[t] / static_cast<float>(D));
      for (int c = 0; c < D; c += kLanes) {
        VecF target = load(y + t * D + c) / splat(rms) * static_cast<float>(kTargetOne);
        target = target > most ? most : target;
        target = target < -most ? -most : target;
        const VecI whole = isZero ? VecI{} : rounded(target);
        typedef int16_t Shorts __attribute__((vector_size(kLanes * 2)));
        const Shorts shorts = __builtin_convertvector(whole, Shorts);
        __builtin_memcpy(rows[t % 4] + c, &shorts, sizeof shorts);
      }
      // Tile order (kernels.h): four channels of a token, or four tokens of a channel.
      if (isKey) {
        for (int c = 0; c < D; c += 4) __builtin_memcpy(targets + c * kPageTokens + t * 4, rows[t % 4] + c, 4 * sizeof(int16_t));
      } else if (t % 4 == 3) {
        interleave<D>(rows, targets + (t - 3) * D);
      }
    }
  }

  // The unbiased scales of rows.
  template <int D>
  static void scale(bool isKey, const float* y, const float* squares, const int8_t* tile, int8_t* exponents) {
    constexpr int kCount = D / kLanes;
    alignas(64) int8_t rows[kLanes][wholeWords(D)];
    for (int first = 0; first < kPageTokens; first += kLanes) {
      if (isKey) rowsOfTile(tile, D, first, rows[0], wholeWords(D));
      VecF v[kCount], partial[kLanes];
      for (int row = 0; row < kLanes; row++) {
        const int t = first + row;
        for (int i = 0; i < kCount; i++) {
          const VecF level = isKey ? loadSigned(rows[row] + i * kLanes)
                                   : __builtin_convertvector((loadWords(tile + t / 4 * 4 * D + i * kLanes * 4) << (24 - t % 4 * 8)) >> 24, VecF);
          v[i] = load(y + t * D + i * kLanes) * level;
        }
        partial[row] = treeSum<D>(v);
      }
      const VecF yy = load(squares + first), along = sumsOfLanes(partial);
      const VecI some = (yy > splat(0.0f)) & (along > splat(0.0f));
      storeLowBytes(exponents + first, some ? scaleExponents(yy * static_cast<float>(kTrellisDivisor) / along) : splatI(kZeroRow));
    }
  }

  template <int D>
  static void encodeOf(const SideTarget* targets, int count, bool isKey, int firstRow, const float* x, size_t stride, Workspace space) {
    constexpr int kElements = kPageTokens * D, kSteps = kElements / kTrellisSequences;
    float* y = space.take<float>(kElements);
    alignas(64) float squares[kPageTokens];
    Origins head;
    head.mean = targets->at<int8_t>(kTrellisMean);
    head.fromZero = targets->at(kTrellisFromZero);
    head.meanScale = targets->at<uint16_t>(kTrellisMeanScale);
    const int reference = referenceOf(turn<D>(head, firstRow, x, stride, y, squares, space));
    if (reference != 0) turnScaled<D>(head, reference, firstRow, x, stride, y, squares, space);
    int16_t* aims = space.take<int16_t>(kElements);
    aim<D>(isKey, y, squares, aims);
    // The codes that trellis2, trellis3 and trellis4 have in common, and what they leave.
    constexpr size_t kPlane = kElements / 4;
    uint8_t* high = space.take<uint8_t>(kElements);
    uint8_t* codes = space.take<uint8_t>(kElements);
    uint8_t* plane = space.take<uint8_t>(kPlane);
    int8_t* tile = space.take<int8_t>(kElements);
    int16_t* left = space.take<int16_t>(kElements);
    bool hasHigh = false;
    for (int i = 0; i < count; i++) {
      const SideTarget& to = targets[i];
      const int bits = kFormats[to.format].codeBits;
      if (bits > 1 && !hasHigh) {
        searchOf(kHighCodes, aims, kSteps, high, space);
        packPairs<0>(high, kElements, plane);
        unpack(2, plane, nullptr, kElements, tile);
        subtractLevels(aims, tile, kElements, left);
        hasHigh = true;
      }
      if (bits > 1 && to.at(kTrellisHigh)) __builtin_memcpy(to.at(kTrellisHigh), plane, kPlane);
      if (bits != 2) searchOf(bits == 4 ? kLowPairs : bits == 3 ? kLowBits : kSingleBits, bits == 1 ? aims : left, kSteps, codes, space);
      if (bits == 4) packPairs<0>(codes, kElements, to.at(kTrellisLow));
      else if (bits != 2) packBits<0>(codes, kElements, to.at(kTrellisLow));
      unpack(bits, plane, to.at(kTrellisLow), kElements, tile);
      scale<D>(isKey, y, squares, tile, to.at<int8_t>(kTrellisExponents));
      *to.at<int8_t>(kTrellisReference) = static_cast<int8_t>(reference);
      if (i == 0) continue;
      __builtin_memcpy(to.at(kTrellisMean), head.mean, D);
      __builtin_memcpy(to.at(kTrellisFromZero), head.fromZero, kPageTokens / 8);
      __builtin_memcpy(to.at(kTrellisMeanScale), head.meanScale, sizeof(uint16_t));
    }
  }

  template <int D>
  static COLD void turnScaled(const Origins& head, int reference, int firstRow, const float* x, size_t stride, float* y, float* squares, Workspace space) {
    float* scaled = space.take<float>(kPageTokens * D);
    const VecF unit = splat(powerOfTwo(-reference));
    for (int t = firstRow; t < kPageTokens; t++) {
      for (int c = 0; c < D; c += kLanes) store(scaled + t * D + c, load(x + t * stride + c) * unit);
    }
    turn<D>(head, firstRow, scaled, D, y, squares, space);
  }
};
