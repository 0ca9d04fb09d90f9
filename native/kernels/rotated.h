// Rows less their origin (origins.h), rotated (rotate_rows.h), each with a scale of one byte (row_scale.h) in units of
// 2^e: how attention uses and decodes them. What their codes stand for, integers over a divisor, is up to the family.
// The arithmetic is that of native/reference/rotated.ts.
#pragma once

// The fields of such a format, in the order of rotatedParts (native/reference/rotated.ts).
enum RotatedField : int { kRotatedHigh, kRotatedLow, kRotatedExponents, kRotatedMean, kRotatedFromZero, kRotatedMeanScale, kRotatedReference };
// Whether a family has its fields there, from their numbers.
constexpr bool isRotated(int high, int low, int exponents, int mean, int fromZero, int meanScale, int reference) {
  return high == kRotatedHigh && low == kRotatedLow && exponents == kRotatedExponents && mean == kRotatedMean && fromZero == kRotatedFromZero &&
         meanScale == kRotatedMeanScale && reference == kRotatedReference;
}

INLINE void meanRow(const SideView& side, int d, float* out) {
  const float scale = halfToFloat(*side.at<uint16_t>(kRotatedMeanScale)) * powerOfTwo(*side.at<int8_t>(kRotatedReference));
  for (int c = 0; c < d; c += kLanes) store(out + c, loadSigned(side.at<int8_t>(kRotatedMean) + c) * scale);
}

// Decodes a side from the levels in `tile`, integers over `divisor`.
[[maybe_unused]] static void decodeRotated(bool isKey, int d, int firstRow, const SideView& side, const int8_t* tile, int divisor, float* x, size_t stride) {
  alignas(64) float mean[kHeadDimMax];
  const float reference = powerOfTwo(*side.at<int8_t>(kRotatedReference));
  const float scale = halfToFloat(*side.at<uint16_t>(kRotatedMeanScale)) * reference;
  for (int c = 0; c < d; c += kLanes) store(mean + c, loadSigned(side.at<int8_t>(kRotatedMean) + c) * scale);
  float factors[kPageTokens];
  for (int t = 0; t < kPageTokens; t++) factors[t] = scaleOf(side.at<int8_t>(kRotatedExponents)[t]) * reference / static_cast<float>(divisor);
  for (int t = 0; t < firstRow; t++) __builtin_memset(x + t * stride, 0, sizeof(float) * d);
  withHeadDim(d, [&](auto dim) MEMBER { decodeTurned<dim.value>(isKey, firstRow, tile, factors, mean, side.at(kRotatedFromZero), x, stride); });
}

// The same for some rows alone.
[[maybe_unused]] static void decodeRotatedRows(bool isKey, int d, const uint8_t* tokens, int count, const SideView& side, const int8_t* tile, int divisor,
                                               float* x, size_t stride) {
  alignas(64) float mean[kHeadDimMax];
  meanRow(side, d, mean);
  const float reference = powerOfTwo(*side.at<int8_t>(kRotatedReference));
  float factors[kPageTokens];
  for (int i = 0; i < count; i++) factors[i] = scaleOf(side.at<int8_t>(kRotatedExponents)[tokens[i]]) * reference / static_cast<float>(divisor);
  withHeadDim(d, [&](auto dim) MEMBER { decodeTurnedRows<dim.value>(isKey, tokens, count, tile, factors, mean, side.at(kRotatedFromZero), x, stride); });
}

// Divisor: what the integer levels of a format are over.
template <int (*Divisor)(int format)>
struct Rotated {
  static constexpr Basis kBasis = kTurned;
  static constexpr bool kMaySkip = true;

  static MEMBER void prepareKeys(const SideView& k, const PageRows& rows, int head) {
    const int d = rows.d;
    const int first = head * rows.perHead, end = first + rows.perHead;
    rowScales(k.at<int8_t>(kRotatedExponents), 0, 1.0f, rows.keyScales + head * kPageTokens);
    const float unit = unitOf(k);
    alignas(64) float mean[kContractionMax];
    meanRow(k, d, mean);
    for (int r = first; r < end; r++) rows.factor[r] = rows.integers[kTurned][r].step * unit;
    for (int r = first; r < end; r++) rows.offset[r] = dot(rows.q + static_cast<size_t>(r) * d, mean, d);
  }

  // A step is the largest scale of the page over 32512.
  static MEMBER void prepareValues(const SideView& v, const PageRows& rows, int head) {
    const int8_t* exponents = v.at<int8_t>(kRotatedExponents);
    const int most = largestExponent(exponents);
    rowScales(exponents, most, kIntegerMax, rows.valueScales + head * kPageTokens);
    rows.valueSteps[head] = scaleOf(static_cast<int8_t>(most)) / kIntegerMax * unitOf(v);
  }

  // Takes the product with the mean off the scores of rows that are coded from zero.
  static MEMBER void addToScores(const SideView& k, const PageRows& rows, int head) {
    const uint8_t* fromZero = k.at(kRotatedFromZero);
    if (!hasFromZero(fromZero)) return;
    for (int r = head * rows.perHead; r < (head + 1) * rows.perHead; r++) {
      float* score = rows.scores + static_cast<size_t>(r) * kPageTokens;
      for (int t = 0; t < kPageTokens; t += kLanes) store(score + t, load(score + t) - fromBits(bits(splat(rows.offset[r])) & lanesFromZero(fromZero, t)));
    }
  }

  // Adds the mean of the page times the mass of the rows that are coded from it.
  static MEMBER void addToMix(const SideView& v, const PageRows& rows, int head) {
    const int d = rows.d;
    const int first = head * rows.perHead, end = first + rows.perHead;
    const uint8_t* fromZero = v.at(kRotatedFromZero);
    const bool isWhole = !hasFromZero(fromZero);
    alignas(64) float mean[kContractionMax];
    meanRow(v, d, mean);
    for (int r = first; r < end; r++) {
      const float mass = isWhole ? rows.rowMass[r] : massFromMean(fromZero, rows.scores + static_cast<size_t>(r) * kPageTokens) * rows.share[r];
      axpy(mass, mean, rows.mixed + static_cast<size_t>(r) * d, d);
    }
  }

 private:
  // The sum of the probabilities of the rows that are coded from the mean.
  static MEMBER float massFromMean(const uint8_t* fromZero, const float* probability) {
    Parts sum{};
    for (int t = 0; t < kPageTokens; t += kLanes) {
      VecF& part = sum.part[t / kLanes % kParts];
      part = part + fromBits(bits(load(probability + t)) & ~lanesFromZero(fromZero, t));
    }
    return sumParts(sum);
  }

  // The value of one level in a row whose scale is 1.
  static MEMBER float unitOf(const SideView& side) { return 1.0f / static_cast<float>(Divisor(side.format)) * powerOfTwo(*side.at<int8_t>(kRotatedReference)); }
};
