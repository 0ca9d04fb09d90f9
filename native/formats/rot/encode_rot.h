// Encodes the rot family with the arithmetic of rot.ts, in the same order: float32, unfused, sums as zero-padded
// halving trees. A row stays in registers from the subtraction of the mean to its codes.
#pragma once
#include "levels.h"

// Where the widths of the family are written, by widthOf. Widths whose exponents are null are not written, and planes
// that are null neither.
struct RotTargets : Origins {
  uint8_t* hi = nullptr;
  uint8_t* lo[kWidths] = {};
  int8_t* exponents[kWidths] = {};
  int8_t* reference = nullptr;
};

// When unrolled, the codes of a row stay in registers; with four lanes there are too few registers for that.
constexpr int kUnroll = kLanes == 4 ? 1 : 16;

// Writes the planes of each width from the finest codes, of which they are the highest bits.
static void packWidths(const uint8_t* tile, size_t elements, const RotTargets& targets) {
  if (targets.hi) packPairs<2>(tile, elements, targets.hi);
  if (targets.lo[0]) packPairs<0>(tile, elements, targets.lo[0]);
  if (targets.lo[1]) packBits<1>(tile, elements, targets.lo[1]);
  if (targets.lo[3]) packBits<3>(tile, elements, targets.lo[3]);
}

// Encodes every part of a head except its reference, as if that were 0.
template <int D>
static Octaves encodeRowsOf(bool isKey, const float* x, size_t stride, int firstRow, const RotTargets& targets, Workspace space) {
  constexpr int kCount = D / kLanes;
  alignas(64) float mean[D], zero[D];
  encodeOrigins<D>(x, stride, firstRow, targets, mean, space);
  for (int c = 0; c < D; c += kLanes) store(zero + c, splat(0.0f));
  Sixteen levels[kWidths];
  for (int width = 0; width < kWidths; width++) levels[width] = levelsByCode(kWidthFormats[width]);
  float padded[16];
  for (int j = 0; j < 16; j++) padded[j] = kRotBounds[j < 15 ? j : 14];
  const Sixteen unit = loadSixteen(padded);

  VecI largest = splatI(kNoOctave), smallest = splatI(-kNoOctave);
  uint8_t* codes = space.take<uint8_t>((kPageTokens - 1) * D + wholeWords(D));
  // It takes as many rows at a time as a vector has lanes, so that quantities with one number per row fill a vector.
  for (int first = 0; first < kPageTokens; first += kLanes) {
    alignas(64) VecF y[kLanes][kCount];
    VecF v[kCount], partial[kLanes];
    for (int row = 0; row < kLanes; row++) {
      const int t = first + row;
      if (t >= firstRow) {
        rotateRow<D>(x + t * stride, isFromZero(targets.fromZero, t) ? zero : mean, y[row]);
      } else {
        for (int i = 0; i < kCount; i++) y[row][i] = splat(0.0f);
      }
#pragma GCC unroll 16
      for (int i = 0; i < kCount; i++) v[i] = y[row][i] * y[row][i];
      partial[row] = treeSum<D>(v);
    }
    const VecF yy = sumsOfLanes(partial);
    const VecF square = yy / static_cast<float>(D);
    const VecI octave = yy > splat(0.0f) ? ((bits(square) >> 23) - 127) >> 1 : largest;
    largest = octave > largest ? octave : largest;
    smallest = ((yy > splat(0.0f)) & (octave < smallest)) ? octave : smallest;
    float rms[kLanes];
    store(rms, square);
    // A zero row gets NaN bounds, which nothing is above, so its codes become 0.
    for (int row = 0; row < kLanes; row++) rms[row] = __builtin_sqrtf(rms[row]);
    store(rms, yy > splat(0.0f) ? load(rms) : splat(__builtin_nanf("")));

    VecF products[kWidths][kLanes];
    for (int row = 0; row < kLanes; row++) {
      Sixteen bounds;
      for (int i = 0; i < kParts; i++) bounds.part[i] = unit.part[i] * rms[row];
      VecI code[kCount];
#pragma GCC unroll kUnroll
      for (int i = 0; i < kCount; i++) {
        code[i] = countBelow(bounds, y[row][i]);
        storeLowBytes(codes + (first + row) * D + i * kLanes, code[i]);
      }
      for (int width = 0; width < kWidths; width++) {
        if (!targets.exponents[width]) continue;
#pragma GCC unroll kUnroll
        for (int i = 0; i < kCount; i++) v[i] = y[row][i] * lookUpFloat(levels[width], code[i]);
        products[width][row] = treeSum<D>(v);
      }
    }
    // The exponent of the unbiased scale <y,y> / <y,u>
    for (int width = 0; width < kWidths; width++) {
      if (!targets.exponents[width]) continue;
      const VecF yu = sumsOfLanes(products[width]);
      const VecI exponents = scaleExponents((yy * static_cast<float>(kDivisors[width])) / yu);
      const VecI some = (yy > splat(0.0f)) & (yu > splat(0.0f));
      storeLowBytes(targets.exponents[width] + first, some ? exponents : splatI(kZeroRow));
    }
  }

  uint8_t* tile = space.take<uint8_t>(kPageTokens * D);
  placeInTile<D>(isKey, codes, tile);
  packWidths(tile, kPageTokens * D, targets);
  Octaves octaves = {kNoOctave, -kNoOctave};
  for (int i = 0; i < kLanes; i++) {
    octaves.largest = largest[i] > octaves.largest ? largest[i] : octaves.largest;
    octaves.smallest = smallest[i] < octaves.smallest ? smallest[i] : octaves.smallest;
  }
  return octaves;
}

template <int D>
static void encodeRotOf(bool isKey, const float* x, size_t stride, int firstRow, const RotTargets& targets, Workspace space) {
  const int reference = referenceOf(encodeRowsOf<D>(isKey, x, stride, firstRow, targets, space));
  *targets.reference = static_cast<int8_t>(reference);
  if (reference == 0) return;
  float* scaled = space.take<float>(kPageTokens * D);
  const VecF unit = splat(powerOfTwo(-reference));
  for (int t = firstRow; t < kPageTokens; t++) {
    for (int c = 0; c < D; c += kLanes) store(scaled + t * D + c, load(x + t * stride + c) * unit);
  }
  encodeRowsOf<D>(isKey, scaled, D, firstRow, targets, space);
}

static __attribute__((noinline)) void encodeRotWidths(bool isKey, const float* x, size_t stride, int d, int firstRow, const RotTargets& targets, Workspace space) {
  withHeadDim(d, [&](auto dim) MEMBER { encodeRotOf<dim.value>(isKey, x, stride, firstRow, targets, space); });
}

// ---- Demotion, from codes alone.

static void demoteRot(int from, int to, bool isKey, int d, const uint8_t* hi, const uint8_t* lo, const int8_t* exponents, uint8_t* loOut,
                      int8_t* exponentsOut, Workspace space) {
  const size_t elements = static_cast<size_t>(kPageTokens) * d;
  if (to == kRot3 || to == kRot1) narrowPairs(to == kRot1 ? hi : lo, elements, loOut);
  int8_t* fine = space.take<int8_t>(elements);
  int8_t* coarse = space.take<int8_t>(elements);
  unpackRot(from, hi, lo, elements, fine);
  unpackRot(to, hi, loOut, elements, coarse);
  demoteExponents(isKey, d, fine, divisorOf(from), coarse, divisorOf(to), exponents, exponentsOut);
}
